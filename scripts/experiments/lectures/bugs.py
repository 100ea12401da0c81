# SPDX-License-Identifier: MIT
"""The errors in five teaching documents' CUDA programs, run without a GPU: python -m hybrid.lectures bugs [--bug NAME]

Each error is put back into a corrected program of this package, and the lab runs that kernel, as `python -m hybrid.lab run` does
a file of yours: it says what is wrong, and on which line. Ends with 1 if an error does not show.
"""

import argparse
import difflib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

from experiments.common import frame
from hybrid.commands.lectures import program_folders
from hybrid.emulation.build import compiler
from hybrid.errors import HybridError


@dataclass(frozen=True)
class Bug:
    """An error: the program, its texts and the document's wrong ones, the lab's options, and why it goes wrong."""

    name: str
    document: str
    program: str
    changes: tuple[tuple[str, str], ...]
    options: str
    why: str


HOCHBERG, SLIDES, TWO = "Hochberg's module", "the tiling slides", "CUDA in Two-dimension"
CLASSIC = "a classic, in none of the five"
_UP, _DOWN, _IN_32 = (
    "--grid (m+15)/16,(n+15)/16 --block 16,16",
    "--grid m/16,n/16 --block 16,16",
    "--grid m/32,n/32 --block 32,32",
)
_NO_TEST = ("    if (x >= width || y >= width) return;\n", "")
_NO_TEST_AT_END = ("    if (x < width && y < width) P[", "    P[")
_WHOLE_TILES = ("begin < width;", "begin < width / TILE * TILE;")
_SECOND_TILE = ("row < width && x < width ? N[", "row < width && x < width ? M[")

BUGS = (
    Bug("loose-bounds", f"{HOCHBERG}, multNoShare", "multNoShare.cu",
        (("row >= C.height || column >= C.width", "row > C.height || column > C.width"),), f"--sizes 20 24 38 {_UP}",
        "Threads leave if row > height or column > width; it must be >=. The threads at column = width write to where the next "
        "row begins, and whether they or the element's owner come last is luck. Those at row = height write past the end of C. "
        "Where blocks of 16 divide height and width, there are no such threads."),
    Bug("rounded-down", f"{HOCHBERG}, multShare", "multShare.cu",
        (("t * BLOCK_SIZE < A.width", "t < A.width / BLOCK_SIZE"),), f"--sizes 40 56 72 {_DOWN}",
        "width / 16 and height / 16 round down, in the grid and in the loop over k: no block comes to the ragged edges, and "
        "every sum lacks the products after the last whole tile. The tiling slides and CUDA in Two-dimension divide alike."),
    Bug("empty-grid", f"{HOCHBERG}, multShare 10 10 10", "multShare.cu", (), f"--sizes 10 10 10 {_DOWN}",
        "Fewer than 16 rows or columns make a grid of 0 blocks, and there is no such launch: C stays as it was. The module also "
        "says that the parts of a dim3 that are not given are 0. Then none of its launches could work; they are 1."),
    Bug("no-bounds", f"{SLIDES}, first kernel, grid rounded up", "element.cu",
        (("    if (row >= Width || column >= Width) return;\n", ""),), f"--sizes 40 40 40 {_UP}",
        "The kernel tests no bounds, so width must be a multiple of 16. A grid that is rounded up does not help: threads "
        "beyond the right edge write into the next row, those below the last row write past C."),
    Bug("no-bounds-tiled", f"{SLIDES}, tiled kernel, grid rounded up", "tiled.cu",
        (("k < Width;", "k < Width / TILE_WIDTH * TILE_WIDTH;"), ("row < Width && k + x < Width ? M", "M"),
         ("k + x] : 0;", "k + x];"),
         ("k + y < Width && column < Width ? N", "N"), ("+ column] : 0;", "+ column];"),
         ("if (row < Width && column < Width) P", "P")),
        f"--sizes 40 40 40 {_UP}",
        "The same with tiles, and the loop over k still rounds down: every sum lacks its last products as well."),
    Bug("second-tile", f"{TWO}, SM", "mm2d.cu", (_SECOND_TILE,), f"--kernel shared_memory --sizes 64 64 64 {_IN_32}",
        "The second tile is loaded from the first matrix, so the kernel computes A·A. The document fills both matrices with "
        "the same numbers, and does not notice."),
    Bug("width-1000-gm", f"{TWO}, GM at width 1000", "mm2d.cu", (_NO_TEST,),
        f"--kernel global_memory --sizes 200 200 200 {_IN_32}",
        "32 does not divide 1000, nor the 200 of this small copy: both leave 8. The grid covers 992 (192) rows and columns, "
        "and the frame is never written. The document's cure is blocks of 25."),
    Bug("width-1000-sm", f"{TWO}, SM at width 1000", "mm2d.cu", (_WHOLE_TILES, _NO_TEST_AT_END),
        f"--kernel shared_memory --sizes 200 200 200 {_IN_32}",
        "As in GM, and the loop over k stops at 992 (192) too: what is written lacks its last 8 products."),
    Bug("no-first-barrier", CLASSIC, "tiled.cu", (("        __syncthreads();\n        for (int e", "        for (int e"),),
        f"--sizes 40 40 40 {_UP}",
        "Without a barrier after the tiles are loaded, a thread reads what others have not loaded yet. Which elements are wrong "
        "depends on the order of the threads. On a GPU, where 32 threads load at once, it may be fewer, and others next time."),
    Bug("no-second-barrier", CLASSIC, "tiled.cu", (("Ns[e][x];\n        __syncthreads();", "Ns[e][x];"),),
        f"--sizes 40 40 40 {_UP}",
        "Without a barrier after the tiles are used, fast threads load the next tiles over numbers that slow ones still need. "
        "With one tile along k there is no next one, and all is well."),
    Bug("early-return", f"{HOCHBERG}, question 3 with its hint taken at its word", "multShare.cu",
        (("    float sum = 0;", "    if (row >= C_tile.height || column >= C_tile.width) return;\n    float sum = 0;"),),
        f"--sizes 20 24 38 {_UP}",
        "The bounds test of the kernel without tiles, put first in the one with tiles: threads beyond C leave, load nothing, "
        "and are missed at the barrier. A GPU may not miss them, and goes on with tiles that have holes. They have to stay, "
        "load zeros, and only not write."),
)  # fmt: skip


def shown(bug: Bug, seed: list[str], folder: Path) -> bool:
    """Print one error: the change, the lab's report and the reason. False if the lab did not find it."""
    right = (folder / bug.program).read_text(encoding="utf-8")
    wrong = right
    for old, new in bug.changes:
        if wrong.count(old) != 1:
            raise HybridError(f"{bug.program} is not the program that {bug.name} is about: install this package again")
        wrong = wrong.replace(old, new)
    faulty = folder / f"{bug.name}.cu"
    faulty.write_text(wrong, encoding="utf-8")
    print(f"== {bug.name}: {bug.document}; {bug.program}{' with' if bug.changes else ' as it is'}")
    changed = difflib.unified_diff(right.splitlines(), wrong.splitlines(), n=0, lineterm="")
    print(*(line for line in changed if not line.startswith(("@@", "---", "+++"))), sep="\n")
    lines = folder / f"{bug.name}.jsonl"
    words = [sys.executable, "-m", "hybrid.lab", "run", str(faulty), *shlex.split(bug.options), *seed, "--json", str(lines)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    told = done.stdout or f"{frame.told_error(done.stderr)}\n"
    print(told, textwrap.fill(f"Why: {bug.why}", 110), "\n", sep="", flush=True)
    return not json.loads(lines.read_text())["right"] if lines.exists() else "[lab-launch]" in told


def work(options: argparse.Namespace) -> int:
    if options.list:
        print(*(f"{bug.name:<18} {bug.document}" for bug in BUGS), sep="\n")
        return 0
    compiler()
    seed = [] if options.seed is None else ["--seed", str(options.seed)]
    with tempfile.TemporaryDirectory() as name:
        for folder in program_folders():
            shutil.copytree(folder, name, dirs_exist_ok=True)
        clear = [shown(bug, seed, Path(name)) for bug in BUGS if not options.bug or bug.name in options.bug]
    return 0 if all(clear) else 1


def main() -> int:
    parser = frame.parser_of(
        __doc__,
        frame.option("--bug", action="append", choices=[bug.name for bug in BUGS], metavar="NAME", help="only this one"),
        frame.option("--list", action="store_true", help="the names, and the documents with the errors"),
        frame.option("--seed", type=int, help="of the matrices (a random one, printed)"),
    )
    return frame.command(parser, work)
