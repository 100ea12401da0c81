# SPDX-License-Identifier: MIT
"""docs/algorithm.md, Grids of nodes: on every grid, with any number of ranks a node and message sizes, a product is the
same. A grid of other nodes, or from GPU to GPU, is refused."""

import numpy as np
import pytest
from support.cases import refused
from support.distributed import heights, rows_of, whole

import hybrid
from hybrid.errors import CheckFailed, DeviceUnavailable, RankFailed, UsageError

pytestmark = pytest.mark.mpi(min_size=2)
DEVICES = {
    "in place": {"device": "cpu"},
    "staged": {"device": "cpu", "staged": 1, "poison": 1},
    "panels": {"device": "cpu", "staged": 1, "poison": 1, "panel_rows": 33, "panel_columns": 40},
    "little memory": {"device": "cpu", "staged": 1, "gpu_memory": "40k"},
    "emulated": {"device": "emulate", "precision": "fast", "poison": 1},
}


def grids(nodes):
    """All of so many nodes: rows x columns x layers."""
    divisors = [number for number in range(1, nodes + 1) if nodes % number == 0]
    return ["rows", *(f"{r}x{c}x{nodes // r // c}" for r in divisors for c in divisors if nodes % (r * c) == 0)]


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_on_every_grid_the_product_is_right(comm, rng, count):
    """Of row blocks and of the root's arrays; C lies where A does, or at the root."""
    devices = [settings for name, settings in DEVICES.items() if name != "emulated" or not hybrid.testing.lacking("compiler")]
    cases = [(per_node, grid) for per_node in range(1, comm.size) for grid in grids(-(-comm.size // per_node))]
    for number, at in enumerate(rng.permutation(len(cases))[:count]):
        per_node, grid = cases[at]
        dtype, root = ("float64", "float32")[number % 2], number % comm.size
        n, l, m = (int(size) for size in rng.integers(0, 120, 3))
        a, b = rng.integers(-9, 10, (n, l)).astype(dtype), rng.integers(-9, 10, (l, m)).astype(dtype)
        of_ranks = heights(rng, comm.size, n)
        settings = devices[(number + rng.integers(len(devices))) % len(devices)]
        nodes = {"ranks_per_node": per_node, "grid": grid, "message_bytes": int(rng.choice([500, 9000, 1 << 28]))}
        with hybrid.testing.pretend(**settings, **nodes):
            c = hybrid.multiply(rows_of(comm, a, of_ranks), rows_of(comm, b, heights(rng, comm.size, l)), comm=comm)
            at_root = hybrid.multiply(*((a, b) if comm.rank == root else (None, None)), comm=comm, root=root)
        assert (c.local_shape, c.dtype) == ((of_ranks[comm.rank], m), dtype)
        np.testing.assert_array_equal(whole(comm, c), a @ b, err_msg=f"{nodes} {settings}")
        assert at_root is None if comm.rank != root else np.array_equal(at_root, a @ b), (nodes, settings)


def test_operands_that_are_converted_reach_other_nodes_in_several_parts(comm, rng):
    a, b = rng.standard_normal((450 * comm.size, 3000)).astype("float32"), rng.standard_normal((3000, 3))
    given = (a, b) if comm.rank == 0 else (None, None)
    with hybrid.testing.pretend(device="cpu", ranks_per_node=1, transport="host"):
        c = hybrid.multiply(*given, comm=comm)
    assert comm.rank or np.allclose(c, a @ b)


@pytest.mark.needs("compiler")
def test_from_remainders_a_rank_of_a_grid_may_have_no_terms(comm, rng):
    a, b = rng.standard_normal((30, 1)), rng.standard_normal((1, 40))
    with hybrid.testing.pretend(device="emulate", precision="fast", ranks_per_node=1, grid=f"1x1x{comm.size}"):
        c = hybrid.multiply(rows_of(comm, a, heights(rng, comm.size, 30)), rows_of(comm, b), comm=comm)
    np.testing.assert_allclose(whole(comm, c), a @ b, rtol=1e-12)


def test_faults_on_a_grid_reach_all_ranks_and_the_next_product_is_right(comm, rng):
    """A rank that fails, a wrong product, refused or repaired, and a wrong transfer."""
    own = comm.Dup()  # who was wrong twice gets no rows on a communicator any more
    a, b = rng.random((20 * comm.size, 20 * comm.size)), rng.random((20 * comm.size, 300))

    def product(**how):
        c = hybrid.multiply(rows_of(comm, a), rows_of(comm, b), comm=own, **how)
        np.testing.assert_allclose(whole(comm, c), a @ b, rtol=1e-12)

    for grid in (f"1x{comm.size}", f"1x1x{comm.size}"):
        for staged in (0, 1) if comm.size == 2 else (int("1x1" in grid),):
            with hybrid.testing.pretend(device="cpu", ranks_per_node=1, grid=grid, staged=staged):
                with hybrid.testing.plant("rank", rank=1, phase="multiply", how="raise"), refused(RankFailed, "rank-failed"):
                    product()
                for how in ("element", lambda into, *_: into.__setitem__((0, 0), -9)):
                    with hybrid.testing.plant("multiply", rank=1, how=how), refused(CheckFailed, "check-product") as found:
                        product()
                    assert "rank 1 " in str(found.value)
                with hybrid.testing.plant("arrive", rank=1, how="element"), pytest.raises(CheckFailed):
                    product()
                product()
    repaired = pytest.warns(RuntimeWarning) if comm.rank == 0 else hybrid.testing.pretend()
    wrong = hybrid.testing.plant("multiply", rank=1, how="element")
    with hybrid.testing.pretend(device="cpu", ranks_per_node=1, grid=f"1x{comm.size}"), repaired, wrong:
        product(on_fault="repair")
    own.Free()


def test_a_grid_of_other_nodes_or_from_gpu_to_gpu_is_refused(comm):
    rows = hybrid.RowBlock(np.ones((2, 2 * comm.size)))
    with hybrid.testing.pretend(ranks_per_node=1):
        for grid in ("5x7", "1x1", f"{comm.size}x2", "2x", "0x4", "nonsense"):
            with hybrid.testing.pretend(grid=grid), pytest.raises(UsageError):
                hybrid.multiply(rows, rows, comm=comm)
        with hybrid.testing.pretend(grid="5x7"), refused(UsageError, "grid"):
            hybrid.multiply(rows, rows, comm=comm)
        with hybrid.testing.pretend(grid=f"1x{comm.size}", staged=1, transport="peers"), refused(DeviceUnavailable, "transport"):
            hybrid.multiply(rows, rows, comm=comm)
    assert (hybrid.multiply(rows, rows, comm=comm).array == 2 * comm.size).all()
