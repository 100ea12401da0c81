# SPDX-License-Identifier: MIT
"""The exercises: each has a statement, a file to begin with, hints, and demands on a solution, which is tried on random
shapes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from hybrid.classroom.case import Case, Sizes, is_dear
from hybrid.core.problem import record
from hybrid.emulation.observed import SHARED
from hybrid.errors import UsageError

Part = tuple[str, int, int]  # of a judgement: what it is about, the points that were got, and those that there are
_RIGHT_POINTS = 6  # for right results, divided among the shapes
_DEMAND_POINTS = 4  # for each demand
_ALL = 4  # the most shapes
_EDGES = (67, 71, 79)  # odd, and beyond what two tiles of 32 cover
_SHORT, _TINY = range(17, 32, 2), range(2, 8)


@record
class Demand:
    """What a right kernel must do besides being right. It is judged on the first shape."""

    text: str
    holds: Callable[[Case], bool]
    at_start: bool = False  # the file to begin with meets it already


@record
class Exercise:
    """An exercise."""

    name: str
    title: str
    statement: str
    hints: tuple[str, ...]
    demands: tuple[Demand, ...] = ()
    tile: Sizes = (16, 16, 16)  # the first shape consists of whole ones
    tiny: bool = False  # solutions are also tried on a shape smaller than a tile
    vector: bool = False  # m is 1
    begins_right: int = 0  # on how many of the shapes, of the first ones, the file to begin with is right
    only_with: Demand | None = None  # without which a right kernel is no solution
    of_ranks: bool = False  # a Python program of MPI, judged by rank_exercise, and not a kernel

    @property
    def points(self) -> int:
        return _RIGHT_POINTS + _DEMAND_POINTS * (1 if self.of_ranks else len(self.demands))

    @property
    def file_name(self) -> str:
        return f"{self.name}{'.py' if self.of_ranks else '.cu'}"

    def shapes(self, seed: int) -> tuple[Sizes, ...]:
        """The shapes on which a solution is tried. Those of a kernel: whole tiles; edges for every usual tile; a long sum; and
        with `tiny` one smaller than a tile. Those of ranks: rows that four can share equally, or cannot, and too few rows."""
        random = np.random.default_rng(seed if self.of_ranks else [seed, *self.tile, self.vector])

        def one_of(*sizes: int) -> int:
            return int(random.choice(sizes))

        if self.of_ranks:
            rows = (one_of(12, 24, 36), one_of(7, 11, 13), 2)
            return tuple((n, one_of(*range(5, 40)), one_of(*range(5, 40))) for n in rows)
        n, l, m = (one_of(*range(32 + -32 % tile, 65, tile)) for tile in self.tile)
        drawn = [(n, l, m), _EDGES, (one_of(*_SHORT), one_of(*range(151, 250, 2)), one_of(*_SHORT))]
        if self.tiny:
            drawn.append((one_of(*_TINY), one_of(*_TINY), one_of(*_TINY)))
        return tuple((n, l, 1 if self.vector else m) for n, l, m in drawn)

    def judged(self, cases: tuple[Case, ...]) -> list[Part]:
        """The parts of the judgement of a solution."""
        right = [case.is_right for case in cases]
        met = [demand for demand in self.demands if right[0] and demand.holds(cases[0])]
        counted = right[self.begins_right :]
        if self.begins_right >= len(right):  # what the file to begin with does has points only together with what it does not
            met = met if any(not demand.at_start for demand in met) else []
            counted = right if met else []
        lacking = ""
        if self.only_with is not None and not any(map(self.only_with.holds, cases)):
            lacking = f", but not so that {self.only_with.text}"
        points = 0 if lacking or not counted else _RIGHT_POINTS * sum(counted) // len(counted)
        of_demands = [(demand.text, _DEMAND_POINTS * (demand in met), _DEMAND_POINTS) for demand in self.demands]
        return [(f"right on {sum(right)} of {len(right)} shapes{lacking}", points, _RIGHT_POINTS), *of_demands]

    def text(self) -> str:
        """The file to begin with."""
        return (Path(__file__).resolve().parent / "exercises" / self.file_name).read_text(encoding="utf-8")


def named(name: str) -> Exercise:
    """The exercise of this name. UsageError where there is none."""
    for exercise in EXERCISES:
        if exercise.name == name:
            return exercise
    raise UsageError(f"there is no exercise {name}: {', '.join(each.name for each in EXERCISES)}", code="setting")


def _loads_at_most(most: float, *, at_start: bool = False) -> Demand:
    text = f"at most {most:g} global loads per multiply-add"
    return Demand(text, lambda case: sum(case.outcomes[0].loads) <= most * math.prod(case.sizes), at_start)


def _uses_shared_memory(case: Case) -> bool:
    """Whether elements are stored in shared memory, and read there more often than they were loaded."""
    lanes = {"load": 0, "store": 0, "atomic": 0}
    for site in case.sites:
        lanes[site.kind] += site.lanes * (site.space == SHARED)
    return 0 < lanes["store"] < lanes["load"]


_COALESCED = Demand(
    "all loads and stores of global memory are coalesced, or broadcast",
    lambda case: bool(case.sites) and not any(is_dear(site) for site in case.sites if site.space != SHARED),
)
_NO_CONFLICTS = Demand(
    "no bank conflicts in shared memory",
    lambda case: {is_dear(site) for site in case.sites if site.space == SHARED} == {False},
)
_SHARED = Demand("shared memory is used", _uses_shared_memory)

EXERCISES = (
    Exercise(
        "element",
        "One thread an element",
        "Each thread computes one element of C. There are as many threads as whole blocks need, so some have nothing to do.",
        ("The row comes from y, the column from x: blockIdx * blockDim + threadIdx.", "A thread beyond C must not touch memory."),
        tiny=True,
    ),
    Exercise(
        "row",
        "One thread a row",
        "Each thread computes one row of C: PMPP, chapter 3, exercise 1a.",
        ("There is one index: the row.", "Three loops would be the CPU's program. Which one is gone?"),
        (Demand("no more threads than rows compute C", lambda case: case.outcomes[0].writers <= case.sizes[0]),),
    ),
    Exercise(
        "column",
        "One thread a column",
        "Each thread computes one column of C: PMPP, chapter 3, exercise 1b. Look at the sectors: which of the two, a thread "
        "a row or a thread a column, loads memory better, and why?",
        ("There is one index: the column.", "Threads of a warp have neighbouring columns, and so do the elements of a row."),
        (Demand("no more threads than columns compute C", lambda case: case.outcomes[0].writers <= case.sizes[2]), _COALESCED),
        tile=(8, 16, 32),
    ),
    Exercise(
        "vector",
        "A matrix times a vector",
        "B and C have a single column: PMPP, chapter 3, exercise 2. Each thread computes one element of C.",
        ("m is 1, and need not be used.", "The row of A that a thread reads begins at row * l."),
        vector=True,
    ),
    Exercise(
        "barriers",
        "Two barriers are missing",
        "The tiled kernel of the lecture, from which somebody has removed both __syncthreads(). Put them back.",
        ("When may a thread read what others have stored?", "When may a thread overwrite what others still read?"),
        only_with=_SHARED,
    ),
    Exercise(
        "edges",
        "Sizes that are no multiples of the tile",
        "This tiled kernel is right where the tile divides n, l and m. Make it right for all sizes.",
        (
            "What should a tile hold where the matrix has ended, so that the sum does not change?",
            "No thread may leave before the last barrier. How many tiles along k are there, if the last is not whole?",
        ),
        tiny=True,
        begins_right=1,
        only_with=_SHARED,
    ),
    Exercise(
        "tiles",
        "Tiles in shared memory, all by yourself",
        "The kernel of `element` loads every element of A and B again and again. Load tiles of 16×16 elements into shared "
        "memory, and use each 16 times.",
        (
            "A block goes along a row of tiles of A and a column of tiles of B.",
            "Each thread loads one element of each tile, then waits, then adds 16 products, then waits.",
        ),
        (_loads_at_most(2 / 16), _SHARED),
        begins_right=_ALL,
    ),
    Exercise(
        "stride",
        "A tile as a matrix of its own",
        "The kernel of Hochberg's module takes each tile as a matrix: where it begins, how large it is, and how far apart its "
        "rows lie. The function that says so is wrong. At the edges tiles are smaller.",
        (
            "The rows of a tile lie as far apart as those of the matrix that it is a part of.",
            "The tile begins BLOCK_SIZE rows and columns further for each tile before it.",
        ),
        (_loads_at_most(2 / 16),),
    ),
    Exercise(
        "coalesce",
        "Neighbours in a warp",
        "This kernel is right, but the threads of a warp go down a column of C. Let them go along a row.",
        ("Threads of a warp differ in threadIdx.x first.", "Neighbours in memory are neighbours in a row."),
        (_COALESCED,),
        tile=(32, 32, 32),
        begins_right=_ALL,
    ),
    Exercise(
        "conflicts",
        "Bank conflicts",
        "This kernel stores A's tile turned, so that its threads write down a column of a 32×32 array: all of them into the same "
        "bank. Keep it turned, and get rid of the conflicts.",
        (
            "Bank = word number modulo 32. How far apart are neighbours of a column?",
            "A row may be longer than what is used of it.",
        ),
        (_NO_CONFLICTS, _loads_at_most(2 / 32, at_start=True)),
        tile=(32, 32, 32),
        begins_right=_ALL,
    ),
    Exercise(
        "registers",
        "Four elements a thread",
        "In the tiled kernel each product needs two loads from shared memory. Let each thread compute 2×2 elements of C, with "
        "tiles of 32×32 and blocks of 16×16 threads.",
        (
            "Each thread loads four elements of each tile.",
            "Two values of A's column and two of B's row, kept in variables, make four products.",
        ),
        (
            Demand(
                "at most a thread for every four elements computes C",
                lambda case: 4 * case.outcomes[0].writers <= case.sizes[0] * case.sizes[2],
            ),
            _loads_at_most(2 / 32),
            replace(_SHARED, at_start=True),
        ),
        tile=(32, 32, 32),
        begins_right=_ALL,
    ),
    Exercise(
        "ranks",
        "Rows over ranks",
        "In Python, with mpi4py: rank 0 has A and B as NumPy arrays, the others have None. Give every rank rows of A and all of "
        "B, let it multiply them with product(rows, b), which stands for its GPU, and return C at rank 0. n need not be a "
        "multiple of the number of ranks.",
        (
            "comm.bcast gives everybody what rank 0 has; comm.scatter gives each rank one part of a list; comm.gather collects.",
            "numpy.array_split cuts rows into as equal parts as can be, also where there are fewer rows than ranks.",
        ),
        of_ranks=True,
    ),
)
