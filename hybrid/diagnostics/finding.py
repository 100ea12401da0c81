# SPDX-License-Identifier: MIT
"""The findings of the doctor and the acceptance test, a line each."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hybrid.core.problem import record
from hybrid.core.text import ranges
from hybrid.errors import known, one_line, with_code

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


@record
class Finding:
    """One line of output. `verdict`: "ok", "note", "unknown" or "wrong"; a wrong finding has a `remedy`.

    `code`: of `hybrid.errors.CODES`; the verdict itself for "ok", and by default for "unknown".
    """

    subject: str
    text: str
    remedy: str = ""
    code: str = ""
    verdict: str = "ok"

    def __post_init__(self) -> None:
        assert self.verdict in ("ok", "note", "unknown", "wrong"), self.verdict
        if self.verdict == "ok" or (self.verdict == "unknown" and not self.code):
            object.__setattr__(self, "code", self.verdict)
        known(self.code)
        assert self.remedy or self.verdict != "wrong", self.text

    def line(self, width: int) -> str:
        """The finding as a line of text. `width`: of the subject."""
        verdict = "WRONG" if self.verdict == "wrong" else self.verdict
        remedy = f" → {self.remedy}" if self.remedy else ""
        line = f"{verdict:<7}  {self.subject:<{width}}  {self.text}{remedy}"
        return line if self.verdict == "ok" else with_code(line, self.code)


ok, note, unknown, wrong = (partial(Finding, verdict=verdict) for verdict in ("ok", "note", "unknown", "wrong"))


@record
class Unknown:
    """A value that could not be determined."""

    reason: str


def attempt(determine: Callable[[], T]) -> T | Unknown:
    """The result of `determine`; Unknown, with the reason, if it raises."""
    try:
        return determine()
    except Exception as error:
        return Unknown(one_line(error))


def ranks_by_value(values: Iterable[H]) -> dict[H, list[int]]:
    """The ranks that have each value. `values`: in the order of the ranks."""
    ranks: dict[H, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks


def merged(of_ranks: Sequence[Sequence[Finding] | None]) -> list[Finding]:
    """One finding for all ranks that found the same; it names the ranks unless all found it. None: a rank that did not look."""
    ranks: dict[Finding, list[int]] = {}
    for rank, findings in enumerate(of_ranks):
        for finding in findings or ():
            ranks.setdefault(finding, []).append(rank)
    looked = sum(findings is not None for findings in of_ranks)
    return [replace(each, text=f"rank {ranges(who)}: " * (len(who) < looked) + each.text) for each, who in ranks.items()]


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each, with columns of equal width."""
    width = max(len(finding.subject) for finding in findings)
    return (finding.line(width) for finding in findings)
