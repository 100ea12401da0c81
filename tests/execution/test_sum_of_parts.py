# SPDX-License-Identifier: MIT
"""What parts of a product come to together."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.core.timeline import Spread
from hybrid.execution.outcome import Outcome
from hybrid.execution.part_request import parts_of, rows_of_a_part, sample_of
from hybrid.execution.sum_of_parts import SumOfParts
from hybrid.host.row_view import RowView
from hybrid.plan.arithmetic import NATIVE
from hybrid.verification.check import Check

ROUNDED = Check("freivalds", 2.5, 8.0, ok=True)
EXACT = Check("exact", 0.0, 0.0, ok=True)


def outcome(rows, seconds, check):
    decision = SimpleNamespace(plan=planned(Problem(rows, 3, 2, "float64"), Topology(((0,),))))
    view, time = RowView(np.empty((0, 0)), Span(0, 0)), Spread(seconds, seconds, seconds)
    return Outcome(decision, view, view, view, {"multiply": time}, time, check, arithmetic={NATIVE: (2 * rows, None)})


def test_times_add_up_and_the_worst_check_counts():
    made = SumOfParts()
    for number, check in enumerate((EXACT, ROUNDED, replace(ROUNDED, error=1.0), EXACT)):
        made.add(outcome(4, 1.5, check), Span(4 * number, 4 * number + 4))
    whole = made.outcome(None, 4, 8)
    assert whole.phases == {"multiply": Spread(6.0, 6.0, 6.0)}
    assert whole.total.median == 6.0
    assert whole.check == ROUNDED
    assert whole.arithmetic == {NATIVE: (32, None)}
    assert (whole.parts.rows, whole.parts.there, len(whole.parts.plans)) == (4, 8, 4)


def test_faults_say_in_which_rows_of_c_they_are():
    made = SumOfParts()
    made.add(outcome(4, 1.0, replace(EXACT, repaired=("row 1 again",))), Span(0, 4))
    made.add(outcome(4, 1.0, Check("exact", 1.0, 0.0, ok=False, faults=("row 2 of C",))), Span(4, 8))
    assert made.failed
    assert made.check.faults == ("in the part of rows 4:8, counted from 4: row 2 of C",)
    assert made.check.repaired == ("in the part of rows 0:4, counted from 0: row 1 again",)


def test_where_nothing_was_left_the_checksums_were_the_check():
    check = SumOfParts().outcome(None, 4, 8).check
    assert (check.ok, check.kind, check.note) == (True, "checksums", "all rows were there")


def test_a_part_takes_about_a_minute_and_all_rows_where_that_is_less():
    def rows(n, l, m, threads, ranks=1):
        problem = Problem(n, l, m, "float64")
        sample = planned(sample_of(problem, ranks), Topology((tuple(range(ranks)),)))
        placements = [SimpleNamespace(threads=SimpleNamespace(count=threads), gpu=None)] * ranks
        return rows_of_a_part(problem, SimpleNamespace(plan=sample, placements=placements))

    assert rows(100_000, 100_000, 100_000, 8) == 60 * 8 * 2 * 10**10 // (2 * 10**10)
    assert rows(100_000, 100_000, 100_000, 8, ranks=4) == 4 * 480
    assert rows(1000, 1000, 1000, 1) == 1000
    assert rows(10**6, 10**6, 10**6, 1, ranks=2) == 2 * 64  # at least
    assert rows(0, 3, 4, 1) == 1
    assert parts_of(Problem(10, 3, 4), 4) == [Span(0, 4), Span(4, 8), Span(8, 10)]
