# SPDX-License-Identifier: MIT
"""Recorded lines, the same for all experiments, their tables and Markdown, and the base of each experiment's `Results`.

`command` names the script that wrote a line, `arguments` what it was told, `run` the start that the line belongs to; schema,
date, versions and machine are those of hybrid.reporting.jsonl. The other keys are the experiment's own.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, ClassVar

from hybrid.core.text import aligned
from hybrid.core.timeline import Spread
from hybrid.errors import UsageError
from hybrid.reporting import jsonl

Line = dict[str, Any]
END = "end"  # the part of a run's last line: all that was asked for has been measured

OURS = re.compile(r"(?!hybrid: [^…]*… )hybrid(\.\w+)?: ")  # the others are progress
_ERROR = re.compile(r"hybrid\.|[\w.]*(Error|Exception)\b")


class Recorder:
    """The lines of one run. Each is recorded as it comes: what a run that is cut short has measured stays."""

    def __init__(self, command: str, arguments: Sequence[str], path: str | None) -> None:
        self.lines: list[Line] = []
        self._path = path
        run = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        self._about = {"command": command, "arguments": list(arguments), "run": run}

    def keep(self, line: Mapping[str, Any]) -> Line:
        """The whole line."""
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        whole = {**self._about, "date": date, **line}
        if self._path:
            jsonl.write(whole, self._path)
        self.lines.append({**whole, "versions": jsonl.versions(), "machine": jsonl.machine()})
        return self.lines[-1]


# --- times and numbers


def spread(times: Sequence[float]) -> dict[str, float]:
    """Median, min and max."""
    return dict(vars(Spread.of(times)))


def seconds_of(work: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


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


# --- tables


@dataclass(frozen=True)
class Table:
    """Rows of as many cells as there are heads. `sides`: a letter for each column, l or r, where its text stands."""

    heads: Sequence[str]
    sides: str
    rows: Sequence[Sequence[str]]
    title: str = ""

    def __post_init__(self) -> None:
        assert self.rows, f"a table without rows: {self.title}"
        assert {len(row) for row in (self.heads, self.sides, *self.rows)} == {len(self.heads)}, self.title


@dataclass(frozen=True)
class Remarks:
    """Sentences that belong together."""

    lines: Sequence[str]
    title: str = ""


Block = Table | Remarks


def printed(blocks: Iterable[Block]) -> Iterator[str]:
    """For a terminal: aligned columns, an empty line between blocks."""
    for index, block in enumerate(blocks):
        if index:
            yield ""
        if block.title:
            yield block.title
        indent = "  " if block.title else ""
        if isinstance(block, Table):
            lines = aligned([block.heads, *block.rows] if any(block.heads) else block.rows, block.sides)
        else:
            lines = iter(block.lines)
        for line in lines:
            yield indent + line


def markdown(block: Block) -> str:
    """Ends with the end of a line."""
    if isinstance(block, Remarks):
        return "\n".join(f"{line}\n" for line in (*filter(None, [block.title]), *block.lines))
    heading = f"{block.title}:\n\n" if block.title else ""
    rows = [block.heads, ["---:" if side == "r" else "---" for side in block.sides], *block.rows]
    return heading + "".join(f"| {' | '.join(row)} |\n" for row in rows)


class Results:
    """The lines to be shown, the last of them measured last. Subclasses say them as tables, and may draw them."""

    command: ClassVar[str]  # what its lines have as `command`
    again: ClassVar[str]  # what starts it
    draw: Callable[[str], None] | None = None  # a picture in a file; UsageError where nothing was measured that it shows

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    @classmethod
    def selected(cls, lines: Sequence[Line]) -> list[Line]:
        """Of the script's lines those of the last run that came to its end; empty where none did."""
        ended = [line.get("run") for line in lines if line.get("part") == END]
        return [line for line in lines if ended and line.get("run") == ended[-1] and line.get("part") != END]

    @classmethod
    def recorded(cls, path: str) -> list[Line]:
        """The selected lines of a file. UsageError when there is none."""
        lines = [line for line in jsonl.read(path) if line.get("command") == cls.command]
        if not lines:
            raise UsageError(f"{path} has no lines of {cls.again}")
        if not (selected := cls.selected(lines)):
            raise UsageError(f"{path} has no run of {cls.again} that came to its end")
        return selected

    def blocks(self) -> Iterator[Block]:
        """Its tables and remarks."""
        raise NotImplementedError

    def exit_code(self) -> int:
        """Of the script, where nothing failed."""
        return 0

    @property
    def of_gpu(self) -> bool:
        """Else times say nothing of a GPU."""
        return self.lines[-1]["device"] == "cuda"

    @staticmethod
    def machine_of(line: Line) -> str:
        """The processor too: some times are its own, and those of whole programs depend on it."""
        processor = f"{line['machine']['processor']}, {line['machine']['cores']} cores"
        if line.get("gpu"):
            return f"{line['gpu']}, {processor}"
        return f"{processor}, no GPU" if "gpu" in line else processor

    def machine(self) -> str:
        return self.machine_of(self.lines[-1])

    def caption(self) -> str:
        """Machine and dates."""
        return "; ".join([self.machine(), ", ".join(dict.fromkeys(line["date"][:10] for line in self.lines))])

    @classmethod
    def started_by(cls, line: Line) -> str:
        """The command that gives such lines again."""
        return shlex.join([*cls.again.split(), *line["arguments"]])

    def started(self) -> list[str]:
        return list(dict.fromkeys(map(self.started_by, self.lines)))

    def markdown(self) -> str:
        """The tables, and where the numbers come from, with the commands of the runs."""
        runs = dict.fromkeys((line["date"][:10], self.started_by(line)) for line in self.lines if line.get("seconds"))
        origin = "; ".join(f"{date}, `{command}`" for date, command in runs)
        return "\n".join([*map(markdown, self.blocks()), f"Measured on {self.machine()}; {origin}"])


class MachineResults(Results):
    """Of lines that runs add to, one after the other: all that were measured on the machine of the last one."""

    @classmethod
    def selected(cls, lines: Sequence[Line]) -> list[Line]:
        measured = [line for line in lines if line.get("part") != END]
        return [line for line in measured if cls.machine_of(line) == cls.machine_of(measured[-1])]
