# SPDX-License-Identifier: MIT
"""The journal of a product in parts: what was asked for, and which rows are in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hybrid.core.record import record
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.execution.part_request import ROWS_OF_A_PART, Facts, differences
from hybrid.host.journal import Line
from hybrid.host.partial_matrix import Frame

MARK: Mapping[str, Any] = {"journal": "hybrid.matmul", "schema": 1}


@record
class Written:
    """A part of which the rows are in the file. `exact`: the elements are integers, and so the same in any arithmetic."""

    rows: Span
    digest: str
    exact: bool
    arithmetic: Facts


@record
class State:
    """All that the journal says. `rows`: of a part; 0 where the journal says nothing yet."""

    asked: Facts
    rows: int = 0
    frame: Frame | None = None
    written: tuple[Written, ...] = ()
    arithmetic: Facts | None = None  # of the last job that wrote the journal

    def refuse_other(self, asked: Facts, arithmetic: Facts, files: str) -> None:
        """UsageError where now another product is asked for, or where some rows may have other bits than they would get now.

        `files`: the names of those that would have to be removed.
        """
        if self.frame is None:
            return
        other = list(differences(self.asked, asked))
        if len(other) == 1 and asked.get(ROWS_OF_A_PART) != self.asked.get(ROWS_OF_A_PART):
            raise UsageError(
                f"{files} were begun with parts of {self.rows} rows: leave out --resume-rows, or give --resume-rows {self.rows}",
                code="resume-other",
            )
        if other:
            raise UsageError(
                f"{files} are of another product ({'; '.join(other)}): remove them, or leave out --resume", code="resume-other"
            )
        for part in self.written:
            other = [] if part.exact else list(differences(part.arithmetic, arithmetic))
            if len(other) > 1:  # the tiles differ because of the other facts, and their digest tells a user nothing
                other = [each for each in other if not each.startswith("tiles")]
            if other:
                raise UsageError(
                    f"{files} have rows whose last bits may be others than here ({'; '.join(other)}): "
                    "go on as they were computed, or remove them to begin anew",
                    code="resume-other",
                )


def state_of(lines: Sequence[Line], path: str) -> State:
    """What the journal's lines say together. UsageError where they make no sense."""
    if not lines:
        return State({})
    try:
        first = lines[0]
        rows, frame = int(first["rows"]), Frame(**first["frame"])
        if rows < 1:
            raise ValueError(f"parts of {rows} rows")
        written = {part.rows: part for part in _written(lines[1:])}  # the last line of each counts
        arithmetics = [dict(line["arithmetic"]) for line in lines if "arithmetic" in line]
        return State(dict(first["asked"]), rows, frame, tuple(written.values()), arithmetics[-1] if arithmetics else None)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} is malformed ({type(error).__name__}: {error}): remove it to begin anew", code="file-format"
        ) from None


def _written(lines: Sequence[Line]) -> Iterator[Written]:
    """The parts that the lines name, in their order, each with the arithmetic that was last named before."""
    arithmetic: Facts = {}
    for line in lines:
        if "arithmetic" in line:
            arithmetic = line["arithmetic"]
        else:
            lo, hi = line["part"]
            yield Written(Span(lo, hi), line["digest"], bool(line["exact"]), arithmetic)


def first_line(asked: Facts, rows: int, frame: Frame) -> Line:
    """The journal's first line."""
    return {"asked": dict(asked), "rows": rows, "frame": asdict(frame)}


def arithmetic_line(arithmetic: Facts) -> Line:
    """A line that says in which arithmetic the parts after it are computed."""
    return {"arithmetic": dict(arithmetic)}


def part_line(rows: Span, digest: str, *, exact: bool) -> Line:
    """A line that says that a part is in the file."""
    return {"part": [rows.lo, rows.hi], "digest": digest, "exact": exact}
