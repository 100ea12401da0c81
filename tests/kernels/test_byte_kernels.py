# SPDX-License-Identifier: MIT
"""kernels/tensor_int8.cu on the CPU: sums of products of bytes, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.emulation.guarded import Guarded
from hybrid.emulation.kernel import COPIES, ORDERS, EmulatedKernel
from hybrid.kernels.catalogue import launch_of, named
from hybrid.kernels.sources import KERNELS

pytestmark = pytest.mark.needs("compiler")

KERNEL = named("tensor_int8")


def multiplied(a, b, capability, width, **how):
    """By the instance for copies of so many bytes. What lies around A and B is -128, and nothing around C may change."""
    operands = [Guarded(*matrix.shape, "int8", -128, aligned=width > 1) for matrix in (a, b)]
    c = Guarded(len(a), b.shape[1], "int32", -7, aligned=width > 1)
    for guarded, matrix in zip(operands, (a, b), strict=True):
        guarded.inner[...] = matrix
    c.inner[...] = 99
    launch = launch_of(KERNEL, "int8", *c.inner.shape, capability, width)
    kernel = EmulatedKernel(KERNELS / launch.source, launch.expression, capability)
    kernel(launch.grid, launch.block, launch.shared_bytes, (operands[0].inner, operands[1].inner, c.inner), **how)
    assert all(guarded.untouched() for guarded in (*operands, c))
    return c.inner.copy()


def bytes_of(rng, n, l, m):
    """All values, and in the first row and column the one that has no opposite."""
    a, b = (rng.integers(-128, 128, shape) for shape in ((n, l), (l, m)))
    a[0], b[:, -1] = -128, -128
    return a, b


@pytest.mark.parametrize(("capability", "width"), [(80, 16), (90, 16), (90, 8), (80, 4), (90, 2), (90, 1)])
@pytest.mark.parametrize("shape", [(1, 1, 1), (130, 67, 259), (17, 300, 40)])
def test_products_of_bytes_are_exact(rng, capability, width, shape):
    a, b = bytes_of(rng, *shape)
    np.testing.assert_array_equal(multiplied(a, b, capability, width), a @ b)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("capability", [80, 90])
def test_in_every_order(rng, order, copies, capability):
    a, b = bytes_of(rng, 40, 700, 300)
    for width in (16, 1):
        np.testing.assert_array_equal(multiplied(a, b, capability, width, order=order, copies=copies), a @ b)


def test_every_pair_of_bytes_has_its_product():
    every = np.arange(-128, 128)[:, None]
    np.testing.assert_array_equal(multiplied(every, every.T, 90, 16), every * every.T)


def test_the_longest_sums_that_32_bits_hold():
    """131071 products of -128 · -128 are 2³¹ - 2¹⁴."""
    columns = np.repeat([[-128, 127]], 131071, axis=0)
    assert multiplied(np.full((1, 131071), -128), columns, 80, 1)[0].tolist() == [2**31 - 2**14, -131071 * 128 * 127]
