# SPDX-License-Identifier: MIT
"""Products with transposes of RowBlocks: as a view or by a flag, whatever rows the ranks have."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.selection import exhaustive

import hybrid
from hybrid.errors import DoesNotFit, UsageError

OPS = list(itertools.product([False, True], repeat=2))
SIZES = [(17, 23, 11), (1, 40, 3), (30, 1, 2), (5, 0, 4), (0, 6, 7), (6, 7, 0)]


def matrix(rng, dtype, shape):
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-9, 10, shape).astype(dtype)
    numbers = rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if "complex" in dtype else numbers).astype(dtype)


def uneven(rng, comm, whole):
    """This rank's rows of a matrix: any number, also none."""
    cuts = [0, *sorted(int(row) for row in rng.integers(0, len(whole) + 1, comm.size - 1)), len(whole)]
    return hybrid.RowBlock(whole[cuts[comm.rank] : cuts[comm.rank + 1]], comm)


def whole_of(comm, block):
    return np.concatenate(comm.allgather(block.array))


def assert_close(found, wanted):
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.mpi
@pytest.mark.parametrize("nodes", exhaustive(["0"], ["0", "1"]))
@pytest.mark.parametrize(("of_a", "of_b"), OPS)
@pytest.mark.parametrize(
    "dtype", exhaustive(["float64", "complex64"], ["float64", "float32", "complex64", "complex128", "int32"])
)
def test_views_and_flags_are_the_same_product(comm, rng, monkeypatch, nodes, of_a, of_b, dtype):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    for n, l, m in SIZES:
        a, b = matrix(rng, dtype, (l, n) if of_a else (n, l)), matrix(rng, dtype, (m, l) if of_b else (l, m))
        wanted = (a.T if of_a else a) @ (b.T if of_b else b)
        rows_a, rows_b = uneven(rng, comm, a), uneven(rng, comm, b)
        found = (rows_a.T if of_a else rows_a) @ (rows_b.T if of_b else rows_b)
        assert type(found) is hybrid.RowBlock
        assert found.comm is comm
        assert_close(whole_of(comm, found), wanted)
        height = len(np.array_split(np.empty(n), comm.size)[comm.rank]) if of_a else len(rows_a)
        assert len(found) == height
        by_flags = hybrid.multiply(rows_a, rows_b, comm=comm, transpose_a=of_a, transpose_b=of_b)
        np.testing.assert_array_equal(by_flags.array, found.array)
        twice = hybrid.multiply(rows_a.T, rows_b.T, comm=comm, transpose_a=not of_a, transpose_b=not of_b)
        np.testing.assert_array_equal(twice.array, found.array)


@pytest.mark.mpi
def test_alpha_beta_c_and_conjugates_go_with_it(comm, rng):
    a, b, c = matrix(rng, "complex128", (19, 12)), matrix(rng, "complex128", (9, 19)), matrix(rng, "complex128", (9, 12))
    shares = hybrid.scatter(c.T.copy() if comm.rank == 0 else None, comm=comm)
    rows = uneven(rng, comm, a), uneven(rng, comm, b)
    options = {"comm": comm, "alpha": 2j, "beta": -1, "conjugate_a": True}
    wanted = 2j * (a.conj().T @ b.T) - c.T
    assert_close(whole_of(comm, hybrid.multiply(rows[0].T, rows[1].T, shares, **options)), wanted)
    assert_close(whole_of(comm, hybrid.multiply(rows[0].T, rows[1].T, uneven(rng, comm, c).T, **options)), wanted)
    unread = hybrid.multiply(rows[0].T, rows[1].T, uneven(rng, comm, c).T, beta=0, comm=comm)
    assert_close(whole_of(comm, unread), a.T @ b.T)


@pytest.mark.mpi
def test_a_product_of_a_matrix_with_its_own_transpose(comm, rng):
    a = matrix(rng, "float64", (21, 8))
    rows = uneven(rng, comm, a)
    assert_close(whole_of(comm, rows.T @ rows), a.T @ a)
    assert_close(whole_of(comm, rows @ rows.T), a @ a.T)
    assert_close(whole_of(comm, (rows.T @ rows) @ rows.T), a.T @ a @ a.T)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [">i4", "float32", "complex128", "bool"])
def test_rows_of_a_transpose_are_scattered_and_gathered(comm, rng, dtype):
    for shape in ((13, 7), (1, 5), (4, 1), (0, 3), (3, 0)):
        a = rng.integers(0, 2, shape).astype(dtype)
        rows = uneven(rng, comm, a)
        for block in (
            rows,
            hybrid.RowBlock(np.asfortranarray(rows.array)),
            hybrid.RowBlock(np.repeat(rows.array, 2, axis=1)[:, ::2]),
        ):
            moved = hybrid.scatter(block.T, comm=comm)
            assert [len(part) for part in comm.allgather(moved.array)] == [len(part) for part in np.array_split(a.T, comm.size)]
            np.testing.assert_array_equal(whole_of(comm, moved), a.T)
        last = comm.rank == comm.size - 1
        everything = hybrid.scatter(rows.T, comm=comm, rows=shape[1] if last else 0)
        np.testing.assert_array_equal(everything.array, a.T if last else a.T[:0])
        for out in (None, np.empty(shape[::-1], dtype), np.empty(shape, dtype).T, np.empty((2 * shape[1], shape[0]), dtype)[::2]):
            c = hybrid.gather(rows.T, comm=comm, root=comm.size - 1, out=out if last else None)
            assert c is None if not last else out is None or c is out
            assert not last or np.array_equal(c, a.T)


@pytest.mark.mpi(min_size=2)
def test_what_only_some_ranks_transpose_is_refused_on_all(comm):
    rows, last = hybrid.RowBlock(np.ones((2, 2 * comm.size))), comm.size - 1
    some = rows.T if comm.rank == last else rows
    refused = [
        (f"rank {last} asks for transposed", lambda: hybrid.multiply(some, rows, comm=comm)),
        ("or a RowBlock or Block2D on every rank", lambda: hybrid.scatter(some, comm=comm)),
        ("a RowBlock or Block2D on every rank", lambda: hybrid.gather(some, comm=comm)),
        ("b is no RowBlock, but the other operand is one", lambda: hybrid.multiply(rows.T, np.ones((2, 2)), comm=comm)),
        ("want 3 rows together, and the matrix has", lambda: hybrid.scatter(rows.T, comm=comm, rows=3 * (comm.rank == 0))),
        (rf"out has shape \(\d+, 4\), the matrix \(4, {comm.size}\)", lambda: hybrid.gather(
            hybrid.RowBlock(np.ones((1, 4))).T, comm=comm, out=np.ones((comm.size + 1, 4)))),
        (f"A has {2 * comm.size} columns and B {2 * comm.size + 1} rows", lambda: hybrid.multiply(
            rows, hybrid.RowBlock(np.ones((1, 2 * comm.size + 1))).T, comm=comm)),
    ]  # fmt: skip
    for said, call in refused:
        with pytest.raises(UsageError, match=said):
            call()
        assert len(comm.allgather(None)) == comm.size  # the communicator is usable
    np.testing.assert_array_equal((hybrid.RowBlock(rows.array, comm) @ hybrid.RowBlock(rows.array, comm).T).array, 2 * comm.size)


@pytest.mark.mpi(min_size=2)
def test_memory_for_the_moved_rows_is_looked_at_before(comm):
    rows = hybrid.RowBlock(np.ones((50, 400)))
    with pytest.raises(DoesNotFit, match="missing"):
        hybrid.multiply(rows.T, rows, comm=comm, host_memory="20k")
    assert_close(whole_of(comm, hybrid.multiply(rows.T, rows, comm=comm)), np.full((400, 400), 50.0 * comm.size))


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulate", marks=pytest.mark.needs("compiler"))])
def test_alone_it_is_the_transpose_of_the_array(rng, device):
    a, b = matrix(rng, "float64", (9, 5)), matrix(rng, "float64", (9, 7))
    before = a.copy()
    c = hybrid.multiply(hybrid.RowBlock(a).T, hybrid.RowBlock(b), device=device)
    assert_close(c.array, a.T @ b)
    assert_close(hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(a), transpose_b=True, device=device).array, a @ a.T)
    np.testing.assert_array_equal(a, before)
    moved = hybrid.scatter(hybrid.RowBlock(a).T)
    np.testing.assert_array_equal(moved.array, a.T)
    assert not np.shares_memory(moved.array, a)
