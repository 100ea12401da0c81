# SPDX-License-Identifier: MIT
"""Products of integers are exact, whatever their size, and never wrap around: an element that the result's type does not hold is
refused by its place and value, with a type that holds all."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support import cases
from support.cases import refused
from support.selection import examples

import hybrid
from hybrid.errors import Overflow, UsageError

TYPES = (*cases.INTEGERS, "bool")
FACTORS = [0, 1, -1, 3, -2, 2**53 + 1, 2**63, -(2**63)]


def limits(dtype: str) -> tuple[int, int]:
    return (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


@st.composite
def matrices(draw):
    """A, B and C of any types, some of small numbers and some of the largest."""
    n, l, m = (draw(st.integers(0, 5)) for _ in "nlm")
    found = []
    for shape in ((n, l), (l, m), (n, m)):
        dtype = draw(st.sampled_from(TYPES))
        low, high = limits(dtype)
        some = draw(st.sampled_from([(max(-3, low), min(3, high)), (low, high)]))
        numbers = st.integers(*some) | st.sampled_from(some)
        count = shape[0] * shape[1]
        found.append(np.array(draw(st.lists(numbers, min_size=count, max_size=count)), dtype).reshape(shape))
    return found


def first_beyond(wanted, result):
    """The first element, row by row, that the type does not hold."""
    low, high = limits(result)
    return next(((*place, int(value)) for place, value in np.ndenumerate(wanted) if not low <= value <= high), None)


def assert_python_s(wanted, a, b, c=None, **how):
    """That the product is Python's, or that its first element that is too large is named, with a type that holds all."""
    beyond = first_beyond(wanted, how["dtype"])
    if beyond is None:
        found = hybrid.multiply(a, b, c, **how)
        assert (found.dtype, found.tolist()) == (how["dtype"], wanted.tolist())
        return
    with refused(Overflow, "overflow") as caught:
        hybrid.multiply(a, b, c, **how)
    said = str(caught.value)
    assert tuple(map(int, re.findall(r"-?\d+", said)[:3])) == beyond, said
    (holds,) = re.findall(r"dtype='(\w+)'", said)
    wide = hybrid.multiply(a, b, c, **{**how, "dtype": holds}) if first_beyond(wanted, "int64") is None else None
    assert wide is None or wide.astype(object).tolist() == wanted.tolist() or holds == "float64"


@examples(400, one_in=5, suppress_health_check=[HealthCheck.too_slow])
@given(matrices(), st.sampled_from(cases.INTEGERS), st.sampled_from(FACTORS), st.sampled_from(FACTORS))
def test_a_product_is_python_s_or_its_first_element_that_is_too_large_is_named(given, result, alpha, beta):
    a, b, c = given
    wanted = alpha * (a.astype(object) @ b.astype(object)) + beta * c.astype(object)
    assert_python_s(np.asarray(wanted, object).reshape(c.shape), a, b, c, alpha=alpha, beta=beta, dtype=result)


@pytest.mark.parametrize("result", cases.INTEGERS)
def test_every_type_holds_its_least_and_its_largest_number_and_no_more(result):
    low, high = limits(result)
    for value in (low - 1, low, high, high + 1):
        a = np.array([divmod(value, 2**32)])
        assert_python_s(np.array([[value]], object), a, np.array([[2**32], [1]]), dtype=result)
    of_a = 2 ** ((high + 1).bit_length() // 2)  # a product that is just too large, and no product of these operands is larger
    assert_python_s(np.array([[high + 1]], object), np.array([[of_a]]), np.array([[(high + 1) // of_a]]), dtype=result)


@pytest.mark.parametrize("wraps_to", [0, 5, -5])
@pytest.mark.parametrize("times", [1, -1, 2, 2**40])
def test_numbers_that_differ_by_multiples_of_two_to_the_64_are_told_apart(wraps_to, times):
    a, b = np.array([[times] * 4 + [wraps_to]]), np.array([[2**62]] * 4 + [[1]])
    assert_python_s(np.array([[wraps_to + times * 2**64]], object), a, b, dtype="int64")


WAYS = [
    {"device": "cpu"},
    {"device": "cpu", "check": "host"},
    pytest.param({"device": "emulate"}, marks=pytest.mark.needs("compiler")),
    pytest.param({"device": "emulate", "precision": "fast"}, marks=pytest.mark.needs("compiler")),
]


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize(
    "bits", [(11, 11, 4), (11, 11, 5), (25, 25, 8), (25, 25, 9), (24, 15, 3000), (31, 31, 3), (62, 62, 2)], ids=str
)
def test_sums_are_exact_beside_and_beyond_what_floating_point_holds(rng, how, bits):
    """Up to 2²⁴ and 2⁵³ and above: with the largest operands in every place, and with odd ones."""
    of_a, of_b, l = bits
    for a, b in (
        (np.full((3, l), 2**of_a), np.full((l, 4), 2**of_b)),
        (2**of_a - rng.integers(0, 2, (17, l)), rng.choice([-1, 1], (l, 9)) * (2**of_b - rng.integers(0, 2, (l, 9)))),
    ):
        assert_python_s(a.astype(object) @ b.astype(object), a, b, dtype="int64", **how)


def test_the_element_of_large_matrices_is_named(rng):
    """Which threads look for in parts."""
    a, b = np.eye(1000, dtype=np.int16), np.zeros((1000, 700), np.int16)
    b[641, 517], b[800, 3] = 300, 301
    assert_python_s(b.astype(object), a, b, dtype="uint8")


def test_an_overflow_is_named_also_of_a_stack_and_where_out_is_c():
    a = np.ones((4, 3, 5), "int8")
    a[2, 1] = 100
    with refused(Overflow, "overflow") as caught:
        hybrid.multiply(a, np.ones((4, 5, 2), "int8"))
    assert set(map(int, re.findall(r"\d+", str(caught.value).partition("which")[0]))) == {1, 0, 2, 500}
    one, c = np.ones((1, 1), "int32"), np.full((1, 1), 2, "uint64")
    with refused(Overflow, "overflow") as caught:
        hybrid.multiply(-3 * one, one, c, beta=1, dtype="uint64", out=c)
    assert "-1" in re.findall(r"-?\d+", str(caught.value))


def test_sums_too_long_to_be_exact_are_refused():
    zeros = np.broadcast_to(np.uint64(2**64 - 1), (1, 2**52))
    with refused(UsageError, "too-long"):
        hybrid.multiply(zeros, zeros.T)


@pytest.mark.mpi(min_size=2)
def test_what_one_rank_finds_too_large_all_ranks_refuse_and_the_next_call_works(comm):
    a, b = np.eye(2 * comm.size, dtype=np.int16), np.full((2 * comm.size, 3), 3, np.int16)
    b[-1] = 300
    mine = (a, b) if comm.rank == 0 else (None, None)
    with refused(Overflow, "overflow") as caught:
        hybrid.multiply(*mine, comm=comm, dtype="int8")
    assert f"[{2 * comm.size - 1}, 0]" in str(caught.value)
    assert "300" in str(caught.value)
    c = hybrid.multiply(*mine, comm=comm)
    assert comm.rank or np.array_equal(c, b)
