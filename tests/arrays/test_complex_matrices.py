# SPDX-License-Identifier: MIT
"""Complex matrices as real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.arrays.complex_matrices import real_operands, write_expanded
from hybrid.arrays.complex_view import complex_view, real_view
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.product_type import product_type
from hybrid.core.spans import Span
from hybrid.host import thread_map

PARTS = {"complex64": "float32", "complex128": "float64"}


def whole_numbers(shape, dtype, seed=0):
    """For which every order of summation gives the same."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(-9, 10, (2, *shape))
    return (parts[0] + 1j * parts[1]).astype(dtype) if np.dtype(dtype).kind == "c" else parts[0].astype(dtype)


def expanded(b, rows, dtype, threads=1):
    into = np.full((len(rows), 2 * b.shape[1]), np.nan, dtype)
    write_expanded(b, rows, into, threads)
    return into


def test_the_expanded_b_has_the_parts_of_each_row_and_of_i_times_it():
    b = np.array([[1 + 2j, 3 - 4j]])
    np.testing.assert_array_equal(expanded(b, Span(0, 2), float), [[1, 2, 3, -4], [-2, 1, 4, 3]])


@examples(80)
@given(
    sizes=st.tuples(*[st.integers(0, 12)] * 3),
    of_b=st.sampled_from(["complex64", "complex128", "float32", "int16", "bool"]),
    dtype=st.sampled_from(["complex64", "complex128"]),
    threads=st.integers(1, 3),
)
def test_one_real_product_is_the_complex_one(sizes, of_b, dtype, threads):
    n, l, m = sizes
    a, b = whole_numbers((n, l), dtype), whole_numbers((l, m), of_b, 1)
    real = real_view(a) @ expanded(b, Span(0, 2 * l), PARTS[dtype], threads)
    assert real.shape == (n, 2 * m)
    np.testing.assert_array_equal(complex_view(real), a @ b)


@examples(60)
@given(st.data())
def test_any_rows_of_the_expanded_b_are_those_of_the_whole(data):
    b = whole_numbers((9, 5), "complex128")[:: data.draw(st.sampled_from([1, -1, 2]))]
    rows = Span(*sorted(data.draw(st.integers(0, 2 * len(b))) for _ in "ab"))
    np.testing.assert_array_equal(expanded(b, rows, float), expanded(b, Span(0, 2 * len(b)), float)[rows.slice])


def test_b_is_expanded_in_parts_by_several_threads(monkeypatch):
    b = whole_numbers((50, 3), "complex64")
    wanted = expanded(b, Span(0, 100), "float32")
    monkeypatch.setattr("hybrid.arrays.complex_matrices.CALL_BYTES", 7 * 2 * 6 * 4)
    used, on_threads = [], thread_map.on_threads
    monkeypatch.setattr(
        "hybrid.arrays.complex_matrices.on_threads",
        lambda threads, work, parts: on_threads(threads, lambda part: used.append((threads, part)) or work(part), parts),
    )
    np.testing.assert_array_equal(expanded(b, Span(0, 100), "float32", 2), wanted)
    assert sorted(used) == [(2, Span(lo, min(50, lo + 7))) for lo in range(0, 50, 7)]


@pytest.mark.parametrize("of_a", ["complex64", "complex128", "float64", "int8"])
@pytest.mark.parametrize("of_b", ["complex64", "complex128", "float32"])
def test_operands_that_lie_as_they_should_are_not_copied(of_a, of_b):
    a, b = whole_numbers((3, 4), of_a), whole_numbers((4, 5), of_b, 1)
    types = product_type(a.dtype, b.dtype)
    if not types.complex_b:
        return
    first, second = real_operands(a, b, types, Gemm(), device="cpu", threads=1)
    assert np.may_share_memory(first, a) == (a.dtype == types.operand_a or not types.complex_a)
    assert np.may_share_memory(second, b) == (b.dtype == types.operand_b and not types.complex_a)
    real = np.matmul(first, second, dtype=types.computed)
    np.testing.assert_array_equal(complex_view(real), a @ b)
