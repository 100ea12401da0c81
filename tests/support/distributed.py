# SPDX-License-Identifier: MIT
"""Distributed matrices for tests: rows in any number on each rank, blocks of grids and of ScaLAPACK, and the whole matrix again,
by plain MPI. The products themselves are drawn by support.cases."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support import cases

import hybrid


def heights(rng: Any, ranks: int, total: int, least: int = 0) -> list[int]:
    """How many rows each rank has: any number, often none."""
    cuts = np.sort(rng.integers(0, total - least * ranks + 1, ranks - 1))
    return [int(height) + least for height in np.diff([0, *cuts, total - least * ranks])]


def rows_of(comm: Any, matrix: Any, of_ranks: Sequence[int] | None = None, known: bool = False) -> hybrid.RowBlock:
    """This rank's rows of a matrix that every rank has; equal shares, or so many. `known`: with the communicator."""
    of_ranks = of_ranks or [len(part) for part in np.array_split(np.arange(len(matrix)), comm.size)]
    first = sum(of_ranks[: comm.rank])
    return hybrid.RowBlock(matrix[first : first + of_ranks[comm.rank]], comm if known else None)


def grids(size: int) -> list[tuple[int, int]]:
    """All grids of so many ranks."""
    return [(rows, size // rows) for rows in range(1, size + 1) if size % rows == 0]


def dealt(
    comm: Any, matrix: np.ndarray, grid: tuple[int, int], blocks: Sequence[int], order: str = "C", first: tuple[int, int] = (0, 0)
) -> hybrid.Block2D:
    """As ScaLAPACK deals a matrix, from process `first` on: this rank's local matrix, by its descriptor."""
    process = divmod(comm.rank, grid[1])
    of = [
        [index for index in range(length) if (index // block + begin) % processes == mine]
        for length, block, begin, processes, mine in zip(matrix.shape, blocks, first, grid, process, strict=True)
    ]
    local = np.full((len(of[0]) + 2, len(of[1])), 77, matrix.dtype, order=order)  # LLD is larger than there are rows
    local[: len(of[0])] = matrix[np.ix_(*of)]
    descriptor = (1, 0, *matrix.shape, *blocks, *first, len(local))
    return hybrid.Block2D.from_scalapack(local, descriptor, grid, process)


def whole(comm: Any, part: Any) -> np.ndarray:
    """The matrix of which every rank has a part: a RowBlock, its transpose or a Block2D. On all ranks, or this process alone."""
    found, times = np.zeros(part.shape, part.dtype), np.zeros(part.shape, int)
    for (rows, columns), array in comm.allgather((part.indices, np.array(part.array))) if comm else [(part.indices, part.array)]:
        found[np.ix_(rows, columns)] = array
        times[np.ix_(rows, columns)] += 1
    assert (times == 1).all(), "each element belongs to one rank"
    return found


Distribute = Callable[[Any, cases.Case, list[np.ndarray], Any], Sequence[Any]]  # (…, whole matrices, random numbers) -> parts


def multiplied(comm: Any, case: cases.Case, way: cases.Way, distribute: Distribute) -> None:
    """Distribute the operands of a case, multiply them, and compare the whole product on all ranks."""
    rng = np.random.default_rng([case.seed, 1])
    with (
        hybrid.testing.pretend(**{name.lower(): value for name, value in way.variables.items()}),
        tempfile.TemporaryDirectory() as folder,
    ):
        given = cases.Operands(case, folder, np.empty)
        exact = cases.is_exact(*case.types, given.result)
        factors = [cases._number(each, exact) for each in (case.alpha, case.beta or "0")]
        right = cases.wanted(case, given.values, *factors)
        how: dict[str, Any] = {**way.flags, **dict.fromkeys(case.flags, True)}
        how |= {"dtype": cases._dtype(case.dtype)} if case.dtype else {}
        how |= {"alpha": factors[0]} | ({"beta": factors[1]} if case.beta else {})
        parts = distribute(comm, case, given.views, rng)
        try:
            found = hybrid.multiply(*parts, comm=comm, **how)
        except hybrid.errors.Overflow:
            assert right.overflows, f"{case}: Overflow, where all elements fit"
            return
        assert not right.overflows, f"{case}: no Overflow, where an element does not fit"
        assert found.dtype == cases._dtype(given.result), case
        try:
            cases.assert_is(whole(comm, found), right, given.result)
        except AssertionError as wrong:
            raise AssertionError(f"{case}\n{wrong}") from wrong
        given.assert_unchanged()
