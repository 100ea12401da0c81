# SPDX-License-Identifier: MIT
"""Of which type products are, and in which they are computed."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from hybrid.arrays.product_type import numpy_type, product_type, type_name
from hybrid.core.problem import DTYPES, INTEGERS
from hybrid.errors import UsageError

KNOWN = [name for name in DTYPES if name != "bfloat16"]


@pytest.mark.parametrize(("of_a", "of_b"), list(itertools.product(KNOWN, KNOWN)))
def test_a_product_has_numpy_s_type_and_is_computed_in_one_that_holds_its_operands(of_a, of_b):
    types = product_type(np.dtype(of_a), np.dtype(of_b))
    assert types.result == np.result_type(of_a, of_b).name == (np.zeros((1, 1), of_a) @ np.zeros((1, 1), of_b)).dtype.name
    assert types.exact == (types.result in (*INTEGERS, "bool"))
    if not types.exact:
        for operand, needed in ((of_a, types.operand_a), (of_b, types.operand_b)):
            of_64_bits = np.dtype(operand).kind in "iu" and np.dtype(operand).itemsize == 8
            assert np.can_cast(operand, needed, "safe") or of_64_bits


@pytest.mark.parametrize(
    ("of_a", "of_b", "asked", "computed"),
    [
        ("float16", "float16", "float32", "float32"),
        ("float16", "float16", "float64", "float64"),
        ("float64", "float64", "float32", "float64"),
        ("float32", "float32", "complex64", "float32"),
        ("int8", "int8", "float32", "float32"),
        ("int64", "int64", "float32", "float64"),
        ("complex64", "float32", "complex128", "float64"),
        ("float32", "float32", "float16", "float32"),
    ],
)
def test_what_is_asked_for_is_the_result_s_type_and_nothing_is_lost_before(of_a, of_b, asked, computed):
    types = product_type(np.dtype(of_a), np.dtype(of_b), asked)
    assert (types.result, types.computed, types.exact) == (asked, computed, False)


@pytest.mark.parametrize("asked", INTEGERS)
def test_integers_of_any_types_give_exact_ones_of_any_type(asked):
    for of_a, of_b in itertools.product((*INTEGERS, "bool"), repeat=2):
        types = product_type(np.dtype(of_a), np.dtype(of_b), asked)
        assert (types.result, types.exact) == (asked, True)


@pytest.mark.parametrize(
    ("operands", "asked"), [("float32", "int32"), ("complex64", "float32"), ("float64", "bool"), ("int8", "bool")]
)
def test_a_type_that_would_lose_more_than_rounding_is_refused(operands, asked):
    with pytest.raises(UsageError, match=f"a product of {operands} cannot have dtype {asked}"):
        product_type(np.dtype(operands), np.dtype(operands), asked)


def test_names_of_types_are_numpy_s_and_what_is_no_type_is_refused():
    assert [type_name(each) for each in (None, float, "f4", np.int8, "complex64")] == [
        "",
        "float64",
        "float32",
        "int8",
        "complex64",
    ]
    for wrong in ("bogus", "U3", object, "G"):
        with pytest.raises(UsageError, match="is no type of a product"):
            type_name(wrong)


def test_bfloat16_is_known_where_ml_dtypes_is():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.dtype(ml_dtypes.bfloat16)
    assert (type_name("bfloat16"), type_name(half), numpy_type("bfloat16")) == ("bfloat16", "bfloat16", half)
    for other in KNOWN:  # by elements, since NumPy has no @ of bfloat16 and gives float32 where two numbers give bfloat16
        result = (np.zeros(1, half) * np.zeros(1, other)).dtype.name
        assert {product_type(half, np.dtype(other)).result, product_type(np.dtype(other), half).result} == {result}
    with pytest.raises(UsageError, match="bfloat16 and <U3 have no product"):
        product_type(half, np.dtype("U3"))
    types = product_type(half, half)
    assert (types.result, types.computed, types.converts) == ("bfloat16", "float32", True)


def test_without_ml_dtypes_bfloat16_is_refused_by_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UsageError, match="bfloat16 needs the package ml_dtypes"):
        type_name("bfloat16")
