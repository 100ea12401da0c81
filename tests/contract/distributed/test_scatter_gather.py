# SPDX-License-Identifier: MIT
"""docs/python.md: `scatter` gives each rank consecutive rows of a matrix, of any type of numbers, in equal shares or as many as
each rank says; it distributes RowBlocks anew; `gather` brings them to any root, into `out` where there is one."""

import numpy as np
import pytest
from support.cases import refused
from support.distributed import heights, rows_of, whole

import hybrid
from hybrid.errors import DoesNotFit, UsageError

TYPES = [
    "float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool", "int8", "uint64", ">i4", ">f8", "longdouble",
]  # fmt: skip
LAYOUTS = [np.ascontiguousarray, np.asfortranarray, lambda a: np.repeat(a, 2, axis=1)[:, ::2], lambda a: a[::-1].copy()[::-1]]


@pytest.mark.mpi
def test_what_is_scattered_moved_and_gathered_is_the_same_matrix(comm, rng):
    """Elements of all types, layouts, roots and numbers of rows, none among them."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for number, name in enumerate(TYPES * 2):
        dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        n, m = (int(size) for size in rng.integers(0, 60, 2))
        matrix = LAYOUTS[number % 4](rng.integers(0, 2 if name == "bool" else 100, (n, m)).astype(dtype))
        root, other = (int(each) for each in rng.integers(0, comm.size, 2))
        of_ranks = heights(rng, comm.size, n)
        with hybrid.testing.pretend(ranks_per_node=number % 3):
            even = hybrid.scatter(matrix if comm.rank == root else None, comm=comm, root=root)
            moved = hybrid.scatter(even, rows=np.int64(of_ranks[comm.rank]))
            found = hybrid.gather(moved, root=other)
        for part, heights_there in ((even, [len(part) for part in np.array_split(matrix, comm.size)]), (moved, of_ranks)):
            assert (part.dtype, part.shape, part.comm) == (dtype, matrix.shape, comm)
            first = sum(heights_there[: comm.rank])
            assert part.rows == ((first, first + heights_there[comm.rank]),)
            assert np.array_equal(part.array, matrix[slice(*part.rows[0])])
        assert (found is None) == (comm.rank != other)
        assert found is None or (found.dtype == dtype and np.array_equal(found, matrix))


@pytest.mark.mpi
def test_out_gets_the_rows_also_where_they_lie_apart_or_are_its_own(comm, rng):
    matrix = rng.standard_normal((13, 5))
    rows = rows_of(comm, matrix, known=True)
    for out in (np.empty((13, 5)), np.empty((13, 5), order="F"), np.empty((26, 10))[::2, 5:], np.empty((13, 5))[::-1]):
        found = hybrid.gather(rows, out=out if comm.rank == 0 else None)
        assert found is (out if comm.rank == 0 else None)
        assert comm.rank or np.array_equal(out, matrix)
    mine = matrix.copy()
    turned = mine[: len(rows.array)][::-1] if comm.rank == 0 else rows.array
    right = np.concatenate(comm.allgather(turned.copy()))
    hybrid.gather(hybrid.RowBlock(turned), comm=comm, out=mine if comm.rank == 0 else None)
    assert comm.rank or np.array_equal(mine, right)


@pytest.mark.mpi
def test_what_does_not_fit_together_is_refused_on_all_ranks(comm):
    matrix, first = np.ones((8, 3)), comm.rank == 0
    at_root, rows, last = matrix if first else None, hybrid.RowBlock(np.ones((2, 3))), comm.size - 1

    def scatter(a, **how):
        return hybrid.scatter(a if first else None, comm=comm, **how)

    def gather(a, **how):
        return hybrid.gather(a, comm=comm, **how)

    of_all = np.zeros((2 * comm.size, 3))
    calls = [
        ("mixed-kinds", lambda: scatter(None)),
        *[("rows", lambda total=total: scatter(matrix, rows=total if first else 0)) for total in (7, 9)],
        ("rows", lambda: scatter(matrix, rows=-1)),
        ("root", lambda: scatter(matrix, root=comm.size)),
        ("root", lambda: scatter(matrix, root=-1)),
        *[("no-numbers", lambda a=a: scatter(a)) for a in (matrix.astype(object), np.array([["a"]]), np.zeros((1, 1), "M8[s]"))],
        ("mixed-kinds", lambda: gather(at_root)),
        ("out", lambda: gather(rows, out=np.ones((2, 2)) if first else None)),
        ("out", lambda: gather(rows, out=of_all.astype("f4") if first else None)),
        ("out", lambda: gather(rows, out=np.broadcast_to(0.0, of_all.shape) if first else None)),
        ("masked", lambda: gather(rows, out=np.ma.array(of_all) if first else None)),
    ]
    if comm.size > 1:
        calls += [
            ("ranks-differ", lambda: scatter(matrix, root=comm.rank)),
            ("rows", lambda: scatter(matrix, rows=8 if first else None)),
            ("mixed-kinds", lambda: hybrid.scatter(matrix if first else rows, comm=comm)),
            ("ranks-differ", lambda: gather(hybrid.RowBlock(np.ones((2, 3 + (comm.rank == last)))))),
            ("ranks-differ", lambda: gather(hybrid.RowBlock(np.ones((2, 3), "f8" if first else "f4")))),
            ("ranks-differ", lambda: gather(rows) if comm.rank else hybrid.multiply(matrix, matrix.T, comm=comm)),
        ]
    for code, call in calls:
        with refused(UsageError, code):
            call()
        assert np.array_equal(whole(comm, scatter(matrix)), matrix), "the communicator is usable"


@pytest.mark.mpi
def test_too_large_a_matrix_is_refused(comm):
    with hybrid.testing.pretend(host_memory="1k"):
        with refused(DoesNotFit, "host-memory"):
            hybrid.scatter(np.ones((100, 100)) if comm.rank == 0 else None, comm=comm)
        with refused(DoesNotFit, "host-memory"):
            hybrid.gather(hybrid.RowBlock(np.ones((100, 100))), comm=comm)
