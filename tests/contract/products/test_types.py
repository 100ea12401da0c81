# SPDX-License-Identifier: MIT
"""A product has the type that NumPy gives it, or the one that `dtype=` names where that loses nothing but rounding; 16 bits are
rounded once, from sums in float32."""

import threading
import warnings
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from support import cases
from support.cases import refused
from support.needs import skip_without
from support.selection import pairs_first

import hybrid
import hybrid.testing
from hybrid.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PAIRS = list(product(cases.TYPES, cases.TYPES))
NAMED = {
    "float64": (float, "f8", np.float64, ">f8", np.dtype("float64")),
    "complex64": ("c8", np.complex64),
    "int8": (np.int8, "b"),
}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def ones(*types: str):
    return [np.ones(shape, dtype_of(each)) for shape, each in zip(((2, 3), (3, 4)), types, strict=True)]


def test_dtype_names_the_result_s_type_and_what_would_lose_more_than_rounding_is_refused(rng):
    for types in (PAIRS[each] for each in rng.permutation(len(PAIRS))[: len(PAIRS) // 5]):
        a, b = ones(*types)
        for name in cases.TYPES:
            if name in cases.possible_types(*types):
                c = hybrid.multiply(a, b, dtype=name)
                assert (c.dtype.name, c.shape) == (name, (2, 4))
                assert (c == (1 if name == "bool" else 3)).all(), (types, name)
            else:
                with refused(UsageError, "dtype"):
                    hybrid.multiply(a, b, dtype=name)


@pytest.mark.parametrize("name", NAMED)
def test_types_may_be_named_as_numpy_names_them(name):
    for each in NAMED[name]:
        assert hybrid.multiply(*ones("int8", "int8"), dtype=each).dtype == np.dtype(name)
        assert hybrid.empty((2, 3), each).dtype == np.dtype(name)


@pytest.mark.parametrize("dtype", ["bogus", "U3", object, "G", "M8[s]", "V2", ",", "f8,i4", 5])
def test_what_is_no_type_of_a_product_is_refused(dtype):
    for call in (lambda: hybrid.multiply(*ones("int8", "int8"), dtype=dtype), lambda: hybrid.empty((2, 2), dtype)):
        with refused(UsageError, "dtype"):
            call()


@pytest.mark.parametrize(
    "types", [("object", "float64"), ("U3", "int8"), ("S3", "S3"), ("M8[s]", "float64"), ("f8,i4", "f8"), ("G", "c16")]
)
def test_operands_that_are_no_numbers_of_64_bits_are_refused(types):
    if types[0] == "G" and np.dtype("G") == np.complex128:
        pytest.skip("long double is double here")
    a, b = np.zeros((2, 3), types[0]), np.zeros((3, 4), types[1])
    for first, second in ((a, b), (b.T, a.T)):
        with refused(UsageError, "dtype"):
            hybrid.multiply(first, second)


@pytest.mark.parametrize(("other", "result"), [("int64", "float64"), ("float16", "float32"), ("float64", "float64")])
def test_bfloat16_beside_a_type_with_which_it_has_none_in_common_counts_as_float32(other, result):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    product = hybrid.multiply(np.full((2, 3), 1.5, ml_dtypes.bfloat16), np.full((3, 2), 2, other))
    assert (product.dtype, product.tolist()) == (result, [[9, 9], [9, 9]])


def test_without_the_package_bfloat16_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    for call in (lambda: hybrid.multiply(*ones("int8", "int8"), dtype="bfloat16"), lambda: hybrid.empty((2, 2), "bfloat16")):
        with refused(UsageError, "package-missing"):
            call()


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulate", marks=pytest.mark.needs("compiler"))])
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_16_bits_are_rounded_once_from_sums_in_float32(rng, half, device):
    """Also with alpha and C, which are combined in float32."""
    a, b, c = (rng.standard_normal(shape).astype(dtype_of(half)) for shape in ((130, 171), (171, 149), (130, 149)))
    for how in ({}, {"c": c, "alpha": 1.7, "beta": -0.3}, {"transpose_a": True}):
        first = a.T.copy() if "transpose_a" in how else a
        sums = hybrid.multiply(first, b, device=device, dtype="float32", **how)
        rounded = hybrid.multiply(first, b, device=device, **how)
        assert (sums.dtype, rounded.dtype) == (np.float32, dtype_of(half))
        np.testing.assert_array_equal(rounded, sums.astype(dtype_of(half)))


def test_every_number_of_float32_is_rounded_to_16_bits_as_numpy_does_it():
    """Those between two numbers of 16 bits, next to them, too large, too small, and NaN: by a product with 1."""
    of_all = np.arange(0, 1 << 32, 65521, dtype=np.uint64)
    halves = np.arange(1 << 16, dtype=np.uint64) << np.uint64(16)
    between = np.arange(0, 1 << 32, 1 << 12, dtype=np.uint64)  # half of the last bit of either type
    near = [(halves + np.uint64(offset)) & np.uint64(0xFFFFFFFF) for offset in (-1 % 2**32, 1, 0x8001, 0x7FFF)]
    numbers = np.concatenate([of_all, between, *near]).astype(np.uint32).view(np.float32)[:, None]
    numbers = numbers[~np.isnan(numbers[:, 0]) & (numbers[:, 0] != 0)]  # of -0, BLAS makes 0
    with np.errstate(all="ignore"):
        hybrid.multiply(*ones("float16", "float16"))
        for thread in threading.enumerate():
            if thread.name == "hybrid-compile":  # the code that rounds, in the background
                thread.join(100)
        for half in ("float16", "bfloat16"):
            rounded = hybrid.multiply(numbers, np.ones((1, 1), np.float32), dtype=half)
            np.testing.assert_array_equal(rounded.view(np.uint16), numbers.astype(dtype_of(half)).view(np.uint16))
        spoiled = hybrid.multiply(np.full((3, 1), np.nan, np.float32), np.ones((1, 1), np.float32), dtype="float16")
    assert np.isnan(spoiled).all()


@pytest.mark.parametrize("c_type", ["float16", "float32"])
def test_c_of_a_narrower_type_is_scaled_in_the_result_s(c_type):
    """Before it is rounded: 1.7 times the largest number of its own type is none of it."""
    zero, c = np.zeros((2, 2)), np.full((2, 2), 0.9 * np.finfo(c_type).max, c_type)
    np.testing.assert_array_equal(hybrid.multiply(zero, zero, c, beta=1.7), 1.7 * c.astype("float64"))
    half = np.full((2, 1), 6e4, "float16"), np.ones((1, 2), "float16")
    c = np.full((2, 2), -6e4, "float16")
    np.testing.assert_array_equal(hybrid.multiply(*half, c, alpha=2, beta=1.5), np.full((2, 2), 3e4))


# --- NaN and infinity spoil the elements that they spoil in NumPy and no others, subnormal numbers are no zeros, and no right
# product is refused for the size of its numbers


DEVICES = {
    "CPU": {"device": "cpu"},
    "emulated": {"device": "emulate"},
    "from remainders": {"device": "emulate", "precision": "fast"},
}
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "imaginary": complex(0, np.inf), "both": complex(np.inf, np.nan)}


def on(device):
    if device != "CPU":
        skip_without("compiler")
    return DEVICES[device]


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


@pytest.mark.parametrize(
    ("dtype", "bad", "where", "device"),
    pairs_first(["float32", "float64", "complex64", "complex128"], list(BAD), ["a", "b", "both"], list(DEVICES)),
)
def test_nan_and_infinity_go_where_numpy_lets_them_go(rng, dtype, bad, where, device):
    how = on(device)
    a, b = numbers(rng, (39, 28), dtype), numbers(rng, (28, 37), dtype)
    value = BAD[bad] if np.dtype(dtype).kind == "c" else np.real(BAD[bad]) or np.nan
    if where != "b":
        a[2, 3] = value
    if where != "a":
        b[14, 5] = value
    assert_spoiled_alike(hybrid.multiply(a, b, **how), a @ b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("half", ["float16", "float32"])
def test_infinity_times_zero_is_nan_and_what_is_too_large_is_infinite(half, device):
    large = np.finfo(half).max
    a, b = np.array([[np.inf, 1.0], [large, 0.0]], half), np.array([[0.0, large], [1.0, 1.0]], half)
    np.testing.assert_array_equal(hybrid.multiply(a, b, **on(device)), [[np.nan, np.inf], [0.0, np.inf]])


def test_a_real_a_has_no_imaginary_zeros_that_infinity_would_make_nan():
    np.testing.assert_array_equal(hybrid.multiply(np.ones((1, 1)), np.array([[complex(np.inf, 1)]])), [[complex(np.inf, 1)]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("powers", [(-140, 100), (-68, -68), (55, 55), (-145, 20)], ids=str)
def test_subnormal_and_large_numbers_are_numbers(rng, powers, device):
    """As operands of either side, and as results."""
    a, b = (
        (rng.standard_normal(shape) * 2.0**power).astype("float32")
        for shape, power in zip(((50, 90), (90, 40)), powers, strict=True)
    )
    for first, second in ((a, b), (b.T, a.T)):
        exact = first.astype(float) @ second.astype(float)
        bound = 1e-5 * (np.abs(first).astype(float) @ np.abs(second).astype(float)) + 90 * 2.0**-149
        error = np.abs(hybrid.multiply(first, second, **on(device)) - exact)
        assert (error <= bound).all(), (error / bound).max()


def test_a_product_of_finite_numbers_warns_of_nothing(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n, l, m in ((50, 60, 70), (0, 60, 70), (50, 0, 70), (50, 60, 0)):
            hybrid.multiply(np.ones((n, l)), np.ones((l, m)))
            hybrid.multiply(rng.random((n, l)), rng.random((l, m)))
            hybrid.multiply(np.ones((n, l), "int8"), np.ones((l, m), "int8"))
