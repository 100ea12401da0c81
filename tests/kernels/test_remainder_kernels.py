# SPDX-License-Identifier: MIT
"""kernels/remainders.cu, products_mma.cu and reconstruct.cu on the CPU, against the same arithmetic by Python's integers."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt, prod

import numpy as np
import pytest
from support.selection import exhaustive

from experiments.kernel_checks import remainder_models as models
from experiments.kernel_checks import remainder_runs as runs
from hybrid.emulation.kernel import COPIES, ORDERS
from hybrid.kernels.catalogue import C_TYPES
from hybrid.kernels.sources import KERNELS
from hybrid.plan.arithmetic import MODULI, UNIT, Arithmetic, Summary, choose

REMAINDERS = {"float64": (1, 3, 15), "float32": (1, 8)}
RECONSTRUCTED = [("float64", 3), ("float64", 5), ("float64", 7), ("float64", 14), ("float64", 15), ("float32", 7)]
RECONSTRUCTIONS = {False: "reconstruct", True: "reconstruct_by_integers"}  # by whether it is by integers
PRODUCTS = ["products", "byte_products<double>", "byte_products<float>"]
BITS = {"float64": 53, "float32": 24}


@pytest.fixture(scope="module")
def run():
    remainders = [
        f"remainders_of_{lines}<{C_TYPES[dtype]}, {count}>"
        for dtype, counts in REMAINDERS.items()
        for count in counts
        for lines in ("rows", "columns")
    ]
    back = [f"{name}<{C_TYPES[dtype]}, {count}>" for dtype, count in RECONSTRUCTED for name in RECONSTRUCTIONS.values()]
    return runs.Runner.compiled({KERNELS / "remainders.cu": remainders, KERNELS / "reconstruct.cu": back})


@pytest.fixture(scope="module", params=[75, 80, 90])
def multiply(request):
    return runs.Runner.compiled({KERNELS / "products_mma.cu": PRODUCTS}, capability=request.param)


def extremes(dtype):
    """Numbers whose integers are hard to get right with a scale of 1: ties, 0, subnormals, the largest that may be."""
    type_ = np.dtype(dtype).type
    largest = 2.0**62 if dtype == "float64" else 2.0**30
    ties = np.arange(-8, 9) + 0.5
    bytes_ = [sign * (256.0**power + step) for power in range(1, 4) for step in (-1, 0, 1) for sign in (1, -1)]
    small = [0, -0.0, np.finfo(dtype).tiny, np.finfo(dtype).smallest_subnormal, 0.49999, -0.49999]
    most = [sign * np.nextafter(type_(largest), type_(0)) for sign in (1, -1)] + [-largest]
    return np.array([*ties, *bytes_, *small, *most], dtype)


def numbers_like(rng, shape, dtype):
    """Random numbers of all sizes, and among them the extremes, somewhere in each matrix that has room for them."""
    widest = 61 if dtype == "float64" else 29
    matrix = (rng.standard_normal(shape) * 2.0 ** rng.uniform(-4, widest - 3, shape)).astype(dtype)
    hard = extremes(dtype)[: matrix.size]
    matrix.ravel()[rng.permutation(matrix.size)[: len(hard)]] = hard
    return matrix


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("dtype", "count"), [(dtype, count) for dtype, counts in REMAINDERS.items() for count in counts])
@pytest.mark.parametrize(("lines", "inner"), [(1, 1), (9, 128), (33, 131), (130, 250)])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_remainders(run, rng, operand, lines, inner, dtype, count, aligned):
    run = run.but(aligned=aligned)
    matrix = numbers_like(rng, (lines, inner), dtype)
    scales = 2.0 ** rng.integers(-20, 1, (1, lines))
    scales[0, ::2] = 1
    expected = models.remainders(models.integers(matrix, scales.T), count)
    planes = runs.reduced(run, operand, run.copied(matrix if operand == "A" else matrix.T), scales, count)
    for got, wanted in zip(planes, expected, strict=True):
        np.testing.assert_array_equal(got, models.packed(wanted, interleaved=operand == "B" and count > 1, filler=runs.POISON))
    assert run.untouched()


@pytest.mark.needs("compiler")
def test_one_modulus_leaves_signed_bytes(run):
    matrix = np.arange(-128, 128.0)[None, :]
    (plane,) = runs.reduced(run, "A", matrix, np.ones((1, 1)), 1)
    np.testing.assert_array_equal(models.unpacked(plane, 2, interleaved=False)[0].view(np.int8), np.arange(-128, 128))


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("size", [(1, 1, 1), (16, 128, 17), (130, 300, 140), (257, 129, 8)])
def test_products(multiply, rng, size):
    check_products(multiply, rng, *size)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("copies", COPIES)
def test_products_in_every_order(multiply, rng, order, copies):
    check_products(multiply.but(order=order, copies=copies), rng, 40, 700, 70)


def check_products(multiply, rng, rows, inner, columns, count=3):
    run = multiply.but()
    a, b = (
        np.stack([rng.integers(0, p, shape) for p in MODULI[:count]]).astype(np.uint8)
        for shape in ((rows, inner), (inner, columns))
    )
    a[:, 0], b[:, :, -1] = np.array(MODULI[:count])[:, None] - 1, np.array(MODULI[:count])[:, None] - 1
    packed_a = np.stack([models.packed(plane, interleaved=False) for plane in a])
    packed_b = np.stack([models.packed(plane.T, interleaved=True) for plane in b])
    got = runs.multiplied(run, packed_a, packed_b, rows, columns, -(-inner // UNIT))
    np.testing.assert_array_equal(got, models.products(a, b))
    assert run.untouched()


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("multiply", exhaustive([80], [75, 80, 90]), indirect=True)  # which differ in no line of the sums
def test_products_are_reduced_before_a_sum_has_no_room(multiply):
    """All remainders are the largest. Of so many such products not even 32 bits without a sign can hold the sum."""
    inner = 66_700
    a, b = (
        np.stack([models.packed(np.full((16, inner), p - 1, np.uint8), interleaved=side == "B") for p in MODULI[:2]])
        for side in "AB"
    )
    for plane, p in zip(runs.multiplied(multiply.but(), a, b, 16, 16, -(-inner // UNIT)), MODULI, strict=False):
        assert (plane == (p - 1) ** 2 * inner % p).all()


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (130, 260, 133)])
def test_products_of_signed_bytes(multiply, rng, dtype, rows, inner, columns):
    run = multiply.but()
    a, b = rng.integers(-128, 128, (rows, inner)), rng.integers(-128, 128, (inner, columns))
    a[0], b[:, -1] = -128, -128
    packed = (models.packed(lines.astype(np.int8).view(np.uint8), interleaved=False)[None, :] for lines in (a, b.T))
    got = runs.byte_product(run, *packed, rows, columns, -(-inner // UNIT), dtype)
    np.testing.assert_array_equal(got, (a @ b).astype(dtype))
    assert run.untouched()


def spread(rng, count, shape):
    """Integers within ±P/2 of all sizes, as Python's, and the largest that scaled lines may have as a product."""
    half = prod(MODULI[:count]) // 2
    numbers = [
        int(half * Fraction(rng.uniform(-1, 1)) / 2 ** int(rng.integers(0, half.bit_length()))) for _ in range(prod(shape))
    ]
    largest = half - half // 2**20
    special = [largest, -largest, 0, 1, -1, 255, -256]
    numbers[: len(special)] = special[: len(numbers)]
    return np.array(numbers, object).reshape(shape)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("by_integers", RECONSTRUCTIONS)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 1030)])
@pytest.mark.parametrize(("dtype", "count"), RECONSTRUCTED)
def test_integers_come_back(run, rng, dtype, count, shape, aligned, by_integers):
    """Exactly, where they fit: with 7 moduli or fewer those of 53 bits. Else within 2⁻⁶⁸·P, and rounded once; by integers they
    are only rounded."""
    run = run.but(aligned=aligned)
    numbers = spread(rng, count, shape)
    scales = [2.0 ** rng.integers(-30, 31, (1, length)) for length in shape]
    planes = np.stack([(numbers % p).astype(np.uint8) for p in MODULI[:count]])
    got = runs.put_together(run, planes, *scales, dtype, by_integers=by_integers)
    assert run.untouched()
    if by_integers:
        np.testing.assert_array_equal(got, (np.vectorize(float)(numbers) * scales[0].T * scales[1]).astype(dtype))
        return
    lost, fits = Fraction(prod(MODULI[:count]), 2**68), 2 ** BITS[dtype]
    for (i, j), integer in np.ndenumerate(numbers):
        factor = Fraction(scales[0][0, i]) * Fraction(scales[1][0, j])
        error = abs(Fraction(float(got[i, j])) / factor - integer)
        if count <= 7 and abs(integer) <= fits:
            assert error == 0, integer
        rounding = Fraction(abs(integer), 2 * fits) * (1 if dtype == "float64" else Fraction(1 + 1e-6))
        assert error <= lost + 2 * rounding, integer


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("by_integers", RECONSTRUCTIONS)
@pytest.mark.parametrize(("dtype", "count"), RECONSTRUCTED)
def test_remainders_of_0_come_back_as_0(run, dtype, count, by_integers):
    zeros, scales = np.zeros((count, 2, 5), np.uint8), (np.ones((1, 2)), np.full((1, 5), 2.0**-40))
    np.testing.assert_array_equal(runs.put_together(run.but(), zeros, *scales, dtype, by_integers=by_integers), np.zeros((2, 5)))


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("by_integers", RECONSTRUCTIONS)
def test_a_product_from_three_moduli_by_hand(run, multiply, by_integers):
    """The example of kernels/README.md, and of the picture there: (3, -5) · (700, 11)ᵀ = 2100 - 55 = 2045, and P = 16515840."""
    a, b, ones = np.array([[3.0, -5.0]]), np.array([[700.0], [11.0]]), np.ones((1, 1))
    of_a, of_b = runs.reduced(run.but(), "A", a, ones, 3), runs.reduced(run.but(), "B", b, ones, 3)
    first = [models.unpacked(plane, 1, interleaved=False)[0, :3].tolist() for plane in of_a]
    assert first == [[3, 251, 0], [3, 250, 0], [3, 248, 0]], "-5 is 256 - 5, 255 - 5, 253 - 5"
    second = [models.unpacked(plane, 1, interleaved=True)[0, :3].tolist() for plane in of_b]
    assert second == [[188, 11, 0], [190, 11, 0], [194, 11, 0]], "700 is 2·256 + 188, 2·255 + 190, 2·253 + 194"
    planes = runs.multiplied(multiply.but(), of_a, of_b, 1, 1, 1)
    assert planes.ravel().tolist() == [253, 5, 21], "3·188 + 251·11 is 12·256 + 253, and so on"
    weights = [models.weight(i, 3) for i in range(3)]
    assert weights == [11032065, 8225536, 13774080]
    assert [[weight % p for p in (256, 255, 253)] for weight in weights] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert (253 * 11032065 + 5 * 8225536 + 21 * 13774080) % (256 * 255 * 253) == 2045
    assert runs.put_together(run.but(), planes, ones, ones, "float64", by_integers=by_integers).tolist() == [[2045.0]]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("by_integers", RECONSTRUCTIONS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("dtype", "count"), [("float64", 14), ("float64", 15), ("float32", 7)])
def test_the_largest_product_that_the_limit_allows_comes_back(run, dtype, count, sign, by_integers):
    """Of two lines of one element, whose norm is all that a norm may be: C is as near to ±P/2 as it can be."""
    largest = int(Arithmetic(count).limit(1))
    assert largest <= isqrt(prod(MODULI[:count]) // 2)
    planes = np.array([sign * largest**2 % p for p in MODULI[:count]], np.uint8).reshape(count, 1, 1)
    got = runs.put_together(run.but(), planes, np.ones((1, 1)), np.ones((1, 1)), dtype, by_integers=by_integers)
    assert got[0, 0] == pytest.approx(float(sign * largest**2), rel=1e-6)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("by_integers", RECONSTRUCTIONS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", [3, 5])
def test_the_largest_integer_for_which_so_many_moduli_are_chosen_comes_back(run, count, sign, by_integers):
    """A product of two integers, chosen so that C itself is as near to ±P/2 as the choice of moduli allows."""
    half = prod(MODULI[:count]) // 2
    first = next(x for x in range(isqrt(half), 0, -1) if half % x <= half >> 33)
    factors = first, (half - 1) // first
    of_a, of_b = (Summary(float(x), integral=True, in_range=True) for x in factors)
    chosen = choose(of_a, of_b, 1, "float64", lambda: 1.0, fast=False)[0].moduli
    assert chosen >= count
    integer = sign * prod(factors)
    planes = np.array([integer % p for p in MODULI[:chosen]], np.uint8).reshape(chosen, 1, 1)
    got = runs.put_together(run.but(), planes, np.ones((1, 1)), np.ones((1, 1)), "float64", by_integers=by_integers)
    assert got[0, 0] == integer
