"""Intervals as Chrome trace events: a process for each rank, a row for each phase. Opens in Perfetto."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hybrid.files import appearing
from hybrid.timeline import PHASES, Interval


def write_trace(path: str, intervals_of_ranks: Sequence[Sequence[Interval]], names: Sequence[str]) -> None:
    """`intervals_of_ranks[rank]` in seconds from a moment all ranks share, `names[rank]` to call the rank by."""
    events: list[dict[str, Any]] = []
    for rank, (intervals, name) in enumerate(zip(intervals_of_ranks, names, strict=True)):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        for row, phase in enumerate(PHASES):
            events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": row, "args": {"name": phase}})
        for interval in intervals:
            if interval.phase not in PHASES:
                continue
            events.append(
                {
                    "ph": "X",
                    "name": interval.phase,
                    "cat": "hybrid",
                    "pid": rank,
                    "tid": PHASES.index(interval.phase),
                    "ts": interval.begin * 1e6,
                    "dur": (interval.end - interval.begin) * 1e6,
                    "args": {"repeat": interval.repeat},
                }
            )
    with appearing(path) as beside:
        beside.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
