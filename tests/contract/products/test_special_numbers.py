# SPDX-License-Identifier: MIT
"""NaN and infinity spoil the elements that they spoil in NumPy and no others, subnormal numbers are no zeros, and no right
product is refused for the size of its numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.refusals import refused
from support.selection import pairs_first

import hybrid
import hybrid.testing
from hybrid.errors import CheckFailed

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
EMULATED = [
    pytest.param({"device": "emulate"}, marks=pytest.mark.needs("compiler"), id="emulated"),
    pytest.param({"device": "emulate", "precision": "fast"}, marks=pytest.mark.needs("compiler"), id="from remainders"),
]
DEVICES = [pytest.param({"device": "cpu"}, id="CPU"), *EMULATED]
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "imaginary": complex(0, np.inf), "both": complex(np.inf, np.nan)}


def numbers(rng, shape, dtype):
    parts = rng.standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]).astype(dtype)


def assert_spoiled_alike(found, wanted):
    """NaN and infinity at the same places, and right numbers at all others; of complex numbers part by part."""
    parts = [(found.real, wanted.real), (found.imag, wanted.imag)] if wanted.dtype.kind == "c" else [(found, wanted)]
    for mine, numpys in parts:
        np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(numpys))
        if wanted.dtype.kind != "c":
            np.testing.assert_array_equal(mine[~np.isfinite(mine)], numpys[~np.isfinite(numpys)])
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "bad", "where"), pairs_first(["float32", "float64", "complex64", "complex128"], list(BAD), ["a", "b", "both"])
)
def test_nan_and_infinity_go_where_numpy_lets_them_go(rng, dtype, bad, where, how):
    a, b = numbers(rng, (39, 28), dtype), numbers(rng, (28, 37), dtype)
    value = BAD[bad] if np.dtype(dtype).kind == "c" else np.real(BAD[bad]) or np.nan
    if where != "b":
        a[2, 3] = value
    if where != "a":
        b[14, 5] = value
    assert_spoiled_alike(hybrid.multiply(a, b, **how), a @ b)


@pytest.mark.parametrize("how", DEVICES)
@pytest.mark.parametrize("half", ["float16", "float32"])
def test_infinity_times_zero_is_nan_and_what_is_too_large_is_infinite(half, how):
    large = np.finfo(half).max
    a, b = np.array([[np.inf, 1.0], [large, 0.0]], half), np.array([[0.0, large], [1.0, 1.0]], half)
    np.testing.assert_array_equal(hybrid.multiply(a, b, **how), [[np.nan, np.inf], [0.0, np.inf]])


def test_a_real_a_has_no_imaginary_zeros_that_infinity_would_make_nan():
    np.testing.assert_array_equal(hybrid.multiply(np.ones((1, 1)), np.array([[complex(np.inf, 1)]])), [[complex(np.inf, 1)]])


@pytest.mark.parametrize("how", DEVICES)
@pytest.mark.parametrize("powers", [(-140, 100), (-68, -68), (55, 55), (-145, 20)], ids=str)
def test_subnormal_and_large_numbers_are_numbers(rng, powers, how):
    """As operands of either side, and as results."""
    a, b = (
        (rng.standard_normal(shape) * 2.0**power).astype("float32")
        for shape, power in zip(((50, 90), (90, 40)), powers, strict=True)
    )
    for first, second in ((a, b), (b.T, a.T)):
        exact = first.astype(float) @ second.astype(float)
        bound = 1e-5 * (np.abs(first).astype(float) @ np.abs(second).astype(float)) + 90 * 2.0**-149
        error = np.abs(hybrid.multiply(first, second, **how) - exact)
        assert (error <= bound).all(), (error / bound).max()


@pytest.mark.parametrize("check", [True, "host"])
def test_right_products_of_numbers_of_all_sizes_pass_their_check(rng, check):
    for power in range(-300, 300, 60):
        a, b = rng.standard_normal((40, 60)) * 10.0**power, rng.standard_normal((60, 50)) * 10.0 ** -(power // 2)
        np.testing.assert_allclose(hybrid.multiply(a, b, check=check), a @ b, rtol=1e-9, atol=1e-9 * 10.0 ** (power - power // 2))
    scales = 10.0 ** np.arange(-280, 280, 8)[:, None, None]
    a, b = rng.standard_normal((70, 20, 30)) * scales, rng.standard_normal((70, 30, 20))
    a[3, 2, 1], a[4, 0, 0], a[5] = np.nan, np.inf, 1.5e308
    found, wanted = hybrid.multiply(a, b, check=check), a @ b
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


def test_nan_in_one_row_does_not_hide_a_wrong_element_in_another(rng):
    def wrong(into, source, before):
        into[-1, -1] += 1

    a, b = rng.random((9, 8)), rng.random((8, 7))
    a[2, 3] = np.nan
    with hybrid.testing.plant("multiply", how=wrong) as planted, refused(CheckFailed, "check-product"):
        hybrid.multiply(a, b)
    assert planted.done


def test_a_product_of_finite_numbers_warns_of_nothing(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n, l, m in ((50, 60, 70), (0, 60, 70), (50, 0, 70), (50, 60, 0)):
            hybrid.multiply(np.ones((n, l)), np.ones((l, m)))
            hybrid.multiply(rng.random((n, l)), rng.random((l, m)))
            hybrid.multiply(np.ones((n, l), "int8"), np.ones((l, m), "int8"))
