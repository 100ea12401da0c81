# SPDX-License-Identifier: MIT
"""Products from remainders whose panels differ: what the guard found of one must not be taken for another one's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.modular import computed, product
from support.selection import exhaustive

from experiments.accuracy.products import Products
from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.devices.cuda_gpus import Gpu
from hybrid.devices.emulated import EmulatedDevice, EmulatedQueues
from hybrid.execution import modular_product
from hybrid.kernels.catalogue import named
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


def test_a_guard_that_looked_at_what_b_was_before_is_asked_again_for_every_tile(rng):
    a, unlike = panels(rng, "MMM")
    b, kernel = rng.standard_normal(unlike.shape), named("tiled")
    problem = Problem(*a.shape, COLUMNS, a.dtype.name)
    keeping = Products(EmulatedDevice(kernel, problem.dtype), kernel, problem, fast=False, keeps_b=True, panel_rows=ROWS)
    for taken, each in ((Arithmetic(15), b), (Arithmetic(15), b), (NATIVE, unlike), (Arithmetic(15), b), (NATIVE, unlike)):
        c, done = keeping(a, each)
        wanted, of_others = computed(a, each, panel_rows=ROWS)
        assert list(done) == [taken]
        assert done == of_others
        np.testing.assert_array_equal(c, wanted)


def test_the_engine_does_not_show_in_the_bits(monkeypatch, rng):
    """wgmma and mma.sync, of 7.5 and of 8.0 and later, bytes and remainders; C put together by integers, as all ranks do it where
    one of them has to."""
    for scale, arithmetic in ((None, BYTES), (1.0, Arithmetic(15))):
        if scale is None:
            a, b = (rng.integers(-100, 100, shape).astype(float) for shape in ((300, 200), (200, 270)))
        else:
            a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 270))
        results = []
        for capability, way in ((89, {}), (90, {}), (75, {"ranks": 3, "panel_rows": 128, "panel_columns": 128})):
            monkeypatch.setattr(EmulatedQueues, "capability", capability)
            c, done = product(a, b, by_integers=True, **way)
            assert done == {arithmetic: 300 * 270}
            results.append(c)
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


def test_pairs_of_doubles_differ_from_integers_in_few_elements_and_by_little(monkeypatch, rng):
    """By less than the sum of their terms' magnitudes rounds; where most of the terms cancel that is more than a last bit."""
    a, b = rng.standard_normal((300, 200)), rng.standard_normal((200, 270))
    monkeypatch.setattr(EmulatedQueues, "capability", 90)
    by_doubles, by_integers = (product(a, b, by_integers=each)[0] for each in (False, True))
    assert (by_doubles != by_integers).mean() < 0.002
    assert (np.abs(by_doubles - by_integers) <= np.spacing(np.abs(a) @ np.abs(b))).all()


@pytest.mark.parametrize(("capabilities", "by_integers"), [((90, 90), False), ((90, 89), True), ((75,), True), ((None,), False)])
def test_one_gpu_with_little_float64_decides_for_all_ranks(monkeypatch, capabilities, by_integers):
    """Also on a grid of nodes, whose parts are plans of their own."""
    placements = [SimpleNamespace(gpu=None if each is None else Gpu(0, "", "", each)) for each in capabilities]
    share = SimpleNamespace(layout=SimpleNamespace(remainders=object()))
    plan = SimpleNamespace(has_row_blocks=False, problem=SimpleNamespace(l=5))
    rank_device = SimpleNamespace(device=None, memory=None, once_for_plan=lambda what, plan, make: make())
    monkeypatch.setattr("hybrid.devices.modular.ModularProduct", lambda *_, **how: how)
    decision = SimpleNamespace(placements=placements)
    how = modular_product.modular_product(rank_device, decision, plan, share, Settings(precision="auto"))
    assert how == {"fast": False, "by_integers": by_integers, "keeps_b": False}
