# SPDX-License-Identifier: MIT
"""What chooses and counts the tests."""

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st
from support.outcomes import untested
from support.selection import exhaustive, pairs_first, pairwise


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_any_two_values_of_different_lists_come_together(sizes):
    lists = [[{"list": number, "value": value} for value in range(size)] for number, size in enumerate(sizes)]  # not hashable
    chosen = pairwise(*lists)
    for one, other in combinations(range(len(lists)), 2):
        for values in product(lists[one], lists[other]):
            assert any((case[one], case[other]) == values for case in chosen)
    assert len(chosen) <= len(list(product(*lists)))


def test_what_is_not_chosen_needs_all(request):
    everything = request.config.option.all
    assert [case.values for case in exhaustive([2], [1, 2, 3])] == ([(1,), (2,), (3,)] if everything else [(2,)])
    assert [case.id for case in pairs_first([float], [(1, 2)])] == ["float-1x2"]


def test_a_test_counts_as_untested_if_no_run_has_run_it():
    lines = [
        "a\tskipped\tneeds several ranks",
        "a\tpassed\t",
        "b\tskipped\tneeds a GPU",
        "b\tskipped\tneeds a GPU",
        "c\tskipped\tneeds root",
        "e\tfailed\t",
    ]
    assert untested(lines) == {"needs a GPU": 1, "needs root": 1}
