# SPDX-License-Identifier: MIT
"""docs/algorithm.md, Transports: operands reach the devices in place, from the host, from peers or pushed by the root, with the
same product; what cannot be used is refused with a reason, faults on the way are found, and nothing is left open."""

import numpy as np
import pytest
from support.cases import refused
from support.checked import product

import hybrid
from hybrid.errors import DeviceUnavailable

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(autouse=True)
def _staged():
    """CPUs copy like GPUs, and what is read before it was written is NaN."""
    with hybrid.testing.pretend(staged=1, poison=1):
        yield


def check(comm, a, b, form="root"):
    assert np.array_equal(product(comm, form, a, b), a @ b), (a.shape, b.shape, form)


def test_from_the_roots_arrays_or_shared_ones_each_row_of_b_crosses_the_links_of_a_node_once_with_peers(comm):
    """docs/algorithm.md: a rank loads its share of B and fetches the rest from the other devices; with `host` it loads all."""
    a, b = np.ones((64, 64)), np.ones((64, 64))
    copied = {}
    for transport in ("host", "peers"):
        with hybrid.testing.pretend(transport=transport):
            check(comm, a, b, "shared")
            with hybrid.testing.count() as counts:
                check(comm, a, b, "shared")
        copied[transport] = sum(comm.allgather(counts.copied_in)), sum(comm.allgather(counts.copied_out))
    assert copied["host"] == (a.nbytes + comm.size * b.nbytes, 64 * 64 * 8)
    assert copied["peers"] == (a.nbytes + b.nbytes, 64 * 64 * 8)


def test_what_a_transport_cannot_do_is_refused_and_auto_takes_another(comm, rng):
    a, b = rng.random((50, 30)), rng.random((30, 40))
    cases = [
        ({"gpu_memory": "6k", "transport": "peers"}, "root", a, b),
        ({"gpu_memory": "6k", "transport": "nccl"}, "root", a, b),
        ({"transport": "nccl"}, "root", a, b),
        ({"transport": "peers"}, "root", a[:1], b),
        ({"transport": "peers", "ranks_per_node": 1}, "root", a, b),
        *([({"transport": "peers", "ranks_per_node": 2}, "row blocks", a, b)] if comm.size > 2 else []),
    ]
    for settings, form, first, second in cases:
        with hybrid.testing.pretend(**settings), refused(DeviceUnavailable, "transport"):
            product(comm, form, first, second)
        with hybrid.testing.pretend(**{**settings, "transport": "auto"}):
            check(comm, np.round(9 * first), np.round(9 * second), form=form)


def test_a_peer_whose_device_gives_wrong_rows_is_refused_before_the_product(comm, rng):
    """When devices are first connected, a pattern is fetched and compared."""
    own = comm.Dup()
    a, b = rng.integers(0, 9, (comm.size, 3)).astype(float), rng.integers(0, 9, (3, 4)).astype(float)
    with hybrid.testing.pretend(transport="peers"):
        with hybrid.testing.plant("arrive", rank=0, how="zero"), refused(DeviceUnavailable, "transport"):
            product(own, "root", a, b)
        check(own, a, b)
    own.Free()
