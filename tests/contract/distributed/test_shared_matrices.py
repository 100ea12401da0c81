# SPDX-License-Identifier: MIT
"""docs/python.md, Node-shared matrices: what `hybrid.empty` makes is one matrix for all ranks of the root's node, None elsewhere;
products take it where it lies; nobody else can open it, and it goes when the root lets go of it."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from support import cases
from support.cases import refused

import hybrid
from hybrid.errors import DoesNotFit, UsageError

SEVERAL = pytest.mark.mpi(min_size=2)
WAYS = {
    "CPU": {},
    "CPU, checked by the host": {"check": "host"},
    "buffers": {"staged": True},
    "devices of peers": {"staged": True, "transport": "peers"},
}


def filled(comm, array, values, root=0):
    """With the root's values, after all ranks have come."""
    if comm.rank == root:
        array[...] = values
    comm.Barrier()
    return array


def at_root(comm, *values):
    return values if comm.rank == 0 else (None,) * len(values)


@pytest.fixture(params=["alone", pytest.param("ranks", marks=SEVERAL)])
def group(request):
    """None, or all ranks."""
    return None if request.param == "alone" else request.getfixturevalue("comm")


@pytest.mark.parametrize("name", cases.TYPES)
def test_a_matrix_of_any_type_is_the_same_on_all_ranks(comm, group, name):
    dtype, size = cases._dtype(name), 1 if group is None else comm.size
    rank = 0 if group is None else comm.rank
    a = hybrid.empty((2 * size, 3), name, comm=group)
    assert (a.shape, a.dtype, a.flags.c_contiguous, a.flags.writeable) == ((2 * size, 3), dtype, True, True)
    a[2 * rank : 2 * rank + 2] = rank % 2
    if group is not None:
        comm.Barrier()
    np.testing.assert_array_equal(np.real(a[:, 0]).astype(int), np.repeat(np.arange(size) % 2, 2))
    if group is not None:
        comm.Barrier()


def test_sizes_are_whole_numbers_of_any_library_and_may_be_0(group):
    for shape in ((np.int64(3), np.uint8(2)), [3, 2], (0, 5), (5, 0)):
        assert hybrid.empty(shape, comm=group, root=np.int32(0)).shape == tuple(shape)
    assert hybrid.empty((2, 2), None, comm=group).dtype == np.float64


@SEVERAL
@pytest.mark.parametrize("way", WAYS)
def test_products_use_them_where_they_lie(comm, rng, way):
    """Of operands and result, of their transposes and of rows of them, nothing is sent; of private ones all is."""
    (n, l, m), settings = (600, 260, 480), dict(WAYS[way])
    first, second = rng.standard_normal((n, l)), rng.standard_normal((l, m))
    a, b, c = (hybrid.empty(shape, comm=comm) for shape in ((n, l), (l, m), (n, m)))
    turned_a, turned_b = (filled(comm, hybrid.empty(each.T.shape, comm=comm), each.T) for each in (first, second))
    filled(comm, a, first)
    filled(comm, b, second)
    calls = [(a, b, {}), (turned_a, b, {"transpose_a": True}), (turned_a.T, turned_b, {"transpose_b": True})]
    check = settings.pop("check", True)
    with hybrid.testing.pretend(**settings):
        for operands in calls * 2:
            filled(comm, c, np.nan)
            with hybrid.testing.count() as counts:
                out = hybrid.multiply(
                    *at_root(comm, *operands[:2]), **operands[2], out=c if comm.rank == 0 else None, comm=comm, check=check
                )
            assert out is (c if comm.rank == 0 else None)
            np.testing.assert_allclose(c, first @ second, rtol=1e-10, atol=1e-10)  # on every rank: the memory is the same
            assert counts.bytes_sent < 250_000, "as much as they say to each other; a sum that looks unusual takes 70,000 bytes"
            assert counts.copied_in == counts.copied_out == 0 or settings
            comm.Barrier()
        part = hybrid.multiply(*at_root(comm, a[5:90], b), comm=comm, check=check)
        assert comm.rank or np.allclose(part, first[5:90] @ second)
        private = hybrid.multiply(*at_root(comm, first, second), comm=comm, check=check)
        assert comm.rank or np.allclose(private, first @ second)


@SEVERAL
def test_those_of_a_real_and_a_complex_type_too(comm):
    a, b, c = (hybrid.empty((90, 90), each, comm=comm) for each in ("float64", "complex128", "complex128"))
    filled(comm, a, np.arange(8100.0).reshape(90, 90))
    filled(comm, b, 1 + 2j)
    with hybrid.testing.count() as counts:
        hybrid.multiply(*at_root(comm, a, b), out=c if comm.rank == 0 else None, comm=comm)
    np.testing.assert_array_equal(c, a @ b)
    assert counts.bytes_sent < 20_000


@SEVERAL
def test_parts_views_and_other_types_of_them_are_operands_as_any(comm):
    a = filled(comm, hybrid.empty((8, 8), comm=comm), np.arange(64.0).reshape(8, 8))
    single = filled(comm, hybrid.empty((7, 7), "float32", comm=comm), 2)
    private = np.ones((8, 8))
    odd = a.reshape(-1).view(np.uint8)[4 : 4 + 8 * 36].view(np.float64).reshape(6, 6)
    if comm.rank == 0:
        odd[...] = np.arange(36).reshape(6, 6)
    comm.Barrier()
    pairs = [(a[:, ::2], private[::2]), (a, private), (private, a.T), (a[::-1], a), (odd, odd), (single, np.asarray(a[:7, :7])),
             (a.view("int64"), a.view("int64")[:, :3] >> 40)]  # fmt: skip
    for first, second in pairs:
        if first.dtype == "int64":
            first = first & 0xFF
        c = hybrid.multiply(*at_root(comm, first, second), comm=comm)
        assert comm.rank or np.allclose(c, first.astype(second.dtype) @ second)
    comm.Barrier()


@SEVERAL
def test_on_other_nodes_there_is_nothing_and_products_are_right_all_the_same(comm):
    here = hybrid.empty((6, 6), comm=comm, root=1)
    if comm.rank == 1:
        here[...] = 1
    with hybrid.testing.pretend(ranks_per_node=1):
        there = hybrid.empty((6, 6), comm=comm, root=1)
        assert (there is None) == (comm.rank != 1)
        if comm.rank == 1:
            there[...] = np.arange(36).reshape(6, 6)
        c = hybrid.multiply(*((here, there) if comm.rank == 1 else (None, None)), comm=comm, root=1)
        assert comm.rank != 1 or np.array_equal(c, here @ there)


# Memory


def mapped(named=False):
    """The files that this process has mapped without a name, or with one in /dev/shm."""
    gc.collect()
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    of_files = [line for line in lines if len(line) > 5 and line[3] != "00:00"]
    if named:
        return {line[5] for line in of_files if line[5].startswith("/dev/shm/") and not line[5].endswith("(deleted)")}
    return {line[4] for line in of_files if line[5].endswith("(deleted)")}


@SEVERAL
def test_the_memory_has_no_name_and_goes_when_the_root_lets_go_of_it(comm):
    ones = [np.ones((2, 2)) if comm.rank == 0 else None] * 2
    hybrid.multiply(*ones, comm=comm)
    before, names = mapped(), mapped(named=True)
    a = hybrid.empty((600, 600), comm=comm)
    part = a[5:7]
    assert len(mapped() - before) == 1
    assert mapped(named=True) == names, "nobody else can open it, and nothing stays when the job is killed"
    comm.Barrier()
    del a
    hybrid.multiply(*ones, comm=comm)
    assert len(mapped() - before) == 1
    del part
    hybrid.multiply(*ones, comm=comm)
    assert not mapped() - before
    for _ in range(5):
        hybrid.empty((600, 600), comm=comm)
    assert len(mapped() - before) <= 1
    other = comm.Dup()
    hybrid.empty((600, 600), comm=other)
    other.Free()
    assert len(mapped() - before) <= 1


@SEVERAL
def test_a_freed_communicator_s_matrices_are_given_back_on_all_ranks(comm):
    other = comm.Dup()
    array = hybrid.empty((30, 20), comm=other)
    there = weakref.ref(array)
    del array
    assert (there() is None) == (comm.rank == 0)  # the others learn of it at a call, or now:
    other.Free()
    assert there() is None


# Refusals


def test_what_is_no_matrix_is_refused_on_all_ranks(group):
    for shape in (3, (3,), (3, -1), (2, 2.5), (1, 2, 3), (True, False), (1 << 63, 0), "ab", None):
        with refused(UsageError, "sizes", "shapes", "dimensions"):
            hybrid.empty(shape, comm=group)
    for dtype in ("longdouble", "datetime64[s]", "bogus", "<U3"):
        with refused(UsageError, "dtype"):
            hybrid.empty((2, 2), dtype, comm=group)
    for root in (99, False, None, 0.0):
        with refused(UsageError, "root"):
            hybrid.empty((2, 2), comm=group, root=root)
    for shape in ((1 << 40, 1 << 40), (1 << 22, 1 << 22)):
        with refused(DoesNotFit, "host-memory"):
            hybrid.empty(shape, comm=group)
    with hybrid.testing.pretend(host_memory="1M"):
        with refused(DoesNotFit, "host-memory"):
            hybrid.empty((600, 600), comm=group)
        assert hybrid.empty((60, 60), comm=group).shape == (60, 60)


@SEVERAL
def test_ranks_that_ask_for_different_ones_are_told(comm):
    last = comm.rank == comm.size - 1
    for shape, dtype, root in (((2, 3), "f8", 0), ((2, 2), "f4", 0), ((2, 2), "f8", 1)):
        with refused(UsageError, "ranks-differ"):
            hybrid.empty(*((shape, dtype) if last else ((2, 2), "f8")), root=root if last else 0, comm=comm)
    with refused(UsageError, "ranks-differ"):
        hybrid.multiply(None, None, comm=comm) if last else hybrid.empty((3, 3), comm=comm)
    assert hybrid.empty((2, 2), comm=comm).shape == (2, 2)
