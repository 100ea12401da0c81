# SPDX-License-Identifier: MIT
"""Matrices from a seed: the same however they are made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.arrays.fill import FILLS, fill_rows
from hybrid.core.spans import Span, pieces


def made(rows, columns, *, fill="uniform", seed=0, matrix="A", dtype="float64", threads=1, first=0):
    into = np.full((rows, columns), np.nan, dtype)
    fill_rows(into, Span(first, first + rows), fill=fill, seed=seed, matrix=matrix, threads=threads)
    return into


@examples(60)
@given(
    fill=st.sampled_from(FILLS),
    rows=st.integers(0, 150),
    columns=st.integers(0, 9),
    size=st.integers(1, 150),
    threads=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_a_matrix_is_the_same_however_its_rows_are_split(fill, rows, columns, size, threads, dtype):
    whole = made(rows, columns, fill=fill, seed=7, dtype=dtype)
    assert not np.isnan(whole).any()
    for part in pieces(Span(0, rows), size):
        alone = made(len(part), columns, fill=fill, seed=7, dtype=dtype, threads=threads, first=part.lo)
        np.testing.assert_array_equal(alone, whole[part.slice])


def test_lecture_draws_a_from_0_1_2_and_b_from_0_1():
    a, b = (made(200, 50, fill="lecture", matrix=matrix) for matrix in "AB")
    for matrix, values in ((a, 3), (b, 2)):
        drawn, counts = np.unique(matrix, return_counts=True)
        assert list(drawn) == list(range(values))
        np.testing.assert_allclose(counts / matrix.size, 1 / values, atol=0.03)


def test_index_counts_the_elements_from_zero():
    np.testing.assert_array_equal(made(4, 5, fill="index"), np.arange(20.0).reshape(4, 5))
    np.testing.assert_array_equal(made(2, 5, fill="index", first=10, dtype="float32"), np.arange(50, 60).reshape(2, 5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_uniform_is_in_zero_to_one_and_spread_over_it(dtype):
    values = made(200, 100, dtype=dtype)
    assert values.min() >= 0
    assert values.max() < 1
    np.testing.assert_allclose(np.histogram(values, 10, (0, 1))[0] / values.size, 0.1, atol=0.02)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normal_has_mean_zero_and_deviation_one(dtype):
    values = made(200, 100, fill="normal", dtype=dtype)
    assert abs(values.mean()) < 0.05
    assert abs(values.std() - 1) < 0.05
    assert (np.abs(values) > 2).mean() == pytest.approx(0.0455, abs=0.01)


def test_small_integers_are_the_same_in_float32():
    np.testing.assert_array_equal(made(30, 40, fill="lecture", dtype="float32"), made(30, 40, fill="lecture"))


@pytest.mark.parametrize("fill", ["lecture", "uniform", "normal"])
def test_rows_matrices_and_seeds_differ(fill):
    a = made(40, 60, fill=fill, seed=1)
    assert len(np.unique(a, axis=0)) == 40
    assert not np.array_equal(a, made(40, 60, fill=fill, seed=2))
    assert not np.array_equal(made(40, 60, fill=fill, seed=1, matrix="B") % 2, a % 2)


@pytest.mark.parametrize("seeds", [(2**63, 2**63 + 1), (2**64 - 1, 2**64 - 2), (2**53, 2**53 + 1), (-1, -2), (0, 2**32)])
def test_big_and_negative_seeds_give_matrices_of_their_own(seeds):
    first, second = (made(3, 10, seed=seed) for seed in seeds)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, made(3, 10, seed=seeds[0]))


def test_rows_far_down_are_made_at_once_and_are_others():
    far, farther = made(1, 10, first=2**40), made(1, 10, first=2**40 + 1)
    assert not np.array_equal(far, farther)
    np.testing.assert_array_equal(made(2, 10, first=2**40), np.vstack([far, farther]))


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_counts_the_rows_up_to_all(threads):
    told = []
    into = np.empty((200, 5000))
    fill_rows(into, Span(100, 300), fill="uniform", seed=0, matrix="B", threads=threads, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 200
    assert len(told) > 1


BLOCK = 2**19  # elements


def sfc64(*start):
    """The words of SFC64 after a start from three, as its author seeds it: 18 steps first."""
    below = 2**64 - 1
    a, b, c = start
    for counter in itertools.count(1):
        word = (a + b + counter) & below
        a, b, c = b ^ (b >> 11), (c + (c << 3)) & below, (((c << 24) | (c >> 40)) + word) & below
        if counter > 18:
            yield word


@pytest.mark.parametrize("seed", [5, -1, 2**64 - 2])
@pytest.mark.parametrize("block", [0, 3, 2**40])
def test_the_same_numbers_on_every_machine(seed, block):
    # A change of these words changes the results of all seeds: keep it for a new version.
    width, count = 64, 320
    words = list(itertools.islice(sfc64(seed % 2**64, 1, block), count))
    asked = {"rows": count // width, "columns": width, "seed": seed, "matrix": "B", "first": block * BLOCK // width}
    double, single = (made(**asked, dtype=dtype).ravel() for dtype in ("float64", "float32"))
    np.testing.assert_array_equal(double, [(word >> 11) / 2.0**53 for word in words])
    # In float32 each word gives two numbers, from its lower and its upper half.
    halves = [half for word in words for half in (word & (2**32 - 1), word >> 32)][:count]
    np.testing.assert_array_equal(single, [(half >> 8) / 2.0**24 for half in halves])
    # NumPy's bools are the bits of half a word after the other, from the lowest on.
    bits = [(half >> bit) & 1 for half in halves for bit in range(32)][:count]
    np.testing.assert_array_equal(made(**asked, fill="lecture").ravel(), bits)
    asked["matrix"] = "A"
    halves = [
        half for word in itertools.islice(sfc64(seed % 2**64, 0, block), count) for half in (word & (2**32 - 1), word >> 32)
    ]
    # NumPy's small integers are the bytes of half a word, times 3, divided by 256. Byte 0 alone is drawn again: 256 is 85·3 + 1.
    drawn = [byte for half in halves for byte in half.to_bytes(4, "little") if byte * 3 % 256 >= 1][:count]
    np.testing.assert_array_equal(made(**asked, fill="lecture").ravel(), [byte * 3 // 256 for byte in drawn])


FEW = {1: 1_600_000, 3: 700_000, 1000: 2000, 1_500_000: 2}  # rows of each width: some blocks, in whole rows or within a row


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", FEW)
@pytest.mark.parametrize("fill", FILLS)
def test_a_matrix_of_several_blocks_is_the_same_for_any_division_into_rows_and_threads(fill, width, dtype, seed):
    random = np.random.default_rng(seed)
    rows, first = FEW[width], 7
    whole = made(rows, width, fill=fill, dtype=dtype, first=first)
    cuts = sorted({0, rows, *random.integers(0, rows + 1, size=4).tolist()})
    for lo, hi in itertools.pairwise(cuts):
        threads = int(random.integers(1, 20))
        part = made(hi - lo, width, fill=fill, dtype=dtype, threads=threads, first=first + lo)
        np.testing.assert_array_equal(part, whole[lo:hi], err_msg=f"rows {lo}:{hi}, {threads} threads")


@pytest.mark.parametrize("fill", ["uniform", "normal", "lecture"])
def test_neighbouring_blocks_are_not_correlated(fill):
    blocks = made(16, BLOCK, fill=fill)
    correlations = np.corrcoef(blocks)[np.triu_indices(16, 1)]
    assert np.abs(correlations).max() < 6 / BLOCK**0.5  # six deviations of the correlation of independent blocks


def test_a_matrix_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match="not contiguous"):
        fill_rows(np.empty((4, 6))[:, :3], Span(0, 4), fill="uniform", seed=0, matrix="A")
