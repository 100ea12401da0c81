# SPDX-License-Identifier: MIT
"""What chooses and counts the tests."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.outcomes import LEFT_OUT, untested
from support.selection import exhaustive, pairs_first, pairwise

ROOT = Path(__file__).resolve().parents[2]


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_any_two_values_of_different_lists_come_together(sizes):
    lists = [[{"list": number, "value": value} for value in range(size)] for number, size in enumerate(sizes)]  # not hashable
    chosen = pairwise(*lists)
    for one, other in combinations(range(len(lists)), 2):
        for values in product(lists[one], lists[other]):
            assert any((case[one], case[other]) == values for case in chosen)
    assert len(chosen) <= len(list(product(*lists)))


def test_what_is_not_chosen_needs_all():
    cases = exhaustive([2], [1, 2, 3])
    assert [(case.values, [mark.name for mark in case.marks]) for case in cases] == [
        ((1,), ["exhaustive"]), ((2,), []), ((3,), ["exhaustive"])
    ]  # fmt: skip
    assert [case.id for case in pairs_first([float], [(1, 2)])] == ["float-1x2"]


def test_of_what_needs_all_some_can_be_drawn():
    """Here tests are only collected, in a process of its own, one time after the other."""
    ways = ["", "--all", "--one-in 3 --seed 1", "--one-in 3 --seed 2", "--one-in 3 --seed 1"]
    program = (
        "import sys, pytest\n"
        "for way in sys.argv[1:]:\n"
        "    print('a way')\n"
        "    words = ['--collect-only', '-q', '-p', 'no:cacheprovider', '-n', '0', *way.split()]\n"
        "    pytest.main([*words, 'tests/verification/test_faults.py'])\n"
    )
    out = subprocess.run([sys.executable, "-c", program, *ways], cwd=ROOT, capture_output=True, text=True).stdout
    usual, everything, some, others, again = (
        {line for line in part.splitlines() if "::" in line} for part in out.split("a way\n")[1:]
    )
    assert usual
    assert some == again
    for drawn in (some, others):
        assert usual < drawn < everything
    assert some != others


def test_a_test_counts_as_untested_if_no_run_has_run_it():
    lines = [
        "a\tskipped\tneeds several ranks",
        "a\tpassed\t",
        "b\tskipped\tneeds a GPU",
        "b\tskipped\tneeds a GPU",
        "c\tskipped\tneeds root",
        f"d\tleft out\t{LEFT_OUT}",
        "e\tfailed\t",
    ]
    assert untested(lines) == {"needs a GPU": 1, "needs root": 1, LEFT_OUT: 1}
