# SPDX-License-Identifier: MIT
"""The errors that `hybrid.lectures bugs` shows: in which document, how it is launched there, and why it is wrong."""

from dataclasses import dataclass

from experiments.common.timing import kernel_of
from hybrid.kernels.catalogue import Launch, launch_of


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
        "the offset passes 2^31 - 1 and becomes negative, so the elements land before C.", right="naive", stride=2**27),
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
