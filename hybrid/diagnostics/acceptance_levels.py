# SPDX-License-Identifier: MIT
"""The levels of the acceptance test: the sizes and types of the products of each, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.core.problem import ITEM_SIZES, Problem, record
from hybrid.core.spans import Topology
from hybrid.planning.plan import FreeMemory

FILLED = 0.6  # of the free memory: the plan's buffers, the check and other programs need the rest

Sizes = tuple[int, int, int]  # rows of A of a rank, l and m


@record
class Case:
    """Products of one size and type: each rank has `rows` rows of A (columns: `l`); B has `m` columns."""

    rows: int
    l: int
    m: int
    dtype: str

    @classmethod
    def square(cls, size: int, ranks: int, dtype: str) -> Case:
        """The case of square matrices of this size, or up to `ranks` - 1 rows and columns fewer, for equal row blocks."""
        rows = size // ranks
        return cls(rows, rows * ranks, rows * ranks, dtype)

    def problem(self, ranks: int) -> Problem:
        return Problem(ranks * self.rows, self.l, self.m, self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype} {self.rows}×{self.l}×{self.m} a rank"


@record
class Level:
    """What a level multiplies."""

    number: int
    minutes: float  # that it takes, unless --minutes is given
    sizes: dict[str, tuple[Sizes, ...]]  # by device; the odd ones among l and m fit no tile
    dtypes: tuple[str, ...]
    repeat: int = 3  # products of a round
    fills_memory: bool = False  # there are products that fill most of the memory, too
    links_again: bool = False  # links are measured after each rotation, and not only at the beginning

    def cases(self, device: str) -> list[Case]:
        return [Case(*sizes, dtype) for sizes in self.sizes[device] for dtype in self.dtypes]


_SMALL: dict[str, tuple[Sizes, ...]] = {
    "cpu": ((128, 256, 256),),
    "cuda": ((4096, 8192, 8192),),
    "emulate": ((16, 32, 32),),
}
_SEVERAL: dict[str, tuple[Sizes, ...]] = {
    "cpu": ((333, 501, 703), (1024, 1536, 1536)),
    "cuda": ((1001, 2003, 4001), (8192, 8192, 8192)),
    "emulate": ((17, 33, 35), (32, 64, 64)),
}
_BOTH = tuple(ITEM_SIZES)
LEVELS = {
    level.number: level
    for level in (
        Level(1, 0.0, _SMALL, ("float64",)),
        Level(2, 5.0, _SEVERAL, _BOTH),
        Level(3, 15.0, _SEVERAL, _BOTH, fills_memory=True),
        Level(4, 30.0, _SEVERAL, _BOTH, fills_memory=True, links_again=True),
    )
}


@record
class Pace:
    """How long the parts of a round take, to predict larger ones."""

    operation: float  # seconds for each operation of the multiplication
    element: float  # seconds for all else, for each element of A, B and C

    @classmethod
    def of(cls, problem: Problem, multiplied: float, whole: float) -> Pace:
        """From a round of this problem. `whole`: its seconds; `multiplied`: those in which the slowest rank multiplied."""
        elements = problem.bytes_of_matrices / problem.item_size
        return cls(multiplied / problem.operations, max(0.0, whole - multiplied) / elements)

    def seconds(self, size: int) -> float:
        """The predicted seconds of a round with square matrices of this size."""
        return self.operation * 2 * size**3 + self.element * 3 * size**2


def large_size(topology: Topology, free: Sequence[FreeMemory], dtype: str, seconds: float, pace: Pace) -> int:
    """The size of square matrices that fill FILLED of the memory, or a smaller one where a round would take more than `seconds`;
    at least one row a rank.

    `free[rank]`: the rank's free memory.
    """
    item, ranks = ITEM_SIZES[dtype], topology.size
    elements = []
    hosts = [free[node[0]].host for node in topology.nodes]  # a host occurs several times only where nodes are pretended
    for node, host in zip(topology.nodes, hosts, strict=True):
        room = min(free[rank].host_bytes for rank in node)
        if len(node) > 1:
            room = min(room, min(free[rank].shared_bytes for rank in node))
        elements.append(room / hosts.count(host) / (3 * item))  # A, B and C at the root's node
    users = [each.gpu_id for each in free]
    for each in free:
        if each.gpu_id:  # B, and this rank's rows of A and C
            elements.append(each.gpu_bytes / users.count(each.gpu_id) / ((1 + 2 / ranks) * item))
    size = int((FILLED * max(0.0, min(elements))) ** 0.5)
    while size > ranks and pace.seconds(size) > seconds:
        size = size * 31 // 32
    return max(ranks, size)
