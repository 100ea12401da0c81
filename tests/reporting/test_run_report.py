# SPDX-License-Identifier: MIT
"""What a user reads."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.core.text import percents, ranges, rate_in_units, rounded_up
from hybrid.core.timeline import Spread
from hybrid.devices.cuda_gpus import Gpu
from hybrid.execution.outcome import Outcome, Parts
from hybrid.host.row_view import RowView
from hybrid.host.threads import Threads
from hybrid.kernels.catalogue import named
from hybrid.plan.arithmetic import BYTES, NATIVE, Arithmetic
from hybrid.reporting.phase_table import moved_bytes, rate, table
from hybrid.reporting.run_report import (
    arithmetic_line,
    as_record,
    describe,
    heading,
    labelled_corner,
    last_line,
    parts_line,
    plans_of,
    top_left,
    verdict,
    wall_line,
)
from hybrid.selection.decision import Decision
from hybrid.selection.placement import RankPlacement
from hybrid.verification.freivalds import Check

GOOD = Check("freivalds", 1.25e-15, 3e-12, True)


def steady(seconds):
    return Spread(seconds, seconds, seconds)


def plan_of(n=1000, l=1000, m=1000, ranks=1, per_node=None, dtype="float64", **more):
    return planned(Problem(n, l, m, dtype), Topology.of_equal_nodes(ranks, per_node or ranks), **more)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0-1"),
        ([0, 1, 2, 5], "0-2,5"),
        ([7, 5, 6, 0, 2], "0,2,5-7"),
        (range(128), "0-127"),
        ([1, 3, 5], "1,3,5"),
    ],
)
def test_cores_are_shown_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_the_top_left_is_printed_as_the_lectures_programs_do():
    assert top_left(np.array([[0.0, 1.5], [-2.0, 1e6]])) == "0.000000 1.500000 \n-2.000000 1000000.000000 \n\n"
    assert top_left(np.array([[1 / 3]], "float32")) == "0.333333 \n\n"
    assert top_left([[1e-9, float("nan"), float("inf")]]) == "0.000000 nan inf \n\n"
    assert top_left(np.empty((0, 5))) == "\n"
    assert top_left(np.empty((2, 0))) == "\n\n\n"


def test_the_table_has_a_row_a_phase_in_their_order_with_spread_share_and_rate():
    phases = {
        "check": steady(0.5),
        "multiply": Spread(2.0, 1.5, 2.5),
        "fill": steady(0.25),
        "scatter": steady(1.0),
    }
    lines = [line.split() for line in table(plan_of(), phases, steady(4.0)).splitlines()]
    assert lines[0] == ["phase", "seconds", "min", "max", "share", "rate"]
    assert lines[1] == ["fill", "0.2500", "0.2500", "0.2500", "–", "64.00", "MB/s"]
    assert lines[2] == ["scatter", "1.0000", "1.0000", "1.0000", "25", "%"]
    assert lines[3] == ["multiply", "2.0000", "1.5000", "2.5000", "50", "%", "1.00", "GF/s"]
    assert lines[4] == ["check", "0.5000", "0.5000", "0.5000", "–", "48.00", "MB/s"]
    assert lines[5] == ["between", "1.0000", "25", "%"]
    assert len(lines) == 6


def test_phases_that_run_beside_each_other_overlap():
    phases = {"copy in": steady(1.5), "multiply": steady(2.0), "copy out": steady(1.0), "fill": steady(9.0)}
    lines = [line.split() for line in table(plan_of(), phases, steady(3.0)).splitlines()]
    shares = {line[0] if line[1][0].isdigit() or line[1][0] == "-" else " ".join(line[:2]): line for line in lines[1:]}
    assert "50 %" in " ".join(shares["copy in"])
    assert shares["overlap"] == ["overlap", "-1.5000", "-50", "%"]


@settings(max_examples=100)
@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=6), st.floats(0.3, 3))
def test_the_shares_of_any_product_add_up(seconds, stretch):
    phases = dict(zip(("scatter", "copy in", "exchange", "multiply", "copy out", "gather"), map(steady, seconds), strict=False))
    text = table(plan_of(), phases, steady(stretch * sum(seconds)))
    assert sum(int(share) for share in re.findall(r"(-?\d+) %", text)) == 100


@pytest.mark.parametrize(
    ("parts", "whole"), [([1, 1, 1], [34, 33, 33]), ([2, -1], [200, -100]), ([0, 0], [0, 0]), ([], []), ([1, 199], [1, 99])]
)
def test_percents_add_up(parts, whole):
    assert percents(parts) == whole


def test_a_corner_says_of_which_matrix_it_is():
    matrix = np.arange(6.0).reshape(2, 3)
    assert labelled_corner("A", matrix, (2, 3)).splitlines()[0] == "A (2×3)"
    assert labelled_corner("C", matrix, (200, 3)).splitlines()[0] == "C (200×3), its top left 2×3"
    assert labelled_corner("B", matrix[:0], (0, 3)) == "B (0×3)\n\n"
    assert labelled_corner("B", matrix, (2, 3)).splitlines()[1:] == top_left(matrix).splitlines()


def test_the_columns_of_the_table_stand_below_one_another():
    lines = table(plan_of(), {"fill": steady(0.25), "multiply": steady(100.0)}, steady(100.0)).splitlines()
    matrices = [line.index(text) + len(text) for line, text in zip(lines, ("seconds", "0.2500", "100.0000"), strict=True)]
    assert len(set(matrices)) == 1


def test_no_time_gives_no_rate_and_no_share():
    assert rate(plan_of(), "multiply", 0.0) == ""
    assert table(plan_of(), {"multiply": steady(0.0)}, steady(0.0)).splitlines()[1].split()[-1] == "–"


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (None, "check off"),
        (GOOD, "check ok (freivalds, error 1.2e-15, tolerance 3.0e-12)"),
        (Check("freivalds", 9, 8, True, note="rounding"), "check ok (freivalds, error 9.0e+00, tolerance 8.0e+00; rounding)"),
        (Check("exact", 2.0, 0.0, False), "check FAILED (exact, error 2.0e+00, tolerance 0.0e+00)"),
        (Check("none", 0.0, 3e-12, True), "check impossible (NaN, infinity or too large values in A or B)"),
    ],
)
def test_the_last_line_is_the_same_for_every_script(check, text):
    assert last_line(plan_of(), Spread(0.5, 0.25, 0.75), check) == f"total 0.5000 s  rate 4.00 GF/s  {text}"
    assert verdict(check) == text.removeprefix("check ")


def test_a_product_in_no_time_has_no_rate():
    assert last_line(plan_of(0, 0, 0), steady(0.0), None) == "total 0.0000 s  rate 0.00 MF/s  check off"


def test_the_wall_time_is_told_with_the_parts_that_take_any():
    assert wall_line({"start": 0.125, "imports": 0.5, "fill": 0.001, "product": 1.25}) == (
        "wall 1.88 s: start 0.12, imports 0.50, product 1.25"
    )


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(0, "0.00 MB/s"), (12_345_678, "12.35 MB/s"), (1e9, "1.00 GB/s"), (54.8e9, "54.80 GB/s"), (21929.46e9, "21.93 TB/s")],
)
def test_rates_are_told_in_units_that_people_read(per_second, text):
    assert rate_in_units(per_second, "B") == text


def test_moved_bytes_of_every_phase():
    plan = plan_of(100, 10, 20, ranks=4, per_node=2, dtype="float32")
    moved = {phase: moved_bytes(plan, phase) for phase in ("fill", "scatter", "copy in", "copy out", "gather", "check")}
    a, b, c = 4000, 800, 8000
    assert moved == {"fill": a + b, "scatter": 0, "copy in": a + 4 * b, "copy out": c, "gather": c // 2, "check": a + b + c}
    assert moved_bytes(plan_of(2, 10, 20, ranks=4), "copy in") == 8 * (2 * 10 + 2 * 200)  # two ranks have no rows
    assert moved_bytes(plan_of(2, 10, 20, ranks=4), "gather") == 0


@pytest.mark.parametrize(("transport", "loads"), [("peers", 2), ("nccl", 1)])
def test_rows_of_b_cross_a_link_once_for_all_who_exchange_them(transport, loads):
    plan = replace(plan_of(100, 10, 20, ranks=4, per_node=2, dtype="float32"), transport=transport)
    a, b = 4000, 800
    assert [moved_bytes(plan, phase) for phase in ("copy in", "exchange")] == [a + loads * b, (4 - loads) * b]


def placement(rank, **more):
    return RankPlacement(rank, "host", (0, 1, 4), Threads(3, "3 cores"), **more)


def agreement_of(plan, *placements):
    return Decision(plan, named("blas"), "asked for", "no GPU", "one rank a node", "only GPUs have units for bytes", placements)


def test_a_rank_is_described_with_its_cores_threads_gpu_and_rows():
    assert describe(placement(2), Span(5, 9)) == "rank 2  host  cores 0-1,4  3 threads (3 cores)  rows 5:9"
    gpu = Gpu(0, "GPU-1234", "NVIDIA H200")
    assert describe(placement(0, gpu=gpu), Span(0, 3)).endswith("NVIDIA H200 GPU-1234  rows 0:3")
    assert describe(placement(0, gpu=gpu, shares_gpu_with=(1, 3)), Span(0, 3)).endswith(
        "GPU-1234 shared with rank 1, 3  rows 0:3"
    )


def test_the_heading_names_the_product_and_every_rank():
    lines = heading(agreement_of(plan_of(10, 20, 30, ranks=2), placement(0), placement(1))).splitlines()
    assert lines[0] == ("C (10×30) = A (10×20) · B (20×30)  float64  2 ranks on 1 node  cpu (no GPU)  kernel blas (asked for)")
    assert [line.split("  ")[1] for line in lines[1:]] == ["rank 0", "rank 1"]
    assert [line.rsplit("  ", 1)[1] for line in lines[1:]] == ["rows 0:5", "rows 5:10"]
    assert "1 rank on 1 node " in heading(agreement_of(plan_of(), placement(0)))


@pytest.mark.parametrize("check", [None, GOOD])
def test_the_record_of_a_run_holds_what_it_was_and_what_it_took(check):
    plan = plan_of(10, 20, 30, ranks=2)
    window = RowView(np.empty((1, 1)), Span(0, 1))
    outcome = Outcome(
        agreement_of(plan, placement(0), placement(1, gpu=Gpu(0, "GPU-1", "H200"))),
        *(window, window, window),
        {"multiply": Spread(2.0, 1.0, 3.0)},
        steady(4.0),
        check,
    )
    written = as_record(outcome, {"fill": "uniform", "seed": 3}, {"threads": 0}, {"start": 0.5, "end": 0.25})
    assert written["wall"] == {"start": 0.5, "end": 0.25, "total": 0.75}
    assert (written["n"], written["l"], written["m"], written["dtype"]) == (10, 20, 30, "float64")
    assert (written["ranks"], written["nodes"], written["device"], written["kernel"]) == (2, 1, "cpu", "blas")
    assert (written["fill"], written["seed"], written["settings"]) == ("uniform", 3, {"threads": 0})
    assert written["seconds"] == {"multiply": {"median": 2.0, "min": 1.0, "max": 3.0}}
    assert written["rate"] == 2 * 10 * 20 * 30 / 4.0
    assert written["check"]["ok"] is (True if check else None)
    assert [each["rows"] for each in written["placements"]] == ["0:5", "5:10"]
    assert [each["uuid"] for each in written["placements"]] == [None, "GPU-1"]
    assert written["placements"][0]["cores"] == "0-1,4"


def test_of_a_product_in_parts_counts_what_was_computed_now():
    whole, plans = plan_of(10, 20, 30), (plan_of(4, 20, 30), plan_of(2, 20, 30))
    of_b = 8 * 20 * 30
    assert rate(plans, "multiply", 1e-6) == rate(plan_of(6, 20, 30), "multiply", 1e-6)
    assert rate(plans, "fill", 1.0) == rate_in_units(8 * 6 * 20 + of_b, "B")  # B once
    assert rate(plans, "check", 1.0) == rate_in_units(8 * 6 * 20 + 2 * of_b + 8 * 6 * 30, "B")
    window = RowView(np.empty((0, 0)), Span(0, 0))
    parts = Parts(4, 4, plans)
    outcome = Outcome(agreement_of(whole, placement(0)), window, window, window, {}, steady(4.0), GOOD, parts=parts)
    written = as_record(outcome, {}, {}, {})
    assert (written["n"], written["rate"]) == (10, 2 * 6 * 20 * 30 / 4.0)
    rows = {"part_rows": 4, "rows_there": 4, "rows_computed": 6, "parts_computed": 2, "rows_missing": 0}
    assert written["resume"] == rows
    assert last_line(plans_of(outcome), outcome.total, GOOD) == last_line(plan_of(6, 20, 30), outcome.total, GOOD)


def test_what_is_there_of_a_product_in_parts_is_told_before_the_rest_is_computed():
    assert parts_line(4, 10, 0, "C.npy.part") == "  resume: 10 rows are computed in 3 parts of 4 rows"
    assert parts_line(4, 10, 4, "it") == "  resume: 4 of 10 rows are there, by it; 6 rows are computed in 2 parts of 4 rows"
    assert parts_line(4, 10, 10, "it") == "  resume: 10 of 10 rows are there, by it"
    assert parts_line(4, 0, 0, "it") == "  resume: C has no rows"


@pytest.mark.parametrize(
    ("number", "text"),
    [(1.31e-16, "1.4e-16"), (1.3e-16, "1.3e-16"), (9.91e-16, "1.0e-15"), (2.0**-24, "6.0e-8"), (5e-324, "5.0e-324")],
)
def test_what_is_proved_is_never_shown_too_small(number, text):
    assert rounded_up(number) == text
    assert float(text) >= number


def test_each_arithmetic_is_told_with_what_is_proved():
    computed = {NATIVE: (10, None), Arithmetic(15): (70, 4.12e-16), Arithmetic(5, scaled=False): (15, 0.0), BYTES: (5, 2.0**-24)}
    assert arithmetic_line(computed) == (
        "arithmetic: 70 % 15 moduli (proved: error ≤ 4.2e-16·|A||B|), 15 % 5 moduli, exact, 10 % native, "
        "5 % bytes, exact (rounded once: error ≤ 6.0e-8·|A||B|)"
    )
