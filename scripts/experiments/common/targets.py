# SPDX-License-Identifier: MIT
"""Whether what was measured reaches what it must."""

from collections.abc import Iterable
from typing import NamedTuple


class Verdict(NamedTuple):
    passed: bool
    text: str


def verdict(what: str, value: float, wanted: float, unit: str, *, at_least: bool = False) -> Verdict:
    """Without `at_least` the value is wanted at most."""
    short = wanted - value if at_least else value - wanted
    text = f"{what}: {value:.4g} {unit}, wanted {'at least' if at_least else 'at most'} {wanted:g}"
    return Verdict(short <= 0, f"{text}, {'short' if at_least else 'over'} by {short:.4g}" if short > 0 else text)


def all_reached(verdicts: Iterable[Verdict]) -> bool:
    """Print each verdict; whether all are good."""
    every = list(verdicts)
    for one in every:
        print("pass  " if one.passed else "MISSED", one.text)
    return all(one.passed for one in every)
