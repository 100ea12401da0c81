# SPDX-License-Identifier: MIT
"""The frame of all experiments: options, recorded lines, their tables as text or Markdown, and exit codes.

An experiment is a class that measures lines and makes tables of them. A recorded line names its script (`command`), the script's
`arguments` and start (`run`); schema, date, versions and machine are those of hybrid.reporting.jsonl. The other keys are the
experiment's own.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hybrid.commands.cli import print_error, run_alone
from hybrid.commands.parser import Parser, add_settings, at_least, file_name, svg_file
from hybrid.core import text
from hybrid.core.timeline import Spread
from hybrid.errors import DeviceUnavailable, DoesNotFit, UsageError
from hybrid.host import files, memory
from hybrid.reporting import jsonl
from hybrid.reporting.progress import Progress

Item = TypeVar("Item")
Options = argparse.Namespace
Option = str | tuple[tuple[str, ...], dict[str, Any]]  # the name of a setting, or as `add_argument` takes it
Line = dict[str, Any]
END = "end"  # `part` of a complete run's last line
OURS = re.compile(r"(?!hybrid: [^…]*… )hybrid(\.\w+)?: ")  # a message of ours, and no progress
_ERROR = re.compile(r"hybrid\.|[\w.]*(Error|Exception)\b")


def option(*names: str, **how: Any) -> Option:
    return names, how


positive = at_least(1)
LECTURE = (  # options of the lectures' experiments
    option("--device", choices=("auto", "cuda", "emulate"), default="auto", help="emulate: the GPU's kernels on the CPU (auto)"),
    option("--quick", action="store_true", help="small sizes: under a minute without a GPU"),
)


def sizes(words: str) -> tuple[int, int, int]:
    lengths = [int(length) if length.isdecimal() else 0 for length in words.split("x")]
    if len(lengths) not in (1, 3) or min(lengths) < 1:
        raise argparse.ArgumentTypeError(f"{words} is neither N nor NxLxM")
    n, l, m = lengths * (3 // len(lengths))
    return n, l, m


def parser_of(description: str | None, *options: Option) -> Parser:
    parser = Parser(description=description)
    for each in options:
        if isinstance(each, str):
            add_settings(parser, each)
        else:
            parser.add_argument(*each[0], **each[1])
    return parser


def command(parser: Parser, work: Callable[[Options], int]) -> int:
    """Read the options and do the work; returns the exit code. Refuses wrong file names before anything is measured."""

    def checked_work() -> int:
        options = parser.parse_args()
        for path in filter(None, (getattr(options, "json", None), getattr(options, "picture", None))):
            files.refuse_unwritable(path)
        try:
            return work(options)
        except DeviceUnavailable as missing:
            print_error(parser.prog, missing)
            return 2

    return run_alone(parser.prog, checked_work)


def shown(items: Sequence[Item], title: str) -> Iterator[Item]:
    """The items, with progress shown."""
    with Progress() as progress:
        for done, item in enumerate(items):
            progress(title, done, len(items))
            yield item


def refuse_too_large(n: int, l: int, m: int, item: int = 4) -> None:
    """DoesNotFit if the host cannot hold its copies of the matrices."""
    needed, free = item * (n * l + l * m + n * m), memory.available_host_bytes()
    if needed > free:
        raise DoesNotFit(f"A, B and C take {text.readable(needed)} of the host's memory, which has {text.readable(free)}")


def ended(words: Sequence[str], limit: float | None = None, **how: Any) -> tuple[int | None, str, str]:
    """Run a program: its exit code (None if it had not ended after `limit` seconds), standard output and standard error. Its
    whole process group is killed at the end."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, **how)
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
        finally:
            for signum in (signal.SIGTERM, signal.SIGKILL) if process.poll() is None else (signal.SIGKILL,):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signum)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5.0)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def ran(words: Sequence[str], limit: float | None = None) -> tuple[list[Line], str]:
    """Run a program with --json FILE for at most `limit` seconds: the lines that it has recorded, however it ends, and why it
    failed ("" if it did not)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lines.jsonl")
        code, out, err = ended([*words, "--json", str(path)], limit)
        failure = f"not done within {limit:g} s" if code is None else f"{told_error(err, out)} (exit code {code})" if code else ""
        return (list(jsonl.read(str(path))) if path.exists() else []), failure


def told_error(*streams: str) -> str:
    """The error in the output of a failed program and its launcher, from the first stream that is not empty: all messages of
    ours, else the last line with an error, else the last line."""
    for stream in streams:
        lines = [line.strip() for line in stream.replace("\0", "").strip().splitlines()]
        ours = [line for line in lines if OURS.match(line)]
        errors = [line for line in lines if _ERROR.match(line)]
        if lines:
            return "; ".join(ours) if ours else (errors or lines)[-1]
    return "no message"


def spread(times: Sequence[float]) -> dict[str, float]:
    return dict(vars(Spread.of(times)))


def seconds_of(work: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def seconds_of_all(comm: Any, work: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> float:
    """The seconds from when all ranks begin the work until all have finished; `finish` waits for a rank's device."""
    comm.Barrier()
    began = time.perf_counter()
    work()
    finish()
    comm.Barrier()
    return time.perf_counter() - began


def in_turns(works: Mapping[str, Callable[[], float]], rounds: int, title: str = "") -> dict[str, list[float]]:
    """The seconds that each work returns, round by round in changing order."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in shown(range(rounds), title) if title else range(rounds):
        start = number // 2 % len(works)
        names = [*works][start:] + [*works][:start]
        for name in names[::-1] if number % 2 else names:
            times[name].append(works[name]())
    return times


def number(value: float) -> str:
    """1405, 24.3 or 2.43."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def duration(seconds: float) -> str:
    """1.234 ms, 12.34 s, 1.5 h."""
    for least, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= least:
            return f"{seconds / least:.4g} {unit}"
    return f"{seconds * 1e6:.4g} µs"


@dataclass(frozen=True)
class Table:
    """A table. `sides`: l or r for each column."""

    heads: Sequence[str]
    sides: str
    rows: Sequence[Sequence[str]]
    title: str = ""

    def markdown(self) -> str:
        if not any(self.heads):
            return "\n".join(f"{line}\n" for line in ([self.title] if self.title else []) + [" ".join(row) for row in self.rows])
        rows = [self.heads, ["---:" if side == "r" else "---" for side in self.sides], *self.rows]
        return (f"{self.title}:\n\n" if self.title else "") + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def remarks(lines: Sequence[str], title: str = "") -> Table:
    return Table([""], "l", [[line] for line in lines], title)


def printed(tables: Iterable[Table]) -> Iterator[str]:
    """For a terminal: aligned columns, an empty line between tables."""
    for index, table in enumerate(tables):
        if index:
            yield ""
        if table.title:
            yield table.title
        lines = text.aligned([table.heads, *table.rows] if any(table.heads) else table.rows, table.sides)
        yield from (f"{'  ' if table.title else ''}{line}" for line in lines)


def show(table: Table) -> None:
    print(*printed([table]), sep="\n", flush=True)


class Experiment(ABC):
    """Measures lines, and makes tables of those to show, the last measured one last. The docstring is the text of --help."""

    command: ClassVar[str]  # `command` of its lines
    again: ClassVar[str]  # the command line that starts it
    options: ClassVar[Sequence[Option]] = ()
    draw: Callable[[str], None] | None = None  # writes a picture to a file; UsageError if no line shows in it

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    @classmethod
    @abstractmethod
    def measured(cls, options: Options) -> Iterable[Line]: ...

    @abstractmethod
    def blocks(self) -> Iterator[Table]: ...

    def exit_code(self) -> int:
        return 0

    @classmethod
    def main(cls) -> int:
        parser = parser_of(inspect.getdoc(cls), *cls.options)
        lines = parser.add_mutually_exclusive_group()
        lines.add_argument("--json", type=file_name, metavar="FILE", help="append a line for each result")
        lines.add_argument("--from", metavar="FILE", dest="source", help="show recorded lines, measure nothing")
        parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown, with their commands")
        if cls.draw:
            parser.add_argument("--picture", type=svg_file, metavar="FILE.svg", help="draw the results")
        return command(parser, cls.work)

    @classmethod
    def work(cls, options: Options) -> int:
        """Print, and if asked for draw, the recorded lines or those of a new measurement; returns the exit code. Each line is
        recorded at once, so that an interrupted run keeps its results."""
        if options.source:
            lines = cls.recorded(options)
        else:
            lines, now = [], datetime.now(timezone.utc)
            about = {"command": cls.command, "arguments": sys.argv[1:], "run": now.isoformat(timespec="microseconds")}
            for line in cls.measured(options):
                date = datetime.now(timezone.utc).isoformat(timespec="seconds")
                lines.append({**about, "date": date, **line, "versions": jsonl.versions(), "machine": jsonl.machine()})
                if options.json:
                    jsonl.write(lines[-1], options.json)
            if options.json:
                jsonl.write({**about, "part": END}, options.json)
        made = cls(lines)
        caption = f"{made.machine()}; {', '.join(dict.fromkeys(line['date'][:10] for line in made.lines))}"
        print(*([made.markdown()] if options.markdown else [caption, *printed(made.blocks())]), sep="\n", flush=True)
        if made.draw and options.picture:
            made.draw(options.picture)
        return made.exit_code()

    @classmethod
    def recorded(cls, options: Options) -> list[Line]:
        """The lines of --from to show. UsageError if there are none."""
        if not (lines := [line for line in jsonl.read(options.source) if line.get("command") == cls.command]):
            raise UsageError(f"{options.source} has no lines of {cls.again}")
        if not (selected := cls.selected(lines)):
            raise UsageError(f"{options.source} has no run of {cls.again} that came to its end")
        return selected

    @classmethod
    def selected(cls, lines: Sequence[Line]) -> list[Line]:
        """The lines of the last complete run; none without one."""
        ended = [line.get("run") for line in lines if line.get("part") == END]
        return [line for line in lines if ended and line.get("run") == ended[-1] and line.get("part") != END]

    @property
    def of_gpu(self) -> bool:
        """Whether the times are a GPU's."""
        return bool(self.lines[-1]["device"] == "cuda")

    @staticmethod
    def machine_of(line: Line) -> str:
        """GPU and processor: some times are the processor's, and those of whole programs depend on it."""
        processor = f"{line['machine']['processor']}, {line['machine']['cores']} cores"
        if line.get("gpu"):
            return f"{line['gpu']}, {processor}"
        return f"{processor}, no GPU" if "gpu" in line else processor

    def machine(self) -> str:
        return self.machine_of(self.lines[-1])

    def markdown(self) -> str:
        """The tables, then the machine, dates and commands of the runs."""
        timed = [line for line in self.lines if line.get("seconds")]
        runs = dict.fromkeys((line["date"][:10], shlex.join([*self.again.split(), *line["arguments"]])) for line in timed)
        origin = "; ".join(f"{date}, `{words}`" for date, words in runs)
        return "\n".join([*(table.markdown() for table in self.blocks()), f"Measured on {self.machine()}; {origin}"])


class MachineExperiment(Experiment):
    """One whose runs add to each other: shows all lines measured on the machine of the last line."""

    @classmethod
    def selected(cls, lines: Sequence[Line]) -> list[Line]:
        measured = [line for line in lines if line.get("part") != END]
        return [line for line in measured if cls.machine_of(line) == cls.machine_of(measured[-1])]
