# SPDX-License-Identifier: MIT
"""float32 rounded to 16 bits in C, beside NumPy and ml_dtypes."""

from __future__ import annotations

import types

import numpy as np
import pytest

from hybrid.arrays import rounding
from hybrid.arrays.combine import finished
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.product_type import ProductType, numpy_type

NAMES = ["float16", "bfloat16"]
pytestmark = pytest.mark.needs("compiler", "ml_dtypes")


@pytest.fixture
def in_c(monkeypatch):
    library = types.SimpleNamespace(loaded=rounding.load())
    monkeypatch.setattr(rounding, "_library", lambda: library)
    return library


def awkward():
    """Numbers from all over float32: each one of 16 bits, what lies between two, and what is next to those."""
    of_all = np.arange(0, 1 << 32, 4099, dtype=np.uint64)
    halves = np.arange(1 << 16, dtype=np.uint64) << np.uint64(16)
    between = np.arange(0, 1 << 32, 1 << 12, dtype=np.uint64)  # also half of the last bit of float16
    near = [
        (numbers + np.uint64(offset)) & np.uint64(0xFFFFFFFF) for numbers in (halves, between) for offset in (-1 % 2**32, 0, 1)
    ]
    return np.concatenate([of_all, *near]).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_number_is_rounded_as_numpy_does_it(in_c, name):
    numbers, dtype = awkward(), numpy_type(name)
    into = np.empty(numbers.shape, dtype)
    rounding.round_into(into, numbers)
    with np.errstate(all="ignore"):
        wanted = numbers.astype(dtype)
    isnan = np.isnan(numbers)
    np.testing.assert_array_equal(into.view(np.uint16)[~isnan], wanted.view(np.uint16)[~isnan])
    np.testing.assert_array_equal(np.isnan(into.astype(np.float32)), isnan)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("gemm", [Gemm(), Gemm(2, -1)])
def test_a_result_of_16_bits_is_rounded_once_by_any_threads(rng, in_c, name, compiled, gemm):
    in_c.loaded = in_c.loaded if compiled else None
    product, c = rng.standard_normal((300, 70)).astype(np.float32), rng.standard_normal((300, 70)).astype(np.float32)
    for out in (None, np.empty((300, 70), numpy_type(name)), np.empty((300, 140), numpy_type(name))[:, ::2]):
        made = finished(product.copy(), ProductType("float32", name), gemm, c if gemm.beta else None, out, 3)
        wanted = gemm.alpha * product + gemm.beta * c
        assert made is out or out is None
        np.testing.assert_array_equal(made.astype(float), wanted.astype(numpy_type(name)).astype(float))


def test_other_types_and_arrays_are_not_taken(rng):
    half = np.empty((3, 3), np.float16)
    assert rounding.rounds(np.empty((3, 3), np.float32), half)
    assert not rounding.rounds(np.empty((3, 3)), half)
    assert not rounding.rounds(np.empty((3, 3), np.float32), np.empty((3, 3), np.int16))
    assert not rounding.rounds(object(), half)
