# SPDX-License-Identifier: MIT
"""hybrid.multiply of complex matrices: one real product, of which A and C are the memory that they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.selection import examples, pairs_first

import hybrid
from hybrid.errors import CheckFailed, DoesNotFit, UsageError
from hybrid.execution import root_call
from hybrid.plan.plan import PROCESS_BYTES

KiB = 1 << 10
COMPLEX = ["complex64", "complex128"]
REAL = ["float32", "float64", "float16", "int32", "bool"]
PAIRS = [(a, b) for a in COMPLEX + REAL for b in COMPLEX + REAL if "complex" in a + b]
WAYS = {
    "as it comes": {},
    "tiny pieces": {"STAGED": "1", "PANEL_ROWS": "3", "PANEL_COLUMNS": "5"},
    "a node a rank": {"RANKS_PER_NODE": "1", "MESSAGE_BYTES": "100"},
    "two ranks a node": {"RANKS_PER_NODE": "2", "MESSAGE_BYTES": "1000", "STAGED": "1", "PANEL_ROWS": "7"},
}


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("HYBRID_DEVICE", "cpu")


def matrix(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    values = 4 * rng.standard_normal(shape)
    return (values + 4j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def assert_is_numpys(c, a, b):
    expected = a @ b
    assert type(c) is np.ndarray
    assert (c.dtype, c.shape) == (expected.dtype, expected.shape)
    tolerance = 40 * np.finfo(c.dtype).eps * (1 + a.shape[1])
    np.testing.assert_allclose(c, expected, rtol=tolerance, atol=16 * tolerance)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.tuples(*[st.integers(0, 30)] * 3), types=st.sampled_from(PAIRS))
def test_any_shapes_and_types_give_numpys_product(on_cpu, sizes, types):
    a, b = matrix(sizes[:2], types[0]), matrix(sizes[1:], types[1], 1)
    assert_is_numpys(hybrid.multiply(a, b), a, b)


VIEWS = {
    "C order": lambda x: x,
    "Fortran order": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "negative strides": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "read-only": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize(("of_a", "of_b", "dtype"), pairs_first(list(VIEWS), list(VIEWS), COMPLEX))
def test_matrices_may_lie_in_memory_as_they_like(on_cpu, of_a, of_b, dtype):
    a, b = VIEWS[of_a](matrix((7, 5), dtype)), VIEWS[of_b](matrix((5, 6), dtype, 1))
    assert_is_numpys(hybrid.multiply(a, b), a, b)
    real = VIEWS[of_a](matrix((7, 5), "float64"))
    assert_is_numpys(hybrid.multiply(real, b), real, b)


@pytest.fixture
def seen(on_cpu, kernel_calls):
    return kernel_calls


def test_neither_a_nor_c_is_copied_and_the_kernel_gets_one_real_product(seen):
    a, b, out = matrix((7, 5), "complex64"), matrix((5, 6), "complex64", 1), np.empty((7, 6), "complex64")
    assert hybrid.multiply(a, b, out=out) is out
    ((first, second, c),) = seen
    assert [(each.shape, each.dtype) for each in (first, second, c)] == [
        ((7, 10), np.float32), ((10, 12), np.float32), ((7, 12), np.float32)
    ]  # fmt: skip
    assert (first.ctypes.data, c.ctypes.data) == (a.ctypes.data, out.ctypes.data)


def test_a_real_a_needs_no_expanded_b(seen):
    a, b = matrix((7, 5), "float64"), matrix((5, 6), "complex128", 1)
    assert_is_numpys(hybrid.multiply(a, b), a, b)
    ((first, second, c),) = seen
    assert (first.ctypes.data, second.ctypes.data, second.shape, c.shape) == (a.ctypes.data, b.ctypes.data, (5, 12), (7, 12))


@pytest.mark.parametrize("out", [lambda c: np.asfortranarray(c), lambda c: np.repeat(c, 2, axis=1)[:, ::2]])
def test_an_out_of_any_layout_is_filled(on_cpu, out):
    a, b = matrix((7, 5), "complex128"), matrix((5, 6), "complex128", 1)
    into = out(np.zeros((7, 6), complex))
    assert hybrid.multiply(a, b, out=into) is into
    np.testing.assert_allclose(into, a @ b)


def test_an_out_of_another_type_or_one_that_overlaps_is_refused(on_cpu):
    a = matrix((5, 5), "complex128")
    with pytest.raises(UsageError, match="out must be an array of complex128"):
        hybrid.multiply(a, a, out=np.empty((5, 5)))
    with pytest.raises(UsageError, match="out overlaps a or b"):
        hybrid.multiply(a, a, out=a)
    with pytest.raises(UsageError, match="out overlaps a or b"):
        hybrid.multiply(a.real, a, out=a)


@pytest.mark.parametrize("bad", [np.nan, np.inf, complex(0, np.inf), complex(np.inf, np.nan)])
@pytest.mark.parametrize("where", ["a", "b"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_and_infinity_spoil_the_elements_that_they_spoil_in_numpy(on_cpu, bad, where):
    a, b = matrix((9, 8), "complex128"), matrix((8, 7), "complex128", 1)
    (a if where == "a" else b)[2, 3] = bad
    c, expected = hybrid.multiply(a, b), a @ b
    np.testing.assert_array_equal(np.isfinite(c.real), np.isfinite(expected.real))
    np.testing.assert_array_equal(np.isfinite(c.imag), np.isfinite(expected.imag))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(c[finite], expected[finite])


def test_a_real_a_has_no_imaginary_zeros_that_infinity_would_make_nan(on_cpu):
    np.testing.assert_array_equal(hybrid.multiply(np.ones((1, 1)), np.array([[complex(np.inf, 1)]])), [[complex(np.inf, 1)]])


@pytest.mark.parametrize("types", [("complex128", "complex128"), ("float64", "complex128"), ("complex64", "float32")])
def test_a_wrong_product_is_found(on_cpu, monkeypatch, types):
    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        c[-1, -1] += 1

    monkeypatch.setattr("hybrid.devices.cpu.blas", wrong)
    with pytest.raises(CheckFailed):
        hybrid.multiply(matrix((6, 5), types[0]), matrix((5, 4), types[1], 1))


def test_the_expanded_b_is_part_of_what_must_fit(on_cpu, monkeypatch):
    a, b = matrix((300, 200), "complex128"), matrix((200, 100), "complex128", 1)
    need = PROCESS_BYTES + 16 * 300 * 100 + 2 * b.nbytes
    monkeypatch.setenv("HYBRID_CHECK", "0")
    monkeypatch.setenv("HYBRID_HOST_MEMORY", str(need))
    assert_is_numpys(hybrid.multiply(a, b), a, b)
    monkeypatch.setenv("HYBRID_HOST_MEMORY", str(need - 256 * KiB))
    with pytest.raises(DoesNotFit, match=r"256\.0 KiB are missing"):
        hybrid.multiply(a, b)


@pytest.mark.needs("compiler")
def test_the_emulated_gpu_multiplies_complex_matrices():
    a, b = matrix((17, 9), "complex64"), matrix((9, 11), "complex64", 1)
    assert_is_numpys(hybrid.multiply(a, b, device="emulate", kernel="tiled"), a, b)


# Several ranks


def at(comm, root, *values):
    return values if comm.rank == root else (None,) * len(values)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("way", "types"), pairs_first(list(WAYS), [("complex128",) * 2, ("float32", "complex64"), ("complex64", "int8")])
)
def test_matrices_of_a_root_are_multiplied_by_all_ranks(comm, monkeypatch, way, types):
    for name, value in {"DEVICE": "cpu", **WAYS[way]}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    root = comm.size - 1
    for layout in (np.ascontiguousarray, np.asfortranarray):
        a, b = layout(matrix((37, 23), types[0])), layout(matrix((23, 41), types[1], 1))
        c = hybrid.multiply(*at(comm, root, a, b), comm=comm, root=root)
        if comm.rank == root:
            assert_is_numpys(c, a, b)
        else:
            assert c is None


@pytest.mark.mpi(min_size=2)
def test_what_the_root_makes_for_other_nodes_is_part_of_what_must_fit(comm, monkeypatch):
    a, b = matrix((100, 200), "complex128"), matrix((200, 300), "complex128", 1)
    for name, value in {"DEVICE": "cpu", "RANKS_PER_NODE": "1", "CHECK": "0"}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    requests, request = [], root_call.ProductRequest
    monkeypatch.setattr(root_call, "ProductRequest", lambda *args, **more: requests.append(more) or request(*args, **more))
    hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    assert [each["besides"] for each in requests] == [(2 * b.nbytes, *[0] * (comm.size - 1))]


@pytest.mark.mpi
@pytest.mark.parametrize("types", [("complex128",) * 2, ("float32", "complex64"), ("complex64", "float32")], ids=str)
@pytest.mark.parametrize("nodes", ["0", "1"])
def test_row_blocks_of_complex_numbers_stay_on_their_ranks(comm, rng, monkeypatch, types, nodes):
    monkeypatch.setenv("HYBRID_DEVICE", "cpu")
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    n, l, m = (int(each) for each in rng.integers(0, 40, 3))
    a, b = matrix((n, l), types[0]), matrix((l, m), types[1], 1)
    blocks = []
    for whole in (a, b):
        rows = np.diff([0, *sorted(int(row) for row in rng.integers(0, len(whole) + 1, comm.size - 1)), len(whole)])
        first = int(sum(rows[: comm.rank]))
        blocks.append(hybrid.RowBlock(whole[first : first + rows[comm.rank]]))
    c = hybrid.multiply(*blocks, comm=comm)
    assert len(c) == len(blocks[0])
    assert_is_numpys(np.concatenate(comm.allgather(c.array)), a, b)


@pytest.mark.mpi
def test_blocks_of_a_grid_may_be_complex(comm):
    a, b = matrix((12, 24), "complex128"), matrix((24, 12 * comm.size), "float64", 1)
    for first, second in ((a, b + 1j * b[::-1]), (a, b), (a.real, 1j * b)):
        columns = [(comm.rank * 24 // comm.size, (comm.rank + 1) * 24 // comm.size)]
        of_b = [(comm.rank * 12, comm.rank * 12 + 12)]
        blocks = (
            hybrid.Block2D(first[:, slice(*columns[0])], (12, 24), [(0, 12)], columns),
            hybrid.Block2D(second[:, slice(*of_b[0])], second.shape, [(0, 24)], of_b),
        )
        c = hybrid.multiply(*blocks, comm=comm)
        assert (c.shape, c.dtype) == ((12, 12 * comm.size), np.complex128)
        np.testing.assert_allclose(np.concatenate(comm.allgather(c.array), axis=1), first @ second)


@pytest.mark.mpi(min_size=2)
def test_a_rank_whose_block_is_of_another_type_is_named(comm):
    ones = np.ones((2, 2 * comm.size))
    mine = hybrid.RowBlock(ones + (1j if comm.rank == 1 else 0))
    with pytest.raises(UsageError, match=r"rank 1's blocks have .* of complex128, rank 0's .* of float64"):
        hybrid.multiply(mine, mine, comm=comm)
    real = hybrid.RowBlock(ones)
    with pytest.raises(UsageError, match=r"rank 1's blocks have .* of complex128 \(real times complex\)"):
        hybrid.multiply(real, mine, comm=comm)
