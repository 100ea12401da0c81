# SPDX-License-Identifier: MIT
"""Shows exact counts and probabilities: as a table, as whole files, and integers of any length as text."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hybrid.core.text import aligned
from hybrid.errors import UsageError
from hybrid.host.files import atomic_write

OUT_FORMATS = (".npy", ".csv", ".json")
_LONGEST = 30  # digits of a number that a table shows whole
_END = 8  # digits at both ends of a longer one that it shows


@contextmanager
def digits_unlimited() -> Iterator[None]:
    """Lift Python's limit on converting integers to text, 4300 digits, which protects servers from long inputs."""
    if not hasattr(sys, "set_int_max_str_digits"):
        yield
        return
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def text(number: Any) -> str:
    """The number with all digits."""
    with digits_unlimited():
        return repr(float(number)) if isinstance(number, (float, np.floating)) else str(number)


def shortened(number: Any) -> str:
    """The number for a table: if it has more than 30 digits, the first and the last eight, and how many there are."""
    if isinstance(number, (float, np.floating)):
        return f"{number:.6f}"
    whole = text(number)
    return whole if len(whole) <= _LONGEST else f"{whole[:_END]}…{whole[-_END:]} ({len(whole)} digits)"


def table(numbers: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    """The numbers in aligned columns, with the vertices' names above and before them."""
    lines = ([name, *map(shortened, line)] for name, line in zip(rows, numbers, strict=True))
    return "\n".join(aligned([["from\\to", *columns], *lines]))


def refuse_ending(path: str) -> None:
    """UsageError for a file name whose ending is none of the formats; to be called before anything is computed."""
    if not path.endswith(OUT_FORMATS):
        raise UsageError(f"--out {path}: the name must end in {', '.join(OUT_FORMATS)}", code="file-kind")


def write(path: str, numbers: np.ndarray, names: Sequence[str], about: dict[str, Any]) -> None:
    """Write the matrix to a file, which appears whole or not at all. `about`: more entries for .json.

    .npy holds int64, or the probabilities' type; UsageError where a count does not fit. .csv can be read as a graph again. .json
    holds counts as strings, since many readers would round long numbers.
    """
    if path.endswith(".npy") and numbers.dtype == object:
        largest = max(map(int, numbers.flat))
        if largest >= 2**63:
            raise UsageError(
                f"--out {path}: the largest count has {largest.bit_length()} bits, .npy holds int64: use .csv or .json",
                code="dtype",
            )
        numbers = numbers.astype(np.int64)
    with atomic_write(path) as beside:
        if path.endswith(".npy"):
            with open(beside, "wb") as raw:
                np.save(raw, numbers)
            return
        with open(beside, "w", encoding="utf-8", newline="") as file:
            cells = [list(map(text, line)) for line in numbers]
            if path.endswith(".csv"):
                lines = csv.writer(file, lineterminator="\n")
                lines.writerow(["from/to", *names])
                lines.writerows([name, *line] for name, line in zip(names, cells, strict=True))
            else:
                what = "walks" if numbers.dtype == object else "probabilities"
                values = cells if what == "walks" else [list(map(float, line)) for line in cells]
                json.dump({**about, "vertices": list(names), what: values}, file)
                file.write("\n")
