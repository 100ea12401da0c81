# SPDX-License-Identifier: MIT
"""Every kernel of the catalogue on a GPU: python -m pytest -m gpu tests/devices/test_cuda_kernels.py"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import hybrid
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.cuda_kernels import multiplication
from hybrid.devices.emulated import EmulatedDevice
from hybrid.kernels.catalogue import BYTES, CATALOGUE, HALVES, named, refusal, sums_type
from hybrid.kernels.elements import largest_rounding, not_a_number, numbers_of, spread_of, stored

pytestmark = pytest.mark.gpu

KERNELS = [
    pytest.param(kernel.name, dtype, id=f"{kernel.name}-{dtype}")
    for kernel in CATALOGUE
    if kernel.device == "cuda"
    for dtype in kernel.dtypes
    if (kernel.name, dtype) != ("cublas", "int8")  # which takes no row-major B
]


@cache
def multiply_by(name, dtype):
    return multiplication(named(name), dtype, usable_gpus()[0].capability)


def check(seed, name, dtype, n, l, m, spare=(0, 0, 0)):
    """Multiply parts of wider arrays; NaN lies around A and B and beforehand in C, and nothing around C may change."""
    import cupy

    of_sums, of_double = sums_type(dtype), cupy.float64
    of_random, nothing = np.float32 if dtype in (*HALVES, *BYTES) else of_sums, not_a_number(of_sums)

    def part(columns, spare, elements, filler):
        whole = cupy.full((len(elements) + 2, columns + spare), filler, elements.dtype)
        whole[1:-1, :columns] = elements
        return whole, whole[1:-1, :columns]

    rng = cupy.random.default_rng(seed)
    operands = [stored(spread_of(dtype) * rng.standard_normal(shape, of_random), dtype) for shape in ((n, l), (l, m))]
    (_, a), (_, b) = (
        part(columns, extra, elements, not_a_number(dtype))
        for columns, extra, elements in zip((l, m), spare, operands, strict=False)
    )
    around, c = part(m, spare[2], cupy.full((n, m), nothing, of_sums), nothing)
    in_double = [numbers_of(elements).astype(of_double) for elements in operands]
    exact = in_double[0] @ in_double[1]
    size = abs(in_double[0]) @ abs(in_double[1])
    for adds in (False, True) if named(name).adds else (False,):
        before = rng.standard_normal((n, m), of_sums) if adds else cupy.zeros((n, m), of_sums)
        c[...] = before if adds else nothing
        multiply_by(name, dtype)(a, b, c, *[True] * adds)
        wrong = ~(abs(c - (before + exact)) <= (l + 2) * largest_rounding(of_sums) * (abs(before) + size))
        said = f"{n}×{l}×{m} {spare}{' added' * adds}"
        assert not wrong.any(), f"{said}: {int(wrong.sum())} wrong, first {cupy.argwhere(wrong)[0]}"
        c[...] = nothing
        untouched = around == nothing if dtype in BYTES else cupy.isnan(around)
        assert untouched.all(), f"{said}: written beside C"


@pytest.mark.parametrize(("name", "dtype"), KERNELS)
def test_random_shapes_and_strides(rng, name, dtype):
    for index in range(300):
        n, l, m = (int(size) for size in rng.integers(1, 700, 3))
        m = 1 if named(name).vectors_only else m
        spare = tuple(int(extra) for extra in rng.integers(0, 5, 3)) if index % 2 else tuple(-size % 8 for size in (l, m, m))
        check(int(rng.integers(1 << 60)), name, dtype, n, l, m, spare)


@pytest.mark.parametrize(("name", "dtype"), KERNELS)
@pytest.mark.parametrize(
    "shape", [(1_100_000, 3, 5), (5, 3, 1_100_000), (1_100_000, 3, 1), (3, 1_100_000, 2), (1, 1, 1), (7, 0, 3)]
)
def test_extreme_shapes(seed, name, dtype, shape):
    if refusal(named(name), dtype, shape[2], 90):
        pytest.skip("a kernel for vectors")
    check(seed, name, dtype, *shape)


@pytest.mark.parametrize("name", [kernel.name for kernel in CATALOGUE if kernel.source and "float32" in kernel.dtypes])
def test_more_than_2_to_the_31_elements(name):
    """Positions in C take more than 32 bits. Rows of B are equal up to a sign, so that every element is known."""
    import cupy

    kernel = named(name)
    n, l, m = (2**31 // 3 + 5, 3, 1) if kernel.vectors_only else (46_400, 3, 46_400)
    a = cupy.full((n, l), 2, np.float32)
    a[-1] = 3
    b = cupy.ones((l, m), np.float32)
    b[:, -1] = -1
    c = cupy.full((n, m), cupy.nan, np.float32)
    multiply_by(name, "float32")(a, b, c)
    assert c.size > 2**31 or a.size > 2**31
    b[0] *= 0  # and b is read in time
    if m > 1:
        assert float(c[:-1, :-1].min()) == float(c[:-1, :-1].max()) == 6
        assert float(c[-1, :-1].min()) == float(c[-1, :-1].max()) == 9
    assert float(c[:-1, -1].min()) == float(c[:-1, -1].max()) == -6
    assert float(c[-1, -1]) == -9


@pytest.mark.parametrize("name", [kernel.name for kernel in CATALOGUE if kernel.source and "float32" in kernel.dtypes])
def test_subnormal_numbers_stay(name):
    a, b = np.full((3, 40), 1e-30, np.float32), np.full((40, 1), 1e-10, np.float32)
    c = hybrid.multiply(a, b, device="cuda", kernel=name)
    assert (c > 3.9e-39).all()


@pytest.mark.parametrize(
    ("name", "dtype"), [one for one in KERNELS if one.values[0] not in ("cublas", "matvec_warp", "tensor_half", "tensor_int8")]
)
def test_the_sum_is_rounded_once_for_each_product_in_a_known_order(buffer_of, rng, name, dtype):
    """Which makes the results the same on every GPU, and the same as those of the CPU that stands for one."""
    import cupy

    l, m = 96, 1 if named(name).vectors_only else 67
    a, b = cupy.asarray(rng.standard_normal((70, l)).astype(dtype)), cupy.asarray(rng.standard_normal((l, m)).astype(dtype))
    # The tensor cores add eight products at a time, and lane t holds those of k = 2t and 2t + 1.
    order = np.arange(l).reshape(-1, 4, 2).transpose(0, 2, 1).ravel() if name == "tensor" else np.arange(l)
    c, in_order = cupy.empty((70, m), dtype), cupy.empty((70, m), dtype)
    multiply_by("naive", dtype)(cupy.ascontiguousarray(a[:, order]), cupy.ascontiguousarray(b[order]), in_order)
    multiply_by(name, dtype)(a, b, c)
    assert (c == in_order).all()
    np.testing.assert_array_equal(emulated(buffer_of, name, dtype, cupy.asnumpy(a), cupy.asnumpy(b)), cupy.asnumpy(c))


@pytest.mark.parametrize("dtype", HALVES)
def test_integers_of_16_bits_are_exact(rng, dtype):
    """In whatever order the matrix units add, and whatever they round: these sums float32 holds."""
    import cupy

    for n, l, m in [(1, 1, 1), (700, 900, 650), (130, 2000, 258)]:
        a, b = (rng.integers(-60, 61, shape).astype(np.float32) for shape in ((n, l), (l, m)))
        c = cupy.full((n, m), cupy.nan, np.float32)
        multiply_by("tensor_half", dtype)(*(cupy.asarray(stored(matrix, dtype)) for matrix in (a, b)), c)
        np.testing.assert_array_equal(cupy.asnumpy(c), a.astype(int) @ b.astype(int))


def test_bytes_are_multiplied_as_by_cublas(rng):
    """Which wants a column-major B, and lengths that are multiples of 16."""
    import cupy

    for n, l, m in [(16, 16, 16), (688, 912, 640), (128, 4096, 272)]:
        a, b = (rng.integers(-128, 128, shape) for shape in ((n, l), (l, m)))
        for name, order in (("tensor_int8", "C"), ("cublas", "F")):
            c = cupy.full((n, m), 99, np.int32)
            multiply_by(name, "int8")(cupy.asarray(a, np.int8), cupy.asarray(b, np.int8, order=order), c)
            np.testing.assert_array_equal(cupy.asnumpy(c), a @ b)


def emulated(buffer_of, name, dtype, a, b):
    device = EmulatedDevice(named(name), dtype)
    buffers = [buffer_of(device, *shape, dtype) for shape in (a.shape, b.shape, (a.shape[0], b.shape[1]))]
    buffers[0][...], buffers[1][...] = a, b
    device.multiply(*buffers, after=[])
    return buffers[2]
