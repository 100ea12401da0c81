# SPDX-License-Identifier: MIT
"""Elements looked at again: what is rounding, and what is a fault."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.verification.reexamine import accuracy_of, reexamine

DTYPES = ["float32", "float64"]


def operands(rng, dtype, terms=3000, columns=64):
    a, b = rng.random(terms, dtype), rng.random((terms, columns), dtype)
    return a, b, a @ b


def plain_sum(a, b):
    return np.add.accumulate(a[:, None] * b, axis=0)[-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 2, 64])
@pytest.mark.parametrize("terms", [1, 2, 3000])
def test_products_in_any_order_are_rounding(rng, dtype, terms, columns):
    a, b, c = operands(rng, dtype, terms, columns)
    for right in (c, plain_sum(a, b), plain_sum(a[::-1], b[::-1])):
        assert not reexamine(a, b, right).wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_wrong_element_is_named_with_its_error(rng, dtype):
    a, b, c = operands(rng, dtype)
    error = float(100 * np.abs(plain_sum(a, b) - c).max())
    c[[5, 40]] += np.array([error, -error], dtype)
    found = reexamine(a, b, c)
    assert found.wrong == (5, 40)
    assert found.error == pytest.approx(error, rel=0.1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_wrong(rng, dtype, value):
    a, b, c = operands(rng, dtype)
    c[7] = value
    found = reexamine(a, b, c)
    assert (found.wrong, found.error) == ((7,), np.inf)


def test_a_float32_that_loses_every_term_is_rounding():
    a, b = np.ones(20_000, np.float32), np.ones((20_000, 8), np.float32)
    b[0] = 2**24
    assert not reexamine(a, b, np.full(8, 2**24, np.float32)).wrong
    assert reexamine(a, b, np.full(8, 2**25, np.float32)).wrong


def test_errors_of_one_sign_are_no_rounding(rng):
    a, b = rng.standard_normal(100_000).astype("float32"), rng.standard_normal((100_000, 64)).astype("float32")
    c, rounding = a @ b, np.abs(plain_sum(a, b) - a.astype("float64") @ b).max()
    shifted = c + np.float32(5 * rounding)  # each for itself might be rounding
    assert not reexamine(a, b, c).wrong
    assert reexamine(a, b, shifted).wrong
    shifted[::2] = (c - np.float32(5 * rounding))[::2]
    assert not reexamine(a, b, shifted).wrong


def test_noise_is_no_rounding_where_the_product_is_more_accurate_elsewhere(rng):
    a, b, c = operands(rng, "float32", 20_000, 512)
    accuracy = accuracy_of([reexamine(a, b, c)])
    assert accuracy < 0.75
    noisy = plain_sum(a, b) + np.float32(5) * (plain_sum(a, b) - c)
    assert not reexamine(a, b, noisy).wrong
    assert reexamine(a, b, noisy, accuracy).wrong
    assert not reexamine(a, b, c, accuracy).wrong


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e150])
def test_very_small_and_very_large_numbers(rng, scale):
    a, b, _ = operands(rng, "float64")
    a = a * scale
    assert not reexamine(a, b, a @ b).wrong
    wrong = a @ b
    wrong[3] *= 1.001
    assert reexamine(a, b, wrong).wrong == (3,)
