# SPDX-License-Identifier: MIT
"""One fault at a time in the data path of one rank: each is found, and the message says where it is."""

from __future__ import annotations

import json
import re
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from support.commands import ROOT, start
from support.faults import OF_PRODUCTS, SPOILS, Planted, element, nothing, place_in
from support.selection import examples, pairs_first

import hybrid
import hybrid.execution.product
import hybrid.execution.rank_check
import hybrid.verification.check
from hybrid.core.problem import Problem
from hybrid.devices.cpu import CpuDevice
from hybrid.errors import CheckFailed, DoesNotFit
from hybrid.execution.host_check import HostCheck
from hybrid.verification.check import Check

PLANS = {
    "in one piece": {},
    "panels": {"PANEL_ROWS": "13", "PANEL_COLUMNS": "70"},
    "slabs": {"PANEL_ROWS": "40", "SLAB_ROWS": "50"},
}
# Sizes no two of which are alike, and no multiples of anything.
N, L, M = 61, 171, 149
WIDE = 1101  # columns of C where panels come and go: sums of 512 each
OUT_OF_CORE = {
    "A in panels": {"GPU_MEMORY": "600k", "PANEL_ROWS": "7", "PANEL_COLUMNS": "200"},
    "B in slabs": {"GPU_MEMORY": "500k", "PANEL_ROWS": "7", "PANEL_COLUMNS": "200", "SLAB_ROWS": "40"},
}
DTYPES = ["float64", "float32"]


@pytest.fixture(autouse=True)
def _staged(monkeypatch):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setenv("HYBRID_POISON", "1")


@pytest.fixture
def checks(monkeypatch):
    """What each product's check on the device said."""
    seen = []
    original = hybrid.execution.product.RankRun.check

    def check(run, *arguments):
        seen.append(original(run, *arguments))
        return seen[-1]

    monkeypatch.setattr(hybrid.execution.product.RankRun, "check", check)
    return seen


def case(rng, dtype, n=N, l=L, m=M):
    return rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype), np.zeros((n, m), dtype)


def using(monkeypatch, plan):
    for name, value in plan.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)


def refused(a, b, c):
    with pytest.raises(CheckFailed) as refusal:
        hybrid.multiply(a, b, out=c)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def named_place(message):
    """Rows, columns and operand that the message names first."""
    found = re.match(r"the product is wrong: rows (\d+):(\d+), columns (\d+):(\d+) of (.) ", message)
    assert found, message
    return tuple(map(int, found.groups()[:4])), found[5]


def lies_in(inner, outer):
    return outer[0] <= inner[0] and inner[1] <= outer[1] and outer[2] <= inner[2] and inner[3] <= outer[3]


@pytest.mark.parametrize(
    ("operand", "plan", "spoil", "dtype", "which"),
    pairs_first(["A", "B", "C"], list(PLANS), SPOILS, DTYPES, [0, -1]),
)
def test_a_wrong_copy_is_found_where_it_is(rng, monkeypatch, checks, operand, plan, spoil, dtype, which):
    using(monkeypatch, PLANS[plan])
    find_wrong_copy(monkeypatch, checks, *case(rng, dtype), operand, spoil, which)


def find_wrong_copy(monkeypatch, checks, a, b, c, operand, spoil, which):
    """Spoil copy number `which` of an operand, counted from the end where that is negative."""
    matrix = {"A": a, "B": b, "C": c}[operand]
    copied = 0 if operand == "C" else 1

    def of_operand(*matrices):
        return np.shares_memory(matrices[copied], matrix)

    method = "copy_out" if operand == "C" else "copy_in"
    with monkeypatch.context() as counting:
        counted = Planted(counting, method, nothing, -2, of_operand)
        hybrid.multiply(a, b, out=c)
    assert checks[-1].ok
    c[...] = 0
    planted = Planted(monkeypatch, method, spoil, which % counted.seen, of_operand)
    message = refused(a, b, c)
    assert planted.done
    place, named = named_place(message)
    assert named == operand
    copy = place_in((planted.into, planted.source)[copied], matrix)
    assert lies_in(copy, place) or lies_in(place, copy)
    assert f"the device of rank 0 on {hybrid_host()} with other values than they have in memory" in message
    assert len(checks) == 2  # by the device, not by the host


def hybrid_host():
    from hybrid.ranks.team import Team

    return Team().host


@pytest.mark.parametrize(("plan", "spoil", "dtype", "integers"), pairs_first(list(PLANS), OF_PRODUCTS, DTYPES, [False, True]))
def test_a_wrong_multiplication_is_found_in_its_row_and_columns(rng, monkeypatch, checks, plan, spoil, dtype, integers):
    a, b, c = case(rng, dtype)
    if integers:
        a, b = np.rint(a * 3) + 4, np.rint(b * 3) + 4
    using(monkeypatch, PLANS[plan])
    planted = Planted(monkeypatch, "multiply", spoil)
    message = refused(a, b, c)
    assert planted.done
    assert checks[-1].kind == ("exact" if integers else "freivalds")
    assert len(checks[-1].faults) == 1
    found = re.match(
        rf"the product is wrong: rank 0 on {hybrid_host()} multiplied wrong: row (\d+), columns (\d+):(\d+)", message
    )
    assert found, message
    row, first, end = map(int, found.groups())
    a64 = a.astype(np.float64)
    wrong = ~np.isclose(c[row, first:end], (a64 @ b)[row, first:end], rtol=1e-4, atol=1e-3)
    assert wrong.any()


@pytest.mark.usefixtures("checked_on_the_device")
@pytest.mark.parametrize(
    ("operand", "plan", "spoil", "dtype", "which"),
    pairs_first(["A", "B", "C"], list(OUT_OF_CORE), SPOILS, DTYPES, [0, 1, -1]),
)
def test_where_panels_come_and_go_the_wrong_copy_is_named(rng, monkeypatch, checks, operand, plan, spoil, dtype, which):
    a, b, c = case(rng, dtype, m=WIDE)
    using(monkeypatch, OUT_OF_CORE[plan])
    find_wrong_copy(monkeypatch, checks, a, b, c, operand, spoil, which)


@pytest.mark.usefixtures("checked_on_the_device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("plan", OUT_OF_CORE)
@pytest.mark.parametrize("spoil", OF_PRODUCTS)
def test_where_panels_come_and_go_a_wrong_multiplication_is_found(rng, monkeypatch, checks, plan, dtype, spoil):
    a, b, c = case(rng, dtype, m=WIDE)
    using(monkeypatch, OUT_OF_CORE[plan])
    planted = Planted(monkeypatch, "multiply", spoil, 3)
    assert "multiplied wrong: row " in refused(a, b, c)
    assert planted.done
    assert len(checks) == 1


def test_rows_of_small_integers_are_told_apart_at_any_distance(rng, monkeypatch):
    """Their bits end in 50 zeros, which a product of a row's checksum with a row's weight would keep."""
    a, b = np.zeros((4200, 9)), rng.standard_normal((9, 8))
    a[0, 0] = a[2048, 3] = a[4096, 1] = a[4096, 2] = 1
    for first, second in ((0, 4096), (2048, 4096), (0, 1), (1, 2048)):

        def exchange(into, source, before, rows=(first, second)):
            into[list(rows)] = into[list(rows[::-1])]

        with monkeypatch.context() as patch:
            planted = Planted(patch, "copy_in", exchange, 0, lambda into, source: np.shares_memory(source, a))
            message = refused(a, b, np.zeros((4200, 8)))
        assert planted.done
        assert named_place(message)[1] == "A"


def test_a_tile_that_is_also_written_elsewhere_is_found_there(rng, monkeypatch):
    a, b, c = case(rng, "float64")
    using(monkeypatch, PLANS["panels"])
    places = []

    def twice(into, source, before):
        places.append(place_in(into, c))
        time.sleep(0.1)  # the first tile is summed by now, if it is not left for later
        c[: len(source), : source.shape[1]] = source  # where the first tile was written before

    Planted(monkeypatch, "copy_out", twice, 4)
    message = refused(a, b, c)
    assert named_place(message)[0][0] == named_place(message)[0][2] == 0
    assert places[0][0] or places[0][2]


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "none"), (np.inf, "none"), (1e200, "freivalds")])
def test_what_the_device_leaves_unjudged_the_host_decides(rng, monkeypatch, checks, value, kind):
    a, b, _ = case(rng, "float64")
    if np.isfinite(value):
        a[3] *= value  # the squares overflow, the products do not
    else:
        b[5] = value
    with np.errstate(all="ignore"):
        expected = a @ b
    np.testing.assert_allclose(hybrid.multiply(a, b), expected, rtol=1e-10)
    assert checks[-1].undecided
    assert checks[-1].ok

    def spoil(into, source, before):
        into[3, 7] *= 1.5 if np.isfinite(value) else 1

    if np.isfinite(value):
        Planted(monkeypatch, "multiply", spoil)
        with pytest.raises(CheckFailed, match="the product is wrong: row 3 of C, columns 7"):
            hybrid.multiply(a, b)
    decided = []
    original = HostCheck.check
    monkeypatch.undo()
    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setattr(HostCheck, "check", lambda *given: decided.append(original(*given)) or decided[-1])
    hybrid.multiply(a, b)
    assert [check.kind for check in decided] == [kind]
    hybrid.multiply(*case(rng, "float64")[:2])
    assert len(decided) == 1  # for that product only


def test_an_alarm_is_answered_by_another_look_at_the_elements(rng, monkeypatch, checks):
    settled = []
    original = Check.settled
    monkeypatch.setattr(Check, "settled", lambda check, by_host: settled.append(original(check, by_host)) or settled[-1])
    for module in (hybrid.verification.check, hybrid.execution.rank_check):
        monkeypatch.setattr(module, "THRESHOLD", 0.5)  # standard deviations: some sums of any product differ by more
    a, b, c = case(rng, "float32")
    np.testing.assert_allclose(hybrid.multiply(a, b), a @ b, rtol=1e-3, atol=1e-3)
    assert not checks[-1].ok
    assert checks[-1].undecided
    assert "rounding errors" in settled[-1].note
    Planted(monkeypatch, "multiply", element)
    message = refused(a, b, c)
    assert re.match(rf"the product is wrong: rank 0 on {hybrid_host()} multiplied wrong: row 30, columns 0:64", message)
    assert re.search(r"row 30 of C, columns 49: wrong by 1.00e\+00", settled[-1].faults[-1])


def test_a_refusal_names_the_first_fault_and_counts_the_others():
    faults = ("rows 0:2, columns 0:3 of A are wrong", "b", "c")
    assert Check("freivalds", 1.0, 8.0, False, faults[:1]).refusal() == f"the product is wrong: {faults[0]}"
    assert Check("freivalds", 1.0, 8.0, False, faults).refusal() == f"the product is wrong: {faults[0]} (and 2 more)"
    assert Check("exact", 3.0, 0.0, False).refusal() == "the product is wrong: error 3.00e+00, tolerance 0.00e+00"


@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 90),
    l=st.integers(0, 90),
    m=st.integers(1, 150),
    panel_rows=st.integers(6, 95),
    panel_columns=st.integers(10, 155),
    slab_rows=st.sampled_from([0, 0, 7, 40]),
    dtype=st.sampled_from(DTYPES),
    integers=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_right_product_of_any_plan_passes(
    monkeypatch, checks, n, l, m, panel_rows, panel_columns, slab_rows, dtype, integers, seed
):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((n, l)), random.standard_normal((l, m))
    if integers:
        a, b = np.rint(3 * a), np.rint(3 * b)
    pieces = {"PANEL_ROWS": panel_rows, "PANEL_COLUMNS": panel_columns, "SLAB_ROWS": slab_rows}
    before = len(checks)
    with monkeypatch.context() as patch:
        using(patch, {name: str(value) for name, value in pieces.items() if value})
        hybrid.multiply(a.astype(dtype), b.astype(dtype))
    (check,) = checks[before:]
    assert check.ok
    assert not check.undecided
    assert check.kind == "exact" or not integers


@pytest.mark.usefixtures("checked_on_the_device")
@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(20, 90),
    l=st.integers(1, 90),
    m=st.integers(400, 1300),
    panel_rows=st.integers(1, 30),
    panel_columns=st.integers(64, 600),
    slab_rows=st.sampled_from([0, 7, 40]),
    memory=st.integers(25, 100),
    dtype=st.sampled_from(DTYPES),
    integers=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_right_product_out_of_core_passes(
    monkeypatch, checks, n, l, m, panel_rows, panel_columns, slab_rows, memory, dtype, integers, seed
):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((n, l)), random.standard_normal((l, m))
    if integers:
        a, b = np.rint(3 * a), np.rint(3 * b)
    whole = Problem(n, l, m, dtype).bytes_of_matrices
    pieces = {"PANEL_ROWS": panel_rows, "PANEL_COLUMNS": panel_columns, "SLAB_ROWS": slab_rows}
    before = len(checks)
    with monkeypatch.context() as patch:
        using(patch, {name: str(value) for name, value in pieces.items() if value})
        patch.setenv("HYBRID_GPU_MEMORY", str(whole * memory // 100))
        try:
            hybrid.multiply(a.astype(dtype), b.astype(dtype))
        except DoesNotFit:
            assume(False)
    (check,) = checks[before:]
    assert check.ok
    assert check.kind == "exact" or not integers


PROGRAM = """
import sys
import pytest
from support.faults import Planted, element
from hybrid.commands import matmul

patch = pytest.MonkeyPatch()
for number in range(5):
    Planted(patch, "copy_in", element, number)
sys.exit(matmul.main())
"""


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_the_command_names_three_faults_once_and_ends_with_3(tmp_path, ranks):
    program, record = tmp_path / "faulty.py", tmp_path / "run.jsonl"
    program.write_text(PROGRAM)
    sizes = ["90", "60", "70", "--json", record]
    path = f"{ROOT}:{ROOT / 'tests'}"
    pieces = {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "10", "HYBRID_PANEL_COLUMNS": "30", "PYTHONPATH": path}
    done = start([sys.executable, program], *sizes, ranks=ranks, **pieces)
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert re.search(r"check FAILED \((exact|freivalds), error", lines[-1])
    faults = json.loads(record.read_text())["check"]["faults"]
    assert len(faults) == 5 * max(1, ranks)
    assert [line for line in lines if "the device of rank" in line] == lines[-4:-1] == [f"wrong: {fault}" for fault in faults[:3]]
    assert re.match(r"rows \d+:\d+, columns \d+:\d+ of [AB] reached the device of rank 0 on \S+ with other values", faults[0])


@pytest.mark.parametrize("value", [1e100, 1e153, -1e155, 1e200, 1e300, -1.7e308, np.inf, np.nan])
@pytest.mark.parametrize("staged", ["0", "1"])
def test_an_element_whose_square_overflows_is_found(rng, monkeypatch, staged, value):
    """A flipped bit of an exponent makes such: a check that takes the size of C's own elements for granted would accept it."""
    original = CpuDevice.multiply

    def wrong(device, a, b, c, after, *, adding=False):
        event = original(device, a, b, c, after, adding=adding)
        c[3, 4] = value
        return event

    monkeypatch.setenv("HYBRID_STAGED", staged)
    monkeypatch.setattr(CpuDevice, "multiply", wrong)
    with pytest.raises(CheckFailed, match="row 3"):
        hybrid.multiply(rng.standard_normal((90, 80)), rng.standard_normal((80, 200)), device="cpu")


@pytest.mark.parametrize("on_fault", ["raise", "repair"])
@pytest.mark.parametrize("fraction", [2.0**-40, 2.0**-20, 0.5])
@pytest.mark.parametrize("staged", ["0", "1"])
def test_a_fraction_in_a_product_of_integers_is_found_however_small(rng, monkeypatch, staged, fraction, on_fault):
    original = CpuDevice.multiply

    def wrong(device, a, b, c, after, *, adding=False):
        event = original(device, a, b, c, after, adding=adding)
        c[3, 4] += fraction
        return event

    monkeypatch.setenv("HYBRID_STAGED", staged)
    monkeypatch.setattr(CpuDevice, "multiply", wrong)
    a, b = (rng.integers(-9, 10, shape).astype(float) for shape in ((90, 80), (80, 200)))
    if on_fault == "raise":
        with pytest.raises(CheckFailed, match="row 3"):
            hybrid.multiply(a, b, device="cpu")
    else:
        with pytest.warns(RuntimeWarning, match="repaired"):
            c = hybrid.multiply(a, b, device="cpu", on_fault="repair")
        np.testing.assert_array_equal(c, a @ b)
