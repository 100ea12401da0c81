# SPDX-License-Identifier: MIT
"""The second look at sums of C that look wrong: their elements are computed again in higher precision, each term by a rank that
has it, to tell faults from unusual rounding errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybrid.core.spans import Span
from hybrid.host.row_view import RowView
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.verification.check import MOST_NAMED, Fault, Suspect
from hybrid.verification.reexamine import Verdict, exact_sums, rounding_of, times_worst, verdict

# Who multiplied these columns of a row of C: for messages, "" where that is not said; and the rank, where it was one.
MultipliedBy = Callable[[int, Span], tuple[str, int | None]]


def unsaid(row: int, columns: Span) -> tuple[str, int | None]:
    """A MultipliedBy that never says who it was."""
    return "", None


def fault_in(row: int, text: str, by: tuple[str, int | None]) -> Fault:
    """A fault in a row of C. `text`: more about it; `by`: who multiplied it, as MultipliedBy says."""
    who, rank = by
    return Fault(f"row {row} of C{text}" + (f", multiplied by {who}" if who else ""), rank=rank, row=row)


class SecondLook:
    """The second look at one product. Every rank calls its methods, with the same suspects."""

    def __init__(
        self,
        team: Team,
        plan: Plan,
        matrices: tuple[RowView, RowView, RowView],
        by: MultipliedBy,
        numbers: np.ndarray | None = None,
    ) -> None:
        """`numbers`: of the columns in the whole C, where these matrices have only some of them."""
        self._numbers = np.arange(plan.problem.m) if numbers is None else numbers
        self._team, self._plan, self._matrices, self._by = team, plan, matrices, by
        self._share, self._rows_of_c = plan.shares[team.rank], plan.c_rows_at_the_end(team.rank)

    def faults(self, suspects: Sequence[Suspect], *, exact: bool) -> tuple[list[Fault], str]:
        """The first MOST_NAMED faults among these suspects, and a note of what they are where none is a fault.

        `exact`: nothing was rounded in this product.
        """
        faults: list[Fault] = []
        error = bound = 0.0
        for suspect in suspects:
            found = self._verdict(suspect)
            error, bound = max(error, found.error), max(bound, found.bound)
            if found.wrong or exact:  # an error that rounding could explain, but nothing was rounded
                wrong = found.wrong or range(len(suspect.columns))
                columns = self._numbers[suspect.columns.slice][list(wrong)].tolist()
                by = self._by(suspect.row, Span(columns[0], columns[-1] + 1))
                faults.append(fault_in(suspect.row, f", {_listed(columns)}: wrong by {found.error:.2e}", by))
                if len(faults) == MOST_NAMED:
                    break
        return (
            faults,
            f"{len(suspects)} of the largest differences are of rounding errors up to {error:.2e}, of at most {bound:.2e}",
        )

    def _verdict(self, suspect: Suspect) -> Verdict:
        """Every rank sums the terms for which it has rows of B, so that only the row of A and the elements of C are sent."""
        row, columns = suspect.row, suspect.columns
        a, b, c = self._matrices
        just, part, own = Span(row, row + 1), columns.slice, self._share.b_rows
        with self._team.phase("check") as sending:
            sending.mine = (
                np.array(a[just][0]) if just.lies_in(self._share.rows) else None,
                np.array(c[just][0, part]) if just.lies_in(self._rows_of_c) else None,
            )
        of_a, of_c = (next(each for each in some if each is not None) for some in zip(*sending.all, strict=True))
        factors, of_b = of_a[own.slice], np.array(b[own][:, part])
        with self._team.phase("check") as summing:
            summing.mine = exact_sums(factors, of_b)
        before = np.sum([summing.all[rank] for rank in range(self._team.size) if self._plan.shares[rank].b_rows < own], axis=0)
        with self._team.phase("check") as rounding:
            before = np.broadcast_to(before, summing.mine.shape)
            rounding.mine = rounding_of(factors, of_b, before, summing.mine)
        return verdict(of_c, summing.all, rounding.all, times_worst(self._plan.problem))


def _listed(columns: list[int]) -> str:
    """The numbers of the columns in a message, neighbours as first:end."""
    runs: list[Span] = []
    for column in columns:
        if runs and runs[-1].hi == column:
            runs[-1] = Span(runs[-1].lo, column + 1)
        else:
            runs.append(Span(column, column + 1))
    named = [str(run.lo) if len(run) == 1 else str(run) for run in runs[:8]]
    return f"columns {', '.join(named)}" + (" and others" if len(runs) > 8 else "")
