# SPDX-License-Identifier: MIT
"""docs/algorithm.md, Transports: operands reach the devices in place, from the host, from peers or pushed by the root, with the
same product; what cannot be used is refused with a reason, faults on the way are found, and nothing is left open."""

import gc
import os

import numpy as np
import pytest
from support.distributed import refused, rows_of, whole

import hybrid
from hybrid.errors import DeviceUnavailable

pytestmark = pytest.mark.mpi(min_size=2)
PIECES = [
    {},
    {"panel_rows": 3, "panel_columns": 5},
    {"panel_rows": 1, "panel_columns": 40},
    {"panel_rows": 3, "slab_rows": 5},
    {"panel_rows": 40, "slab_rows": 1},
]


@pytest.fixture(autouse=True)
def _staged():
    """CPUs copy like GPUs, and what is read before it was written is NaN."""
    with hybrid.testing.pretend(staged=1, poison=1):
        yield


def at_root(comm, a, b, root=0, **how):
    return hybrid.multiply(*((a, b) if comm.rank == root else (None, None)), comm=comm, root=root, **how)


def shared(comm, a, b, root=0, **how):
    operands = [hybrid.empty(matrix.shape, matrix.dtype, comm=comm, root=root) for matrix in (a, b)]
    for into, matrix in zip(operands, (a, b), strict=True):
        if into is not None and comm.rank == root:
            into[...] = matrix
    comm.Barrier()
    return hybrid.multiply(*(operands if comm.rank == root else (None, None)), comm=comm, root=root, **how)


def by_rows(comm, a, b, root=0, **how):
    c = whole(comm, hybrid.multiply(rows_of(comm, a), rows_of(comm, b), comm=comm, **how))
    return c if comm.rank == root else None


def drawn(comm, rng, dtype="float64", least=0):
    n, l, m = (int(size) for size in rng.integers(least, 60, 3))
    a, b = (rng.integers(-9, 10, shape).astype(dtype) for shape in ((n, l), (l, m)))
    return a, b, int(rng.integers(comm.size))


def check(comm, a, b, root=0, form=at_root, **how):
    c = form(comm, a, b, root, **how)
    assert (c is None) == (comm.rank != root)
    assert c is None or (c.dtype == a.dtype and np.array_equal(c, a @ b)), (a.shape, b.shape, root, form.__name__, how)


def test_each_transport_gives_numpys_product_in_pieces_of_any_kind(comm, rng):
    """Of the root's arrays, shared ones and row blocks, on one node and on several, where all fits and where little does."""
    for number, (transport, pieces) in enumerate(
        (each, pieces) for each in ("host", "peers") for pieces in PIECES * (2 if comm.size == 2 else 1)
    ):
        dtype, form = ("float64", "float32")[number % 2], (at_root, shared, by_rows)[number % 3]
        nodes = 2 if comm.size == 4 and number % 4 == 3 and form is not by_rows else number % 3 if transport == "host" else 0
        little = {"gpu_memory": "6k"} if transport == "host" and number % 4 == 0 else {}
        with hybrid.testing.pretend(transport=transport, ranks_per_node=nodes, **pieces, **little):
            check(comm, *drawn(comm, rng, dtype, least=comm.size if transport == "peers" else 0), form)


def test_from_the_roots_arrays_or_shared_ones_each_row_of_b_crosses_the_links_of_a_node_once_with_peers(comm):
    """docs/algorithm.md: a rank loads its share of B and fetches the rest from the other devices; with `host` it loads all."""
    a, b = np.ones((64, 64)), np.ones((64, 64))
    copied = {}
    for transport in ("host", "peers"):
        with hybrid.testing.pretend(transport=transport):
            shared(comm, a, b)
            with hybrid.testing.count() as counts:
                shared(comm, a, b)
        copied[transport] = sum(comm.allgather(counts.copied_in)), sum(comm.allgather(counts.copied_out))
    assert copied["host"] == (a.nbytes + comm.size * b.nbytes, 64 * 64 * 8)
    assert copied["peers"] == (a.nbytes + b.nbytes, 64 * 64 * 8)


def test_products_of_other_sizes_and_forms_in_turn_are_right_and_leave_no_file_open(comm, rng):
    own = comm.Dup()
    at_root(own, np.ones((1, 1)), np.ones((1, 1)))

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with hybrid.testing.pretend(transport="peers"):
        for size, form in zip((40, 10, 20, 60, 5, 60), (at_root, at_root, shared, shared, by_rows, at_root), strict=True):
            a, b = (rng.integers(-9, 10, (size, size)).astype(float) for _ in "ab")
            check(own, a, b, form=form)
    own.Free()
    del own
    comm.Barrier()
    assert descriptors() <= before


def test_what_a_transport_cannot_do_is_refused_and_auto_takes_another(comm, rng):
    a, b = rng.random((50, 30)), rng.random((30, 40))
    cases = [
        ({"gpu_memory": "6k", "transport": "peers"}, at_root, a, b),
        ({"gpu_memory": "6k", "transport": "nccl"}, at_root, a, b),
        ({"transport": "nccl"}, at_root, a, b),
        ({"transport": "peers"}, at_root, a[:1], b),
        ({"transport": "peers", "ranks_per_node": 1}, at_root, a, b),
        *([({"transport": "peers", "ranks_per_node": 2}, by_rows, a, b)] if comm.size > 2 else []),
    ]
    for settings, form, first, second in cases:
        with hybrid.testing.pretend(**settings), refused("transport", DeviceUnavailable):
            form(comm, first, second)
        with hybrid.testing.pretend(**{**settings, "transport": "auto"}):
            check(comm, np.round(9 * first), np.round(9 * second), form=form)


def test_a_peer_whose_device_gives_wrong_rows_is_refused_before_the_product(comm, rng):
    """When devices are first connected, a pattern is fetched and compared."""
    own = comm.Dup()
    a, b = rng.integers(0, 9, (comm.size, 3)).astype(float), rng.integers(0, 9, (3, 4)).astype(float)
    with hybrid.testing.pretend(transport="peers"):
        with hybrid.testing.plant("arrive", rank=0, how="zero"), refused("transport", DeviceUnavailable):
            at_root(own, a, b)
        check(own, a, b)
    own.Free()
