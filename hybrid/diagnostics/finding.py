"""What the doctor looks at, a module a subject: `look` on every rank, `judge` what all ranks saw.

Looking needs the machine and never fails: what cannot be determined is Unknown. Judging is plain arithmetic on what was
seen, the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hybrid.errors import one_line

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's. `verdict`: "ok", "note", "unknown" or "wrong"; what is wrong says what to do, its `remedy`."""

    subject: str
    verdict: str
    text: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.verdict in ("ok", "note", "unknown", "wrong"), self.verdict
        assert self.remedy or self.verdict != "wrong", self.text


@dataclass(frozen=True)
class Unknown:
    """Stands for what could not be determined."""

    reason: str


def attempt(look: Callable[[], T]) -> T | Unknown:
    """What `look` returns; Unknown, with the reason, if it cannot."""
    try:
        return look()
    except Exception as error:
        return Unknown(one_line(error))


def counted(number: int | str, word: str) -> str:
    """1 rank, 2 ranks"""
    return f"{number} {word}{'' if str(number) == '1' else 's'}"


def alike(values: Iterable[H]) -> dict[H, list[int]]:
    """Which ranks hold the same value. `values[rank]`, in order."""
    ranks: dict[H, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks
