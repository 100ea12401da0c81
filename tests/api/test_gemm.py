# SPDX-License-Identifier: MIT
"""hybrid.multiply as BLAS's GEMM: alpha · op(A) · op(B) + beta · C, of vectors, matrices and stacks of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.selection import examples, pairs_first

import hybrid
from hybrid.errors import CheckFailed, DoesNotFit, UsageError
from hybrid.plan.plan import PROCESS_BYTES

KiB = 1 << 10
WAYS = {
    "as it comes": {},
    "tiny pieces": {"STAGED": "1", "PANEL_ROWS": "3", "PANEL_COLUMNS": "5"},
    "a node a rank": {"RANKS_PER_NODE": "1", "MESSAGE_BYTES": "100"},
}
TYPES = ["float64", "float32", "complex64", "complex128", "int32", "int64", "float16"]
FLAGS = ("transpose_a", "transpose_b", "conjugate_a", "conjugate_b")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("HYBRID_DEVICE", "cpu")


def matrix(shape, dtype, seed=0):
    """Of small whole numbers, with which every order of summation gives the same."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(-4, 5, (2, *shape))
    return (parts[0] + 1j * parts[1]).astype(dtype) if np.dtype(dtype).kind == "c" else parts[0].astype(dtype)


def op(x, transpose, conjugate):
    x = np.conj(x) if conjugate else x
    return np.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


def expected(
    a, b, c=None, *, alpha=1, beta=0, transpose_a=False, transpose_b=False, conjugate_a=False, conjugate_b=False, dtype=None
):
    product = alpha * (op(a, transpose_a, conjugate_a) @ op(b, transpose_b, conjugate_b))
    return (product + beta * c if beta else product).astype(dtype or np.result_type(a, b))


LAYOUTS = [np.ascontiguousarray, np.asfortranarray, lambda x: x[::-1, ::-1], lambda x: np.repeat(x, 2, axis=1)[:, ::2]]


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_anything_that_can_be_asked_for_gives_what_numpy_gives(data):
    n, l, m = (data.draw(st.integers(0, 9)) for _ in "nlm")
    types = [data.draw(st.sampled_from(TYPES)) for _ in "ab"]
    asked = {flag: data.draw(st.booleans()) for flag in FLAGS}
    result = np.result_type(*types)
    factors = [0, 1, -1, 3] + ([] if result.kind == "i" else [0.5]) + ([1j, 2 - 1j] if result.kind == "c" else [])
    asked |= {"alpha": data.draw(st.sampled_from(factors)), "beta": data.draw(st.sampled_from(factors))}
    a, b = (
        matrix((l, n) if asked["transpose_a"] else (n, l), types[0]),
        matrix((m, l) if asked["transpose_b"] else (l, m), types[1], 1),
    )
    a, b, c = (data.draw(st.sampled_from(LAYOUTS))(each) for each in (a, b, matrix((n, m), result, 2)))
    wanted = expected(a, b, c, **asked)
    kept = [each.copy() for each in (a, b, c)]
    found = hybrid.multiply(a, b, c, **asked)
    assert found.dtype == result
    np.testing.assert_array_equal(found, wanted)
    for each, before in zip((a, b, c), kept, strict=True):
        np.testing.assert_array_equal(each, before)
    for out in (data.draw(st.sampled_from(LAYOUTS))(np.full_like(c, 7)), c):
        assert hybrid.multiply(a, b, c, **asked, out=out) is out
        np.testing.assert_array_equal(out, wanted)


def test_a_plain_product_has_no_further_pass(monkeypatch, kernel_calls):
    from hybrid.arrays import root_operands

    monkeypatch.setattr(root_operands, "finished", None)
    a, b, out = matrix((4, 3), "float64"), matrix((3, 5), "float64", 1), np.empty((4, 5))
    hybrid.multiply(a, b, out=out)
    ((first, second, c),) = kernel_calls
    assert [each.ctypes.data for each in (first, second, c)] == [each.ctypes.data for each in (a, b, out)]


@pytest.mark.parametrize("check", ["host", "on"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_process_multiplies_and_checks_transposed_matrices_where_they_lie(kernel_calls, dtype, check):
    a, b = (np.random.default_rng(seed).standard_normal((1000, 900)).astype(dtype) for seed in range(2))
    out = np.empty((900, 900), dtype)
    hybrid.multiply(a[:8, :8], a[:8, :8], transpose_a=True)  # what is loaded and made once takes memory, too
    kernel_calls.clear()
    tracemalloc.start()
    try:
        hybrid.multiply(a, b, transpose_a=True, out=out, check=check)
        hybrid.multiply(a.T, np.asfortranarray(b), out=out, check=check)
        peak = tracemalloc.get_traced_memory()[1] - b.nbytes  # asfortranarray's
    finally:
        tracemalloc.stop()
    assert all(np.shares_memory(first, a) and not first.flags.c_contiguous for first, _, _ in kernel_calls)
    assert peak < a.nbytes * (0.9 if dtype == "float64" else 1.8)  # pieces as float64, for the check
    np.testing.assert_allclose(out, a.T @ b, rtol=1e-3, atol=1e-3)


def test_a_wrong_product_of_transposed_matrices_is_found_and_repaired(monkeypatch):
    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        c[3, 5] += 0.01

    a, b = (np.random.default_rng(seed).standard_normal((150, 140)) for seed in range(2))
    monkeypatch.setattr("hybrid.devices.cpu.blas", wrong)
    with pytest.raises(CheckFailed, match="row 3 of C, columns 5"):
        hybrid.multiply(a, b, transpose_a=True)
    with pytest.warns(RuntimeWarning, match="repaired: rank 0"):
        np.testing.assert_allclose(hybrid.multiply(a, b.T, transpose_a=True, transpose_b=True, on_fault="repair"), a.T @ b)


def test_an_operand_that_arrives_transposed_and_is_transposed_is_not_copied(kernel_calls):
    a, b = matrix((4, 3), "float64"), matrix((3, 5), "float64", 1)
    np.testing.assert_array_equal(hybrid.multiply(a.T, b.T, transpose_a=True, transpose_b=True), a @ b)
    ((first, second, _),) = kernel_calls
    assert (first.ctypes.data, second.ctypes.data) == (a.ctypes.data, b.ctypes.data)


def test_conjugates_copy_no_a(kernel_calls):
    a, b = matrix((4, 3), "complex128"), matrix((3, 5), "complex128", 1)
    for conjugate_b in (False, True):
        np.testing.assert_array_equal(
            hybrid.multiply(a, b, conjugate_a=True, conjugate_b=conjugate_b), a.conj() @ (b.conj() if conjugate_b else b)
        )
    assert {first.ctypes.data for first, _, _ in kernel_calls} == {a.ctypes.data}


def test_alpha_alone_is_applied_where_c_was_computed(kernel_calls):
    a, b, out = matrix((4, 3), "float64"), matrix((3, 5), "float64", 1), np.empty((4, 5))
    hybrid.multiply(a, b, alpha=3, out=out)
    np.testing.assert_array_equal(out, 3 * (a @ b))
    assert kernel_calls[0][2].ctypes.data == out.ctypes.data


def test_c_is_not_read_where_beta_is_0():
    a, b = matrix((4, 3), "float64"), matrix((3, 5), "float64", 1)
    for c in (np.full((4, 5), np.nan), None, "nothing"):
        np.testing.assert_array_equal(hybrid.multiply(a, b, c, beta=0), a @ b)
    np.testing.assert_array_equal(hybrid.multiply(a, b, np.full((4, 5), np.nan), beta=1), np.full((4, 5), np.nan))


def test_c_without_a_word_on_beta_is_refused():
    a, c = matrix((3, 3), "float64"), np.ones((3, 3))
    rows, added = hybrid.RowBlock(a), hybrid.RowBlock(c)
    stack = np.stack([a, a])
    for operands in ((a, a, c), (a, a[0], c[0]), (stack, stack, np.stack([c, c])), (rows, rows, added), (rows.T, rows, added)):
        for more in ({}, {"alpha": 2}, {"beta": None}):
            with pytest.raises(UsageError, match="c is given, but beta is 0: pass beta=1 to add c, beta=0"):
                hybrid.multiply(*operands, **more)
    np.testing.assert_array_equal(hybrid.multiply(rows.T, rows, added, beta=1).array, a.T @ a + 1)


def test_numbers_of_numpy_are_numbers():
    a, c = matrix((3, 3), "float32"), matrix((3, 3), "float32", 1)
    found = hybrid.multiply(a, a, c, alpha=np.float64(0.5), beta=np.array(2), transpose_a=np.bool_(True))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (0.5 * (a.T @ a) + 2 * c).astype(np.float32))
    with pytest.raises(UsageError, match="alpha must be a number"):
        hybrid.multiply(a, a, alpha=np.ones(2))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_factor_may_be_nan_or_infinite():
    a = matrix((3, 3), "float64")
    assert np.isnan(hybrid.multiply(a, a, alpha=np.nan)).all()
    np.testing.assert_array_equal(hybrid.multiply(a, a, alpha=np.inf), np.inf * (a @ a))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"alpha": "2"}, "alpha must be a number, not '2'"),
        ({"alpha": None}, "alpha must be a number, not None"),
        ({"transpose_a": 1}, "transpose_a must be True or False, not 1"),
        ({"conjugate_b": "yes"}, "conjugate_b must be True or False"),
        ({"beta": 1}, "beta is 1, but c is None: pass the matrix that is added"),
        ({"beta": 1, "c": np.ones((4, 4))}, r"c has shape \(4, 4\), the product \(4, 5\)"),
        ({"beta": 1, "c": np.ones(5)}, r"c has shape \(5,\), the product \(4, 5\)"),
        ({"beta": 1, "c": np.ones((4, 5), complex)}, "c is of complex128, which cannot be added to a product of float64"),
        ({"alpha": 1j}, "alpha is 1j, and the product real: pass dtype='complex128'"),
        ({"alpha": 10**400}, "too large a number"),
        ({"transpose_a": True}, "a has 4 columns and b 3 rows"),
        ({"transpose_b": True}, "a has 3 columns and b 5 rows"),
        ({"out": np.ones((4, 5), "float32")}, "out must be an array of float64"),
        ({"alpha": 0.5, "dtype": "int8"}, "cannot have dtype int8"),
    ],
)
def test_what_makes_no_sense_is_refused(asked, message):
    with pytest.raises(UsageError, match=message):
        hybrid.multiply(matrix((4, 3), "float64"), matrix((3, 5), "float64"), **asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"alpha": 0.5}, "alpha is 0.5, and a product of int64 is exact: pass an integer, or dtype='float64'"),
        ({"alpha": 2**64}, "a product of int64 is exact: pass an integer between -2⁶³ and 2⁶³, or dtype='float64'"),
        ({"beta": 1, "c": np.ones((4, 5))}, "c is of float64, and a product of int64 is exact"),
        ({"alpha": 2, "dtype": "bool"}, "cannot have dtype bool"),
    ],
)
def test_of_integers_what_would_be_rounded_is_refused(asked, message):
    with pytest.raises(UsageError, match=message):
        hybrid.multiply(matrix((4, 3), "int64"), matrix((3, 5), "int64"), **asked)
    with pytest.raises(UsageError, match="alpha is 2, and a product of bool is no number"):
        hybrid.multiply(np.eye(2, dtype=bool), np.eye(2, dtype=bool), alpha=2)


def test_an_out_that_overlaps_c_elsewhere_is_refused():
    memory, a = np.ones((6, 5)), matrix((5, 5), "float64")
    for out in (memory[1:], memory[:5, ::-1], memory.ravel()[:25].reshape(5, 5).T):
        with pytest.raises(UsageError, match="out overlaps c without being the same array"):
            hybrid.multiply(a, a, memory[:5], beta=1, out=out)
    read_only = np.ones((5, 5))
    read_only.flags.writeable = False
    with pytest.raises(UsageError, match="out must be writable"):
        hybrid.multiply(a, a, read_only, beta=1, out=read_only)


def test_out_may_be_a_block_beside_a_and_b():
    """As in the update of an LU decomposition: no element is shared, though each block reaches through the matrix."""
    whole, k = matrix((9, 9), "float64"), 3
    wanted = whole[k:, k:] - whole[k:, :k] @ whole[:k, k:]
    corner = whole[k:, k:]
    hybrid.multiply(whole[k:, :k], whole[:k, k:], corner, alpha=-1, beta=1, out=corner)
    np.testing.assert_allclose(corner, wanted)
    stack = np.ones((2, 4, 6))
    hybrid.multiply(stack[:, :, :2], np.ones((2, 2, 3)), out=stack[:, :, 2:5])
    assert (stack[:, :, 2:5] == 2).all()
    with pytest.raises(UsageError, match="out overlaps a or b"):
        hybrid.multiply(whole[:4, :4], whole[:4, :4], out=whole[3:7, 3:7])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_a_real_product_may_become_complex(dtype):
    a, b = matrix((4, 3), "float64"), matrix((3, 5), "float64")
    c = 1j * np.ones((4, 5), "complex64")
    made = hybrid.multiply(a, b, c, alpha=2j, beta=3 - 1j, dtype=dtype)
    assert made.dtype == dtype
    np.testing.assert_allclose(made, 2j * (a @ b) + (3 - 1j) * c, rtol=1e-5)
    rows = hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(b), alpha=1j, dtype=dtype)
    np.testing.assert_allclose(rows.array, 1j * (a @ b), rtol=1e-5)


def test_c_of_a_narrower_type_is_multiplied_in_the_result_s():
    zero = np.zeros((2, 2))
    for dtype, largest in (("float16", 6e4), ("float32", 3e38)):
        c = np.full((2, 2), largest, dtype)
        np.testing.assert_array_equal(hybrid.multiply(zero, zero, c, beta=1.7), 1.7 * c.astype("float64"))
    halves = np.full((2, 2), -6e4, "float16")
    ones = np.full((2, 1), 6e4, "float16"), np.ones((1, 2), "float16")
    np.testing.assert_array_equal(hybrid.multiply(*ones, halves, alpha=2, beta=1.5), np.full((2, 2), 3e4))


def test_of_row_blocks_c_is_not_read_where_beta_is_0():
    whole, c = hybrid.RowBlock(np.ones((2, 2), int)), hybrid.RowBlock(np.full((2, 2), np.nan))
    assert (hybrid.multiply(whole, whole, c, beta=0).array == 2).all()


def test_wrong_products_are_found_before_c_is_added(monkeypatch):
    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        c[-1, -1] += 1

    monkeypatch.setattr("hybrid.devices.cpu.blas", wrong)
    a, c = matrix((5, 5), "float64"), np.full((5, 5), 1e300)
    out = c.copy()
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, a, out, beta=1, out=out)
    np.testing.assert_array_equal(out, c)


def test_a_product_that_is_added_is_part_of_what_must_fit(monkeypatch):
    a, b, c = np.ones((300, 200)), np.ones((200, 400)), np.ones((300, 400))
    need = PROCESS_BYTES + c.nbytes  # the product beside c
    monkeypatch.setenv("HYBRID_CHECK", "0")
    monkeypatch.setenv("HYBRID_HOST_MEMORY", str(need))
    np.testing.assert_array_equal(hybrid.multiply(a, b, c, beta=1, out=c), np.full((300, 400), 201.0))
    monkeypatch.setenv("HYBRID_HOST_MEMORY", str(need - 256 * KiB))
    with pytest.raises(DoesNotFit, match=r"256\.0 KiB are missing"):
        hybrid.multiply(a, b, c, beta=1, out=c)


# Vectors and stacks


SHAPES = [
    ((3,), (3,)), ((3,), (3, 4)), ((4, 3), (3,)), ((0,), (0,)), ((0,), (0, 2)), ((1,), (1, 1)),
    ((2, 4, 3), (3, 5)), ((2, 4, 3), (3,)), ((2, 4, 3), (2, 3, 5)), ((3,), (2, 3, 5)), ((4, 3), (2, 3, 5)),
    ((2, 1, 4, 3), (5, 3, 2)), ((0, 4, 3), (3, 5)), ((0, 4, 3), (0, 3, 5)), ((2, 0, 3), (2, 3, 5)), ((2, 4, 0), (0, 5)),
]  # fmt: skip


@pytest.mark.parametrize(("of_a", "of_b"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int16", "float16"])
def test_vectors_and_stacks_have_numpy_s_product(of_a, of_b, dtype):
    a, b = matrix(of_a, dtype), matrix(of_b, dtype, 1)
    wanted = a @ b
    found = hybrid.multiply(a, b)
    assert (type(found), found.shape, found.dtype) == (type(wanted), wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(found, wanted)
    if wanted.ndim:
        c, out = matrix(wanted.shape, dtype, 2), np.full(wanted.shape, 7, dtype)
        assert hybrid.multiply(a, b, c, alpha=2, beta=-1, out=out) is out
        np.testing.assert_array_equal(out, (2 * wanted - c).astype(dtype))
        assert hybrid.multiply(a, b, c, beta=1, out=c) is c
        np.testing.assert_array_equal(c, (wanted + matrix(wanted.shape, dtype, 2)).astype(dtype))


@pytest.mark.parametrize("flags", [("transpose_a",), ("transpose_b",), ("transpose_a", "transpose_b", "conjugate_a")], ids=str)
def test_transposes_of_stacks_are_those_of_their_matrices(flags):
    asked = dict.fromkeys(flags, True)
    a = matrix((2, 3, 4) if "transpose_a" in flags else (2, 4, 3), "complex128")
    for batch in ((), (2,), (5, 1)):
        b = matrix((*batch, 5, 3) if "transpose_b" in flags else (*batch, 3, 5), "complex128", 1)
        np.testing.assert_array_equal(hybrid.multiply(a, b, **asked), expected(a, b, **asked))


def test_a_stack_times_one_b_is_one_product(kernel_calls):
    a, b, out = matrix((4, 3, 5), "float64"), matrix((5, 2), "float64", 1), np.empty((4, 3, 2))
    hybrid.multiply(a, b, out=out)
    ((first, second, c),) = kernel_calls
    assert (first.shape, first.ctypes.data, second.ctypes.data, c.ctypes.data) == (
        (12, 5), a.ctypes.data, b.ctypes.data, out.ctypes.data
    )  # fmt: skip


@pytest.mark.parametrize(
    ("a", "b", "more", "message"),
    [
        (np.ones((2, 4, 3)), np.ones((3, 3, 5)), {}, r"stacks of shapes \(2,\) and \(3,\) do not fit together"),
        (np.ones((2, 4, 3)), np.ones((2, 4, 5)), {}, "a has 3 columns and b 4 rows"),
        (np.ones((0, 4, 3)), np.ones((0, 4, 5)), {}, "a has 3 columns and b 4 rows"),
        (np.ones((2, 4, 3)), np.ones((2, 3, 5)), {"out": np.ones((4, 5))}, r"out has shape \(4, 5\), the product \(2, 4, 5\)"),
        (np.ones((2, 4, 3)), np.ones((3, 5)), {"out": np.ones((4, 5))}, r"out has shape \(4, 5\), the product \(2, 4, 5\)"),
        (np.ones((2, 4, 3)), np.ones((2, 3, 5)), {"out": np.broadcast_to(np.ones(5), (2, 4, 5))}, "writable"),
        (np.ones((2, 4, 3)), np.ones((2, 3, 5)), {"beta": 1}, "c is None"),
        (np.ones((2, 4, 3)), np.ones((2, 3, 5)), {"beta": 1, "c": np.ones((4, 5))}, r"c has shape \(4, 5\)"),
        (np.ones((2, 4, 3)), np.float64(3), {}, "a number is no matrix"),
        (np.ones((2, 4, 3)), None, {}, "b is None"),
    ],
)
def test_stacks_that_do_not_fit_are_refused(a, b, more, message):
    with pytest.raises(UsageError, match=message):
        hybrid.multiply(a, b, **more)


def test_no_product_of_a_stack_may_overlap_another_s_operands():
    memory = np.ones((3, 4, 4))
    with pytest.raises(UsageError, match="out overlaps a or b"):
        hybrid.multiply(memory[:2], np.ones((2, 4, 4)), out=memory[1:])
    with pytest.raises(UsageError, match="out overlaps c"):
        hybrid.multiply(np.ones((2, 4, 4)), np.ones((2, 4, 4)), memory[:2], beta=1, out=memory[1:])


def test_the_result_of_a_stack_must_fit(monkeypatch):
    monkeypatch.setenv("HYBRID_HOST_MEMORY", "1M")
    with pytest.raises(DoesNotFit, match="a matrix of"):
        hybrid.multiply(np.ones((200, 50, 2)), np.ones((200, 2, 50)))


# Several ranks


def at(comm, root, *values):
    return values if comm.rank == root else (None,) * len(values)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("way", "dtype", "flags"),
    pairs_first(list(WAYS), ["float64", "complex64", "int64"], [(), ("transpose_a",), ("transpose_b", "conjugate_a"), FLAGS]),
)
def test_matrices_of_a_root_are_multiplied_by_all_ranks(comm, monkeypatch, way, dtype, flags):
    for name, value in WAYS[way].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    n, l, m, root = 37, 23, 41, comm.size - 1
    a, b = (
        matrix((l, n) if "transpose_a" in flags else (n, l), dtype),
        matrix((m, l) if "transpose_b" in flags else (l, m), dtype, 1),
    )
    c = matrix((n, m), dtype, 2)
    asked = {"alpha": -2, "beta": 3, **dict.fromkeys(flags, True)}
    wanted = expected(a, b, c, **asked)
    found = hybrid.multiply(*at(comm, root, a, b, c), comm=comm, root=root, **asked)
    assert (found is None) == (comm.rank != root)
    if comm.rank == root:
        np.testing.assert_array_equal(found, wanted)
    hybrid.multiply(*at(comm, root, a, b, c), comm=comm, root=root, **asked, out=c if comm.rank == root else None)
    if comm.rank == root:
        np.testing.assert_array_equal(c, wanted)


@pytest.mark.mpi
def test_shared_matrices_are_scaled_where_they_lie_and_c_is_kept_until_it_was_added(comm):
    a, c = (hybrid.empty((20, 20), comm=comm) for _ in "ac")
    first, third = matrix((20, 20), "float64"), matrix((20, 20), "float64", 1)
    if comm.rank == 0:
        a[...], c[...] = first, third
    comm.Barrier()
    mine = at(comm, 0, a, a, c)
    hybrid.multiply(*mine, beta=2, alpha=3, out=mine[2], comm=comm)
    comm.Barrier()
    np.testing.assert_array_equal(c, 3 * (first @ first) + 2 * third)
    comm.Barrier()
    hybrid.multiply(*mine[:2], alpha=-1, out=mine[2], comm=comm)
    comm.Barrier()
    np.testing.assert_array_equal(c, -(first @ first))


@pytest.mark.mpi
@pytest.mark.parametrize(("of_a", "of_b"), [((3,), (3, 4)), ((2, 9, 3), (3, 5)), ((2, 9, 3), (2, 3, 5)), ((0, 4, 3), (0, 3, 5))])
def test_vectors_and_stacks_of_a_root(comm, of_a, of_b):
    a, b = matrix(of_a, "float64"), matrix(of_b, "float64", 1)
    found = hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    assert (found is None) == (comm.rank != 0)
    if comm.rank == 0:
        np.testing.assert_array_equal(found, a @ b)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64", "float16"])
@pytest.mark.parametrize("nodes", ["0", "1"])
def test_row_blocks_are_scaled_and_added(comm, monkeypatch, dtype, nodes):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    whole = matrix((11, 13), dtype), matrix((13, 7), dtype, 1), matrix((11, 7), dtype, 2)
    blocks = [hybrid.RowBlock(np.array_split(each, comm.size)[comm.rank]) for each in whole]
    asked = {"alpha": 2, "beta": -3, "conjugate_a": True, "conjugate_b": True}
    c = hybrid.multiply(*blocks, comm=comm, **asked)
    np.testing.assert_array_equal(np.concatenate(comm.allgather(c.array)), expected(*whole, **asked))
    np.testing.assert_array_equal(blocks[2].array, np.array_split(whole[2], comm.size)[comm.rank])


@pytest.mark.mpi
def test_row_blocks_want_a_row_block_as_c(comm):
    rows = hybrid.RowBlock(np.ones((2, 2 * comm.size)))
    with pytest.raises(UsageError, match="c is no RowBlock, but a and b are RowBlocks"):
        hybrid.multiply(rows, rows, np.ones((2, 2)), beta=1, comm=comm)
    with pytest.raises(UsageError, match=r"c has shape \(2, 3\), the product"):
        hybrid.multiply(rows, rows, hybrid.RowBlock(np.ones((2, 3))), beta=1, comm=comm)
    with pytest.raises(UsageError, match="a is no RowBlock"):
        hybrid.multiply(np.ones((2, 2)), np.ones((2, 2)), rows, comm=comm)


def test_blocks_of_a_grid_take_a_and_b_alone():
    block = hybrid.Block2D(np.ones((4, 4)), (4, 4), [(0, 4)], [(0, 4)])
    for more in ({"alpha": 2}, {"transpose_a": True}, {"c": block}):
        with pytest.raises(UsageError, match="of a and b alone"):
            hybrid.multiply(block, block, **more)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("here", "there", "name"),
    [
        ({"alpha": 2}, {"alpha": 3}, "alpha"),
        ({"beta": 0.0}, {"beta": 1.0}, "beta"),
        ({"transpose_a": True}, {}, "transpose_a"),
        ({}, {"conjugate_b": True}, "conjugate_b"),
    ],
)
def test_ranks_that_ask_for_different_products_are_told(comm, here, there, name):
    ones = np.ones((3, 3))
    with pytest.raises(UsageError, match=f"rank 1 asks for {name} "):
        hybrid.multiply(*at(comm, 0, ones, ones, ones), comm=comm, **(there if comm.rank == 1 else here))
    hybrid.multiply(*at(comm, 0, ones, ones), comm=comm, alpha=2.0 if comm.rank == 1 else 2)  # the same number
    with pytest.raises(UsageError, match="is no type of a product"):
        hybrid.multiply(*at(comm, 0, ones, ones), comm=comm, dtype="," if comm.rank == 1 else None)
    with pytest.raises(UsageError, match=r"rank 1 on \S+, agree: alpha must be a number"):
        hybrid.multiply(*at(comm, 0, ones, ones), comm=comm, alpha="x" if comm.rank == 1 else 1)
    c = hybrid.multiply(*at(comm, 0, ones, ones), comm=comm, alpha=float("nan"))
    assert comm.rank != 0 or np.isnan(c).all()


@pytest.mark.mpi(min_size=2)
def test_a_stack_that_fails_in_one_product_fails_on_all_ranks_and_the_next_call_works(comm):
    a, b = np.ones((2, 3, 3), "int8"), np.ones((2, 3, 3), "int8")
    a[1] = 100
    from hybrid.errors import Overflow

    with pytest.raises(Overflow):
        hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    c = hybrid.multiply(*at(comm, 0, a, b), comm=comm, dtype="int16")
    assert comm.rank != 0 or c[1, 0, 0] == 300


@pytest.mark.parametrize("a", [[[1, 2], [3]], [[[1.0], [2.0, 3.0]]], [[1, "x"]]])
def test_lists_that_are_no_arrays_of_numbers_are_refused(a):
    with pytest.raises(UsageError, match=r"a is no array of numbers|would give|cannot be multiplied"):
        hybrid.multiply(a, np.ones((2, 2)))


def test_what_is_wrong_with_out_is_said():
    a = np.ones((2, 2))
    with pytest.raises(UsageError, match=r"in this machine's byte order, not of >f8"):
        hybrid.multiply(a, a, out=np.empty((2, 2), ">f8"))
    read_only = np.empty((2, 2))
    read_only.flags.writeable = False
    with pytest.raises(UsageError, match="out must be writable"):
        hybrid.multiply(a, a, out=read_only)
