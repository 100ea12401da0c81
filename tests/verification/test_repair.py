# SPDX-License-Identifier: MIT
"""`on_fault="repair"`: what is wrong of C is computed again, wherever the fault is, and the result says so."""

from __future__ import annotations

import json
import re
import sys
import warnings

import numpy as np
import pytest
from support.commands import ROOT, start
from support.faults import OF_PRODUCTS, Planted, columns_exchanged, element, lowest_bit, nothing, rows_exchanged
from support.selection import pairs_first

import hybrid
import hybrid.execution.rank_run
from hybrid.core.spans import Span
from hybrid.errors import CheckFailed, UsageError
from hybrid.plan.request import PlanRequest
from hybrid.verification import recompute
from hybrid.verification.wrong_parts import WrongParts

N, L, M = 261, 71, 149
DATA = ["float64", "float32", "integers"]
FAULTS = [element, lowest_bit, rows_exchanged, columns_exchanged, nothing]
pytestmark = pytest.mark.usefixtures("checked_on_the_device")

PLANS = {
    "in place": {},
    "in one piece": {"STAGED": "1"},
    "panels": {"STAGED": "1", "PANEL_ROWS": "33", "PANEL_COLUMNS": "70"},
    "slabs": {"STAGED": "1", "PANEL_ROWS": "40", "SLAB_ROWS": "20"},
    "checked by the host": {"STAGED": "1", "PANEL_ROWS": "33", "CHECK": "host"},
    "out of core": {"STAGED": "1", "GPU_MEMORY": "200k", "PANEL_ROWS": "33", "PANEL_COLUMNS": "70"},
}


def using(monkeypatch, plan):
    for name, value in PLANS[plan].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)


def case(rng, data, n=N, l=L, m=M):
    dtype = "float32" if data == "float32" else "float64"
    a, b = rng.standard_normal((n, l)), rng.standard_normal((l, m))
    if data == "integers":
        a, b = np.rint(9 * a), np.rint(9 * b)
    return a.astype(dtype), b.astype(dtype)


def largest_error(a, b, c):
    """Of any element, in the largest rounding errors of NumPy's product."""
    exact = a.astype(np.float64) @ b if a.dtype == np.float32 else a.astype(np.longdouble) @ b
    return float(np.abs(c - exact).max() / max(np.abs(a @ b - exact).max(), np.finfo(a.dtype).tiny))


def repaired(a, b, **more):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        c = hybrid.multiply(a, b, on_fault="repair", **more)
    told = [each for each in said if str(each.message).startswith("repaired: ")]
    assert all("\n" not in str(each.message) and each.filename == __file__ for each in told)
    return c, [str(each.message) for each in told]


@pytest.mark.parametrize(
    ("method", "plan", "spoil", "always"), pairs_first(["copy_in", "multiply", "copy_out"], list(PLANS), FAULTS, [False, True])
)
def test_a_fault_is_repaired_and_told(rng, monkeypatch, method, plan, spoil, always):
    """`always`: also when the product is computed once more."""
    data = DATA[(FAULTS.index(spoil) + list(PLANS).index(plan) + len(method)) % len(DATA)]
    if plan == "in place":
        method = "multiply"  # nothing is copied
    if method == "multiply" and spoil not in OF_PRODUCTS:
        spoil = element
    using(monkeypatch, plan)
    a, b = case(rng, data)
    with monkeypatch.context() as patch:
        planted = Planted(patch, method, spoil, 1 if plan in ("panels", "out of core") else 0, always=always)
        c, lines = repaired(a, b)
    assert planted.done
    assert largest_error(a, b, c) <= (0 if data == "integers" else 4)
    host_looks = PLANS[plan].get("CHECK") == "host"
    if not lines:  # the check from host memory looks at C alone, where this is rounding
        assert host_looks
        assert spoil.__name__ == "lowest_bit"
        return
    (line,) = lines
    assert re.match(r"repaired: rank 0 on \S+, device cpu, kernel blas: ", line)
    assert host_looks or method == "multiply" or re.search(r"(reached|left) the device of rank 0 on \S+ with other values", line)
    if method != "multiply" and not host_looks and not always:
        assert "; the product was computed once more" in line
    else:
        assert ("computed again on the CPU of rank 0" in line) or "no element of C was changed" in line
    assert repaired(a, b)[1] == []  # the fault was one product's


def test_by_default_and_without_a_check_nothing_is_repaired(rng, monkeypatch):
    a, b = case(rng, "float64")
    Planted(monkeypatch, "multiply", element)
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b)
    monkeypatch.undo()
    Planted(monkeypatch, "multiply", element)
    c, lines = repaired(a, b, check=False)
    assert not lines
    assert largest_error(a, b, c) > 1e6
    with pytest.raises(UsageError, match="unknown on_fault 'repare': did you mean 'repair'"):
        hybrid.multiply(a, b, on_fault="repare")


def test_what_stays_wrong_is_computed_again_in_all_columns_and_then_refused_with_both_faults(rng, monkeypatch):
    a, b = case(rng, "float64", M, L, 4 * M)
    Planted(monkeypatch, "multiply", element)
    computed, original = [], recompute.blas_of_long_sums

    def wrong_again(a, b, c):
        original(a, b, c)
        c[0, 0] += 1
        computed.append(c.shape[1])

    monkeypatch.setattr(recompute, "blas_of_long_sums", wrong_again)
    by = r"multiplied by rank 0 on \S+, device cpu, kernel blas"
    with pytest.raises(CheckFailed, match=rf"row 74 of C, columns 198: wrong by 1\.00e\+00, {by} \(and 1 more\)"):
        hybrid.multiply(a, b, on_fault="repair")
    assert 3 <= len(computed) <= 9
    assert max(computed[:-1]) < computed[-1] == 4 * M


@pytest.mark.parametrize("operand", [0, 1])
def test_operands_that_somebody_writes_meanwhile_are_refused(rng, monkeypatch, operand):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = case(rng, "float64")
    original, calls = hybrid.execution.rank_run.RankRun.check, []

    def write_then_check(run, *arguments):
        check = original(run, *arguments)
        (a, b)[operand][7, 7] += 1
        calls.append(check)
        return check

    monkeypatch.setattr(hybrid.execution.rank_run.RankRun, "check", write_then_check)
    Planted(monkeypatch, "copy_in", element, 0, lambda into, source: np.shares_memory(source, (a, b)[operand]))
    with pytest.raises(CheckFailed, match="reached the device of rank 0"):
        hybrid.multiply(a, b, on_fault="repair")
    assert calls


@pytest.mark.parametrize("wrap", [np.asarray, hybrid.RowBlock])
def test_where_the_product_that_is_computed_once_more_fails_nothing_reads_the_matrices_any_more(rng, monkeypatch, wrap):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    a, b = case(rng, "float64")
    run = hybrid.execution.rank_run.RankRun
    multiply, products, abandoned = run.multiply, [], []

    def failing_the_second_time(this):
        products.append(multiply(this))
        if len(products) == 2:
            raise MemoryError

    monkeypatch.setattr(run, "multiply", failing_the_second_time)
    monkeypatch.setattr(run, "abandon", lambda this: abandoned.append(this))
    Planted(monkeypatch, "copy_in", element)
    with pytest.raises(MemoryError):
        hybrid.multiply(wrap(a), wrap(b), on_fault="repair")
    assert len(abandoned) == 1


@pytest.mark.parametrize("check", ["on", "host"])
@pytest.mark.parametrize("data", DATA)
def test_only_what_is_wrong_is_computed_again(rng, monkeypatch, data, check):
    a, b = case(rng, data, 640, 20, 640)
    right = hybrid.multiply(a, b)

    def spoil(into, source, before):
        into[300:330, 200:240] *= 2

    Planted(monkeypatch, "multiply", spoil)
    c, (line,) = repaired(a, b, check=check)
    first, end, left, right_end = map(int, re.search(r"rows (\d+):(\d+), columns (\d+):(\d+) of C were", line).groups())
    assert first <= 256 < 384 <= end
    assert left <= 128 < 320 <= right_end
    if data == "integers":  # elsewhere a large rounding error may be computed again, too
        assert (first, end, left, right_end) == (256, 384, 128, 320)
    outside = np.ones(c.shape, bool)
    outside[first:end, left:right_end] = False
    np.testing.assert_array_equal(c[outside], right[outside])
    assert largest_error(a, b, c) <= (0 if data == "integers" else 4)


def test_large_integers_whose_sums_are_checked_modulo_a_prime(rng, monkeypatch):
    a, b = (np.rint(2.0**21 * rng.random(shape)) for shape in ((200, 90), (90, 150)))
    Planted(monkeypatch, "multiply", element)
    c, (line,) = repaired(a, b)
    assert "rows 64:128, columns 0:150 of C were computed again" in line
    np.testing.assert_array_equal(c, a @ b)


def test_nan_in_the_operands_does_not_hinder_a_repair(rng, monkeypatch):
    a, b = case(rng, "float64")
    a[200], b[3, 140] = np.nan, np.inf
    Planted(monkeypatch, "multiply", lambda into, source, before: into.__setitem__((20, 30), 5.0))
    with np.errstate(all="ignore"):
        c, lines = repaired(a, b)
        np.testing.assert_allclose(c, a @ b)
    assert len(lines) == 1


def test_a_device_that_is_alone_stays_however_often_it_is_wrong(rng, monkeypatch):
    a, b = case(rng, "float64")
    from hybrid.ranks.world import team_of
    from hybrid.selection.session import session_of

    session = session_of(team_of(None))
    monkeypatch.setattr(session, "_times_wrong", type(session._times_wrong)())
    told = []
    for _ in range(3):
        with monkeypatch.context() as patch:
            Planted(patch, "multiply", element)
            c, lines = repaired(a, b)
        told += lines
        assert largest_error(a, b, c) < 4
    assert "products" not in told[0]
    assert told[1].endswith("; it was wrong in 2 products: no other device can take its rows")
    assert told[2].endswith("; it was wrong in 3 products: no other device can take its rows")


@pytest.mark.needs("compiler")
def test_emulated_kernels_are_repaired_like_those_of_a_gpu(rng, monkeypatch):
    from hybrid.devices.emulated import EmulatedDevice

    original, calls = EmulatedDevice.multiply, []

    def stuck_lane(device, a, b, c, *arguments, **more):
        event = original(device, a, b, c, *arguments, **more)
        c[:, 5::32] = 1.0
        calls.append(1)
        return event

    monkeypatch.setattr(EmulatedDevice, "multiply", stuck_lane)
    a, b = case(rng, "float32", 150, 40, 130)
    c, (line,) = repaired(a, b, device="emulate")
    assert calls
    assert "rows 0:150, columns 0:130 of C were computed again on the CPU of rank 0" in line
    assert largest_error(a, b, c) < 4


def test_parts_are_taken_together_with_their_neighbours():
    no = np.array([False])
    wrong = WrongParts(300, 200)
    assert wrong.blocks(Span(0, 300)) == []
    wrong.suspect(np.array([100]), Span(0, 64), no)
    assert wrong.blocks(Span(0, 300)) == [(Span(0, 192), Span(0, 128))]
    assert wrong.blocks(Span(100, 150)) == [(Span(100, 150), Span(0, 128))]
    assert wrong.blocks(Span(192, 300)) == []
    wrong.add(np.array([70, 299]), Span(0, 64))  # known: nothing beside it is wrong
    assert wrong.blocks(Span(0, 300)) == [(Span(64, 128), Span(0, 64)), (Span(256, 300), Span(0, 64))]
    wrong = WrongParts(300, 200)
    wrong.suspect(np.array([299]), Span(192, 200), no)
    assert wrong.blocks(Span(0, 300)) == [(Span(192, 300), Span(128, 200))]
    other = WrongParts(300, 200)
    other.merge(*wrong.found())
    assert other.blocks(Span(0, 300)) == wrong.blocks(Span(0, 300))
    other.in_all_columns()
    assert other.blocks(Span(0, 300)) == [(Span(192, 300), Span(0, 200))]


@pytest.mark.parametrize(("row", "rows"), [(0, (0, 64)), (71, (0, 128)), (72, (64, 128)), (119, (64, 128)), (120, (64, 192))])
def test_of_a_large_fault_squares_above_and_below_are_taken_only_near_it(row, rows):
    wrong, other = WrongParts(300, 300), WrongParts(300, 300)
    wrong.suspect(np.array([row]), Span(64, 128), np.array([True]))
    assert wrong.blocks(Span(0, 300)) == [(Span(*rows), Span(0, 192))]
    other.merge(*wrong.found())
    assert other.blocks(Span(0, 300)) == wrong.blocks(Span(0, 300))
    other.in_all_columns()
    assert other.blocks(Span(0, 300)) == [(Span(max(0, rows[0] - 64), rows[1] + 64), Span(0, 300))]


def test_rows_go_to_the_others_of_a_node():
    from hybrid.core.problem import Problem
    from hybrid.core.spans import Topology

    asked = PlanRequest(Problem(40, 7, 9, "float64"), Topology(((0, 2), (1,), (3, 4))), left_out=(0, 1, 3, 4))
    # Rank 1 and both of the last node have nobody who could take theirs.
    assert asked.rows_of_a == (Span(0, 0), Span(16, 24), Span(0, 16), Span(24, 32), Span(32, 40))


PROGRAM = """
import sys
import pytest
from support.faults import Planted, element
from hybrid.commands import matmul

patch = pytest.MonkeyPatch()
Planted(patch, "multiply", element)
Planted(patch, "multiply", element, 3)
sys.exit(matmul.main())
"""


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_the_command_tells_what_it_repaired_and_ends_with_0(tmp_path, ranks):
    program, record, c = tmp_path / "faulty.py", tmp_path / "run.jsonl", tmp_path / "C.npy"
    program.write_text(PROGRAM)
    sizes = ["90", "60", "70", "--fill", "normal", "--repeat", "4", "--on-fault", "repair", "--json", record, "--out", c]
    done = start([sys.executable, program], *sizes, ranks=ranks, PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.search(r"check ok \(freivalds, error \S+, tolerance 8.0e\+00; repaired\)", lines[-1])
    assert any(line.startswith("  repair ") for line in lines)
    told = json.loads(record.read_text())["check"]["repaired"]
    assert [line for line in lines if line.startswith("repaired: ")] == [f"repaired: {line}" for line in told]
    assert len(told) == 2 * max(1, ranks)
    assert sum("wrong in 2 products" in line for line in told) == max(1, ranks)
    of_whom = [re.match(r"product [14] of 4: rank (\d) on .* on the CPU of rank (\d)", line).groups() for line in told]
    assert all(int(by) == (1 - int(rank) if ranks else 0) for rank, by in of_whom)
    assert np.isfinite(np.load(c)).all()
