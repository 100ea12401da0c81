# SPDX-License-Identifier: MIT
"""The command python -m hybrid.lab: a student's own kernel or program is run, on the CPU or a GPU, and judged."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from hybrid.commands.cli import run_alone
from hybrid.commands.parser import Parser, at_least, file_name, svg_file
from hybrid.errors import UsageError

NAME = "hybrid.lab"
_MOST_ON_GPU = 8192  # of a size
_EXERCISE = "its name; python -m hybrid.lab exercises lists them"

_MORE_RUN = """\
The kernel multiplies A (n×l) by B (l×m) into C (n×m), in float, double, half or int. It takes three pointers, or structs with
width, height and elements, called A, B, C or M, N, P; otherwise A comes before B, and C is the written one. Sizes may have any
usual name: Width alone for square matrices, n l m, BLAS's m n k, wA, numBRows and the like. BLAS's alpha and beta are allowed.

A kernel that multiplies no matrices but takes arrays, one or two sizes and numbers, as vectorAdd(a, b, c, n), is checked for
races, bounds and values. Its result is compared if its name says what it computes, as add, saxpy, sum, dot, transpose or
histogram.

A file with main() and launches runs as a whole program on the CPU runtime, with the arguments after --, unless an option about
a kernel is given. After its output come the errors of its kernels and of its memory use, each with its line, and the first
CUDA call that failed. --kernel NAME leaves out the host code and judges that kernel as any other.

A line of the file may give the launch: // lab: grid((m + 15) / 16, (n + 15) / 16) block(16, 16) shared(0)
in the order x, y, z as in dim3, with the kernel's own sizes or n, l and m, and the file's constants. Otherwise the launch is
guessed and printed. kernel(NAME) in that line chooses the kernel, as kernel(tiled<float, 16>), unless --kernel does.

With --device cuda NVRTC compiles the kernel, and this machine's GPU runs it: C is compared, and its launches are timed. Races
and accesses out of bounds, which only the emulated GPU detects, are not found then.

examples:
  python -m hybrid.lab run mine.cu
  python -m hybrid.lab run program.cu -- 10 15 8
  python -m hybrid.lab run mine.cu --kernel MatMulKernel --sizes 40 50 60
  python -m hybrid.lab run mine.cu --gpu K40c
  python -m hybrid.lab run mine.cu --device cuda --sizes 2048 2048 2048
  python -m hybrid.lab run mine.cu --kernel 'tiled<16>' --block 16,16 --let rowsOfA=n --json -

exit codes: 0 the kernel is right, or the program ends with 0 and no error was found; 1 it is wrong, or a failure; 2 wrong usage
"""

_MORE_SHOW = """\
NAME is a kernel of the lectures: element (each thread computes an element of P from global memory) or tiled (through tiles in
shared memory). A file of your own works as with `run`. Accesses are traced on the CPU, so the picture shows what the kernel does,
not what it should do.

examples:
  python -m hybrid.lab show tiled --width 4 --tile 2
  python -m hybrid.lab show element --html steps.html
  python -m hybrid.lab show mine.cu --sizes 4 6 8 --tile 2 --html steps.html
"""


def build_parser() -> Parser:
    summary = "Run a CUDA kernel or program of your own without a GPU, and find its errors."
    parser = Parser(prog="python -m hybrid.lab", description=summary)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, description: str, epilog: str | None = None) -> Callable[..., object]:
        return commands.add_parser(name, help=help, description=description, epilog=epilog).add_argument

    run = command("run", "is a kernel, or a whole program, right?", "Is this kernel, or this program, right?", _MORE_RUN)
    run("file", type=file_name, metavar="FILE.cu", help="or element, tiled or multiply, the lectures' own")
    _add_launch(run)
    shape, n_l_m = at_least(1, _MOST_ON_GPU), ("n", "l", "m")
    run("--sizes", nargs=3, type=shape, metavar=n_l_m, help="only this shape (five: whole tiles, edges, tiny, long, wide)")
    on_gpu = "cuda: launch the kernel on this machine's GPU, compare C, time it (emulate: look for its errors)"
    run("--device", choices=("emulate", "cuda"), default="emulate", help=on_gpu)
    run("--ranks", type=at_least(1), metavar="N", help="MPI ranks of a whole program that includes mpi.h (2)")
    run("--devices", type=at_least(1), metavar="N", help="GPUs of a whole program (1; 2 if it chooses among them)")
    run("--cuda", type=at_least(1), default=13, metavar="N", help="12: a program may call what CUDA 13 removed (13)")
    run("--gpu", metavar="NAME", help="occupancy and roofline on this GPU: K40c, P100, H200, …")
    run("--picture", type=svg_file, metavar="FILE.svg", help="draw where C is wrong, or with --gpu the roofline")
    run("--html", type=file_name, metavar="FILE", help="write a page: source with counters, maps, steps, roofline")
    exercises = command("exercises", "list them, or show one", "What is there to do?")
    exercises("name", nargs="?", metavar="NAME", help="only this exercise, in full (all, a line each)")
    exercises("--hint", type=at_least(0), default=0, metavar="K", help="show the first K hints")
    start = command("start", "print the file to begin with", "The file to begin an exercise with.")
    start("name", metavar="NAME", help=_EXERCISE)
    check = command("check", "does a kernel solve an exercise?", "Is this a solution?")
    grade = command("grade", "points for many files", "Points for each file, a line each.")
    for judging, files in ((check, 1), (grade, "+")):
        judging("name", metavar="EXERCISE", help=_EXERCISE)
        judging("files", type=file_name, nargs=files, metavar="FILE", help="yours, .cu or for ranks .py")
        _add_launch(judging)
    grade("--csv", type=file_name, metavar="FILE", help="write a line of points for each file")
    grade("--pages", type=file_name, metavar="FOLDER", help="write a page for each file, and index.html of all")
    grade("--cases", type=file_name, metavar="FILE", help="also on these shapes, a line each: n l m, or of arrays n")
    grade("--jobs", type=at_least(1), metavar="N", help="files judged at a time (number of cores)")
    for judging in (run, check, grade):
        judging("--json", type=file_name, metavar="FILE", help="append the result as a JSON line; - for standard output")
    show = command("show", "which thread loads what, step by step", "Which thread loads and stores what?", _MORE_SHOW)
    show("file", type=file_name, metavar="NAME|FILE.cu", help="a kernel of the lectures, or a file of your own")
    _add_launch(show)
    show("--width", type=at_least(1), metavar="W", help="of square matrices (4 with --tile, else a small launch)")
    show("--sizes", nargs=3, type=at_least(1), metavar=n_l_m, help="of other matrices")
    show("--tile", type=at_least(1), metavar="T", help="tile width instead of the file's (lectures: 2)")
    show("--of", type=_pair, default=(0, 0), metavar="X,Y", help="the block described in text (0,0)")
    show("--picture", type=svg_file, metavar="FILE.svg", help="draw this block's steps, up to 12")
    show("--html", type=file_name, metavar="FILE", help="write a page with buttons that shows every block")
    command("gpus", "what GPUs have: cores, memory, limits", "What do GPUs have, by name?")
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


def _add_launch(add: Callable[..., object]) -> None:
    add("--kernel", default="", metavar="NAME", help="which kernel; a template with its arguments (the only one)")
    add("--grid", default="", metavar="X,Y[,Z]", help="blocks, as arithmetic of n, l, m and constants")
    add("--block", default="", metavar="X,Y[,Z]", help="threads of a block")
    add("--shared", default="", metavar="BYTES", help="dynamic shared memory (guessed)")
    add("--let", action="append", default=[], type=_let, metavar="NAME=SIZE", help="this parameter is n, l or m")
    by_columns = "columns: matrices are column-major, as in BLAS (rows, or as the file says)"
    add("--layout", choices=("rows", "columns"), help=by_columns)
    stall = "give up a launch after S seconds (20), or a whole program (60)"
    add("--stall", type=at_least(1), metavar="S", help=stall)
    add("--seed", type=at_least(0), default=None, help="of the elements, and of the shapes of an exercise (grade: 0)")


def _let(text: str) -> tuple[str, str]:
    name, equals, size = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no NAME=SIZE, such as Width=n", code="number")
    return name.strip(), size.strip()


def _pair(text: str) -> tuple[int, int]:
    x, comma, y = text.partition(",")
    if not comma:
        raise UsageError(f"{text!r} is no X,Y", code="number")
    return at_least(0)(x.strip()), at_least(0)(y.strip())


def main() -> int:
    def work() -> int:
        options = parse()  # before NumPy and the like are imported
        from hybrid.commands.lab_work import work

        return work(options)

    return run_alone(NAME, work)
