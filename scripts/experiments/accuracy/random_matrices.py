# SPDX-License-Identifier: MIT
"""What recorded errors of random matrices say: how many of them the guard accepted, and whose errors exceed native ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.accuracy.errors import UNITS, above
from experiments.accuracy.wording import CUBLAS, MODES, NATIVE, about_native, pair, short
from experiments.common import tables
from experiments.common.records import Line

_HEADS = ["type", "computed by", "matrices", "from remainders", "exact", "above native", "rms", "maximum", "proved"]


def blocks(lines: Sequence[Line]) -> Iterator[tables.Block]:
    dtypes = list(dict.fromkeys(line["dtype"] for line in lines))
    rows = [_row(dtype, how, [line for line in lines if line["dtype"] == dtype]) for dtype in dtypes for how in (*MODES, CUBLAS)]
    seeds = [line["seed"] for line in lines]
    title = f"{len(lines)} pairs of random matrices, seeds from {min(seeds)} to {max(seeds)}"
    yield tables.Table(_HEADS, "llrrrrrrr", [row for row in rows if row], title)
    yield tables.Remarks([_about_columns(lines[-1]), *_named(lines)])


def failed(lines: Sequence[Line]) -> list[tuple[Line, str]]:
    """Products that have larger errors than their arithmetic may have, each with its precision."""
    return [(line, mode) for line in lines for mode in MODES if _accepted(line, mode) and _exceeds(line, mode, strict=False)]


def _accepted(line: Line, mode: str) -> bool:
    return "native" not in line["chosen"][mode]


def _exceeds(line: Line, how: str, *, strict: bool) -> bool:
    """Native errors; unless `strict`, those that the arithmetic may have."""
    return above(line["errors"][how], line["errors"][NATIVE], "" if strict else line["chosen"][how])


def _row(dtype: str, how: str, lines: Sequence[Line]) -> list[str]:
    """Empty where nothing was computed so."""
    if how == CUBLAS:
        there = [line for line in lines if CUBLAS in line["errors"]]
        exact, proved = "–", "–"
    else:
        there = [line for line in lines if _accepted(line, how)]
        exact = str(sum(line["certified"][how] == 0 for line in there))
        times = [
            line["certified"][how] / UNITS[dtype] / line["errors"][how][1]
            for line in there
            if line["certified"][how] and line["errors"][how][1]
        ]
        proved = f"{short(min(times))} to {short(max(times))}" if times else "–"
    if not there and how == CUBLAS:
        return []
    above_native = str(sum(_exceeds(line, how, strict=True) for line in there))
    accepted = "–" if how == CUBLAS else str(len(there))
    return [
        dtype,
        how,
        str(len(lines)),
        accepted,
        exact,
        above_native,
        *(_largest(there, how, which) for which in (0, 1)),
        proved,
    ]


def _largest(lines: Sequence[Line], how: str, which: int) -> str:
    """Quotient of an error and the native one."""
    pairs = [(line["errors"][how][which], line["errors"][NATIVE][which]) for line in lines]
    quotients = [error / native for error, native in pairs if native]
    return short(max(quotients)) if quotients else "–"


def _named(lines: Sequence[Line]) -> Iterator[str]:
    """The seeds of what exceeds native errors."""
    wrong = failed(lines)
    for mode in MODES:
        slightly = [line for line in lines if _accepted(line, mode) and _exceeds(line, mode, strict=True)]
        seeds = [str(line["seed"]) for line in slightly if (line, mode) not in wrong]
        if seeds:
            yield f"Precision {mode} above native errors, but not by more than it may: seeds {' '.join(seeds)}."
    for line, mode in wrong:
        of_both = f"{pair(line['errors'][mode])} with precision {mode}, {pair(line['errors'][NATIVE])} natively"
        yield f"Seed {line['seed']}, {line['kind']}, {line['chosen'][mode]}: {of_both}. Again: {line['repeat']}"
    if not wrong:
        yield "Of none are the errors larger than they may be."


def _about_columns(line: Line) -> str:
    return (
        f"Native is {about_native(line)}. From remainders: accepted by the guard; exact: those whose errors are proved to "
        "be 0. Above native: root mean square or maximum are larger, and the maximum than one unit; of 14 moduli more than twice "
        "and three times as large. Rms, maximum: the largest quotient of an error and the native one. Proved: the least and the "
        "largest quotient of the proved bound and the largest error."
    )
