# SPDX-License-Identifier: MIT
"""python -m hybrid.lab show: a kernel's small product, step by step, in words or as a page with buttons."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybrid.commands.lab_cuda import refuse_impossible
from hybrid.commands.parser import at_least, file_name
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.classroom.examination import Trials
    from hybrid.classroom.steps import Picture
    from hybrid.classroom.student_file import StudentFile

TrialsOf = Callable[["StudentFile", argparse.Namespace], "Trials"]
_WIDTH = 4
_LECTURES = ("element", "tiled")

_MORE = """\
NAME is a kernel of the lectures: element (each thread computes an element of P from global memory) or tiled (through tiles in
shared memory). A file of your own is taken as `run` takes it. Its accesses are traced on the CPU, so the picture shows what the
kernel does, and not what it should do.

examples:
  python -m hybrid.lab show tiled --width 4 --tile 2
  python -m hybrid.lab show element --html steps.html
  python -m hybrid.lab show mine.cu --sizes 4 6 8 --tile 2 --html steps.html
"""


def add_to(commands: Any, add_launch: Callable[[argparse.ArgumentParser], None]) -> None:
    """The command's own parser."""
    parser = commands.add_parser(
        "show", help="which thread loads what, step by step", description="Which thread loads and stores what?", epilog=_MORE
    )
    parser.add_argument("file", type=file_name, metavar="NAME|FILE.cu", help="a kernel of the lectures, or a file of your own")
    add_launch(parser)
    parser.add_argument("--width", type=at_least(1), default=_WIDTH, metavar="W", help=f"of square matrices ({_WIDTH})")
    parser.add_argument("--sizes", nargs=3, type=at_least(1), metavar=("n", "l", "m"), help="of matrices that are not square")
    parser.add_argument("--tile", type=at_least(1), metavar="T", help="another width of the tiles than the file's (lectures: 2)")
    parser.add_argument("--of", type=_pair, default=(0, 0), metavar="X,Y", help="the block that is told in words (0,0)")
    parser.add_argument("--picture", type=file_name, metavar="FILE.svg", help="draw that block's steps, up to 12")
    parser.add_argument("--html", type=file_name, metavar="FILE", help="write a page with buttons that shows every block")


def _pair(text: str) -> tuple[int, int]:
    x, comma, y = text.partition(",")
    if not comma:
        raise UsageError(f"{text!r} is no X,Y", code="number")
    return at_least(0)(x.strip()), at_least(0)(y.strip())


def work(options: argparse.Namespace, trials_of: TrialsOf) -> int:
    """Show the steps; returns the exit code. `trials_of`: the trials of a file's kernel."""
    from hybrid.classroom.blackboard import told
    from hybrid.classroom.steps_shown import steps_of
    from hybrid.reporting import html_page, steps_page, steps_picture, svg
    from hybrid.reporting.progress import Progress

    if options.picture:
        svg.refuse(options.picture)
    with Progress(part=lambda: f"trace {options.file}"):
        shown = _picture(options, trials_of)
    if options.of not in shown.steps:
        raise UsageError(
            f"--of {options.of[0]},{options.of[1]}: the grid has {shown.grid[0]}×{shown.grid[1]} blocks", code="number"
        )
    lines = list(told(shown, options.of))
    print("\n".join(lines))
    if options.picture:
        title = lines[0].replace(shown.kernel, shown.kernel.partition("(")[0])
        steps_picture.write(options.picture, title, steps_of(shown).data, f"{options.of[0]},{options.of[1]}")
    if options.html:
        html_page.write(options.html, steps_page.page(shown.kernel.partition("(")[0], steps_of(shown)))
    return 0


def _picture(options: argparse.Namespace, trials_of: TrialsOf) -> Picture:
    from hybrid.classroom.steps import picture, with_tile
    from hybrid.classroom.student_file import parsed, texts_of
    from hybrid.commands.lectures import example_or_file

    path, tile = example_or_file(options.file), options.tile
    if options.file in _LECTURES:
        tile = tile or 2
    texts = texts_of(str(path))
    trials = trials_of(parsed(with_tile(texts, tile) if tile else texts), options)
    sizes = tuple(options.sizes) if options.sizes else trials.meaning.on((options.width,) * 3)
    refuse_impossible(trials, sizes)
    return picture(trials, sizes)
