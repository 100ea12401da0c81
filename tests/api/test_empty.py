# SPDX-License-Identifier: MIT
"""hybrid.empty: matrices that the ranks of a node share, multiplied where they lie."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

import hybrid
from hybrid.arrays.product_type import numpy_type
from hybrid.core.problem import DTYPES
from hybrid.errors import DoesNotFit, UsageError
from hybrid.ranks.shared_memory import shared_memory_folder
from hybrid.selection import session

pytestmark = pytest.mark.mpi


def filled(comm, array, value):
    """`array` with the root's `value`, after all ranks have come."""
    if comm.rank == 0:
        array[...] = value
    comm.Barrier()
    return array


@pytest.fixture
def made(monkeypatch):
    """The windows that products make."""
    import hybrid.execution.host_matrices

    keys, original = [], hybrid.execution.host_matrices.make_shared_matrices

    def making(team, rows, columns, dtype):
        keys.extend(rows)
        return original(team, rows, columns, dtype)

    monkeypatch.setattr(hybrid.execution.host_matrices, "make_shared_matrices", making)
    return keys


@pytest.mark.parametrize("environment", [{}, {"STAGED": "1"}, {"STAGED": "1", "TRANSPORT": "peers"}], ids=str)
def test_products_of_shared_matrices(comm, monkeypatch, made, environment):
    if environment.get("TRANSPORT") and comm.size == 1:
        pytest.skip("peers take two ranks")
    for name, value in environment.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    rng = np.random.default_rng(7)
    a, b, c = (hybrid.empty(shape, comm=comm) for shape in ((30, 20), (20, 25), (30, 25)))
    for _ in range(3):
        first, second = rng.standard_normal((30, 20)), rng.standard_normal((20, 25))
        filled(comm, a, first)
        filled(comm, b, second)
        out = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), out=c if comm.rank == 0 else None, comm=comm)
        assert (out is c) == (comm.rank == 0)
        np.testing.assert_allclose(c, first @ second, rtol=1e-12, atol=1e-12)  # on every rank: the memory is the same
        comm.Barrier()
        result = hybrid.multiply(*((a[5:9], b) if comm.rank == 0 else (None, None)), comm=comm)
        if comm.rank == 0:
            np.testing.assert_allclose(result, first[5:9] @ second, rtol=1e-12, atol=1e-12)
    assert made == ([] if comm.size == 1 else ["C"] * 3)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kinds", ["shared shared root", "root root shared shared root"])
def test_products_of_shared_matrices_and_of_the_roots_arrays_in_turn(comm, rng, monkeypatch, kinds):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    first, second = rng.standard_normal((30, 20)), rng.standard_normal((20, 25))
    a, b, c = (hybrid.empty(shape, comm=comm) for shape in ((30, 20), (20, 25), (30, 25)))
    filled(comm, a, first)
    filled(comm, b, second)
    of_kind = {"shared": (a, b, c), "root": (first, second, np.empty((30, 25)))}
    for kind in kinds.split():
        *operands, out = of_kind[kind] if comm.rank == 0 else (None, None, None)
        result = hybrid.multiply(*operands, out=out, comm=comm)
        if comm.rank == 0:
            np.testing.assert_allclose(result, first @ second, rtol=1e-12, atol=1e-12)


@pytest.mark.needs("ml_dtypes")
@pytest.mark.parametrize("name", DTYPES)
def test_matrices_of_every_type(comm, made, name):
    """They are multiplied where they lie if they are computed in their type."""
    dtype, rng = numpy_type(name), np.random.default_rng(8)
    a, b, c = (hybrid.empty(shape, name, comm=comm) for shape in ((30, 20), (20, 25), (30, 25)))
    for _ in range(2):
        first, second = (rng.integers(0, 3, shape) for shape in ((30, 20), (20, 25)))
        if dtype.kind == "c":
            first = first + 1j
        filled(comm, a, first.astype(dtype))
        filled(comm, b, second.astype(dtype))
        operands, out = ((a, b), c) if comm.rank == 0 else ((None, None), None)
        assert hybrid.multiply(*operands, out=out, comm=comm) is out
        comm.Barrier()  # of most types the root writes it, when all else is done
        wanted = (a @ b).astype(dtype) if dtype.kind == "b" else (first @ second).astype(dtype)
        np.testing.assert_array_equal(c, wanted)
        comm.Barrier()
    if comm.size > 1 and name in ("float32", "float64"):
        assert made == []


@pytest.mark.needs("compiler", "ml_dtypes")
@pytest.mark.parametrize("device", ["cpu", "emulate"])
def test_matrices_of_16_bits_stay_where_they_lie_if_they_are_multiplied_so(comm, made, half, device):
    rng = np.random.default_rng(9)
    first, second = (rng.standard_normal(shape).astype(half) for shape in ((30, 20), (20, 25)))
    a, b = (hybrid.empty(each.shape, half, comm=comm) for each in (first, second))
    c = hybrid.empty((30, 25), "float32", comm=comm)
    filled(comm, a, first)
    filled(comm, b, second)
    operands, out = ((a, b), c) if comm.rank == 0 else ((None, None), None)
    hybrid.multiply(*operands, out=out, comm=comm, device=device, dtype="float32")
    np.testing.assert_allclose(c, first.astype(float) @ second.astype(float), rtol=1e-4, atol=1e-5)
    assert comm.size == 1 or made == ([] if device == "emulate" else ["A", "B"])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "environment",
    [
        *({}, {"CHECK": "host"}, {"STAGED": "1"}, {"STAGED": "1", "TRANSPORT": "peers"}),
        pytest.param({"KERNEL": "loops"}, marks=pytest.mark.needs("compiler")),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_transposes_are_multiplied_where_they_lie(comm, rng, monkeypatch, made, environment, dtype):
    """By BLAS's flag, or by the copies of each rank; only where rows are needed, each rank turns its share."""
    for name, value in environment.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    first, second = (rng.standard_normal(shape).astype(dtype) for shape in ((70, 90), (60, 70)))
    a, b = (filled(comm, hybrid.empty(each.shape, dtype, comm=comm), each) for each in (first, second))
    c = hybrid.empty((90, 60), dtype, comm=comm)
    operands = (a, b.T) if comm.rank == 0 else (None, None)
    for _ in range(2):
        hybrid.multiply(*operands, transpose_a=True, out=c if comm.rank == 0 else None, comm=comm)
        np.testing.assert_allclose(c, first.T.astype(float) @ second.T.astype(float), rtol=1e-4, atol=1e-4)
        comm.Barrier()
    assert made == (["A", "B"] * 2 if environment == {"KERNEL": "loops"} else [])


@pytest.mark.mpi(min_size=2)
def test_real_times_complex_is_multiplied_where_it_lies(comm, made):
    a, b, c = (hybrid.empty((9, 9), each, comm=comm) for each in ("float64", "complex128", "complex128"))
    filled(comm, a, np.arange(81.0).reshape(9, 9))
    filled(comm, b, 1 + 2j)
    hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), out=c if comm.rank == 0 else None, comm=comm)
    np.testing.assert_array_equal(c, a @ b)
    assert made == []


def test_every_rank_may_fill_rows(comm):
    a = hybrid.empty((2 * comm.size, 3), "float32", comm=comm)
    a[2 * comm.rank : 2 * comm.rank + 2] = comm.rank if comm.size > 1 else 0
    comm.Barrier()
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a[:, 0], np.repeat(np.arange(comm.size), 2))
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_on_other_nodes_there_is_nothing_and_products_are_right_all_the_same(comm, monkeypatch):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    hybrid.multiply(*(np.ones((2, 2, 2)) if comm.rank == 0 else (None, None)), comm=comm)  # the nodes are pretended from here on
    a = hybrid.empty((6, 6), comm=comm, root=1)
    assert (a is None) == (comm.rank != 1)
    if comm.rank == 1:
        a[...] = np.arange(36).reshape(6, 6)
    c = hybrid.multiply(*((a, a) if comm.rank == 1 else (None, None)), comm=comm, root=1)
    if comm.rank == 1:
        np.testing.assert_array_equal(c, a @ a)


@pytest.mark.mpi(min_size=2)
def test_columns_other_types_and_private_operands_are_taken_as_ordinary_arrays(comm, made):
    a = filled(comm, hybrid.empty((8, 8), comm=comm), np.arange(64.0).reshape(8, 8))
    private = np.ones((8, 8))
    pairs = [(None, None)] * 4
    if comm.rank == 0:
        pairs = [(a[:, ::2], private[::2]), (a, private), (private, a.T), (a.view("float32")[:, :8], private.astype("float32"))]
    for first, second in pairs:
        c = hybrid.multiply(first, second, comm=comm)
        if comm.rank == 0:
            np.testing.assert_allclose(c, first @ second)
    comm.Barrier()


def mappings():
    """How many of the ranks' files this process has mapped, which have no names."""
    gc.collect()
    return sum(f"{shared_memory_folder()}/#" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.mpi(min_size=2)
def test_the_memory_goes_when_the_root_lets_go_of_it(comm):
    ones = (np.ones((2, 2)), np.ones((2, 2))) if comm.rank == 0 else (None, None)
    hybrid.multiply(*ones, comm=comm)
    before = mappings()
    a = hybrid.empty((600, 600), comm=comm)
    part = a[5:7]
    assert mappings() > before
    del a
    hybrid.multiply(*ones, comm=comm)
    assert mappings() > before
    del part
    hybrid.multiply(*ones, comm=comm)
    assert mappings() == before


@pytest.mark.mpi(min_size=2)
def test_making_others_gives_the_memory_of_those_that_have_gone_back(comm):
    hybrid.empty((600, 600), comm=comm)
    before = mappings()
    for _ in range(5):
        hybrid.empty((600, 600), comm=comm)
    assert mappings() <= before + 1


@pytest.mark.mpi(min_size=2)
def test_views_at_odd_places_and_of_other_types_are_taken_as_ordinary_arrays(comm):
    a = filled(comm, hybrid.empty((8, 8), comm=comm), np.arange(64.0).reshape(8, 8))
    single = filled(comm, hybrid.empty((7, 7), "float32", comm=comm), 2)
    cases = [(None, None)] * 2
    if comm.rank == 0:
        odd = a.reshape(-1).view(np.uint8)[4 : 4 + 8 * 49].view(np.float64).reshape(7, 7)
        odd[...] = np.arange(49).reshape(7, 7)
        cases = [(odd, odd), (single, np.asarray(a[:7, :7]))]
    for first, second in cases:
        c = hybrid.multiply(first, second, comm=comm)
        if comm.rank == 0:
            np.testing.assert_allclose(c, first.astype(np.float64) @ second)
    both = (single, hybrid.empty((7, 7), comm=comm))
    if comm.rank == 0:
        both[1][...] = 3
    comm.Barrier()
    c = hybrid.multiply(*(both if comm.rank == 0 else (None, None)), comm=comm)
    assert comm.rank != 0 or (c == 42).all()


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_calls_something_else_is_named(comm):
    call = (lambda: hybrid.multiply(None, None, comm=comm)) if comm.rank == 1 else (lambda: hybrid.empty((3, 3), comm=comm))
    with pytest.raises(UsageError, match=r"rank 1 asks for a product of .*, rank 0 for an empty matrix"):
        call()


@pytest.mark.mpi(min_size=2)
def test_the_nodes_are_those_of_the_call(comm, monkeypatch):
    a = hybrid.empty((6, 6), comm=comm)
    if comm.rank == 0:
        a[...] = 1
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    c = hybrid.multiply(*((a, a) if comm.rank == 0 else (None, None)), comm=comm)
    assert comm.rank != 0 or (c == 6).all()
    elsewhere = hybrid.empty((6, 6), comm=comm)
    assert (elsewhere is None) == (comm.rank != 0)


def test_odd_wishes_are_refused_on_all_ranks(comm):
    for shape in (3, (3,), (3, -1), (2, 2.5), (1, 2, 3), (True, False), (1 << 63, 0)):
        with pytest.raises(UsageError, match="not that of a matrix"):
            hybrid.empty(shape, comm=comm)
    for dtype in ("longdouble", "datetime64[s]", "bogus", "<U3"):
        with pytest.raises(UsageError, match=r"dtype .* is no type of a product: one of bool, int8,"):
            hybrid.empty((2, 2), dtype, comm=comm)
    for root in (99, False, None, 0.0):
        with pytest.raises(UsageError, match=f"root {root} is not a rank"):
            hybrid.empty((2, 2), comm=comm, root=root)
    whole = hybrid.empty((np.int64(3), np.uint8(2)), comm=comm, root=np.int32(0))
    assert whole is not None
    assert whole.shape == (3, 2)
    assert hybrid.empty([3, 2], comm=comm).shape == (3, 2)


@pytest.mark.mpi(min_size=2)
def test_ranks_that_ask_for_different_ones_are_told(comm):
    with pytest.raises(UsageError, match="rank 1 asks for shape"):
        hybrid.empty((2, 3 if comm.rank == 1 else 2), comm=comm)


@pytest.mark.parametrize("alone", [False, True])
def test_what_does_not_fit_is_refused_with_the_missing_amount(comm, monkeypatch, alone):
    where = None if alone else comm
    for shape in ((1 << 40, 1 << 40), (1 << 20, 1 << 20)):
        with pytest.raises(DoesNotFit, match=r"does not fit the memory of \S+, where .+ are free: .+ are missing"):
            hybrid.empty(shape, comm=where)
    monkeypatch.setenv("HYBRID_HOST_MEMORY", "1M")
    with pytest.raises(DoesNotFit, match=r"a matrix of 2\.7 MiB does not fit"):
        hybrid.empty((600, 600), comm=where)
    assert hybrid.empty((60, 60), comm=where).shape == (60, 60)


def test_shared_memory_that_is_full_is_refused_before_anything_is_made(comm, monkeypatch):
    monkeypatch.setattr("hybrid.selection.inventory._shared_bytes", lambda: 1 << 20)
    if comm.size == 1:
        hybrid.empty((600, 600), comm=comm)
        return
    with pytest.raises(DoesNotFit, match=r"does not fit the shared memory of .+; enlarge /dev/shm"):
        hybrid.empty((600, 600), comm=comm)


def test_a_freed_communicators_arrays_are_given_back_on_all_ranks(comm):
    """Other ranks than the root refer to them until they learn that they are gone; of this one they learn nothing any more."""
    before, other = len(session._sessions), comm.Dup()
    array = hybrid.empty((30, 20), comm=other)
    there = weakref.ref(array)
    del array
    assert (there() is None) == (comm.rank == 0)
    other.Free()
    assert there() is None
    assert len(session._sessions) == before
