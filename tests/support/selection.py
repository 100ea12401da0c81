"""What runs by default and what only with --all: of large tables of cases, a choice that still has every value in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the cases marked `exhaustive`, too")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.all:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


def exhaustive(chosen: Iterable[Any], everything: Iterable[Any]) -> list[Any]:
    """`everything` as parameters, of which all but those in `chosen` need --all."""
    cases = [case if isinstance(case, tuple) else (case,) for case in everything]
    wanted = [case if isinstance(case, tuple) else (case,) for case in chosen]
    assert all(case in cases for case in wanted)
    return [pytest.param(*case, marks=[] if case in wanted else [pytest.mark.exhaustive]) for case in cases]


def pairwise(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few of the combinations such that any two values of different lists come together in one: found greedily."""
    combinations_left = list(product(*values))
    missing = {pair for case in combinations_left for pair in _pairs(case)}
    chosen = []
    while missing:
        best = max(combinations_left, key=lambda case: len(missing.intersection(_pairs(case))))
        missing.difference_update(_pairs(best))
        chosen.append(best)
    return chosen


def _pairs(case: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return list(combinations(enumerate(case), 2))
