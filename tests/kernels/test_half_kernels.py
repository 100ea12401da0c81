# SPDX-License-Identifier: MIT
"""kernels/tensor_half.cu on the CPU: integers whose sums float32 holds, exactly, and the numbers that 16 bits stand for."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.devices.emulated import EmulatedDevice
from hybrid.emulation.guarded import Guarded
from hybrid.emulation.kernel import COPIES, ORDERS, EmulatedKernel
from hybrid.kernels.catalogue import HALVES, launch_of, named
from hybrid.kernels.elements import not_a_number, numbers_of, storage, stored
from hybrid.kernels.sources import KERNELS

pytestmark = pytest.mark.needs("compiler")

KERNEL = named("tensor_half")
LARGEST_INTEGER = {"float16": 2048, "bfloat16": 256}  # up to which there are all


def multiplied(dtype, numbers, capability, width, before=None, **how):
    """By the instance for copies of so many elements. NaN lies around A and B, and nothing around C may change."""
    a, b = (Guarded(*shape.shape, storage(dtype).name, not_a_number(dtype), aligned=width > 1) for shape in numbers)
    c = Guarded(len(numbers[0]), numbers[1].shape[1], "float32", -7.0, aligned=width > 1)
    for guarded, matrix in zip((a, b), numbers, strict=True):
        guarded.inner[...] = stored(matrix, dtype)
    c.inner[...] = np.nan if before is None else before
    launch = launch_of(KERNEL, dtype, *c.inner.shape, capability, width, adds=before is not None)
    kernel = EmulatedKernel(KERNELS / launch.source, launch.expression, capability)
    kernel(launch.grid, launch.block, launch.shared_bytes, (a.inner, b.inner, c.inner), **how)
    assert all(guarded.untouched() for guarded in (a, b, c))
    return c.inner.copy()


def integers(rng, dtype, n, l, m):
    """Whose sums of products stay below 2²⁴."""
    largest = min(LARGEST_INTEGER[dtype], int((2**24 / max(1, l)) ** 0.5))
    return (rng.integers(-largest, largest + 1, shape).astype(float) for shape in ((n, l), (l, m)))


FORMS = [*(("float16", 90, width) for width in (1, 2, 4, 8)), ("float16", 80, 8), ("bfloat16", 90, 8), ("bfloat16", 80, 1)]


@pytest.mark.parametrize(("dtype", "capability", "width"), FORMS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (130, 67, 259), (17, 300, 40)])
def test_integers_are_exact(rng, dtype, capability, width, shape):
    a, b = integers(rng, dtype, *shape)
    before = rng.integers(-9, 10, (shape[0], shape[2])).astype(float)
    np.testing.assert_array_equal(multiplied(dtype, (a, b), capability, width), a @ b)
    np.testing.assert_array_equal(multiplied(dtype, (a, b), capability, width, before), before + a @ b)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("capability", [80, 90])
def test_in_every_order(rng, order, copies, capability):
    a, b = integers(rng, "float16", 40, 700, 300)
    for width in (8, 1):
        np.testing.assert_array_equal(multiplied("float16", (a, b), capability, width, order=order, copies=copies), a @ b)


def test_every_number_of_float16_is_what_it_stands_for():
    """Subnormal numbers, signed zeros, infinity and NaN too: each of the 65536 once, times one, as NumPy has it."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    finite = np.where(np.isfinite(every), every, np.float16(0))  # infinity times zero is NaN
    np.testing.assert_array_equal(multiplied("float16", (finite, np.eye(256)), 90, 8), finite)
    one = np.ones((1, 1))
    for special in (np.inf, -np.inf, np.nan):
        np.testing.assert_array_equal(multiplied("float16", (np.full((1, 1), special), one), 90, 8), [[special]])


def test_numbers_of_bfloat16_are_the_upper_half_of_those_of_float32(rng):
    numbers = np.concatenate([rng.standard_normal(200), [0, 1, -1, 1e-40, 3e38]]).astype(np.float32)
    rounded = numbers_of(stored(numbers, "bfloat16"))
    assert (np.abs(rounded - numbers) <= np.maximum(np.abs(numbers) / 2**8, 2.0**-134)).all()
    one = np.ones((1, 1))
    got = [multiplied("bfloat16", (np.full((1, 1), number), one), 90, 8)[0, 0] for number in rounded[-8:]]
    np.testing.assert_array_equal(got, rounded[-8:])


def test_halves_are_rounded_to_the_even_of_two_neighbours():
    between = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20], np.float32)  # neighbours of bfloat16 are 2⁻⁷ apart
    assert numbers_of(stored(between, "bfloat16")).tolist() == [1, 1 + 2**-6, 1 + 2**-7]


def test_sums_are_float32(rng):
    """Sums of float16 would be infinite, those of bfloat16 would stand still at 256."""
    for dtype in HALVES:
        ones = np.ones((1, 3000)), np.full((3000, 1), 64.0)
        assert multiplied(dtype, ones, 90, 8)[0, 0] == 3000 * 64


@pytest.mark.parametrize(("dtype", "capability"), [("float16", 90), ("bfloat16", 80)])
def test_on_the_emulated_gpu(rng, dtype, capability):
    device = EmulatedDevice(KERNEL, dtype, capability)
    a, b = integers(rng, dtype, 70, 33, 41)
    c = np.full((70, 48), np.nan, np.float32)[:, :41]
    device.multiply(stored(a, dtype), stored(b, dtype), c, after=[])
    device.multiply(stored(a, dtype), stored(b, dtype), c, after=[], adding=True)
    np.testing.assert_array_equal(c, 2 * (a @ b))
