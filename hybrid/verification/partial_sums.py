# SPDX-License-Identifier: MIT
"""How large are rounding errors of sums in the orders in which kernels and BLAS add their terms?

Each addition errs by u times its result at most, and by no more than what is added. So the error of a sum is told by the 2-norm
of all of its partial sums, without those to which next to nothing is added; and where terms are alike, whose errors have one
sign, by a sum that is made in this order. Terms that oscillate, as those of cosine transforms, have large partial sums in one
order and small ones in another: the error of plain summation tells little of a kernel's then. In which order a kernel adds is not
known here. But it is the same in all of C: in units of the right order its errors are alike everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.core.spans import Span, pieces

_TAKING_TURNS = (1, 2, 4, 8, 16, 32)  # accumulators, as the lanes of vectors are, each of which gets every so manyeth term
_BLOCK = 128  # terms that are summed by themselves, as BLAS divides them
_TERMS_AT_ONCE = 4096  # a multiple of all of these
_TIMES_LARGEST = 8.0  # an error may be at most so many times as large as those elsewhere in the product, in these units
_LEAST, _MOST_BESIDE_OTHERS = 1 / 16, 1.0  # and these are taken to be at least and at most so large
_MOST = 2.0  # where nothing is known from elsewhere
# Where rows of A are alike, their errors elsewhere are as well, and fewer different ones than this tell little: of the last rows
# BLAS may add the terms in another order.
_ENOUGH = 16
_ALIKE = 0.5  # the mean of the errors of columns, in parts of their size, from which on these are no random errors


@dataclass(frozen=True)
class InOrders:
    """For each order and each column the 2-norm of all partial sums, and the error of a sum that was made so."""

    norms: np.ndarray
    errors: np.ndarray

    def __add__(self, other: InOrders) -> InOrders:
        """Those of all terms, from those of some and of the others."""
        return InOrders(np.hypot(self.norms, other.norms), self.errors + other.errors)


def in_orders(a: np.ndarray, b: np.ndarray, before: np.ndarray, exact: np.ndarray) -> InOrders:
    """Of the terms a[k]·b[k,j], whose sums are `exact` and which are added to the sums `before`."""
    dtype, columns = b.dtype, b.shape[1]
    most = 2 / float(np.finfo(dtype).eps)  # a partial sum counts as so many times what is added, at most
    squares = np.zeros((len(_TAKING_TURNS) + 1, columns))
    with np.errstate(all="ignore"):
        # In units in which no square overflows, nor vanishes where others do not. They are powers of two: nothing is rounded.
        unit_a, units_b = _unit(np.abs(a).max(initial=0)), _unit(np.abs(b).max(axis=0, initial=0))
        start = (before / unit_a / units_b).astype(dtype)
        sums, of_blocks = [np.tile(start / dtype.type(turns), (turns, 1)) for turns in _TAKING_TURNS], start
        for some in pieces(Span(0, len(a)), _TERMS_AT_ONCE):
            terms = (a[some.slice, None] / unit_a).astype(dtype) * (b[some.slice] / units_b).astype(dtype)
            for order, turns in enumerate(_TAKING_TURNS):
                added = _padded(terms, turns).reshape(-1, turns, columns)
                partial = np.add.accumulate(np.concatenate([sums[order][None], added]))[1:]
                squares[order] += _squares(partial, added, most).sum(axis=(0, 1))
                sums[order] = partial[-1]
            added = _padded(terms, _BLOCK).reshape(-1, _BLOCK, columns)
            within = np.add.accumulate(added, axis=1)
            whole = np.add.accumulate(np.concatenate([of_blocks[None], within[:, -1]]))[1:]
            squares[-1] += _squares(within, added, most).sum(axis=(0, 1)) + _squares(whole, within[:, -1], most).sum(axis=0)
            of_blocks = whole[-1]
        for order, of_lanes in enumerate(sums):
            together = np.add.accumulate(of_lanes)
            squares[order] += np.square(together[1:].astype(np.float64)).sum(axis=0)
            sums[order] = together[-1]
        right = start.astype(np.longdouble) + exact / unit_a / units_b
        errors = (np.stack([*sums, of_blocks]).astype(np.longdouble) - right).astype(np.float64)
        return InOrders(np.sqrt(squares) * unit_a * units_b, errors * unit_a * units_b)


def _squares(sums: np.ndarray, added: np.ndarray, most: float) -> np.ndarray:
    """The squares of partial sums, where they count, given what was added last to each."""
    return np.square(np.fmin(np.abs(sums).astype(np.float64), most * np.abs(added)))


def _unit(largest: np.ndarray) -> np.ndarray:
    """A power of two near these numbers, of float64; 1 where one is zero or not finite."""
    largest = np.asarray(largest, np.float64)
    there = (largest > 0) & np.isfinite(largest)
    return np.exp2(np.where(there, np.frexp(np.where(there, largest, 1.0))[1], 0))


def _padded(terms: np.ndarray, to: int) -> np.ndarray:
    """The terms, and zeros up to a multiple of so many."""
    missing = -len(terms) % to
    return np.pad(terms, ((0, missing), (0, 0))) if missing else terms


@dataclass(frozen=True)
class Deviations:
    """Errors of some elements of a row of C, in units of what rounding may be expected to make: in a row for each order.
    `expected`: the same of sums that are made in this order."""

    of_orders: np.ndarray
    expected: np.ndarray

    @property
    def largest(self) -> np.ndarray:
        """The largest error, by order."""
        return np.abs(self.of_orders).max(axis=1)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the errors, by order."""
        return np.abs(self.of_orders.mean(axis=1))

    @property
    def drift(self) -> np.ndarray:
        """The mean that is expected, by order."""
        return np.abs(self.expected.mean(axis=1))

    @property
    def deviation_of_mean(self) -> float:
        """How large the mean of random errors is, if these are of size 1: of columns that are alike it is as large as each."""
        sizes = np.abs(self.expected).mean(axis=1)
        alike = float(np.median(np.divide(self.drift, sizes, out=np.zeros_like(sizes), where=sizes > 0)))
        return alike if alike > _ALIKE else self.of_orders.shape[1] ** -0.5


def deviations(errors: np.ndarray, once: np.ndarray, unit: float, of_orders: InOrders) -> Deviations:
    """The errors in units of rounding. `once`: what rounding each term once may change; `unit`: the unit roundoff; `of_orders`:
    of all terms."""
    with np.errstate(all="ignore"):
        units = unit * of_orders.norms / 3**0.5 + np.abs(of_orders.errors) + once
        return Deviations(errors / units, of_orders.errors / units)


def wrong_columns(own: Deviations, elsewhere: Sequence[Deviations]) -> tuple[int, ...]:
    """The columns that rounding explains in none of the orders, given the deviations elsewhere in the product, which has to be as
    accurate here."""
    usual = np.full(len(own.of_orders), _MOST)
    if elsewhere and len(np.unique(np.concatenate([each.of_orders[0] for each in elsewhere]))) >= _ENOUGH:
        # There may be NaN, too.
        usual = np.fmax.reduce([each.largest for each in elsewhere], axis=0, initial=_LEAST)
        usual = np.minimum(usual, _MOST_BESIDE_OTHERS)
    wrong = (~(np.abs(own.of_orders) <= _TIMES_LARGEST * usual[:, None])).all(axis=0)
    if not wrong.any():
        # Errors of one sign are no rounding, unless sums that are made so have such, too.
        most = _TIMES_LARGEST * (own.drift + np.minimum(usual, _MOST_BESIDE_OTHERS / 2) * own.deviation_of_mean)
        wrong[:] = (own.mean > most).all()
    return tuple(np.flatnonzero(wrong).tolist())
