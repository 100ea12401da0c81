# SPDX-License-Identifier: MIT
"""Numbers and words for messages and tables; warnings that point at the calling line of the user's program."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence

from hybrid.core.problem import Span, merged


def readable(count: float) -> str:
    """`count` bytes in the unit (B, KiB, …, EiB) in which the rounded number is below 1024."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if round(abs(count), 0 if unit == "B" else 1) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} EiB"


def rate_in_units(per_second: float, unit: str) -> str:
    """`per_second` with two decimals in M, G or T (10⁶, 10⁹, 10¹²) of the unit."""
    for prefix, factor in (("T", 1e12), ("G", 1e9)):
        if per_second >= factor:
            return f"{per_second / factor:.2f} {prefix}{unit}/s"
    return f"{per_second / 1e6:.2f} M{unit}/s"


def duration(seconds: float) -> str:
    """A time in the unit in which it has at most two digits: 12 s, 3 min, 1.5 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges: 0,1,2,5 become "0-2,5"."""
    runs = merged(Span(number, number + 1) for number in numbers)
    return ",".join(f"{run.lo}-{run.hi - 1}" if len(run) > 1 else str(run.lo) for run in runs)


def aligned(rows: Sequence[Sequence[str]], sides: str = "") -> Iterator[str]:
    """The rows of a table with aligned columns. `sides`: l or r for each column (r)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, sides or "r" * len(row), strict=True)
        yield "  ".join(f"{cell:{'<' if side == 'l' else '>'}{width}}" for cell, width, side in cells).rstrip()


def printable(text: str) -> str:
    """The text with control characters, which a terminal would obey, escaped as \\x1b; line ends stay."""
    return "".join(each if each == "\n" or each.isprintable() else ascii(each)[1:-1] for each in text)


def counted(number: int | str, word: str) -> str:
    """A number with its noun: "1 rank", "2 ranks"."""
    return f"{number} {word}{'' if str(number) == '1' else 's'}"


def rounded_up(number: float) -> str:
    """A number above 0, rounded up to two digits: 1.31e-16 becomes "1.4e-16"."""
    from decimal import ROUND_CEILING, Context  # few commands need it

    return f"{Context(prec=2, rounding=ROUND_CEILING).create_decimal(number):.1e}"


def tell_nobody(*done: object) -> None:
    """A progress callback that does nothing."""


_OWN = {__name__.partition(".")[0], "contextlib"}  # frames to skip: many calls are within a context


def warn(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Issue a warning that points at the line of the user's program that called this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OWN:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
