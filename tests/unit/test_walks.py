# SPDX-License-Identifier: MIT
"""Counts of walks by matrix powers: no product sums more than its type holds exactly, and bounds are bounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.arrays.primes import EXACT_BITS
from hybrid.errors import UsageError
from hybrid.graphs import walks


def exact_power(matrix, length):
    """By Python's integers."""
    power, square = (
        np.array([[int(i == j) for j in range(len(matrix))] for i in range(len(matrix))], object),
        matrix.astype(object),
    )
    while length:
        power = power.dot(square) if length & 1 else power
        square, length = square.dot(square), length >> 1
    return power


@st.composite
def matrices(draw, largest):
    size, top = draw(st.integers(1, 5)), draw(st.integers(0, largest))
    values = draw(st.lists(st.integers(0, top), min_size=size * size, max_size=size * size))
    return np.array(values, np.int64).reshape(size, size)


@examples(150)
@given(matrices(2**63 - 1) | matrices(3), st.integers(0, 90), st.sampled_from(["float32", "float64"]))
def test_every_product_is_exact_in_its_type_and_so_is_the_power(matrix, length, dtype):
    def strictly(a, b):
        assert a.dtype == b.dtype == dtype
        largest = [max(1, int(np.abs(each).max())) for each in (a, b)]
        assert a.shape[1] * largest[0] * largest[1] <= 2 ** EXACT_BITS[dtype]
        return a @ b

    everything = list(range(len(matrix)))
    try:
        arithmetic = walks.choose_arithmetic(matrix, length, dtype)
    except UsageError as error:
        refused = (dtype, error.code)
    else:
        refused = None
    if refused:
        assert refused == ("float32", "too-long")  # whose small primes come to an end
        return
    found = walks.carry_out(arithmetic, matrix, everything, everything, strictly, lambda done, of: None)
    assert (walks.as_integers(arithmetic, found) == exact_power(matrix, length)).all()


@examples(100)
@given(matrices(2**63 - 1) | matrices(2), st.integers(0, 200))
def test_bounds_hold(matrix, length):
    assert int(max(exact_power(matrix, length).flat)).bit_length() <= walks.Bounds(matrix).bits(length)
