# SPDX-License-Identifier: MIT
"""Which arithmetic a tile gets, how remainders lie in memory, and how long a product is expected to take."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import combinations, pairwise, product

import pytest
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.kernels.sources import KERNELS
from hybrid.plan.arithmetic import (
    BYTES,
    MODULI,
    NATIVE,
    UNIT,
    Arithmetic,
    Summary,
    choose,
    expected,
    joined,
    largest_error_bound,
    most_moduli,
    sampling,
)
from hybrid.plan.buffer_layout import layout_of
from hybrid.plan.forecast import forecast
from hybrid.plan.machine_model import H200
from hybrid.plan.planning import make_plan
from hybrid.plan.remainder_layout import GUARDS, MEASURE_BYTES, PAIR, SUMMARY_WORDS, remainder_layout
from hybrid.plan.request import PlanRequest, TilingRequest
from hybrid.plan.schedule import arrivals
from hybrid.plan.tiling import soonest

ALONE = Topology(((0,),))
NUMBERS = Summary(3.0, integral=False, in_range=True)


def never_asked():
    raise AssertionError("the guard was asked")


def test_the_moduli_are_coprime_and_those_of_the_kernels():
    assert all(math.gcd(p, q) == 1 for p, q in combinations(MODULI, 2))
    in_kernels = re.search(r"MODULI\[\] = \{([\d, ]+)\}", (KERNELS / "moduli.cuh").read_text())
    assert tuple(map(int, in_kernels[1].split(","))) == MODULI


@pytest.mark.parametrize(
    ("dtype", "fast", "ratio", "arithmetic"),
    [
        ("float64", False, 0.5, Arithmetic(15)),
        ("float64", False, 2.0**-6, Arithmetic(15)),
        ("float64", False, 2.0**-7, NATIVE),
        ("float64", True, 0.25, Arithmetic(14)),
        ("float64", True, 0.24, Arithmetic(15)),
        ("float64", True, 0.0, NATIVE),
        ("float32", False, 0.125, Arithmetic(7)),
        ("float32", True, 0.12, Arithmetic(8)),
        ("float32", False, 2.0**-7, NATIVE),
    ],
)
def test_the_least_ratio_decides_about_numbers(dtype, fast, ratio, arithmetic):
    assert choose(NUMBERS, NUMBERS, 1000, dtype, lambda: ratio, fast=fast)[0] == arithmetic


def test_only_fast_rests_on_an_estimate_of_what_was_not_looked_at():
    every = sampling(100_000, "float64")
    assert (every, sampling(100_000, "float32"), sampling(2000, "float64")) == (8, 3, 1)
    assert choose(NUMBERS, NUMBERS, 100_000, "float64", lambda: 0.25 / every, fast=True)[0] == Arithmetic(14)
    assert choose(NUMBERS, NUMBERS, 100_000, "float64", lambda: 2.0**-7, fast=False) == (NATIVE, None)
    assert choose(NUMBERS, NUMBERS, 100_000, "float32", lambda: 0.12, fast=True)[0] == Arithmetic(8)


@pytest.mark.parametrize(
    ("largest", "inner", "dtype", "arithmetic"),
    [
        ((2, 1), 8000, "float64", BYTES),
        ((127, 127), 1000, "float32", BYTES),
        ((128, 1), 1000, "float64", Arithmetic(3, scaled=False)),
        ((127, 127), 1 << 18, "float64", Arithmetic(5, scaled=False)),
        ((1000, 1000), 100, "float64", Arithmetic(5, scaled=False)),
        ((1 << 21, 1 << 21), 1000, "float64", Arithmetic(7, scaled=False)),
        ((900, 900), 10, "float32", Arithmetic(3, scaled=False)),
    ],
)
def test_integers_are_multiplied_exactly(largest, inner, dtype, arithmetic):
    a, b = (Summary(float(each), integral=True, in_range=True) for each in largest)
    assert choose(a, b, inner, dtype, never_asked, fast=False)[0] == arithmetic
    if arithmetic.moduli > 1:
        assert math.prod(MODULI[: arithmetic.moduli]) > 2 * inner * largest[0] * largest[1]


def test_what_is_out_of_range_is_native():
    bad = Summary(3.0, integral=False, in_range=False)
    assert choose(bad, NUMBERS, 10, "float64", never_asked, fast=True) == (NATIVE, None)
    assert choose(NUMBERS, NUMBERS.joined(bad), 10, "float64", never_asked, fast=True) == (NATIVE, None)


def test_large_integers_are_as_other_numbers():
    large = Summary(2.0**40, integral=True, in_range=True)
    assert choose(large, large, 10, "float64", lambda: 1.0, fast=False)[0] == Arithmetic(15)


@pytest.mark.parametrize("moduli", [7, 8, 14, 15])
@pytest.mark.parametrize("inner", [1, 1000, 1 << 20])
def test_products_of_scaled_lines_lie_within_half_of_the_moduli(moduli, inner):
    """Two lines of the largest norm, each moved by rounding as far as it can be."""
    moved = Arithmetic(moduli).limit(inner) + math.sqrt(inner) / 2
    assert 2 * moved**2 < math.prod(MODULI[:moduli])
    assert Arithmetic(moduli, scaled=False).limit(inner) == 0


def test_what_is_proved_of_errors():
    fifteen, eight = Arithmetic(15), Arithmetic(8)
    rounding, of_32 = 2.0**-53, 2.0**-24
    assert rounding < fifteen.error_bound(1, "float64", 1.0) < 1.1 * rounding, "C is rounded once, and nothing else shows"
    for inner in (100, 2000, 30_000):
        few, many = (fifteen.error_bound(inner, "float64", ratio) - rounding for ratio in (0.5, 2.0**-6))
        assert many == pytest.approx(32 * few, rel=1e-6)
        moved = 2 * math.sqrt(inner) / fifteen.limit(inner)
        assert few == pytest.approx(2 * moved, rel=1e-3)
        assert many + rounding < inner * rounding, "as much is proved of native arithmetic"
        # The elements have 30 bits then, fewer than half of the limit allows.
        assert eight.error_bound(inner, "float32", 1.0) == pytest.approx(of_32 + math.sqrt(inner) / 2**29, rel=1e-3)
    assert fifteen.error_bound(100, "float64", 0.5, 1e-280) == fifteen.error_bound(100, "float64", 0.5)
    tiny = eight.error_bound(100, "float32", 0.5, 2.0**-130) - eight.error_bound(100, "float32", 0.5)
    assert tiny == pytest.approx(2.0**-19, rel=1e-3), "a subnormal element is rounded by 2⁻¹⁵⁰, which is a part of at least 2⁻¹³¹"


def test_what_is_proved_whatever_the_elements_are():
    for inner, dtype, fast in product((10, 5000), ("float64", "float32"), (False, True)):
        most = largest_error_bound(inner, dtype, fast=fast)
        for ratio in (2.0**-exponent for exponent in range(12)):
            arithmetic, error = choose(NUMBERS, NUMBERS, inner, dtype, lambda ratio=ratio: ratio, fast=fast)
            assert error is None if arithmetic == NATIVE else error <= most


def test_the_worst_of_several_parts_counts():
    some, others = {Arithmetic(15): (10, 1e-15), BYTES: (5, 0.0)}, {Arithmetic(15): (20, 3e-15), NATIVE: (1, None)}
    assert joined([some, others, {}]) == {Arithmetic(15): (30, 3e-15), BYTES: (5, 0.0), NATIVE: (1, None)}
    assert joined([others, others])[NATIVE] == (2, None)


@pytest.mark.parametrize(("rows", "inner", "width", "slots"), [(1, 1, 1, 1), (513, 1000, 700, 3), (8000, 8000, 1024, 8)])
def test_nothing_overlaps_and_each_plane_has_whole_units(rows, inner, width, slots):
    layout = remainder_layout(1 << 20, rows, inner, width, slots, "float64", 15)
    units = -(-inner // UNIT)
    for operand, lines in ((layout.a, rows), (layout.b, width)):
        assert operand.slot_lines % PAIR == 0
        assert operand.slot_lines >= lines
        assert operand.plane_bytes == operand.lines * units * UNIT
        starts = [operand.planes, operand.magnitudes, operand.measures, operand.numbers, operand.steps, operand.end]
        measures = MEASURE_BYTES * operand.lines
        sizes = [15 * operand.plane_bytes, operand.magnitude_bytes, measures, 40 * operand.lines, 4 * operand.lines]
        assert all(start + size <= after for (start, after), size in zip(pairwise(starts), sizes, strict=True))
    starts = [layout.a.planes, layout.a.end, layout.b.end, layout.summaries, layout.least, layout.products, layout.end]
    assert starts == sorted(starts)
    assert layout.least - layout.summaries == 8 * SUMMARY_WORDS * (layout.a.lines + layout.b.lines) // UNIT
    assert layout.products - layout.least >= 16 * GUARDS
    assert layout.end - layout.products == 15 * rows * layout.chunk


@pytest.mark.parametrize(("inner", "dtype"), [(1, "float64"), (1000, "float32"), (30000, "float64")])
def test_two_units_of_lines_can_be_read_from_the_last_one_on(inner, dtype):
    """As a cluster of thread blocks does."""
    layout, units = remainder_layout(0, 513, inner, 700, 3, dtype, 15), -(-inner // UNIT)
    sampled = -(-units // sampling(inner, dtype))
    for operand in (layout.a, layout.b):
        beyond = operand.lines // UNIT + 1
        assert operand.planes + 14 * operand.plane_bytes + beyond * units * UNIT * UNIT <= operand.magnitudes
        assert operand.magnitudes + beyond * sampled * UNIT * UNIT <= operand.measures


@pytest.mark.parametrize("memory", [0, 4 << 30])
def test_a_plan_from_remainders_has_whole_units_and_no_slabs(memory):
    problem = Problem(16000, 16000, 16000)
    plan = planned(problem, ALONE, device="cuda", moduli=15, speed=1.5, accumulates=True, device_memory=memory)
    assert plan.moduli == 15
    (share,) = plan.shares
    assert not share.slabs
    assert share.tiling.panel_rows % UNIT == share.tiling.panel_columns % UNIT == 0
    assert share.layout.remainders.end == share.layout.bytes
    if memory:
        assert share.layout.bytes <= memory


@pytest.mark.parametrize("wanted", [{"panel_rows": 100}, {"panel_columns": 1000}, {"device_memory": 20 << 20}])
def test_panels_that_are_no_whole_units_are_multiplied_natively(wanted):
    asked = PlanRequest(Problem(8000, 8000, 8000), ALONE, device="cuda", accumulates=True, **wanted)
    plan = make_plan(replace(asked, moduli=15))
    assert plan.moduli == 0
    assert plan.shares == make_plan(asked).shares


def test_remainders_take_memory_beside_the_buffers():
    problem = Problem(1000, 2000, 3000)
    plan = planned(problem, ALONE, device="cuda", moduli=15)
    (share,) = plan.shares
    native = layout_of(problem, 1000, replace(share.tiling, moduli=0), "cuda")
    assert share.layout.bytes - native.bytes > 15 * (1000 * 2000 + 2000 * 3000)


def test_a_forecast_of_what_binds():
    problem, rows, columns = Problem(8000, 8000, 8000), (Span(0, 8000),), (Span(0, 8000),)
    order = tuple(arrivals(rows, columns, 1, 1))
    slow, fast = (forecast(problem, order, H200, speed) for speed in (0.1, 1000.0))
    assert slow.copied_in == fast.copied_in == 2 * 8 * 8000**2
    work = 8000**3 / H200.float64_multiply_adds_per_byte
    assert slow.multiplied - slow.copied_in == pytest.approx(10 * work, rel=0.01)
    assert fast.copied_out == pytest.approx(3 * 8 * 8000**2, rel=0.02)
    both = forecast(problem, order, H200, 1000.0, links=2)
    assert both.copied_in == pytest.approx(0.75 * fast.copied_in)


def test_the_panels_chosen_are_the_soonest():
    request = TilingRequest(Problem(8000, 8000, 8000), 8000, "cuda", moduli=15)
    slow, panels = soonest(replace(request, speed=0.5))
    fast, whole = soonest(replace(request, speed=50.0))
    assert fast < slow
    assert whole[1] >= 8000, "where copies bind, rows of B are copied whole"
    assert panels[1] < 8000, "where kernels bind, they begin before all of B is there"


def test_the_usual_arithmetic_needs_no_more_planes_than_there_are():
    for dtype in ("float32", "float64"):
        assert all(expected(dtype, fast=fast).moduli <= most_moduli(dtype) for fast in (False, True))
