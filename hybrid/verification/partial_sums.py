# SPDX-License-Identifier: MIT
"""How large are rounding errors of sums in the orders in which kernels and BLAS add their terms?

Each addition errs by u times its result at most, so the error of a sum is told by the 2-norm of all of its partial sums. Terms
that oscillate, as those of cosine transforms, have large partial sums in one order and small ones in another: the error of plain
summation tells little of a kernel's then. In which order a kernel adds is not known here. But it is the same in all of C: in
units of the right order its errors are alike everywhere.
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
_LEAST, _MOST = 1 / 16, 2.0  # and these are taken to be at least and at most so large
# Where rows of A are alike, their errors elsewhere are as well, and fewer different ones than this tell little: of the last rows
# BLAS may add the terms in another order.
_ENOUGH = 16


def norms_of_partial_sums(a: np.ndarray, b: np.ndarray, before: np.ndarray) -> np.ndarray:
    """For each order and each column the 2-norm of all partial sums of the terms a[k]·b[k,j], which are added to the sums
    `before`."""
    columns = b.shape[1]
    squares = np.zeros((len(_TAKING_TURNS) + 1, columns))
    with np.errstate(all="ignore"):
        # In units in which no square overflows, nor vanishes where others do not.
        unit_a, units_b = _unit(np.abs(a).max(initial=0.0)), _unit(np.abs(b).max(axis=0, initial=0.0))
        start = (before / unit_a / units_b).astype(np.float64)
        sums, of_blocks = [np.tile(start / turns, (turns, 1)) for turns in _TAKING_TURNS], start
        for some in pieces(Span(0, len(a)), _TERMS_AT_ONCE):
            terms = (a[some.slice, None] / unit_a) * (b[some.slice] / units_b)
            for order, turns in enumerate(_TAKING_TURNS):
                partial = _padded(terms, turns).reshape(-1, turns, columns).cumsum(axis=0) + sums[order]
                squares[order] += np.square(partial).sum(axis=(0, 1))
                sums[order] = partial[-1]
            within = _padded(terms, _BLOCK).reshape(-1, _BLOCK, columns).cumsum(axis=1)
            whole = of_blocks + within[:, -1].cumsum(axis=0)
            squares[-1] += np.square(within).sum(axis=(0, 1)) + np.square(whole).sum(axis=0)
            of_blocks = whole[-1]
        for order, of_lanes in enumerate(sums):
            squares[order] += np.square(of_lanes.cumsum(axis=0)[1:]).sum(axis=0)
        return np.sqrt(squares) * unit_a * units_b


def _unit(largest: np.ndarray) -> np.ndarray:
    """A number of float64 in which others up to this are expressed: itself, or 1 where it is zero or not finite."""
    largest = np.asarray(largest, np.float64)
    return np.where((largest > 0) & np.isfinite(largest), largest, 1.0)


def _padded(terms: np.ndarray, to: int) -> np.ndarray:
    """The terms, and zeros up to a multiple of so many."""
    missing = -len(terms) % to
    return np.pad(terms, ((0, missing), (0, 0))) if missing else terms


@dataclass(frozen=True)
class Deviations:
    """Errors of some elements of a row of C, in units of what rounding may be expected to make: in a row for each order."""

    of_orders: np.ndarray

    @property
    def largest(self) -> np.ndarray:
        """The largest error, by order."""
        return np.abs(self.of_orders).max(axis=1)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the errors, by order."""
        return np.abs(self.of_orders.mean(axis=1))


def deviations(errors: np.ndarray, once: np.ndarray, unit: float, norms: np.ndarray) -> Deviations:
    """The errors in units of rounding. `once`: what rounding each term once may change; `unit`: the unit roundoff; `norms`: of
    all terms, by `norms_of_partial_sums`."""
    with np.errstate(all="ignore"):
        return Deviations(errors / (unit * norms / 3**0.5 + once))


def wrong_columns(own: Deviations, elsewhere: Sequence[Deviations]) -> tuple[int, ...]:
    """The columns that rounding explains in none of the orders, given the deviations elsewhere in the product, which has to be as
    accurate here."""
    usual = drift = np.full(len(own.of_orders), _MOST)
    if elsewhere and len(np.unique(np.concatenate([each.of_orders[0] for each in elsewhere]))) >= _ENOUGH:
        # There may be NaN, too.
        usual = np.minimum(np.fmax.reduce([each.largest for each in elsewhere], axis=0, initial=_LEAST), _MOST)
        drift = np.minimum(np.fmax.reduce([each.mean for each in elsewhere], axis=0, initial=0.0), _MOST)
    wrong = (~(np.abs(own.of_orders) <= _TIMES_LARGEST * usual[:, None])).all(axis=0)
    if not wrong.any():
        # Errors of one sign are no rounding, unless there are such elsewhere, too.
        wrong[:] = (own.mean > _TIMES_LARGEST * (drift + usual / len(wrong) ** 0.5)).all()
    return tuple(np.flatnonzero(wrong).tolist())
