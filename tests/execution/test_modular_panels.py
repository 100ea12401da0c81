# SPDX-License-Identifier: MIT
"""Products from remainders whose panels differ: what the guard found of one must not be taken for another one's."""

from __future__ import annotations

import numpy as np
import pytest
from support.modular import product
from support.selection import exhaustive

from hybrid.devices.emulated import EmulatedQueues
from hybrid.plan.arithmetic import BYTES, NATIVE, Arithmetic

pytestmark = pytest.mark.needs("compiler")
ROWS, INNER, COLUMNS = 128, 256, 128


def panels(rng, kinds):
    """A in row panels: "N"ormal numbers, "I"ntegers, or large elements that only "M"eet small ones of B."""
    meeting = 1e-3 * rng.standard_normal((ROWS, INNER))
    meeting[:, INNER // 2 :] = 1e9 * rng.uniform(0.5, 1, (ROWS, INNER // 2))
    made = {"N": rng.standard_normal((ROWS, INNER)), "I": rng.integers(-9, 10, (ROWS, INNER)).astype(float), "M": meeting}
    b = rng.integers(-(10**6), 10**6, (INNER, COLUMNS)).astype(float)
    b[INNER // 2 :] = rng.integers(-1, 2, (INNER // 2, COLUMNS))
    return np.concatenate([made[kind] for kind in kinds]), b


# Of the engines and of the ways of the panels each, since one does not know of the other.
@pytest.mark.parametrize(
    ("capability", "memory"), exhaustive([(89, 4_500_000), (90, 0)], [(89, 0), (89, 4_500_000), (90, 0), (90, 4_500_000)])
)
def test_every_panel_gets_its_own_arithmetic(monkeypatch, rng, capability, memory):
    monkeypatch.setattr(EmulatedQueues, "capability", capability)
    kinds = "NNINMNNN"
    a, b = panels(rng, kinds)
    c, done = product(a, b, panel_rows=ROWS, panel_columns=COLUMNS, device_memory=memory)
    one = ROWS * COLUMNS
    assert done[NATIVE] == one
    assert done[Arithmetic(15)] == 6 * one
    assert sum(done.values()) == len(kinds) * one
    exact, sizes = a.astype(np.longdouble) @ b.astype(np.longdouble), np.abs(a) @ np.abs(b)
    assert (np.abs(c - exact) / sizes).max() < 8 * 2.0**-53


def test_the_engine_does_not_show_in_the_bits(monkeypatch, rng):
    """wgmma and mma.sync, bytes and remainders."""
    for scale, arithmetic in ((None, BYTES), (1.0, Arithmetic(15))):
        if scale is None:
            a, b = (rng.integers(-100, 100, shape).astype(float) for shape in ((300, 200), (200, 270)))
        else:
            a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 270))
        results = []
        for capability in (89, 90):
            monkeypatch.setattr(EmulatedQueues, "capability", capability)
            c, done = product(a, b)
            assert done == {arithmetic: 300 * 270}
            results.append(c)
        np.testing.assert_array_equal(*results)
