# SPDX-License-Identifier: MIT
"""Recorded lines: one model for all experiments, the one that `hybrid`'s own commands write.

`command` names the script that wrote a line, `arguments` what it was told, `run` the start that the line belongs to; schema,
date, versions and machine are those of hybrid.reporting.jsonl. The other keys are the experiment's own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hybrid.core.timeline import Spread
from hybrid.errors import HybridError
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

OURS = re.compile(r"hybrid(\.\w+)?: (?!\w+( of product \d+)? …)")  # the others are progress
_ERROR = re.compile(r"hybrid\.|[\w.]*(Error|Exception)\b")


def number(value: float) -> str:
    """40,505 or 24.34."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def duration(seconds: float) -> str:
    """1.234 ms, 12.34 s, 1.5 h."""
    for least, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= least:
            return f"{seconds / least:.4g} {unit}"
    return f"{seconds * 1e6:.4g} µs"


def told_error(*streams: str) -> str:
    """Of what a program that failed has printed, beside its launcher: all lines of ours, else the last that tells an error,
    of the first stream that has any lines; else its last line."""
    for text in streams:
        lines = [line.strip() for line in text.replace("\0", "").strip().splitlines()]
        ours = [line for line in lines if OURS.match(line)]
        errors = [line for line in lines if _ERROR.match(line)]
        if lines:
            return "; ".join(ours) if ours else (errors or lines)[-1]
    return "no message"


def matmul(ranks: int, n: int, *options: str, watch: Callable[[int], None] = lambda process: None) -> Line:
    """What `mpirun -n RANKS python -m hybrid.matmul n n n` records. `watch` is told the launcher's process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        words = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3, *options, "--json", str(path)]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True) as job:
            watch(job.pid)
            output, errors = job.communicate()
        if job.returncode:
            raise HybridError(f"{ranks} ranks failed: {told_error(errors, output)}")
        (line,) = jsonl.read(str(path))
        return line


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
