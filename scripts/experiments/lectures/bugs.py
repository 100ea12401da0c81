# SPDX-License-Identifier: MIT
"""The errors in five teaching documents' CUDA programs, run without a GPU: python -m hybrid.lectures bugs [--bug NAME]

Each error is planted into a kernel of its own (experiments/lectures/faulty/*.cu), which runs on the CPU's CUDA runtime beside
the right kernel of the ladder: on random integers, so that every sum is exact, and in three orders of threads and blocks. The
map of C:

  .  right    x  wrong    ?  never written    !  written by several threads, or it depends on the order    #  outside C

A character stands for several elements of a big C, and shows the worst of them. Ends with 1 if an error does not show.
"""

import argparse
import math
import tempfile
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from experiments.common import frame
from experiments.common.cuda import kernel_of
from hybrid.classroom.report import map_lines
from hybrid.emulation.build import compiler
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import ORDERS, EmulatedKernel
from hybrid.kernels.catalogue import KERNELS, Launch, launch_of


@dataclass(frozen=True)
class Bug:
    """A faulty kernel, how its document launches it, and why it goes wrong."""

    name: str
    document: str
    shape: tuple[int, int, int]  # n, l, m
    launch: Launch
    why: str
    right: str = "tiled"
    equal: bool = False  # B is A, as in the document
    stride: int = 0  # from one row of C to the next; 0: its columns
    also: tuple[tuple[str, Launch, bool], ...] = ()  # the same shape in other circumstances: what, how, is B A

    @property
    def right_launch(self) -> Launch:
        return launch_of(kernel_of(self.right), "float32", self.shape[0], self.shape[2], 90)


def _down(shape: tuple[int, int, int], source: str, expression: str, block: int = 16) -> Launch:
    """As many blocks as fit into C."""
    return Launch(source, expression, (shape[2] // block, shape[0] // block), (block, block), 0)


def _up(shape: tuple[int, int, int], source: str, expression: str) -> Launch:
    """As many blocks as cover C."""
    return _down((shape[0] + 15, 0, shape[2] + 15), source, expression)


HOCHBERG, SLIDES, TWO = "Hochberg's module", "the tiling slides", "CUDA in Two-dimension"
CLASSIC = "a classic, in none of the five"
TALL, WIDE, SMALL, SQUARE = (20, 24, 38), (40, 56, 72), (10, 10, 10), (40, 40, 40)
BLOCKS, RAGGED, THOUSAND = (64, 64, 64), (20, 40, 40), (200, 200, 200)

BUGS = (
    Bug("loose-bounds", f"{HOCHBERG}, multNoShare", TALL, _up(TALL, "bounds.cu", "loose_bounds<float>"),
        "Threads leave if row > height or column > width; it must be >=. The threads at column = width write to where the next "
        "row begins, and whether they or the element's owner come last is luck. Those at row = height write past the end of C. "
        "Where blocks of 16 divide height and width, there are no such threads.", right="naive"),
    Bug("rounded-down", f"{HOCHBERG}, multShare", WIDE, _down(WIDE, "tiles.cu", "whole_tiles<float, 16>"),
        "width / 16 and height / 16 round down, in the grid and in the loop over k: no block comes to the ragged edges, and "
        "every sum lacks the products after the last whole tile. The tiling slides and CUDA in Two-dimension divide alike."),
    Bug("empty-grid", f"{HOCHBERG}, multShare 10 10 10", SMALL, _down(SMALL, "tiles.cu", "whole_tiles<float, 16>"),
        "Fewer than 16 rows or columns make a grid of 0 blocks, and there is no such launch: C stays as it was. The module also "
        "says that the parts of a dim3 that are not given are 0. Then none of its launches could work; they are 1."),
    Bug("offsets-32", f"{HOCHBERG}, and the kernels of the other four", (20, 8, 20),
        _up((20, 8, 20), "offsets.cu", "offsets_32<float>"),
        "row * width + column is an int. Here C is the left edge of a matrix with rows 2^27 elements apart: from row 16 on "
        "the offset passes 2^31 - 1 and becomes negative, so the elements land before C. So it is from 46341×46341 on, 8 GiB of "
        "float32; at 65536×65536 width * height is 0, and so is what is allocated.", right="naive", stride=2**27),
    Bug("no-bounds", f"{SLIDES}, first kernel, grid rounded up", SQUARE, _up(SQUARE, "bounds.cu", "no_bounds<float>"),
        "The kernel tests no bounds, so width must be a multiple of 16. A grid that is rounded up does not help: threads "
        "beyond the right edge write into the next row, those below the last row write past C.", right="naive"),
    Bug("no-bounds-tiled", f"{SLIDES}, tiled kernel, grid rounded up", SQUARE, _up(SQUARE, "tiles.cu", "whole_tiles<float, 16>"),
        "The same with tiles, and the loop over k still rounds down: every sum lacks its last products as well."),
    Bug("second-tile", f"{TWO}, SM", BLOCKS, _down(BLOCKS, "tiles.cu", "second_tile<float, 32>", 32),
        "The second tile is loaded from the first matrix, so the kernel computes A·A. The document fills both matrices with "
        "the same numbers, and does not notice.", right="tiled32",
        also=(("with B = A", _down(BLOCKS, "tiles.cu", "second_tile<float, 32>", 32), True),)),
    Bug("width-1000-gm", f"{TWO}, GM at width 1000", THOUSAND, _down(THOUSAND, "bounds.cu", "no_bounds<float>", 32),
        "32 does not divide 1000, nor the 200 of this small copy: both leave 8. The grid covers 992 (192) rows and columns, "
        "and the frame is never written. The document's cure is blocks of 25.", right="naive", equal=True,
        also=(("with blocks of 25", _down(THOUSAND, "bounds.cu", "no_bounds<float>", 25), True),)),
    Bug("width-1000-sm", f"{TWO}, SM at width 1000", THOUSAND, _down(THOUSAND, "tiles.cu", "second_tile<float, 32>", 32),
        "As in GM, and the loop over k stops at 992 (192) too: what is written lacks its last 8 products.", equal=True,
        right="tiled32", also=(("with blocks of 25", _down(THOUSAND, "tiles.cu", "second_tile<float, 25>", 25), True),)),
    Bug("no-first-barrier", CLASSIC, RAGGED, _up(RAGGED, "barriers.cu", "one_barrier<float, 16, Without::FIRST>"),
        "Without a barrier after the tiles are loaded, a thread reads what others have not loaded yet. Only the block's last "
        "thread finds all of it there, and which thread is last depends on the order. On a GPU, where 32 threads load at "
        "once, it may be fewer elements that are wrong, and others in the next run."),
    Bug("no-second-barrier", CLASSIC, RAGGED, _up(RAGGED, "barriers.cu", "one_barrier<float, 16, Without::SECOND>"),
        "Without a barrier after the tiles are used, fast threads load the next tiles over numbers that slow ones still need: "
        "here only the first one of a block is safe. With one tile along k there is no next one, and all is well."),
    Bug("early-return", f"{HOCHBERG}, question 3 with its hint taken at its word", TALL,
        _up(TALL, "barriers.cu", "early_return<float, 16>"),
        "The bounds test of the kernel without tiles, put first in the one with tiles: threads beyond C leave, load nothing, "
        "and are missed at the barrier. A GPU may not miss them, and goes on with tiles that have holes. They have to stay, "
        "load zeros, and only not write."),
)  # fmt: skip


OURS = Path(__file__).resolve().parent / "faulty"
AROUND = 64  # guard rows before and after a matrix; more than a tile's
UNTOUCHED = -7.0  # no sum of products of positive numbers
MAP = (20, 40)  # the most lines and characters
INT = 2**31  # the first number that a 32-bit int does not hold


class Target:
    """C, and memory around it where nothing may be written."""

    def __init__(self, rows: int, columns: int, stride: int) -> None:
        self.where = "beside C"
        whole: np.ndarray
        if stride:  # a file with holes: only the pages that are touched take space
            lost = -(-INT // stride)  # the first row that 32-bit offsets do not reach
            with tempfile.TemporaryFile() as file:
                whole = np.memmap(file, np.float32, "w+", shape=(INT + rows * stride,))
            self.inner = whole[INT:].reshape(rows, stride)[:, :columns]
            landing = lost * stride - 2 * INT
            self.around = [whole[INT + landing :][: (rows - lost) * stride].reshape(-1, stride)[:, :columns]]
            self.where = f"{-landing * 4 / 2**30:g} GiB before C"
        else:
            whole = np.empty((rows + 2 * AROUND, columns), np.float32)
            self.inner = whole[AROUND:-AROUND]
            self.around = [whole[:AROUND], whole[-AROUND:]]
        self.inner[:] = np.nan
        for guard in self.around:
            guard[:] = UNTOUCHED

    def outside(self) -> np.ndarray:
        """What was written around C, row by row."""
        return np.concatenate([guard != UNTOUCHED for guard in self.around])


@dataclass
class Outcome:
    """What one kernel did to C in each order."""

    a: np.ndarray
    b: np.ndarray
    c: dict[str, np.ndarray]
    writes: np.ndarray  # the most in one order
    outside: np.ndarray
    where: str
    stopped: str = ""  # what the runtime said when it refused to go on

    def wrong_in(self, order: str) -> np.ndarray:
        return self.c[order] != self.a.astype(np.float64) @ self.b

    @property
    def wrong(self) -> np.ndarray:
        """In at least one order."""
        return np.logical_or.reduce([self.wrong_in(order) for order in ORDERS])

    @property
    def uncertain(self) -> np.ndarray:
        """Written by several threads, or not the same in every order."""
        seen = [self.c[order].view(np.int32) for order in ORDERS]
        return (self.writes > 1) | np.logical_or.reduce([one != seen[0] for one in seen])

    @property
    def fine(self) -> bool:
        return not (self.stopped or self.wrong.any() or self.uncertain.any() or self.outside.any())


def tried(launch: Launch, shape: tuple[int, int, int], seed: int, *, equal: bool = False, stride: int = 0) -> Outcome:
    """Run the kernel in every order. The inputs depend on shape and seed alone."""
    n, l, m = shape
    random = np.random.default_rng([seed, *shape])
    most = math.isqrt(2**24 // l)  # float32 holds all sums
    a, b = (random.integers(1, most, size, endpoint=True).astype(np.float32) for size in ((n, l), (l, m)))
    if equal:
        b = a
    outcome = Outcome(a, b, {}, np.zeros((n, m)), np.zeros((0, m), bool), "")
    kernel = _kernels(launch.source)[launch.expression]
    for order in ORDERS:
        target = Target(n, m, stride)
        try:
            kernel(launch.grid, launch.block, 0, [_amid(a), _amid(b), target.inner], order=order, seed=seed)
        except EmulationError as stopped:
            outcome.stopped = str(stopped).removeprefix(f"{launch.expression}: ")
            return outcome
        outcome.c[order] = target.inner.copy()
        outcome.writes = np.maximum(outcome.writes, kernel.writes[2])
        outside = target.outside()
        outcome.outside = outside | outcome.outside if len(outcome.outside) else outside
        outcome.where = target.where
    return outcome


def _amid(matrix: np.ndarray) -> np.ndarray:
    """A copy with NaN before and after: what is read there spoils the sum."""
    rows, columns = matrix.shape
    whole = np.full((rows + 2 * AROUND, columns), np.nan, matrix.dtype)
    whole[AROUND:-AROUND] = matrix
    return whole[AROUND:-AROUND]


@cache
def _kernels(source: str) -> dict[str, EmulatedKernel]:
    """All that is wanted of one file, built together to save time."""
    launches = [launch for bug in BUGS for launch in (bug.launch, bug.right_launch, *(launch for _, launch, _ in bug.also))]
    expressions = list(dict.fromkeys(launch.expression for launch in launches if launch.source == source))
    path = OURS / source
    return EmulatedKernel.several(path if path.exists() else KERNELS / source, expressions, checks="loads")


def drawn(outcome: Outcome) -> str:
    """The map of C, and below it that of what was written elsewhere."""
    height, width = (-(-size // most) for size, most in zip(outcome.wrong.shape, MAP, strict=True))
    worst = np.select([outcome.uncertain, outcome.writes == 0, outcome.wrong], [3, 2, 1], 0)
    lines = map_lines(worst, height, width, ".x?!")
    if outcome.outside.any():
        rows = outcome.outside[outcome.outside.any(axis=1)]
        lines += [f"and {outcome.where}:", *map_lines(rows.astype(int), height, width, " #")]
    scale = f"a character stands for {height}×{width} elements" if height * width > 1 else "a character is an element"
    return "\n".join([f"{scale}:", *lines])


def summary(outcome: Outcome) -> str:
    if outcome.stopped:
        return f"refused: {outcome.stopped}"
    counts = {order: int(outcome.wrong_in(order).sum()) for order in ORDERS}
    text = f"{outcome.wrong.sum()} of {outcome.wrong.size} elements wrong"
    if len(set(counts.values())) > 1:
        text += f" in some order ({', '.join(f'{order} {count}' for order, count in counts.items())})"
    more = {
        "never written": int((outcome.writes == 0).sum()),
        "written by several threads": int((outcome.writes > 1).sum()),
        f"writes {outcome.where}": int(outcome.outside.sum()),
    }
    return "; ".join([text, *(f"{what}: {count}" for what, count in more.items() if count)])


def shown(bug: Bug, seed: int) -> bool:
    """Print the whole story of one error. False if it did not show, or the right kernel is not right."""
    n, l, m = bug.shape
    launch, right = bug.launch, bug.right_launch
    print(f"== {bug.name}: {bug.document}")
    grid, block = ("×".join(map(str, size)) for size in (launch.grid, launch.block))
    print(f"C {n}×{m}, k {l}; a grid of {grid} blocks of {block} threads (x×y)")
    try:
        good, bad = (tried(one, bug.shape, seed, equal=bug.equal, stride=bug.stride) for one in (right, launch))
    except OSError as error:
        print(f"Not shown here, no big file with holes can be made: {error}\n")
        return True
    for what, outcome in ((f"{bug.right} (right)", good), (launch.expression, bad)):
        print(f"{what}: {summary(outcome)}")
    for what, other, equal in bug.also:
        print(f"{other.expression} {what}: {summary(tried(other, bug.shape, seed, equal=equal))}")
    if not bad.stopped:
        print(textwrap.indent(drawn(bad), "    "))
    print(textwrap.fill(f"Why: {bug.why}", 110))
    print(flush=True)
    return good.fine and not bad.fine


def work(options: argparse.Namespace) -> int:
    if options.list:
        print(*(f"{bug.name:<18} {bug.document}" for bug in BUGS), sep="\n")
        return 0
    compiler()
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    print(f"--seed {seed}\n")
    clear = [shown(bug, seed) for bug in BUGS if not options.bug or bug.name in options.bug]
    return 0 if all(clear) else 1


def main() -> int:
    parser = frame.parser_of(
        __doc__,
        frame.option("--bug", action="append", choices=[bug.name for bug in BUGS], metavar="NAME", help="only this one"),
        frame.option("--list", action="store_true", help="the names, and where the errors are found"),
        frame.option("--seed", type=int, help="of the random integers (a fresh one, printed)"),
    )
    return frame.command(parser, work)
