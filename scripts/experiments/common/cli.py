# SPDX-License-Identifier: MIT
"""How an experiment's script is told what to do, what it does with its lines, and how it ends."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from experiments.common import plots
from experiments.common.results import END, Line, Recorder, Results, printed
from hybrid.commands.parser import Parser
from hybrid.core import text
from hybrid.errors import DoesNotFit, HybridError, UsageError, code_of, one_line, with_code
from hybrid.host import memory
from hybrid.host.files import refuse_unwritable
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.reporting import svg
from hybrid.reporting.progress import Progress

Item = TypeVar("Item")
Options = argparse.Namespace


def plain_parser(description: str | None) -> Parser:
    """For `command`, which says in a line what is wrong with the options, and what was meant."""
    return Parser(description=description)


def parser_for(description: str | None) -> Parser:
    """With the options that the lectures' scripts have in common."""
    parser = plain_parser(description)
    parser.add_argument(
        "--device", choices=("auto", "cuda", "emulate"), default="auto", help="emulate: the GPU's kernels on the CPU (auto)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: under a minute without a GPU")
    return parser


def at_least_1(text: str) -> int:
    """An option's type."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return int(text)


def as_sizes(text: str) -> tuple[int, int, int]:
    """From 512 or 256x1024x256."""
    lengths = [int(length) if length.isdecimal() else 0 for length in text.split("x")]
    if len(lengths) not in (1, 3) or min(lengths) < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither N nor NxLxM")
    n, l, m = lengths * (3 // len(lengths))
    return n, l, m


def command(
    parser: argparse.ArgumentParser, work: Callable[[Options], int], arguments: Sequence[str] | None = None, failure: int = 1
) -> int:
    """The exit code; at least `failure` for an error. What can be refused is refused before anything is measured."""
    options = argparse.Namespace()
    try:
        parser.parse_args(arguments, options)
        options.words = list(sys.argv[1:] if arguments is None else arguments)
        launch = launched()
        if launch is not None and launch.size > 1:
            raise UsageError(f"{launch.name} started this {launch.size} times, and each would do all of it: start it alone")
        if "" in (getattr(options, name, None) for name in ("json", "source", "picture")):
            raise UsageError("the name of a file is missing")
        if getattr(options, "json", None):
            refuse_unwritable(options.json)
        if getattr(options, "picture", None):
            (svg if hasattr(options, "launch") else plots).refuse(options.picture)
            refuse_unwritable(options.picture)
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


def add_lines(parser: argparse.ArgumentParser, results: type[Results]) -> None:
    """The options of what is measured, or recorded, and shown."""
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--json", metavar="FILE", help="append a line for each result")
    lines.add_argument("--from", metavar="FILE", dest="source", help="take these lines, measure nothing")
    parser.add_argument("--markdown", action="store_true", help="print the tables as pages have them, with their commands")
    if results.draw:
        parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")


def present(options: Options, results: type[Results], measured: Callable[[Options], Iterable[Line]]) -> int:
    """Print, and where asked for draw, the lines of --from, or else what is measured, each recorded as soon as it is there. The
    exit code."""
    if options.source:
        lines = results.recorded(options.source)
    else:
        recorder = Recorder(results.command, options.words, options.json)
        lines = [recorder.keep(line) for line in measured(options)]
        recorder.keep({"part": END})
    return show(options, results(lines))


def show(options: Options, made: Results) -> int:
    """The exit code."""
    text = [made.markdown()] if options.markdown else [made.caption(), *printed(made.blocks())]
    print(*text, sep="\n", flush=True)
    if made.draw and options.picture:
        made.draw(options.picture)
    return made.exit_code()


def experiment(
    parser: argparse.ArgumentParser,
    results: type[Results],
    measured: Callable[[Options], Iterable[Line]],
    arguments: Sequence[str] | None = None,
    failure: int = 1,
) -> int:
    """A whole script that measures, records and shows. The exit code."""
    add_lines(parser, results)
    return command(parser, lambda options: present(options, results, measured), arguments, failure)


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
