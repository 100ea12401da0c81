# SPDX-License-Identifier: MIT
"""Elements of a product, computed again in higher precision: are they wrong, or are these rounding errors?

Each addition errs by u times its result at most, so the 2-norm of a sum's partial sums tells how large random rounding errors
become. Where terms are alike, errors have one sign, and a sum made of the same terms has them as well. In which order a kernel or
BLAS adds its terms is not known here. So eight orders are tried, and an element is wrong if its error is larger than several
times what rounding makes in the worst of them. This follows from the row of A and the column of B alone: no other element of the
product has a say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, pieces
from hybrid.verification.group_sums import norms_of

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
