# SPDX-License-Identifier: MIT
"""The command python -m hybrid.lab: a student's own kernel or program is run, on the CPU or a GPU, and judged."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybrid.commands import lab_gpus, lab_run, lab_show
from hybrid.commands.cli import run_alone
from hybrid.commands.parser import Parser, at_least, file_name
from hybrid.errors import UsageError

if TYPE_CHECKING:
    from hybrid.classroom.examination import Trials
    from hybrid.classroom.student_file import StudentFile

NAME = "hybrid.lab"
_STALL = 20  # seconds
_EXERCISE = "its name; python -m hybrid.lab exercises lists them"


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m hybrid.lab", description="Run a CUDA kernel or program of your own without a GPU, and find its errors."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    lab_run.add_to(commands, _add_launch, _add_json)
    exercises = commands.add_parser("exercises", help="list them, or show one", description="What is there to do?")
    exercises.add_argument("name", nargs="?", metavar="NAME", help="this one, with what it wants (all of them, a line each)")
    exercises.add_argument("--hint", type=at_least(0), default=0, metavar="K", help="show the first K hints")
    start = commands.add_parser("start", help="print the file to begin with", description="The file to begin an exercise with.")
    start.add_argument("name", metavar="NAME", help=_EXERCISE)
    check = commands.add_parser("check", help="does a kernel solve an exercise?", description="Is this a solution?")
    grade = commands.add_parser("grade", help="points for many files", description="Points for each file, a line each.")
    for judging, files in ((check, None), (grade, "+")):
        judging.add_argument("name", metavar="EXERCISE", help=_EXERCISE)
        judging.add_argument("files", type=file_name, nargs=files or 1, metavar="FILE", help="yours, .cu or for ranks .py")
        _add_launch(judging)
        _add_json(judging)
    grade.add_argument("--csv", type=file_name, metavar="FILE", help="write a line of points for each file")
    lab_show.add_to(commands, _add_launch)
    lab_gpus.add_to(commands)
    return parser


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options. Words after -- are arguments of the program that is run."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, for_program = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    options = build_parser().parse_args(own)
    options.arguments = for_program
    if for_program and options.command != "run":
        raise UsageError(f"{options.command} takes nothing after --", code="option-combination")
    return options


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kernel", default="", metavar="NAME", help="which kernel; of a template with its arguments (the only one)"
    )
    parser.add_argument("--grid", default="", metavar="X,Y[,Z]", help="blocks, as arithmetic of n, l, m and constants")
    parser.add_argument("--block", default="", metavar="X,Y[,Z]", help="threads of a block")
    parser.add_argument("--shared", default="", metavar="BYTES", help="dynamic shared memory (0)")
    parser.add_argument("--let", action="append", default=[], type=_let, metavar="NAME=SIZE", help="a parameter is n, l or m")
    parser.add_argument(
        "--stall", type=at_least(1), metavar="S", help="seconds after which a launch is given up (20), or a whole program (60)"
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=None, help="of the elements, and of the shapes of an exercise (grade: 0)"
    )


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=file_name, metavar="FILE", help="append the result as a JSON line; - for standard output")


def _let(text: str) -> tuple[str, str]:
    name, equals, size = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no NAME=SIZE, such as Width=n", code="number")
    return name.strip(), size.strip()


def work(options: argparse.Namespace) -> int:
    """Carry out one of the commands; returns the exit code."""
    from hybrid.runs.files import refuse_same, refuse_unwritable

    written = {f"--{name}": getattr(options, name, None) for name in ("html", "picture", "json", "csv")}
    paths = {option: path for option, path in written.items() if path and path != "-"}
    refuse_same(paths, {})
    for path in paths.values():
        refuse_unwritable(path)
    if options.command in ("run", "show", "check", "grade"):
        _warn_of_missing_bounds()
    if options.command == "run":
        return lab_run.work(options, _trials)
    if options.command == "show":
        return lab_show.work(options, _trials)
    if options.command == "gpus":
        return lab_gpus.work(options)
    from hybrid.commands import lab_exercises

    return lab_exercises.work(options, _trials)


def _warn_of_missing_bounds() -> None:
    """Say what the code that is going to run cannot be kept from on this system."""
    from hybrid.emulation import confined

    for sentence in confined.lacking():
        print(f"{NAME}: {sentence}", file=sys.stderr)


def _trials(given: StudentFile, options: argparse.Namespace, *, for_cpu: bool = True) -> Trials:
    """The trials of a kernel of this file, as the options say. UsageError where the options leave something open."""
    from hybrid.classroom.examination import Trials, chosen
    from hybrid.classroom.launch import launch_of, within_comment
    from hybrid.classroom.meaning import meaning_of

    file, kernel, instance = chosen(given, options.kernel or within_comment(given.launch_comment, "kernel"), for_cpu=for_cpu)
    meaning = meaning_of(file, kernel, dict(options.let))
    if not any(each.is_number or each.type in file.structs for each in kernel.parameters) and not getattr(options, "sizes", None):
        what = "--sizes n l m tells it" if hasattr(options, "sizes") else "a solution is tried on several: let it take n, l and m"
        raise UsageError(f"{kernel} is told no size, so it is for matrices of one shape: {what}", code="lab-parameters")
    launch = launch_of(file, kernel, meaning, {name: getattr(options, name) for name in ("grid", "block", "shared")})
    seed = options.seed if options.seed is not None else secrets.randbits(32)
    return Trials(file, kernel, instance, meaning, launch, options.stall or _STALL, seed)


def main() -> int:
    """The command's exit code."""
    return run_alone(NAME, lambda: work(parse()))
