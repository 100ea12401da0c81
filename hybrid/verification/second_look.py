# SPDX-License-Identifier: MIT
"""The second look at sums of C that look wrong: their elements are computed again in higher precision, each term by a rank that
has it, to tell faults from unusual rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, pieces
from hybrid.host.memory import RowView
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.verification.check import MOST_NAMED, Fault, Suspect
from hybrid.verification.comparison import norms_of

# -------- wrong parts
# Which parts of C are wrong, or look so: squares of 64 rows and columns, the width of the groups that the check sums.

SIDE = GROUP_COLUMNS
LARGE = 100.0  # times the least difference that is seen: where a fault is so large, hardly a row of it has a sum that is not
_ROWS_BESIDE = 8  # of such a fault, all of which would have to have sums that are not seen by chance


class WrongParts:
    """The squares that are wrong, or look so, of a C with so many rows and columns. Squares are numbered down and across."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._suspected = np.zeros((-(-rows // SIDE), -(-columns // SIDE)), bool)  # a sum there looks wrong
        self._large = np.zeros_like(self._suspected)  # or would, if a large fault reached there
        self._known = np.zeros_like(self._suspected)  # wrong by a known fault that does not reach over the square's edges

    def suspect(self, rows: np.ndarray, columns: Span, large: np.ndarray) -> None:
        """The sums of these columns look wrong in these rows, which may each have more wrong elements left and right. So may
        rows above and below; where a difference is `large`, only those near."""
        across = squares_of(columns).slice
        self._suspected[rows[~large] // SIDE, across] = True
        for beside in (-_ROWS_BESIDE, _ROWS_BESIDE):
            self._large[np.clip(rows[large] + beside, 0, self._rows - 1) // SIDE, across] = True

    def suspect_rows(self, rows: np.ndarray) -> None:
        """These rows look wrong in some of their columns, it is not known in which."""
        self._known[rows // SIDE] = True

    def add(self, rows: np.ndarray, columns: Span) -> None:
        """These rows are wrong in these columns, by a fault that touches no others."""
        self._known[rows // SIDE, squares_of(columns).slice] = True

    def in_all_columns(self) -> None:
        """Faults may reach over all columns: whole rows of squares, and their neighbours, are wrong where one square is so
        far."""
        self._known |= _with_neighbours(self._known | self._suspected | self._large).any(axis=1, keepdims=True)

    def found(self) -> tuple[np.ndarray, ...]:
        """The numbers of all squares that are marked, for `merge` on another rank."""
        return np.argwhere(self._suspected), np.argwhere(self._large), np.argwhere(self._known)

    def merge(self, suspected: np.ndarray, large: np.ndarray, known: np.ndarray) -> None:
        self._suspected[tuple(suspected.T)] = self._large[tuple(large.T)] = self._known[tuple(known.T)] = True

    def blocks(self, rows: Span) -> list[tuple[Span, Span]]:
        """What is to be computed again of these rows, as spans of rows and columns. That includes the neighbours of each square
        in which a sum looks wrong: the part of the fault that reaches over its edge may be too small to be seen. Of a large fault
        those to the left and right do, since a row may have few elements of it there, and those above and below only near it."""
        large, small = self._large & ~self._known, self._suspected & ~(self._large | self._known)
        chosen = self._known | _with_sides(large) | _with_neighbours(small)
        found = []
        for columns, together in _runs(chosen.T):
            for squares in _spans(together):
                part = rows.common(Span(squares.lo * SIDE, squares.hi * SIDE))
                if len(part):
                    found.append((part, Span(columns.lo * SIDE, min(self._columns, columns.hi * SIDE))))
        return found


def squares_of(span: Span) -> Span:
    """The numbers of the squares that these rows, or columns, meet."""
    return Span(span.lo // SIDE, -(-span.hi // SIDE))


def _with_neighbours(mask: np.ndarray) -> np.ndarray:
    """The squares of a mask and the up to eight beside each."""
    wide = mask.copy()
    wide[1:] |= mask[:-1]
    wide[:-1] |= mask[1:]
    return _with_sides(wide)


def _with_sides(mask: np.ndarray) -> np.ndarray:
    """The squares of a mask and those to their left and right."""
    wide = mask.copy()
    wide[:, 1:] |= mask[:, :-1]
    wide[:, :-1] |= mask[:, 1:]
    return wide


def _runs(masks: np.ndarray) -> Iterator[tuple[Span, np.ndarray]]:
    """Neighbouring rows of `masks` that are equal, as a span of them and their mask; without those in which nothing is set."""
    changes = np.flatnonzero((masks[1:] != masks[:-1]).any(axis=1)) + 1
    for lo, hi in pairwise([0, *changes.tolist(), len(masks)]):
        if lo < hi and masks[lo].any():
            yield Span(lo, hi), masks[lo]


def _spans(mask: np.ndarray) -> Iterator[Span]:
    """The runs of set elements."""
    ends = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    for lo, hi in ends.reshape(-1, 2).tolist():
        yield Span(lo, hi)


# -------- reexamine
# Elements of a product, computed again in higher precision: are they wrong, or are these rounding errors?
#
# Each addition errs by u times its result at most, so the 2-norm of a sum's partial sums tells how large random rounding
# errors become. Where terms are alike, errors have one sign, and a sum made of the same terms has them as well. In which
# order a kernel or BLAS adds its terms is not known here. So eight orders are tried, and an element is wrong if its error is
# larger than several times what rounding makes in the worst of them. This follows from the row of A and the column of B
# alone: no other element of the product has a say.

_TAKING_TURNS = (1, 2, 4, 8, 16, 32, 64)  # accumulators: of 4, each adds every fourth term, as the lanes of vectors do
_BLOCK = 128  # terms that are summed by themselves, as BLAS divides them
_TERMS_AT_ONCE = 4096  # a multiple of all of these
# By NumPy and in other orders of kernels, right products of structured matrices had errors of at most 3 times the worst of these.
_TIMES_WORST = 6.0
_TERMS_OF_A_STEP = 16  # that a matrix unit adds to a sum at a time (of float16 and bfloat16)


@dataclass(frozen=True)
class Rounding:
    """What rounding some terms of sums makes, for each order and each column."""

    norms: np.ndarray  # of all terms and partial sums
    errors: np.ndarray  # of the sums that were made in this order
    flushed: np.ndarray  # of each column, what tiny numbers that are made zero may change


@dataclass(frozen=True)
class Verdict:
    """What some columns of a row were found to be."""

    wrong: tuple[int, ...]  # the numbers of the columns that are, among those looked at
    error: float  # the largest
    bound: float  # the largest that rounding is taken to make


def exact_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums of a[k]·b[k,j] in higher precision."""
    sums = np.zeros(b.shape[1], np.longdouble)
    with np.errstate(all="ignore"):
        for some in pieces(Span(0, len(a)), _TERMS_AT_ONCE):
            sums += (a[some.slice, None].astype(np.longdouble) * b[some.slice]).sum(axis=0)
    return sums


def rounding_of(a: np.ndarray, b: np.ndarray, before: np.ndarray, exact: np.ndarray) -> Rounding:
    """Of the terms a[k]·b[k,j], whose sums are `exact` and which are added to the sums `before`."""
    start = before.astype(b.dtype)
    sums = [*(np.tile(start / b.dtype.type(turns), (turns, 1)) for turns in _TAKING_TURNS), start[None]]
    norms = np.zeros((len(sums), len(start)))
    with np.errstate(all="ignore"):
        for some in pieces(Span(0, len(a)), _TERMS_AT_ONCE):
            terms = a[some.slice, None] * b[some.slice]
            within = np.add.accumulate(_divided(terms, _BLOCK), axis=1)
            added = [*(_divided(terms, turns) for turns in _TAKING_TURNS), within[:, -1:]]
            norms = np.hypot(norms, _norms(terms))
            norms[-1] = np.hypot(norms[-1], _norms(within.reshape(-1, len(start))[: len(terms)]))
            for order, of_order in enumerate(added):
                partial = np.add.accumulate(np.concatenate([sums[order][None], of_order]))[1:]
                sums[order] = partial[-1]
                norms[order] = np.hypot(norms[order], _norms(partial.reshape(-1, len(start))[: len(terms)]))
        together = [np.add.accumulate(of_order) for of_order in sums]
        norms = np.hypot(norms, [_norms(partial[1:]) for partial in together])
        errors = np.stack([partial[-1] for partial in together]) - (start + exact)
        sizes = np.abs(a).sum(dtype=np.float64) + np.abs(b).sum(axis=0, dtype=np.float64)
        flushed = float(np.finfo(b.dtype).tiny) * (len(a) + sizes)
    return Rounding(norms, errors.astype(np.float64), flushed)


def _divided(terms: np.ndarray, by: int) -> np.ndarray:
    """The terms in rows of `by`; zeros fill the last row."""
    return np.pad(terms, ((0, -len(terms) % by), (0, 0))).reshape(-1, by, terms.shape[1])


def _norms(sums: np.ndarray) -> np.ndarray:
    """The 2-norm of each column, also where squares overflow or underflow."""
    return norms_of(np.ascontiguousarray(sums.T, np.float64))


def times_worst(problem: Problem) -> float:
    """How many times as large as what rounding makes in the worst order an element's error may be.

    Matrix units for 16 bits cut off at each step what float32 does not hold: up to 2u of the sum, always towards zero. All sums
    together are at most √l times their 2-norm.
    """
    return _TIMES_WORST + (2 * problem.l**0.5 / _TERMS_OF_A_STEP if problem.short_operands else 0.0)


def verdict(c_row: np.ndarray, exact: Sequence[np.ndarray], rounding: Sequence[Rounding], times: float) -> Verdict:
    """Judge the elements `c_row`, given the exact sums and the rounding of each part of their terms, and `times_worst`."""
    unit = float(np.finfo(c_row.dtype).eps) / 2
    with np.errstate(all="ignore"):
        error = np.abs(c_row.astype(np.longdouble) - np.sum(exact, axis=0)).astype(np.float64)
        norms = np.hypot.reduce([each.norms for each in rounding])
        worst = (unit * norms + np.abs(np.sum([each.errors for each in rounding], axis=0))).max(axis=0)
        bound = times * worst + np.sum([each.flushed for each in rounding], axis=0)
        wrong = ~(error <= bound)
    return Verdict(tuple(np.flatnonzero(wrong).tolist()), float(error.max(initial=0.0)), float(bound.max(initial=0.0)))


def element_is_wrong(problem: Problem, a: np.ndarray, b: np.ndarray, c: np.ndarray, row: int, column: int) -> bool:
    """Whether this element of a part of the product is wrong."""
    of_b = b[:, column : column + 1]
    exact = exact_sums(a[row], of_b)
    rounding = rounding_of(a[row], of_b, np.zeros(1), exact)
    return bool(verdict(c[row, column : column + 1], [exact], [rounding], times_worst(problem)).wrong)


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
