# SPDX-License-Identifier: MIT
"""How an experiment's script is told what to do, and how it ends."""

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from experiments.common import plots, tables
from experiments.common.records import END, Line, Recorder
from experiments.common.results import Results
from hybrid.commands.parser import Parser
from hybrid.core import text
from hybrid.errors import DoesNotFit, HybridError, UsageError, code_of, one_line, with_code
from hybrid.host import files, memory
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.reporting import svg
from hybrid.reporting.progress import Progress
from hybrid.runs.files import refuse_unwritable

Item = TypeVar("Item")


def plain_parser(description: str | None) -> argparse.ArgumentParser:
    """For `command`, which says in a line what is wrong with the options, and what was meant."""
    return Parser(description=description)


def add_lines(parser: argparse.ArgumentParser) -> None:
    """--json and --from."""
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--json", metavar="FILE", help="append a line for each result")
    lines.add_argument("--from", metavar="FILE", dest="source", help="take these lines, measure nothing")


def parser_for(description: str | None) -> argparse.ArgumentParser:
    """With the options that the lectures' scripts have in common."""
    parser = plain_parser(description)
    parser.add_argument(
        "--device", choices=("auto", "cuda", "emulate"), default="auto", help="emulate: the GPU's kernels on the CPU (auto)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: under a minute without a GPU")
    parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")
    add_lines(parser)
    add_csv(parser)
    return parser


def add_csv(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", metavar="FILE.csv", help="write the numbers as a table for a spreadsheet, a row for each result")


def add_page(parser: argparse.ArgumentParser, page: str, picture: str) -> None:
    """--write: a page's tables and its picture are made of recorded lines."""
    parser.add_argument("--write", action="store_true", help=f"the tables in {page}, and {picture}")


def at_least_1(text: str, kind: type[int] | type[float] = int) -> Any:
    """An option's type."""
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not value >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a {'whole ' if kind is int else ''}number from 1 up")
    return value


def as_sizes(text: str) -> tuple[int, int, int]:
    """From 512 or 256x1024x256."""
    lengths = [int(length) if length.isdecimal() else 0 for length in text.split("x")]
    if len(lengths) not in (1, 3) or min(lengths) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither N nor NxLxM")
    n, l, m = lengths * (3 // len(lengths))
    return n, l, m


def command(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None,
    failure: int = 1,
    drawn_by_itself: str = "",
) -> int:
    """The exit code; at least `failure` for an error. What can be refused is refused before anything is measured.

    `drawn_by_itself`: the option whose picture is SVG and needs no matplotlib.
    """
    options = argparse.Namespace()
    try:
        parser.parse_args(arguments, options)
        options.words = list(sys.argv[1:] if arguments is None else arguments)
        _refuse_ranks()
        if "" in (getattr(options, name, None) for name in ("json", "source", "picture", "csv")):
            raise UsageError("the name of a file is missing")
        if getattr(options, "json", None):
            refuse_unwritable(options.json)
        if getattr(options, "picture", None):
            if drawn_by_itself and getattr(options, drawn_by_itself):
                svg.refuse(options.picture)
                refuse_unwritable(options.picture)
            else:
                plots.refuse(options.picture)
        if getattr(options, "csv", None):
            if not options.csv.endswith(".csv"):
                raise UsageError(f"{options.csv}: the name of a table must end in .csv")
            refuse_unwritable(options.csv)
        return work(options)
    except (HybridError, OSError, KeyboardInterrupt) as error:
        said, code = one_line(error), max(failure, getattr(error, "exit_code", failure))
        if not isinstance(error, OSError):
            said = with_code(said, code_of(error))
    except (LookupError, RuntimeError, TypeError, ValueError, AttributeError) as missing:  # of recorded lines
        if not getattr(options, "source", None):
            raise
        said, code = f"{options.source} lacks lines that a whole run has ({one_line(missing)})", UsageError.exit_code
    if rank_by_launcher() == 0:
        print(f"{parser.prog}: {said}", file=sys.stderr)
    return code


def _refuse_ranks() -> None:
    launch = launched()
    if launch is not None and launch.size > 1:
        raise UsageError(f"{launch.name} started this {launch.size} times, and each would do all of it: start it alone")


def present(options: argparse.Namespace, results: type[Results], measured: Callable[[argparse.Namespace], Iterable[Line]]) -> int:
    """Print, and where asked for draw, the lines of --from, or else what is measured and recorded. The exit code."""
    lines = results.recorded(options.source) if options.source else recorded(options, results, measured)
    made = results(lines)
    print(*made.printed(), sep="\n", flush=True)
    if options.picture:
        made.draw(options.picture)
    if getattr(options, "csv", None):
        _write_csv(options.csv, lines)
    return made.exit_code()


def recorded(
    options: argparse.Namespace, results: type[Results], measured: Callable[[argparse.Namespace], Iterable[Line]]
) -> list[Line]:
    """What is measured, each line recorded as soon as it is there."""
    recorder = Recorder(results.command, options.words, options.json)
    lines = [recorder.keep(line) for line in measured(options)]
    recorder.keep({"part": END})
    return lines


def write_page(made: Results, page: Path, name: str, picture: Path) -> None:
    """The tables between the markers of this name, and the picture that stands above them."""
    made.draw(str(picture))
    tables.write_between_markers(page, name, made.markdown(os.path.relpath(picture, page.parent)))


def refuse_page(page: Path, name: str) -> None:
    """UsageError, before minutes of measuring, where --write could not write."""
    plots.refuse_without_matplotlib()
    tables.refuse_without_markers(page, name)


_OF_RUN = ("command", "arguments", "run", "schema", "versions", "machine", "date")


def _write_csv(path: str, lines: Sequence[Line]) -> None:
    """A row for each line, a column for each number, with all digits; the processor and the date are the last ones."""
    rows = [
        {**dict(_cells("", {key: line[key] for key in line if key not in _OF_RUN})), "processor": line["machine"]["processor"]}
        for line in lines
    ]
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "processor"]
    with files.atomic_write(path) as beside, open(beside, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*columns, "processor", "date"], restval="", lineterminator="\n")
        table.writeheader()
        table.writerows({**row, "date": line["date"]} for row, line in zip(rows, lines, strict=True))


def _cells(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A cell, or of a dictionary or a list one for each of its values."""
    if isinstance(value, (dict, list, tuple)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value, 1):
            yield from _cells(f"{name} {key}".strip(), inner)
    elif value is not None:
        yield name, value


def shown(items: Sequence[Item], title: str) -> Iterator[Item]:
    """How far they are is told in a line that goes away on a terminal, and elsewhere in a line now and then."""
    with Progress() as progress:
        for done, item in enumerate(items):
            progress(title, done, len(items))
            yield item


def refuse_too_large(n: int, l: int, m: int, item: int = 4) -> None:
    """DoesNotFit where the host cannot hold its own copies of the matrices."""
    needed, free = item * (n * l + l * m + n * m), memory.available_host_bytes()
    if needed > free:
        raise DoesNotFit(f"A, B and C take {text.readable(needed)} of the host's memory, which has {text.readable(free)}")
