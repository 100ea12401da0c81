# SPDX-License-Identifier: MIT
"""What `on_fault="repair"` returns is right in every element, also where some rows of A tell nothing about others."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support import uneven
from support.faults import Planted, rows_wrong
from support.selection import pairs_first

import hybrid
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.verification import device_sums
from hybrid.verification.rounding import random_x

pytestmark = pytest.mark.usefixtures("checked_on_the_device")

N, L, M = 80, 53, 1350  # each of 20 wrong columns lies in another group of 64


def repaired(a, b, kind="root"):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        if kind == "row blocks":
            c = hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(b), on_fault="repair").array
        else:
            c = hybrid.multiply(a, b, on_fault="repair")
    (line,) = [str(each.message) for each in said if str(each.message).startswith("repaired: ")]
    assert line.startswith("repaired: rank 0 on ")
    return c


@pytest.mark.parametrize(("operands", "wrong", "dtype"), pairs_first(uneven.KINDS, [1, 9, 20], ["float32", "float64"]))
@pytest.mark.parametrize("kind", ["root", "row blocks"])
def test_after_rows_of_b_reached_the_device_wrong(rng, monkeypatch, kind, operands, wrong, dtype):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = uneven.operands(rng, operands, dtype, N, L, M)
    planted = Planted(monkeypatch, "copy_in", rows_wrong(wrong), 0, lambda _, source: np.shares_memory(source, b))
    c = repaired(a, b, kind)
    assert planted.done
    assert uneven.worst_element(a, b, c) <= 1


@pytest.mark.parametrize(("kind", "operands", "check"), pairs_first(["root", "row blocks"], uneven.KINDS, ["on", "host"]))
def test_after_the_kernel_was_wrong(rng, monkeypatch, kind, operands, check):
    monkeypatch.setenv("HYBRID_CHECK", check)
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = uneven.operands(rng, operands, "float64", N, L, M)

    def spoil(into, source, before):
        into[5::20, 3::300] *= 1.4
        into[N // 2, 0] += 1e9

    planted = Planted(monkeypatch, "multiply", spoil)
    assert uneven.worst_element(a, b, repaired(a, b, kind)) <= 1
    assert planted.done


def test_after_small_errors_were_hidden_by_large_ones(rng, monkeypatch):
    a, b = rng.standard_normal((192, 2000)), rng.standard_normal((2000, 192))
    exact = a.astype(np.longdouble) @ b
    rounding = float(np.abs(a @ b - exact).max())

    def spoil(into, source, before):
        into[:40] += 1e-9 * rng.standard_normal((40, 192))  # so the product looks less accurate than it is elsewhere
        into[180, ::64] += 20 * rounding

    Planted(monkeypatch, "multiply", spoil)
    assert np.abs(repaired(a, b) - exact).max() <= 4 * rounding


def test_a_row_of_a_large_fault_whose_sums_are_right_by_chance_is_repaired(rng, monkeypatch):
    """It has errors that cancel, in a square of C where nothing else looks wrong."""
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = rng.standard_normal((192, 50)), rng.standard_normal((50, 192))
    x = random_x(np.random.default_rng(1), [192], GROUP_COLUMNS)
    monkeypatch.setattr(device_sums, "random_x", lambda *_: x)

    def spoil(into, source, before):
        into[40:64, 70:110] += rng.standard_normal((24, 40))
        into[64, 70:72] += 1 / x[70], -1 / x[71]

    planted = Planted(monkeypatch, "multiply", spoil)
    assert np.abs(repaired(a, b) - a @ b).max() <= 1e-12
    assert planted.done
