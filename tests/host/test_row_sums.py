# SPDX-License-Identifier: MIT
"""Checksums of rows: the same for the same bits however they lie and are read, others for other bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.host.row_sums import NOT_INTEGRAL, WEIGHTED_ROWS, add_squares, checksum_weights, mixed, row_checksums, row_sums

DTYPES = ["float32", "float64"]


def checksums(matrix, first_column=0):
    into = np.zeros(len(matrix), np.uint64)
    weights = checksum_weights(first_column + matrix.shape[1], matrix.itemsize)[first_column:]
    row_checksums(matrix, weights, into)
    return into


def by_definition(matrix, first_column):
    """With Python's integers."""
    weights = checksum_weights(first_column + matrix.shape[1], matrix.itemsize)[first_column:].tolist()
    words = np.ascontiguousarray(matrix).view({4: np.uint32, 8: np.uint64}[matrix.itemsize]).tolist()
    found = []
    for number, row in enumerate(words):
        plain = [1 if weight & 1 else 1 << 32 for weight in weights]
        found.append(sum(w * x for w, x in zip(plain if number % WEIGHTED_ROWS else weights, row, strict=True)) % 2**64)
    return np.array(found, np.uint64)


@examples(50)
@given(
    rows=st.integers(0, 20),
    columns=st.integers(0, 40),
    first=st.integers(0, 5),
    shift=st.integers(0, 3),
    gap=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_checksums_are_as_defined_wherever_the_matrix_lies(rows, columns, first, shift, gap, dtype, seed):
    """Of any alignment and row stride: float32 elements are read by twos only where that is possible."""
    random = np.random.default_rng(seed)
    wide = random.standard_normal((rows, shift + columns + gap)).astype(dtype)
    matrix = wide[:, shift : shift + columns]
    np.testing.assert_array_equal(checksums(matrix, first), by_definition(matrix, first))


@examples(100)
@given(
    columns=st.integers(1, 40),
    first=st.integers(0, 3),
    row=st.integers(0, 8),
    column=st.integers(0, 39),
    bit=st.integers(0, 63),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
def test_any_flipped_bit_changes_its_rows_checksum_alone(columns, first, row, column, bit, dtype, seed):
    matrix = np.random.default_rng(seed).standard_normal((9, columns)).astype(dtype)
    before = checksums(matrix, first)
    words = matrix.view({4: np.uint32, 8: np.uint64}[matrix.itemsize])
    words[row, column % columns] ^= words.dtype.type(1 << bit % (8 * matrix.itemsize))
    differing = np.flatnonzero(checksums(matrix, first) != before)
    assert differing.tolist() == [row]


@pytest.mark.parametrize("dtype", DTYPES)
def test_exchanged_columns_change_a_weighted_row(rng, dtype):
    matrix = rng.standard_normal((8, 400)).astype(dtype)
    for first in range(0, 400, 7):
        other = matrix.copy()
        other[:, [first, 399]] = other[:, [399, first]]
        assert first == 399 or checksums(other)[0] != checksums(matrix)[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_may_be_weighted(rng, dtype):
    matrix = rng.standard_normal((70, 33)).astype(dtype)
    weights, every = checksum_weights(33, matrix.itemsize), np.zeros(3, np.uint64)
    row_checksums(matrix[::WEIGHTED_ROWS], weights, every, slice(None))
    np.testing.assert_array_equal(every, checksums(matrix)[::WEIGHTED_ROWS])


@pytest.mark.parametrize("item_size", [4, 8])
def test_weights_are_odd_and_differ(item_size):
    weights = checksum_weights(20_001, item_size)
    words = weights[:: 8 // item_size]
    assert (words & np.uint64(1)).all()
    assert len(set(words.tolist())) == len(words)
    np.testing.assert_array_equal(weights[:77], checksum_weights(77, item_size))
    if item_size == 4:
        np.testing.assert_array_equal(weights[1::2], weights[:-1:2] << np.uint64(32))


def test_mixed_words_differ():
    numbers = np.arange(1 << 16, dtype=np.uint64) << np.uint64(48)
    assert len(set(mixed(numbers).tolist())) == 1 << 16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "group"), [(0, 5, 3), (4, 0, 3), (1, 1, 1), (5, 130, 64), (300, 700, 512)])
def test_sums_of_groups_and_squares(rng, dtype, rows, columns, group):
    matrix, x = rng.standard_normal((rows, columns)).astype(dtype), rng.standard_normal(columns)
    matrix[::2] = np.rint(matrix[::2] * 9)
    groups = -(-columns // group)
    sums, squares, largest = np.zeros((rows, groups)), np.zeros((rows, groups)), np.zeros(rows)
    row_sums(matrix, x, group, sums, squares, largest)
    wide = matrix.astype(np.float64)
    for number in range(groups):
        part = slice(number * group, (number + 1) * group)
        np.testing.assert_allclose(sums[:, number], wide[:, part] @ x[part], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(squares[:, number], wide[:, part] ** 2 @ x[part] ** 2, rtol=1e-10)
    np.testing.assert_array_equal(largest[::2], np.abs(wide[::2]).max(axis=1, initial=0))
    assert (largest[1::2] == (NOT_INTEGRAL if columns else 0)).all()
    of_rows, again = np.ones(rows), np.zeros(rows)
    add_squares(matrix, of_rows, again)
    np.testing.assert_allclose(of_rows, 1 + (wide**2).sum(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(again, largest)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_no_integers_of_any_bound(bad):
    matrix, largest = np.ones((2, 3)), np.zeros(2)
    matrix[1, 1] = bad
    with np.errstate(all="ignore"):
        add_squares(matrix, np.zeros(2), largest)
    assert largest[0] == 1
    assert largest[1] >= NOT_INTEGRAL
