# SPDX-License-Identifier: MIT
"""Exact powers of adjacency matrices: remainders, bounds, and the choice between floating point and arithmetic modulo primes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.selection import examples

import hybrid
from hybrid.arrays.primes import EXACT_BITS, balanced, largest_modulus, primes_below
from hybrid.errors import CheckFailed, UsageError
from hybrid.graphs import markov, modular, walks

TEN = ["AB", "AC", "BC", "BD", "BF", "CD", "CE", "DF", "EH", "FG", "FH", "FI", "GH", "GI", "GJ", "HJ", "IJ"]


def exact_power(matrix, length):
    """By Python's integers."""
    power = np.array([[int(i == j) for j in range(len(matrix))] for i in range(len(matrix))], object)
    square = matrix.astype(object)
    while length:
        if length & 1:
            power = power.dot(square)
        square = square.dot(square)
        length >>= 1
    return power


def strictly(dtype):
    """A product that refuses what the type could not sum exactly in any order."""

    def multiply(a, b):
        assert a.dtype == b.dtype == dtype
        largest = [max(1, int(np.abs(matrix).max())) for matrix in (a, b)]
        assert a.shape[1] * largest[0] * largest[1] <= 2 ** EXACT_BITS[dtype]
        return a @ b

    return multiply


def counted(matrix, length, dtype="float64", multiply=None, rows=None, columns=None):
    arithmetic = walks.choose_arithmetic(matrix, length, dtype)
    everything = list(range(len(matrix)))
    rows, columns = rows or everything, columns or everything
    found = walks.carry_out(arithmetic, matrix, rows, columns, multiply or strictly(dtype), lambda done, of: None)
    return walks.as_integers(arithmetic, found)


@st.composite
def matrices(draw, largest):
    size = draw(st.integers(1, 5))
    top = draw(st.integers(0, largest))
    values = draw(st.lists(st.integers(0, top), min_size=size * size, max_size=size * size))
    return np.array(values, np.int64).reshape(size, size)


@examples(150)
@given(matrices(2**63 - 1) | matrices(3), st.integers(0, 90), st.sampled_from(["float32", "float64"]))
def test_any_power_of_any_matrix_is_python_s(matrix, length, dtype):
    try:
        found = counted(matrix, length, dtype)
    except UsageError as refusal:
        said = str(refusal)
        assert (dtype, "use --dtype float64" in said) == ("float32", True)  # whose small primes come to an end
        return
    assert (found == exact_power(matrix, length)).all()
    assert all(type(number) is int for number in found.flat)


@examples(15)
@given(matrices(5), st.integers(0, 200))
def test_the_runner_s_products_lead_there_too(matrix, length):
    found = counted(matrix, length, multiply=lambda a, b: hybrid.multiply(a, b, threads=1, device="cpu"))
    assert (found == exact_power(matrix, length)).all()


@examples(100)
@given(matrices(2**63 - 1) | matrices(2), st.integers(0, 200))
def test_bounds_hold(matrix, length):
    largest = int(max(exact_power(matrix, length).flat))
    assert largest.bit_length() <= walks.Bounds(matrix).bits(length)


def test_bounds_are_near_where_rows_differ():
    """Of a star with 100 leaves: every other step leads back to one vertex, so √100 and not 100 is the growth."""
    star = np.zeros((101, 101), np.int64)
    star[0, 1:] = star[1:, 0] = 1
    assert walks.Bounds(star).bits(1000) <= math.log2(100) * 500 + 10


def test_walks_that_come_to_an_end():
    line = np.eye(6, k=1, dtype=np.int64)
    assert counted(line, 5)[0, 5] == 1
    assert not counted(line, 6).any()
    assert not counted(line, 10**30).any()


def test_large_numbers_on_the_way_to_nothing():
    """What is on the way does not matter to the moduli: its remainders are enough."""
    steep = np.eye(4, k=1, dtype=np.int64) * (2**62)
    assert walks.choose_arithmetic(steep, 4, "float64").primes
    assert not counted(steep, 4).any()
    assert counted(steep, 3)[0, 3] == 2**186


@pytest.mark.parametrize(("dtype", "bits"), [("float64", 53), ("float32", 24)])
def test_plain_numbers_are_used_as_far_as_they_are_exact_and_not_further(dtype, bits):
    doubling = np.array([[2]])
    last = bits - 1  # 2^(L-1)·2 ≤ 2^bits, with room for the bound's rounding
    assert walks.choose_arithmetic(doubling, last, dtype).primes == ()
    arithmetic = walks.choose_arithmetic(doubling, bits + 1, dtype)
    assert arithmetic.primes
    assert arithmetic.plain < len(walks.further_steps(bits + 1))
    for length in range(last - 2, bits + 12):
        assert counted(doubling, length, dtype)[0, 0] == 2**length


def test_the_road_says_what_is_outgrown():
    ten = np.array([[int(a + b in TEN or b + a in TEN) for b in "ABCDEFGHIJ"] for a in "ABCDEFGHIJ"])
    assert str(walks.choose_arithmetic(ten, 1, "float64")) == "nothing is multiplied"
    assert str(walks.choose_arithmetic(ten, 4, "float64")) == "every number stays below 2^53: exact in plain float64"
    assert str(walks.choose_arithmetic(ten, 4, "float32")) == "every number stays below 2^24: exact in plain float32"
    long = walks.choose_arithmetic(ten, 30, "float64")
    assert str(long).startswith(f"numbers up to 2^{long.bits} outgrow float32 (2^24), float64 (2^53); 6 of 7 products in plain")
    longer = walks.choose_arithmetic(ten, 40, "float64")
    assert f"outgrow float32 (2^24), float64 (2^53), int64 (2^63); 5 of 6 products in plain float64, then exact modulo "\
        f"{len(longer.primes)} primes of 24 bits in float64" in str(longer)  # fmt: skip
    assert math.prod(longer.primes[:-1]) > 2**longer.bits


def test_a_part_is_the_same_part_of_the_whole():
    matrix = np.arange(9).reshape(3, 3)
    assert (counted(matrix, 70, rows=[2], columns=[0, 1]) == exact_power(matrix, 70)[[2]][:, [0, 1]]).all()


def test_moduli_in_several_groups():
    arithmetic = walks.choose_arithmetic(np.array([[1, 1], [1, 0]]), 12000, "float64")
    assert len(arithmetic.primes) > arithmetic.at_once > 1
    a, b = 0, 1
    for _ in range(12000):
        a, b = b, a + b
    assert counted(np.array([[1, 1], [1, 0]]), 12000, rows=[0], columns=[1])[0, 0] == a


@pytest.mark.parametrize("where", [(0, 0), (1, 2), (0, 5)])
def test_a_wrong_product_modulo_a_prime_is_noticed(where):
    calls = []

    def wrong(a, b):
        product = a @ b
        calls.append(product.shape)
        if len(calls) == arithmetic.products:  # the last
            product[where] += 1
        return product

    matrix = np.array([[1, 2], [3, 4]])
    arithmetic = walks.choose_arithmetic(matrix, 64, "float64")
    assert len(arithmetic.primes) >= 3
    found = walks.carry_out(arithmetic, matrix, [0, 1], [0, 1], wrong, lambda *_: None)
    assert len(calls) == arithmetic.products
    with pytest.raises(CheckFailed, match="none can"):
        walks.as_integers(arithmetic, found)


def test_other_ranks_multiply_as_often_and_hold_nothing():
    calls = []
    arithmetic = walks.choose_arithmetic(np.array([[1, 1], [1, 0]]), 5000, "float64")
    assert walks.carry_out(arithmetic, None, [0], [1], lambda a, b: calls.append((a, b)), lambda *_: None) is None
    assert calls == [(None, None)] * arithmetic.products


def test_what_is_beyond_all_primes_is_refused_at_once():
    growing = np.full((10, 10), 3)
    with pytest.raises(UsageError, match="more primes than"):
        walks.choose_arithmetic(growing, 10**9, "float64")
    with pytest.raises(UsageError, match="use --dtype float64, or make"):
        walks.choose_arithmetic(growing, 10**4, "float32")
    with pytest.raises(UsageError, match=r"more than 10\^15 bits"):
        walks.choose_arithmetic(growing, 10**400, "float64")
    assert counted(np.eye(3, dtype=np.int64)[[1, 2, 0]], 10**400)[0].tolist().count(1) == 1  # a cycle's numbers do not grow


# --- remainders


@settings(deadline=None)
@given(st.data(), st.integers(1, 40))
def test_numbers_come_back_from_their_remainders(data, count):
    primes = [p for p, _ in zip(primes_below(2**23), range(count), strict=False)]
    top = math.prod(primes) - 1
    numbers = data.draw(st.lists(st.integers(0, top) | st.just(top), min_size=1, max_size=4))
    remainders = np.array([[number % prime for number in numbers] for prime in primes])
    of_balanced = balanced(remainders, np.array(primes)[:, None])
    assert modular.Reconstruction(primes)(of_balanced).tolist() == numbers


def test_reach_is_an_upper_bound():
    for terms, dtype in ((512, "float32"), (1, "float32"), (2**17, "float64")):
        all_primes = sum(math.log2(p) for p in primes_below(largest_modulus(terms, dtype)))
        assert all_primes + 1 <= modular.bits_within_reach(terms, dtype)


# --- Markov chains


WEATHER = np.array([[0.9, 0.1], [0.5, 0.5]])


def chained(matrix, length, dtype="float64"):
    chain, scaled, _ = markov.choose_chain(matrix, ["a", "b", "c"], length, dtype)
    found = markov.carry_out(chain, scaled, lambda a, b: a @ b, lambda *_: None)
    markov.confirm(chain, found)
    return chain, found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 10, 63, 1000])
def test_probabilities_are_right_to_the_bound_that_is_told(length, dtype):
    chain, found = chained(WEATHER, length, dtype)
    rest = 0.4**length  # the second eigenvalue's share
    expected = np.array([[5 + rest, 1 - rest], [5 - 5 * rest, 1 + 5 * rest]]) / 6
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=chain.error(max(1, length)) + 1e-14)


def test_rows_that_do_not_add_up():
    with pytest.raises(UsageError, match=r"from b add up to 0\.99, not to 1"):
        chained(np.array([[1.0, 0.0], [0.49, 0.5]]), 2)
    _, found = chained(np.array([[0.333333] * 3] * 3), 5)
    np.testing.assert_allclose(found, 1 / 3, rtol=1e-14)


def test_too_many_steps_for_the_type():
    with pytest.raises(UsageError, match="smaller --length, or --dtype float64"):
        chained(WEATHER, 10**4, "float32")
    with pytest.raises(UsageError, match=r"smaller --length$"):
        chained(WEATHER, 10**100)


def test_probability_that_got_lost_is_noticed():
    chain, found = chained(WEATHER, 100)
    found[0, 0] -= 1e-9
    with pytest.raises(CheckFailed, match="add up to"):
        markov.confirm(chain, found)
