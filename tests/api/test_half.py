# SPDX-License-Identifier: MIT
"""Products of float16 and bfloat16 on devices that multiply them as they are: sent in 16 bits, summed in float32, checked."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.faults import Planted, columns_exchanged, element, lowest_bit, nothing, rows_exchanged, sign

import hybrid
from hybrid.core.problem import Problem
from hybrid.devices.emulated import EmulatedDevice
from hybrid.errors import CheckFailed
from hybrid.verification.rounding import comparison_numbers

pytestmark = pytest.mark.needs("compiler")
PLANS = {
    "in one piece": {},
    "panels": {"PANEL_ROWS": "40", "PANEL_COLUMNS": "64"},
    "slabs": {"PANEL_ROWS": "60", "SLAB_ROWS": "50"},
    "out of core": {"GPU_MEMORY": "300k", "PANEL_ROWS": "33", "PANEL_COLUMNS": "70"},
    "checked by the host": {"CHECK": "host"},
}
N, L, M = 130, 171, 149


@pytest.fixture(autouse=True)
def _poison(monkeypatch):
    monkeypatch.setenv("HYBRID_POISON", "1")


def case(rng, half, n=N, l=L, m=M):
    return rng.standard_normal((n, l)).astype(half), rng.standard_normal((l, m)).astype(half)


def using(monkeypatch, plan):
    for name, value in PLANS[plan].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)


def wide(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("plan", PLANS)
def test_the_result_is_rounded_once(rng, monkeypatch, decisions, half, plan):
    using(monkeypatch, plan)
    a, b = case(rng, half)
    sums = hybrid.multiply(a, b, device="emulate", dtype="float32")
    c = hybrid.multiply(a, b, device="emulate")
    assert [(each.kernel.name, each.plan.problem.operand_dtype) for each in decisions] == [("tensor_half", half.name)] * 2
    assert decisions[0].plan.check == ("host" if plan == "checked by the host" else "device")
    assert (sums.dtype, c.dtype) == (np.float32, half)
    assert np.abs(sums - wide(a, b)).max() < 1e-4
    np.testing.assert_array_equal(c, sums.astype(half))


def test_integers_are_exact(rng, half):
    a, b = (np.rint(9 * matrix.astype(np.float32)).astype(half) for matrix in case(rng, half))
    np.testing.assert_array_equal(hybrid.multiply(a, b, device="emulate", dtype="float32"), wide(a, b))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 0, 2), (0, 3, 2), (5, 7, 1)])
def test_small_and_empty(rng, half, sizes):
    a, b = case(rng, half, *sizes)
    np.testing.assert_allclose(hybrid.multiply(a, b, device="emulate", dtype="float32"), wide(a, b), rtol=1e-5, atol=1e-5)


def test_operands_that_lie_otherwise_and_gemm(rng, decisions, half):
    """Transposed, every other column, and with alpha and C: they are copied in 16 bits, and C is combined in float32."""
    a, b = case(rng, half, L, N)[0].T, case(rng, half, L, L, 2 * M)[1][:, ::2]
    before = rng.standard_normal((N, M)).astype(half)
    c = hybrid.multiply(a, b, before, alpha=2, beta=-1, device="emulate", dtype="float32")
    np.testing.assert_allclose(c, 2 * wide(a, b) - before.astype(float), rtol=1e-5, atol=1e-4)
    assert decisions[0].plan.problem.operand_dtype == half.name


def test_what_cannot_multiply_them_gets_them_converted(rng, decisions, half):
    a, b = case(rng, half)
    for how in ({"device": "cpu"}, {"device": "emulate", "kernel": "warp_tiled"}):
        hybrid.multiply(a, b, **how)
    hybrid.multiply(a, b.astype(np.float32), device="emulate")
    assert [each.plan.problem.operand_dtype for each in decisions] == ["float32"] * 3


def test_infinities_and_nan_come_as_they_are(rng, half):
    a, b = case(rng, half)
    a[3, 4], a[7, 8] = np.inf, np.nan
    c, expected = hybrid.multiply(a, b, device="emulate", dtype="float32"), wide(a, b)
    np.testing.assert_array_equal(np.isnan(c), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(c), np.isinf(expected))


@pytest.mark.parametrize("plan", ["in one piece", "panels", "slabs", "out of core"])
@pytest.mark.parametrize("spoil", [element, lowest_bit, sign, rows_exchanged, columns_exchanged, nothing])
@pytest.mark.parametrize("method", ["copy_in", "copy_out"])
def test_a_wrong_copy_is_found(rng, monkeypatch, method, plan, spoil):
    using(monkeypatch, plan)
    a, b = case(rng, np.float16)
    planted = Planted(monkeypatch, method, spoil, 1 if plan == "panels" else 0)
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, device="emulate")
    assert planted.done


def spoiled(monkeypatch, spoil):
    """Every product of a tile on the emulated GPU."""
    original = EmulatedDevice.multiply

    def multiply(device, a, b, c, after, **how):
        event = original(device, a, b, c, after, **how)
        spoil(c)
        return event

    monkeypatch.setattr(EmulatedDevice, "multiply", multiply)


def an_element(c):
    c[len(c) // 2, c.shape[1] // 3] += 1


def a_tile_zero(c):
    c[:8, 8:16] = 0


def terms_left_out(c):
    """As if 16 of 171 terms were missing in one row."""
    c[5] *= 155 / 171


@pytest.mark.parametrize("check", ["on", "host"])
@pytest.mark.parametrize("spoil", [an_element, a_tile_zero, terms_left_out])
def test_a_wrong_product_is_found_and_repaired(rng, monkeypatch, half, spoil, check):
    a, b = case(rng, half)
    spoiled(monkeypatch, spoil)
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, device="emulate", check=check)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        c = hybrid.multiply(a, b, device="emulate", check=check, on_fault="repair", dtype="float32")
    assert np.abs(c - wide(a, b)).max() < 1e-4
    assert any(str(each.message).startswith("repaired: ") for each in told)


def cut_off(a, b, terms):
    """As matrix units add: some products at a time, exactly, and of the sum what float32 holds, cut off towards zero."""
    sums = np.zeros((len(a), b.shape[1]))
    for first in range(0, len(b), terms):
        sums += a[:, first : first + terms].astype(float) @ b[first : first + terms].astype(float)
        unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(sums), 1e-30))) - 23)
        sums = np.trunc(sums / unit) * unit
    return sums.astype(np.float32)


@pytest.mark.parametrize("terms", [8, 16])
@pytest.mark.parametrize("l", [64, 1000, 8000])
@pytest.mark.parametrize("kind", ["standard_normal", "random"])
def test_sums_that_are_cut_off_pass_the_check(rng, monkeypatch, device_checks, terms, l, kind):
    """And without a look at the elements, which takes much longer than the product. Then a wrong element is still found."""
    a, b = (getattr(rng, kind)(shape).astype(np.float16) for shape in ((96, l), (l, 160)))
    product = cut_off(a, b, terms)
    with monkeypatch.context() as patch:
        patch.setattr(EmulatedDevice, "multiply", lambda device, a, b, c, after, **how: c.__setitem__(slice(None), product))
        hybrid.multiply(a, b, device="emulate")
        assert [(each.kind, each.ok) for each in device_checks] == [("freivalds", True)], device_checks
        product[40, 50] += 0.05 * np.abs(product).mean()
        with pytest.raises(CheckFailed):
            hybrid.multiply(a, b, device="emulate")


def test_the_expected_errors_are_those_of_the_operands():
    assert (
        comparison_numbers(Problem(9, 8000, 9, "float32", "float16"), 64)[0]
        > comparison_numbers(Problem(9, 8000, 9, "float32"), 64)[0]
    )
