"""Whether what was measured reaches what it must."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Verdict(NamedTuple):
    passed: bool
    text: str


def all_reached(verdicts: Iterable[Verdict]) -> bool:
    """Print each verdict; whether all are good."""
    every = list(verdicts)
    for verdict in every:
        print("pass  " if verdict.passed else "MISSED", verdict.text)
    return all(verdict.passed for verdict in every)
