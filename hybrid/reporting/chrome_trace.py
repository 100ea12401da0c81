# SPDX-License-Identifier: MIT
"""Intervals as Chrome trace events, which Perfetto shows: a process for each rank, one or more rows for each phase."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hybrid.core.timeline import PHASES, Interval
from hybrid.host.files import atomic_write

_MOST_LANES = 1000  # rows of one phase


def write_trace(path: str, intervals_of_ranks: Sequence[Sequence[Interval]], names: Sequence[str]) -> None:
    """Write all ranks' intervals to a file.

    `intervals_of_ranks[rank]`: in seconds from a moment that is the same for all ranks. `names[rank]`: what is shown as the
    rank's name.
    """
    events: list[dict[str, Any]] = []
    for rank, (intervals, name) in enumerate(zip(intervals_of_ranks, names, strict=True)):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        free: dict[str, list[float]] = {phase: [0.0] for phase in PHASES}  # for each lane of a phase, when its last interval ends
        for interval in sorted(intervals, key=lambda interval: interval.begin):
            if interval.phase not in PHASES:
                continue
            lanes = free[interval.phase]
            lane = next((lane for lane, at in enumerate(lanes) if at <= interval.begin), len(lanes))
            lanes[lane:] = [interval.end, *lanes[lane + 1 :]]
            events.append(
                {
                    "ph": "X",
                    "name": interval.phase,
                    "cat": "hybrid",
                    "pid": rank,
                    "tid": _row(interval.phase, lane),
                    "ts": interval.begin * 1e6,
                    "dur": (interval.end - interval.begin) * 1e6,
                    "args": {"repeat": interval.repeat},
                }
            )
        for phase, lanes in free.items():
            for lane in range(len(lanes)):
                events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": _row(phase, lane), "args": {"name": phase}})
    with atomic_write(path) as beside:
        beside.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _row(phase: str, lane: int) -> int:
    """The row of an interval. Intervals of a phase that overlap are in different lanes: on the same row a viewer would show them
    as nested calls."""
    return PHASES.index(phase) * _MOST_LANES + lane
