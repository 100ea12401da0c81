# SPDX-License-Identifier: MIT
"""What runs by default and what only with --all: of large tables of cases, a choice that still has every value in it."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from support.ranks import world

_all = False  # whether --all is given


def pytest_configure(config: pytest.Config) -> None:
    global _all
    _all = config.option.all


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the cases marked `exhaustive`, too")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    comm = world(config)
    ranks = comm.size if comm else 1
    left_out = [] if config.option.all else [item for item in items if _needs_all(item.iter_markers("exhaustive"), ranks)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _needs_all(marks: Iterable[pytest.Mark], ranks: int) -> bool:
    """Whether the marks say so: `exhaustive`, or `exhaustive(above=2)` on more than two ranks."""
    return any(ranks > mark.kwargs.get("above", 0) for mark in marks)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under mpirun each rank reads only the modules that have tests for several."""
    if not config.getoption("--with-mpi", False) or collection_path.suffix != ".py":
        return None
    return None if "mark.mpi" in collection_path.read_text(encoding="utf-8") else True


def examples(number: int, one_in: int = 4, **more: Any) -> settings:
    """Hypothesis draws `number` examples with --all, one in `one_in` of them by default."""
    return settings(max_examples=number if _all else -(-number // one_in), **more)


def exhaustive(chosen: Iterable[Any], everything: Iterable[Any]) -> list[Any]:
    """`everything` as parameters with --all, by default those in `chosen`."""
    cases = [case if isinstance(case, tuple) else (case,) for case in everything]
    wanted = [case if isinstance(case, tuple) else (case,) for case in chosen]
    assert all(case in cases for case in wanted)
    return [pytest.param(*case) for case in cases if _all or case in wanted] or [
        pytest.param(*cases[0], marks=pytest.mark.exhaustive)
    ]


def pairs_first(*values: Sequence[Any]) -> list[Any]:
    """Every combination as parameters with --all, by default a pairwise choice."""
    return [pytest.param(*case, id="-".join(map(_name, case))) for case in (product(*values) if _all else pairwise(*values))]


def _name(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else getattr(value, "__name__", str(value))


def pairwise(*values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few of the combinations such that any two values of different lists come together in one: found greedily."""
    cases = {case: frozenset(_pairs(case)) for case in product(*(range(len(options)) for options in values))}
    missing = set().union(*cases.values())
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(missing & cases[case]))
        missing -= cases[best]
        chosen.append(tuple(options[index] for options, index in zip(map(list, values), best, strict=True)))
    return chosen


def _pairs(case: tuple[int, ...]) -> list[tuple[Any, ...]]:
    return list(combinations(enumerate(case), 2))
