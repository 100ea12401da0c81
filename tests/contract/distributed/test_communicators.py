# SPDX-License-Identifier: MIT
"""docs/python.md, Calls: any communicator of mpi4py's will do: parts, copies and other orders of the ranks, and freed ones leave
nothing behind. Integers, shapes and refusals do not depend on the number of ranks, nor products beyond rounding."""

import gc
import os

import numpy as np
import pytest
from support.distributed import rows_of, whole

import hybrid

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.exhaustive(above=2)]


def check(comm, rng=None, n=30):
    """A product of each kind, on these ranks alone."""
    a, b = np.arange(n * 20.0).reshape(n, 20) % 7, np.arange(20.0 * n).reshape(20, n) % 5
    root = comm.size - 1
    c = hybrid.multiply(*((a, b) if comm.rank == root else (None, None)), comm=comm, root=root)
    assert c is None if comm.rank != root else np.array_equal(c, a @ b)
    rows = hybrid.scatter(a if comm.rank == root else None, comm=comm, root=root)
    assert np.array_equal(whole(comm, rows @ rows.T), a @ a.T)
    shared = hybrid.empty((n, n), comm=comm)
    hybrid.gather(rows_of(comm, np.eye(n)), comm=comm, out=shared if comm.rank == 0 else None)
    comm.Barrier()
    assert np.array_equal(shared, np.eye(n))
    comm.Barrier()


def test_parts_copies_and_other_orders_of_the_ranks_are_communicators(comm):
    from mpi4py import MPI

    check(comm)
    backwards = comm.Split(0, -comm.rank)
    evens_and_odds = comm.Split(comm.rank % 2)
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    group = comm.Get_group()
    some = comm.Create_group(group.Incl(range(1, comm.size))) if comm.rank else MPI.COMM_NULL
    for own in (backwards, evens_and_odds, node, some, MPI.COMM_SELF):
        if own != MPI.COMM_NULL:
            check(own)
    check(comm)
    for own in (backwards, evens_and_odds, node, *([some] if comm.rank else [])):
        own.Free()
    check(comm)


def test_different_parts_compute_different_products_at_the_same_time(comm):
    part = comm.Split(comm.rank % 2)
    for n in (10, 40 + 10 * (comm.rank % 2)):
        check(part, n=n)
    part.Free()


def test_communicators_that_come_and_go_leave_nothing_open(comm):
    def held():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for number in range(4):
        own = comm.Dup()
        with hybrid.testing.pretend(staged=number % 2, transport="peers" if number % 2 else "auto"):
            for n in (30, 20, 60, 20):
                check(own, n=n)
        own.Free()
        comm.Barrier()
        if number == 1:
            before = held()
    assert all(now <= then for now, then in zip(held(), before, strict=True))
