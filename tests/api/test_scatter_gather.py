# SPDX-License-Identifier: MIT
"""hybrid.scatter and hybrid.gather: rows from a root to all ranks, between them, and back."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import hybrid
from hybrid.errors import DoesNotFit, UsageError


def tiling(rng, comm, total):
    """How many rows each rank has: any number, also none."""
    return np.diff([0, *sorted(int(row) for row in rng.integers(0, total + 1, comm.size - 1)), total])


def matrices(rng):
    """Of many types and layouts, some of them of no rows or columns."""
    n, m = (int(size) for size in rng.integers(0, 60, 2))
    plain = rng.integers(-9, 10, (n, m))
    yield plain.astype("float64")
    yield np.asfortranarray(plain.astype("float32"))
    yield plain.astype("complex128")[::-1]
    yield rng.integers(0, 256, (n, 2 * m)).astype("uint8")[:, ::2]
    yield plain.astype(">i4")


@pytest.mark.mpi(min_size=2)
def test_without_a_communicator_rows_that_know_one_are_moved_by_it(comm):
    """Alone, a rank would take its rows for the whole matrix."""
    matrix = np.arange(35.0).reshape(7, 5)
    rows = hybrid.scatter(matrix if comm.rank == 0 else None, comm=comm)
    moved = hybrid.scatter(rows, rows=7 if comm.rank == 1 else 0)
    assert (len(moved), moved.comm) == (7 if comm.rank == 1 else 0, comm)
    for given, whole in ((moved, matrix), (rows.T, matrix.T), (hybrid.multiply(rows.T, rows), matrix.T @ matrix)):
        gathered = hybrid.gather(given)
        assert gathered is None if comm.rank else np.array_equal(gathered, whole)
    other = comm.Dup()
    with pytest.raises(UsageError, match="different communicators"):
        hybrid.multiply(rows.T, hybrid.RowBlock(rows.array, other))
    other.Free()


@pytest.mark.mpi
@pytest.mark.parametrize("nodes", ["0", "1"])
def test_what_is_scattered_and_gathered_is_the_same_matrix(comm, rng, monkeypatch, nodes):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    for number, matrix in enumerate(matrices(rng)):
        root, other = number % comm.size, (number + 1) % comm.size
        even = hybrid.scatter(matrix if comm.rank == root else None, comm=comm, root=root)
        assert [len(part) for part in comm.allgather(even.array)] == [len(part) for part in np.array_split(matrix, comm.size)]
        sizes = tiling(rng, comm, len(matrix))
        moved = hybrid.scatter(even, comm=comm, rows=int(sizes[comm.rank]))
        first = sum(sizes[: comm.rank])
        assert np.array_equal(moved.array, matrix[first : first + sizes[comm.rank]])
        c = hybrid.gather(moved, comm=comm, root=other)
        assert (c is None) == (comm.rank != other)
        if c is not None:
            assert (c.dtype, c.shape) == (matrix.dtype, matrix.shape)
            assert np.array_equal(c, matrix)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "array", [np.array([["a", "b"]]), np.array([[b"a"]]), np.array([[None]]), np.zeros((1, 1), "M8[s]")], ids=str
)
def test_only_numbers_are_distributed(comm, array):
    with pytest.raises(UsageError, match=f"elements of {re.escape(str(array.dtype))}, and only numbers are distributed"):
        hybrid.scatter(array if comm.rank == 0 else None, comm=comm)


@pytest.mark.mpi
def test_numbers_of_other_packages_stay_what_they_are(comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    matrix = np.arange(20).reshape(5, 4).astype(ml_dtypes.bfloat16)
    rows = hybrid.scatter(matrix if comm.rank == 0 else None, comm=comm)
    assert rows.dtype == matrix.dtype
    c = hybrid.gather(rows, comm=comm)
    assert comm.rank or (c.dtype == matrix.dtype and np.array_equal(c, matrix))


@pytest.mark.mpi
def test_a_row_block_shows_its_rank_and_its_rows_where_they_are_known(comm):
    matrix, rank, size = np.ones((3 * comm.size, 3 * comm.size)), comm.rank, comm.size
    rows = hybrid.scatter(matrix if rank == 0 else None, comm=comm)
    shown = f"RowBlock(rows {3 * rank}:{3 * rank + 3} of {3 * size} columns, float64, cpu, rank {rank} of {size})"
    for each in (rows, rows @ rows, 2 * rows - rows):
        assert repr(each) == shown
    assert repr(hybrid.scatter(rows.T, comm=comm)) == shown
    assert repr(hybrid.RowBlock(rows.array, comm)) == shown.replace(f"rows {3 * rank}:{3 * rank + 3}", "3 rows")
    assert repr(pickle.loads(pickle.dumps(rows))) == shown.replace(f", rank {rank} of {size}", "")
    other = comm.Dup()
    gone = hybrid.RowBlock(rows.array, other)
    other.Free()
    assert repr(gone) == f"RowBlock(3 rows of {3 * size} columns, float64, cpu)"


@pytest.mark.mpi
def test_out_gets_the_rows_also_where_they_lie_apart_or_are_its_own(comm, rng):
    matrix = rng.standard_normal((13, 5))
    rows = hybrid.scatter(matrix if comm.rank == 0 else None, comm=comm)
    for out in (np.empty((13, 5)), np.empty((13, 5), order="F"), np.empty((26, 10))[::2, 5:], np.empty((13, 5))[::-1]):
        c = hybrid.gather(rows, comm=comm, out=out if comm.rank == 0 else None)
        assert c is (out if comm.rank == 0 else None)
        assert comm.rank or np.array_equal(out, matrix)
    mine = matrix.copy()
    turned = mine[: len(rows.array)][::-1] if comm.rank == 0 else rows.array
    expected = np.concatenate(comm.allgather(turned.copy()))
    hybrid.gather(hybrid.RowBlock(turned), comm=comm, out=mine if comm.rank == 0 else None)
    assert comm.rank or np.array_equal(mine, expected)


@pytest.mark.mpi
def test_a_product_of_what_was_scattered(comm, rng):
    a, b = rng.standard_normal((31, 17)), rng.standard_normal((17, 23))
    blocks = [hybrid.scatter(each if comm.rank == 0 else None, comm=comm) for each in (a, b)]
    c = hybrid.gather(hybrid.multiply(*blocks, comm=comm), comm=comm)
    assert comm.rank or np.allclose(c, a @ b)


@pytest.mark.mpi(min_size=2)
def test_what_does_not_fit_together_is_refused_on_all_ranks(comm):
    matrix, last = np.ones((8, 3)), comm.size - 1
    at_root, column = matrix if comm.rank == 0 else None, np.zeros((comm.size, 1))
    refused = [
        ("rank 1 asks for root 1, rank 0 for 0", lambda: hybrid.scatter(at_root, comm=comm, root=comm.rank)),
        ("is the matrix at the root", lambda: hybrid.scatter(None, comm=comm)),
        ("is the matrix at the root", lambda: hybrid.scatter(at_root if comm.rank == 0 else hybrid.RowBlock(matrix), comm=comm)),
        ("on some ranks and not on others", lambda: hybrid.scatter(at_root, comm=comm, rows=8 if comm.rank == 0 else None)),
        ("want 9 rows together", lambda: hybrid.scatter(at_root, comm=comm, rows=9 if comm.rank == 0 else 0)),
        ("rows=-1 is no number", lambda: hybrid.scatter(at_root, comm=comm, rows=-1)),
        (
            "and only numbers are distributed",
            lambda: hybrid.scatter(None if at_root is None else matrix.astype(object), comm=comm),
        ),
        ("differ in their columns", lambda: hybrid.gather(hybrid.RowBlock(np.ones((2, 3 + (comm.rank == last)))), comm=comm)),
        (
            "differ in their columns",
            lambda: hybrid.gather(hybrid.RowBlock(np.ones((2, 3), "f4" if comm.rank else "f8")), comm=comm),
        ),
        ("takes a RowBlock or Block2D on every rank", lambda: hybrid.gather(at_root, comm=comm)),
        (
            "has strides",
            lambda: hybrid.gather(hybrid.RowBlock(matrix[:1, :1]), comm=comm, out=np.broadcast_arrays(0.0, column)[0]),
        ),
        ("is a masked array", lambda: hybrid.gather(hybrid.RowBlock(matrix[:1, :1]), comm=comm, out=np.ma.array(column))),
        (
            "asks for a whole matrix .gather., rank 0 for a product of matrices of the root",
            lambda: (
                hybrid.gather(hybrid.RowBlock(matrix), comm=comm) if comm.rank else hybrid.multiply(matrix, matrix.T, comm=comm)
            ),
        ),
        ("out has shape", lambda: hybrid.gather(hybrid.RowBlock(matrix), comm=comm, out=np.ones((2, 2)))),
        ("root", lambda: hybrid.scatter(at_root, comm=comm, root=comm.size)),
    ]
    for said, call in refused:
        with pytest.raises(UsageError, match=said):
            call()
        assert len(comm.allgather(None)) == comm.size  # the communicator is usable
    assert len(hybrid.scatter(at_root, comm=comm, rows=8 if comm.rank == last else 0).array) == (8 if comm.rank == last else 0)


@pytest.mark.mpi
def test_too_large_a_matrix_is_refused(comm, monkeypatch):
    monkeypatch.setenv("HYBRID_HOST_MEMORY", "1k")
    with pytest.raises(DoesNotFit, match="does not fit the memory of"):
        hybrid.scatter(np.ones((100, 100)) if comm.rank == 0 else None, comm=comm)


def test_alone_it_is_a_copy():
    matrix = np.arange(12.0).reshape(4, 3)
    rows = hybrid.scatter(matrix)
    assert not np.shares_memory(rows.array, matrix)
    assert np.array_equal(hybrid.gather(rows), matrix)


def test_rows_may_be_a_whole_number_of_numpy_s():
    matrix = np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(hybrid.scatter(matrix, rows=np.int64(4)).array, matrix)
