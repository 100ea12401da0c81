# SPDX-License-Identifier: MIT
"""Recorded lines as a table for a spreadsheet: a row for each line, a column for each number, with all digits."""

import csv
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.common.records import Line
from hybrid.errors import UsageError
from hybrid.host import files
from hybrid.runs.files import refuse_unwritable

_ABOUT = ("command", "arguments", "run", "schema", "versions", "machine", "date")  # of a run; the date follows the numbers
ENDING = ".csv"


def refuse(path: str) -> None:
    """UsageError for what could not be written."""
    if not path.endswith(ENDING):
        raise UsageError(f"{path}: the name of a table must end in {ENDING}")
    refuse_unwritable(path)


def write(path: str, lines: Sequence[Line]) -> None:
    """The file appears whole or not at all. A cell is empty where a line has no such number."""
    rows = [dict(_row(line)) for line in lines]
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "date"))
    with files.atomic_write(path) as beside, open(beside, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*columns, "date"], restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _row(line: Line) -> Iterator[tuple[str, Any]]:
    for key, value in line.items():
        if key not in _ABOUT:
            yield from _cells(key, value)
    if isinstance(machine := line.get("machine"), dict):
        yield "processor", machine.get("processor", "")
    yield "date", line.get("date", "")


def _cells(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A cell, or of a dictionary or a list one for each of its values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _cells(f"{name} {key}", inner)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value, 1):
            yield from _cells(f"{name} {number}", inner)
    elif value is not None:
        yield name, value
