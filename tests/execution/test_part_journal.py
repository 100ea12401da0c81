# SPDX-License-Identifier: MIT
"""What a journal of parts comes to, and which jobs may go on with it."""

from __future__ import annotations

import json

import pytest

from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.execution.part_journal import State, arithmetic_line, first_line, part_line, state_of
from hybrid.execution.part_request import ROWS_OF_A_PART
from hybrid.host.partial_matrix import Frame

ASKED = {"sizes": "9×8×7", "A": "normal of seed 0"}
ONE, TWO = {"ranks": "1", "threads": "2", "tiles": "aa"}, {"ranks": "2", "threads": "1", "tiles": "bb"}
FRAME = Frame(632, 128, "00ff")


def read(*lines):
    """The lines as they come back from a file."""
    return state_of(json.loads(json.dumps([first_line(ASKED, 3, FRAME), *lines])), "C.npy.journal")


def test_the_last_line_of_a_part_counts_and_each_belongs_to_the_arithmetic_before_it():
    state = read(
        arithmetic_line(ONE),
        part_line(Span(0, 3), "a", exact=True),
        part_line(Span(3, 6), "b", exact=False),
        arithmetic_line(TWO),
        part_line(Span(0, 3), "c", exact=False),
    )
    assert (state.asked, state.rows, state.frame, state.arithmetic) == (ASKED, 3, FRAME, TWO)
    found = {part.rows: (part.digest, part.exact, part.arithmetic) for part in state.written}
    assert found == {Span(0, 3): ("c", False, TWO), Span(3, 6): ("b", False, ONE)}


def test_no_lines_are_the_journal_of_a_job_that_has_not_begun():
    state = state_of([], "C.npy.journal")
    assert state == State({})
    state.refuse_other(ASKED, ONE, "files")


@pytest.mark.parametrize("lines", [
    [{"rows": 3}], [{**first_line(ASKED, 3, FRAME), "frame": {"size": 1}}], [first_line(ASKED, 3, FRAME), {"part": [1]}],
    [first_line(ASKED, 3, FRAME), {"part": 7}], [{**first_line(ASKED, 3, FRAME), "rows": "many"}],
    [{**first_line(ASKED, 3, FRAME), "asked": "much"}], [first_line(ASKED, 3, FRAME), {"arithmetic": 7}],
    [{**first_line(ASKED, 3, FRAME), "rows": 0}], [{**first_line(ASKED, 3, FRAME), "rows": -3}],
])  # fmt: skip
def test_lines_that_make_no_sense_are_refused(lines):
    with pytest.raises(UsageError, match=r"^C\.npy\.journal is malformed \(.*\): remove it to begin anew$"):
        state_of(lines, "C.npy.journal")


def test_another_product_is_refused_by_what_differs():
    state = read(arithmetic_line(ONE))
    state.refuse_other(ASKED, TWO, "files")  # nothing is written yet
    with pytest.raises(UsageError) as refused:
        state.refuse_other({**ASKED, "A": "normal of seed 1", "B": "index"}, ONE, "C.npy.part")
    assert str(refused.value) == (
        "C.npy.part are of another product (A normal of seed 0 there, normal of seed 1 here; B not known there, index here): "
        "remove them, or leave out --resume"
    )


def test_only_other_parts_are_no_other_product():
    state = state_of([first_line({**ASKED, ROWS_OF_A_PART: "3"}, 3, FRAME)], "C.npy.journal")
    with pytest.raises(UsageError) as refused:
        state.refuse_other({**ASKED, ROWS_OF_A_PART: "5"}, ONE, "C.npy.part and C.npy.journal")
    assert str(refused.value) == (
        "C.npy.part and C.npy.journal were begun with parts of 3 rows: leave out --resume-rows, or give --resume-rows 3"
    )
    with pytest.raises(UsageError, match="are of another product"):
        state.refuse_other({**ASKED, ROWS_OF_A_PART: "5", "B": "index"}, ONE, "files")


def test_rows_of_another_arithmetic_are_refused_unless_they_are_exact():
    exact = read(arithmetic_line(ONE), part_line(Span(0, 3), "a", exact=True))
    exact.refuse_other(ASKED, TWO, "files")
    rounded = read(arithmetic_line(ONE), part_line(Span(0, 3), "a", exact=False))
    rounded.refuse_other(ASKED, ONE, "files")
    with pytest.raises(UsageError) as refused:
        rounded.refuse_other(ASKED, TWO, "C.npy.part")
    assert str(refused.value) == (
        "C.npy.part have rows whose last bits may be others than here (ranks 1 there, 2 here; threads 2 there, 1 here): "
        "go on as they were computed, or remove them to begin anew"
    )
    with pytest.raises(UsageError, match=r"\(tiles aa there, bb here\)"):
        rounded.refuse_other(ASKED, {**ONE, "tiles": "bb"}, "C.npy.part")
