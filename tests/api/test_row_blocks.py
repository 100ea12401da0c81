# SPDX-License-Identifier: MIT
"""Products of matrices whose rows lie on all ranks."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from support.selection import pairs_first

import hybrid
from hybrid.errors import CheckFailed, DeviceUnavailable, DoesNotFit, RankFailed, UsageError
from hybrid.plan.grid import candidates
from hybrid.plan.plan import PROCESS_BYTES

pytestmark = pytest.mark.mpi
RANKS_PER_NODE = ["0", "1", "2"]  # pretended; 0: one node


def tiling(rng, comm, total):
    """How many rows each rank has: any number, also none."""
    return np.diff([0, *sorted(int(row) for row in rng.integers(0, total + 1, comm.size - 1)), total])


def block(comm, matrix, sizes):
    first = int(sum(sizes[: comm.rank]))
    return hybrid.RowBlock(matrix[first : first + sizes[comm.rank]])


def whole(comm, rows):
    return np.concatenate(comm.allgather(rows.array))


ENVIRONMENTS = [{}, {"STAGED": "1", "TRANSPORT": "host"}, {"STAGED": "1", "GPU_MEMORY": "6k"}]


@pytest.mark.parametrize(("dtype", "environment", "nodes"), pairs_first(["float64", "float32"], ENVIRONMENTS, RANKS_PER_NODE))
def test_any_blocks_give_numpys_product(comm, rng, monkeypatch, dtype, environment, nodes):
    for name, value in {**environment, "RANKS_PER_NODE": nodes, "POISON": "1"}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    for _ in range(6):
        n, l, m = (int(size) for size in rng.integers(0, 50, 3))
        a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
        rows = tiling(rng, comm, n)
        c = hybrid.multiply(block(comm, a, rows), block(comm, b, tiling(rng, comm, l)), comm=comm)
        assert c.array.shape == (rows[comm.rank], m)
        assert c.array.dtype == dtype
        accuracy = 1e-4 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(whole(comm, c), a @ b, rtol=accuracy, atol=accuracy)


@pytest.mark.mpi(min_size=2)
def test_b_is_fetched_from_the_other_ranks_devices(comm, rng, monkeypatch):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "5")
    for _ in range(6):
        n, l, m = (int(size) for size in rng.integers(1, 50, 3))
        a, b = rng.standard_normal((n + comm.size, l)), rng.standard_normal((l, m))
        rows = np.diff([0, *range(1, comm.size), n + comm.size])
        c = hybrid.multiply(block(comm, a, rows), block(comm, b, tiling(rng, comm, l)), comm=comm)
        np.testing.assert_allclose(whole(comm, c), a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.mpi(min_size=4)
def test_where_rows_of_b_lie_on_other_nodes_they_are_not_fetched_from_devices(comm, rng, monkeypatch):
    for name, value in {"STAGED": "1", "TRANSPORT": "peers", "RANKS_PER_NODE": "2"}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    rows = hybrid.RowBlock(rng.random((3, 3 * comm.size)))
    with pytest.raises(DeviceUnavailable, match="rows of B lie on other nodes"):
        hybrid.multiply(rows, rows, comm=comm)


IN_PLACE = {"DEVICE": "cpu"}
STAGED = {"DEVICE": "cpu", "STAGED": "1", "POISON": "1"}
ON_GRIDS = [
    IN_PLACE,
    STAGED,
    {**STAGED, "PANEL_ROWS": "33", "PANEL_COLUMNS": "40"},
    {**STAGED, "GPU_MEMORY": "40k"},
    pytest.param({"DEVICE": "emulate", "PRECISION": "fast", "POISON": "1"}, marks=pytest.mark.needs("compiler")),
]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("environment", ON_GRIDS, ids=["in place", "staged", "panels", "little memory", "emulated"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_grid_of_nodes_gives_numpys_product(comm, rng, monkeypatch, dtype, environment):
    for name, value in environment.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    for ranks_per_node in range(1, comm.size):
        monkeypatch.setenv("HYBRID_RANKS_PER_NODE", str(ranks_per_node))
        for grid in sorted({str(each) for each in candidates(-(-comm.size // ranks_per_node))}):
            monkeypatch.setenv("HYBRID_GRID", grid)
            monkeypatch.setenv("HYBRID_MESSAGE_BYTES", str(rng.choice([100, 1 << 28])))
            n, l, m = (int(size) for size in rng.integers(0, 300, 3))
            a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
            rows = tiling(rng, comm, n)
            c = hybrid.multiply(block(comm, a, rows), block(comm, b, tiling(rng, comm, l)), comm=comm)
            assert c.array.shape == (rows[comm.rank], m)
            accuracy = 1e-3 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(whole(comm, c), a @ b, rtol=accuracy, atol=accuracy)


@pytest.mark.mpi(min_size=2)
@pytest.mark.needs("compiler")
def test_from_remainders_a_rank_of_a_grid_may_have_no_terms(comm, rng, monkeypatch):
    grid = f"1x1x{comm.size}"
    for name, value in {"DEVICE": "emulate", "PRECISION": "fast", "RANKS_PER_NODE": "1", "GRID": grid}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    a, b = rng.standard_normal((30, 1)), rng.standard_normal((1, 40))
    rows = tiling(rng, comm, 30)
    c = hybrid.multiply(block(comm, a, rows), block(comm, b, tiling(rng, comm, 1)), comm=comm)
    np.testing.assert_allclose(whole(comm, c), a @ b, rtol=1e-12)


@pytest.mark.gpu
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("more", [{}, {"PANEL_ROWS": "33", "PANEL_COLUMNS": "40"}, {"GPU_MEMORY": "1m"}, {"PRECISION": "fast"}])
def test_every_grid_of_gpus_gives_numpys_product_where_the_rows_of_a_lie(comm, rng, monkeypatch, more):
    """The ranks may share a GPU. Some rows lie on it, others in host memory."""
    cupy = pytest.importorskip("cupy")
    for name, value in {"DEVICE": "cuda", "RANKS_PER_NODE": "1", "POISON": "1", **more}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    for grid in sorted({str(each) for each in candidates(comm.size)} - {f"{comm.size}x1"}):
        monkeypatch.setenv("HYBRID_GRID", grid)
        for there in (cupy.asarray, np.asarray):
            n, l, m = (int(size) for size in rng.integers(1, 700, 3))
            a, b = rng.standard_normal((n, l)), rng.standard_normal((l, m))
            rows_a, rows_b = (block(comm, matrix, tiling(rng, comm, len(matrix))) for matrix in (a, b))
            c = hybrid.multiply(hybrid.RowBlock(there(rows_a.array)), hybrid.RowBlock(there(rows_b.array)), comm=comm)
            assert isinstance(c.array, cupy.ndarray if there is cupy.asarray else np.ndarray)
            product = np.concatenate(comm.allgather(cupy.asnumpy(c.array)))
            np.testing.assert_allclose(product, a @ b, rtol=1e-11, atol=1e-11)


@pytest.fixture
def grid(comm, monkeypatch, request):
    """Of all ranks, each a node: as many rows as columns where that can be. In place, or as an indirect parameter says."""
    shape = {2: "1x2", 3: "1x3", 4: "2x2"}[comm.size]
    for name, value in {**getattr(request, "param", IN_PLACE), "RANKS_PER_NODE": "1", "GRID": shape}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    return shape


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("grid", [IN_PLACE, STAGED], indirect=True, ids=["in place", "staged"])
def test_a_rank_of_a_grid_that_fails_ends_the_call_on_all(comm, rng, monkeypatch, grid):
    from hybrid.devices import cpu

    rows = [20] * comm.size
    a, b = rng.random((20 * comm.size, 20 * comm.size)), rng.random((20 * comm.size, 300))

    def fails(*matrices):
        raise ArithmeticError("a broken BLAS")

    with monkeypatch.context() as broken:
        if comm.rank == 1:
            broken.setattr(cpu, "blas", fails)
        with pytest.raises(RankFailed, match=r"rank 1 on .*, multiply: .*a broken BLAS"):
            hybrid.multiply(block(comm, a, rows), block(comm, b, rows), comm=comm)
    c = hybrid.multiply(block(comm, a, rows), block(comm, b, rows), comm=comm)
    np.testing.assert_allclose(whole(comm, c), a @ b, rtol=1e-12)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("grid", [IN_PLACE, STAGED], indirect=True, ids=["in place", "staged"])
@pytest.mark.parametrize("on_fault", ["raise", "repair"])
def test_a_grid_s_wrong_product_is_found(comm, rng, monkeypatch, grid, on_fault):
    from hybrid.devices import cpu

    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        if comm.rank == 1:
            c[-1, -1] += 1

    rows = [20] * comm.size
    a, b = rng.random((20 * comm.size, 20 * comm.size)), rng.random((20 * comm.size, 300))
    monkeypatch.setattr(cpu, "blas", wrong)
    if on_fault == "raise":
        with pytest.raises(CheckFailed):
            hybrid.multiply(block(comm, a, rows), block(comm, b, rows), comm=comm)
        return
    own = comm.Dup()  # for who is wrong on a communicator twice gets no rows there any more
    with pytest.warns(RuntimeWarning, match="repaired") if comm.rank == 0 else nullcontext():
        c = hybrid.multiply(block(comm, a, rows), block(comm, b, rows), comm=own, on_fault="repair")
    own.Free()
    np.testing.assert_allclose(whole(comm, c), a @ b, rtol=1e-12)


@pytest.mark.mpi(min_size=2)
def test_a_grid_of_other_nodes_or_from_gpu_to_gpu_is_refused(comm, monkeypatch, grid):
    rows = hybrid.RowBlock(np.ones((2, 2 * comm.size)))
    monkeypatch.setenv("HYBRID_GRID", "5x7")
    with pytest.raises(UsageError, match=rf"a grid 5x7 has 35 nodes, and this job {comm.size}"):
        hybrid.multiply(rows, rows, comm=comm)
    monkeypatch.setenv("HYBRID_GRID", grid)
    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    with pytest.raises(DeviceUnavailable, match="the nodes form a grid, whose parts travel from host to host"):
        hybrid.multiply(rows, rows, comm=comm)


def test_chains_of_products_stay_on_their_ranks(comm, rng):
    rows = tiling(rng, comm, 30)
    a = rng.standard_normal((30, 30))
    power = block(comm, a, rows)
    for _ in range(3):
        power = hybrid.multiply(power, block(comm, a, rows), comm=comm)
    np.testing.assert_allclose(whole(comm, power), np.linalg.matrix_power(a, 4), rtol=1e-9, atol=1e-9)


def test_blocks_that_are_no_contiguous_arrays_of_floats_are_taken_too(comm, rng):
    rows = tiling(rng, comm, 12)
    a, b = rng.integers(-9, 9, (12, 24)), rng.standard_normal((12, 8)).astype(">f8")
    c = hybrid.multiply(block(comm, a[:, ::2], rows), block(comm, b, rows), comm=comm)
    np.testing.assert_allclose(whole(comm, c), a[:, ::2] @ b, rtol=1e-12, atol=1e-12)


def test_alone_a_block_is_the_whole_matrix():
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(a.T)).array, a @ a.T)


def test_what_does_not_fit_together_is_refused_on_all_ranks(comm):
    ones = np.ones((2, 2 * comm.size))
    with pytest.raises(UsageError, match="b is no RowBlock, but the other operand is one"):
        hybrid.multiply(hybrid.RowBlock(ones), ones, comm=comm)
    with pytest.raises(UsageError, match=rf"A has 3 columns and B {2 * comm.size} rows"):
        hybrid.multiply(hybrid.RowBlock(np.ones((2, 3))), hybrid.RowBlock(ones), comm=comm)
    with pytest.raises(UsageError, match="neither out nor root"):
        hybrid.multiply(hybrid.RowBlock(ones), hybrid.RowBlock(ones), comm=comm, out=ones)
    with pytest.raises(UsageError, match="takes a matrix of NumPy's or CuPy's, not list"):
        hybrid.RowBlock([[1.0]])
    b = np.ones((2, 3))
    np.testing.assert_array_equal(
        hybrid.multiply(hybrid.RowBlock(ones), hybrid.RowBlock(b), comm=comm).array, ones @ np.ones((2 * comm.size, 3))
    )


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_passes_something_else_is_named(comm):
    ones = np.ones((2, 2 * comm.size))
    mine = hybrid.RowBlock(ones) if comm.rank == 0 else ones
    with pytest.raises(UsageError, match="rank 1 asks for a product of"):
        hybrid.multiply(mine, mine, comm=comm)
    wide = hybrid.RowBlock(np.ones((2, 3 if comm.rank == 1 else 4)))
    with pytest.raises(UsageError, match=r"rank 1's blocks have .* columns of float64"):
        hybrid.multiply(hybrid.RowBlock(ones), wide, comm=comm)


def test_a_wrong_product_of_blocks_is_found(comm, monkeypatch):
    from hybrid.devices import cpu

    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        if comm.rank == comm.size - 1:
            c[-1, -1] += 1

    monkeypatch.setattr(cpu, "blas", wrong)
    block = hybrid.RowBlock(np.ones((2, 2 * comm.size)))
    with pytest.raises(CheckFailed):
        hybrid.multiply(block, hybrid.RowBlock(np.ones((2, 3))), comm=comm)


def test_copies_that_converting_takes_are_forecast(comm, monkeypatch):
    rows = np.ones((1000, 1000 * comm.size))
    monkeypatch.setenv("HYBRID_HOST_MEMORY", str(comm.size * (PROCESS_BYTES + 5 * rows.nbytes // 2)))
    hybrid.multiply(hybrid.RowBlock(rows), hybrid.RowBlock(rows), comm=comm)
    with pytest.raises(DoesNotFit, match="are missing"):
        hybrid.multiply(hybrid.RowBlock(np.asfortranarray(rows)), hybrid.RowBlock(rows.astype(np.float32)), comm=comm)
