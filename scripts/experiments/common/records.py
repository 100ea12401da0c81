# SPDX-License-Identifier: MIT
"""Recorded lines: one model for all experiments, the one that `hybrid`'s own commands write.

`command` names the script that wrote a line, `arguments` what it was told, `run` the start that the line belongs to; schema,
date, versions and machine are those of hybrid.reporting.jsonl. The other keys are the experiment's own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from hybrid.core.timeline import Spread
from hybrid.reporting import jsonl

Line = dict[str, Any]

END = "end"  # the part of a run's last line: all that was asked for has been measured


class Recorder:
    """The lines of one run. Each is recorded as it comes: what a run that is cut short has measured stays."""

    def __init__(self, command: str, arguments: Sequence[str], path: str | None) -> None:
        self.lines: list[Line] = []
        self._path = path
        self._about = {
            "command": command,
            "arguments": list(arguments),
            "run": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        }

    def keep(self, line: Mapping[str, Any]) -> Line:
        """The whole line."""
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        whole = {**self._about, "date": date, **line}
        if self._path:
            jsonl.write(whole, self._path)
        self.lines.append({**whole, "versions": jsonl.versions(), "machine": jsonl.machine()})
        return self.lines[-1]


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median, min and max."""
    return dict(vars(Spread.of(times)))


def seconds_of(work: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def in_turns(ways: Mapping[str, Callable[[], Any]], rounds: int, calls: int = 1) -> dict[str, list[float]]:
    """The seconds of each: in a round each is called so many times, of which the last is timed; each begins with another one."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        in_turn = list(ways.items())
        for name, way in in_turn[number % len(ways) :] + in_turn[: number % len(ways)]:
            for _ in range(calls - 1):
                way()
            times[name].append(seconds_of(way))
    return times
