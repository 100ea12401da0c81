# SPDX-License-Identifier: MIT
"""Finds those of several ranks or links that take longer than the others, where all should be alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from hybrid.core.text import rate_in_units
from hybrid.core.timeline import Spread

K = TypeVar("K")


def beside(times: Mapping[K, float]) -> dict[K, float]:
    """The time that each is compared with: the median of all; where there are two, the other's."""
    if len(times) == 2:
        (one, first), (other, second) = times.items()
        return {one: second, other: first}
    return dict.fromkeys(times, Spread.of(list(times.values())).median if times else 0.0)


def slow_links(rates: Mapping[str, Sequence[float]], kind: str, limit: float) -> Iterator[str]:
    """A text for each link that takes more than `limit` times what it is compared with. `rates[link]`: in bytes a second."""
    times = {name: 1 / median for name, each in rates.items() if (median := Spread.of(list(each)).median) > 0}
    which = "the other one" if len(times) == 2 else "the median"
    for name, reference in beside(times).items():
        if times[name] > limit * reference:
            own, others = (rate_in_units(1 / seconds, "B") for seconds in (times[name], reference))
            yield f"{name}: slow, {own}{kind}; {which} has {others}"
