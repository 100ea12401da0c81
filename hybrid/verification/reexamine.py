# SPDX-License-Identifier: MIT
"""Elements of a product, compared with what they are in higher precision: are they wrong, or are these rounding errors?

The measure is the error of plain summation, one term after the other in the product's own type. A product that is more accurate
elsewhere has to be as accurate here. What is too large by this measure is measured once more by the partial sums of other orders
(partial_sums.py), which takes longer, and is wrong only if it is too large for these as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.verification.group_sums import norms_of
from hybrid.verification.partial_sums import Deviations, InOrders, deviations, in_orders, wrong_columns

_TERMS_AT_ONCE = 4096
_TIMES_PLAIN = 8.0  # an error may be at most so many times as large as that of plain summation
_TIMES_MEDIAN = 20.0  # and that of a single element at most so many times as large as the others'
_COLUMNS_ELSEWHERE = 4  # of a row that tells how accurate a product is, where one element is judged
_ROWS_BESIDE, _COLUMNS_BESIDE = 6, 4  # that tell it by their partial sums
_LEAST_ACCURACY = 1 / 16  # a product's errors are allowed to be this fraction of plain summation's, however accurate it is


@dataclass(frozen=True)
class Verdict:
    """What some columns of a row were found to be."""

    wrong: tuple[int, ...]  # the numbers of the columns that are, among those looked at
    error: float  # the largest
    plain: float  # the largest error that plain summation may be expected to have

    @property
    def accuracy(self) -> float:
        """The error relative to plain summation's; 1 where plain summation has none."""
        return self.error / self.plain if self.plain > 0 else 1.0


def accuracy_of(elsewhere: Sequence[Verdict]) -> float:
    """The accuracy of a product: the worst of some of its parts that are not suspected."""
    return max([_LEAST_ACCURACY, *(verdict.accuracy for verdict in elsewhere)])


def reexamine(a_row: np.ndarray, b_columns: np.ndarray, c_row: np.ndarray, accuracy: float = 1.0) -> Verdict:
    """Look at one row of C in some columns. `accuracy`: of the product elsewhere, by `accuracy_of`."""
    exact = exact_sums(a_row, b_columns)
    return verdict(c_row, [exact], [rounding_of(a_row, b_columns, np.zeros_like(exact), exact)], accuracy)


def element_is_wrong(a: np.ndarray, b: np.ndarray, c: np.ndarray, row: int, column: int) -> bool:
    """Whether this element of C is wrong, by itself, or where C is more accurate than plain summation, beside a few others."""

    def look(row: int, columns: Span, accuracy: float = 1.0) -> Verdict:
        return reexamine(a[row], b[:, columns.slice], c[row, columns.slice], accuracy)

    def deviate(row: int, columns: Span) -> Deviations:
        factors, of_b = a[row], b[:, columns.slice]
        exact = exact_sums(factors, of_b)
        rounding = rounding_of(factors, of_b, np.zeros_like(exact), exact, orders=True)
        return deviations_of(c[row, columns.slice], [exact], [rounding])

    alone = Span(column, column + 1)
    looks_wrong = bool(look(row, alone).wrong)
    if not looks_wrong:
        elsewhere = [look(*place) for place in places_elsewhere(row, column, c.shape, 2, _COLUMNS_ELSEWHERE)]
        looks_wrong = bool(elsewhere and look(row, alone, accuracy_of(elsewhere)).wrong)
    if not looks_wrong:
        return False
    beside = [deviate(*place) for place in places_elsewhere(row, column, c.shape, _ROWS_BESIDE, _COLUMNS_BESIDE)]
    return bool(wrong_columns(deviate(row, alone), beside))


def places_elsewhere(row: int, column: int, shape: tuple[int, int], count: int, width: int) -> list[tuple[int, Span]]:
    """Some columns, so many together, in up to so many other rows of a matrix, all over it. The first column of each is a
    multiple of `width`."""
    (rows, columns), found = shape, []
    for part in range(1, count + 1):
        other, groups = (row + part * rows // (count + 1)) % rows, -(-columns // width)
        first = (column // width + part * groups // (count + 1)) % groups * width
        if other != row:
            found.append((other, Span(first, min(columns, first + width))))
    return found


@dataclass(frozen=True)
class Rounding:
    """What some terms of sums, one sum for each column, let expect of their rounding errors."""

    of_plain: np.ndarray  # the errors of plain summation
    sizes: np.ndarray  # the 2-norms of the terms
    norm_a: np.ndarray  # of the factors in the row of A
    norms_b: np.ndarray  # of the factors in the columns of B
    terms: int
    of_orders: InOrders | None = None  # where it was asked for


def exact_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The sums of a[k]·b[k,j] in higher precision."""
    sums = np.zeros(b.shape[1], np.longdouble)
    with np.errstate(all="ignore"):
        for some in pieces(Span(0, len(a)), _TERMS_AT_ONCE):
            sums += (a[some.slice, None].astype(np.longdouble) * b[some.slice]).sum(axis=0)
    return sums


def rounding_of(a: np.ndarray, b: np.ndarray, before: np.ndarray, exact: np.ndarray, *, orders: bool = False) -> Rounding:
    """The rounding of the terms a[k]·b[k,j], whose sums are `exact` and which are added to the sums `before`. `orders`: also
    what it is in other orders than one after the other."""
    with np.errstate(all="ignore"):
        plain, sizes = before.astype(b.dtype), np.zeros(b.shape[1])
        for some in pieces(Span(0, len(a)), _TERMS_AT_ONCE):
            own = a[some.slice, None] * b[some.slice]
            sizes = np.hypot(sizes, _norms(own.astype(np.longdouble)))
            own[0] += plain
            plain = np.add.accumulate(own, axis=0)[-1]
        of_plain = (plain.astype(np.longdouble) - before.astype(b.dtype) - exact).astype(np.float64)
        of_orders = in_orders(a, b, before, exact) if orders else None
        return Rounding(of_plain, sizes, _norms(a[:, None]), _norms(b), len(a), of_orders)


@dataclass(frozen=True)
class _Errors:
    """Elements of a row of C, beside what is known of their rounding."""

    errors: np.ndarray
    sums: np.ndarray  # exact
    unit: float  # the unit roundoff
    once: np.ndarray  # what rounding each term once, and making tiny numbers zero, may change
    terms: int

    @classmethod
    def of(cls, c_row: np.ndarray, exact: Sequence[np.ndarray], rounding: Sequence[Rounding]) -> _Errors:
        sums, of_type = np.sum(exact, axis=0), np.finfo(c_row.dtype)
        errors, terms = (c_row.astype(np.longdouble) - sums).astype(np.float64), sum(each.terms for each in rounding)
        sizes, norm_a, norms_b = (
            norms_of(np.stack([getattr(each, name) for each in rounding], axis=1)) for name in ("sizes", "norm_a", "norms_b")
        )
        unit, flushed = float(of_type.eps) / 2, float(of_type.tiny) * terms**0.5 * (1 + norm_a + norms_b)
        return cls(errors, sums.astype(np.float64), unit, unit * sizes + flushed, terms)


def deviations_of(c_row: np.ndarray, exact: Sequence[np.ndarray], rounding: Sequence[Rounding]) -> Deviations:
    """The errors of the elements `c_row` in units of rounding in the worst of several orders, which `rounding` has."""
    with np.errstate(all="ignore"):
        found = _Errors.of(c_row, exact, rounding)
        of_orders = reduce(add, [each.of_orders for each in rounding if each.of_orders is not None])
    return deviations(found.errors, found.once, found.unit, of_orders)


def verdict(c_row: np.ndarray, exact: Sequence[np.ndarray], rounding: Sequence[Rounding], accuracy: float = 1.0) -> Verdict:
    """Judge the elements `c_row`, given the exact sums and the rounding of each part of their terms."""
    with np.errstate(all="ignore"):
        found = _Errors.of(c_row, exact, rounding)
        errors, once, of_plain = found.errors, found.once, np.sum([each.of_plain for each in rounding], axis=0)
        # Plain summation of a few sums may be accurate by chance: this is what may be expected of so many terms.
        expected = (found.terms / 9) ** 0.5 * np.hypot(once, found.unit * np.abs(found.sums))
        usual = np.maximum(np.abs(of_plain), expected)
        wrong = _wrong(errors, min(1.0, accuracy) * usual, min(1.0, accuracy) * abs(of_plain.mean()), once)
    error = float(np.where(np.isnan(errors), np.inf, np.abs(errors)).max(initial=0.0))
    return Verdict(tuple(np.flatnonzero(wrong).tolist()), error, float(usual.max(initial=0.0)))


def _wrong(errors: np.ndarray, plain: np.ndarray, drift: float, once: np.ndarray) -> np.ndarray:
    """Which elements are wrong. `plain`: the errors of plain summation; `drift`: their mean; `once`: what rounding each term once
    may change in the sum."""
    sizes = np.abs(errors)
    too_large = ~(sizes <= _TIMES_PLAIN * (plain.max() + once.max()))
    alone = (sizes > _TIMES_MEDIAN * np.median(sizes)) & (sizes > _TIMES_PLAIN * (plain + once))
    wrong = too_large | alone
    # Errors of one sign are no rounding, unless those of plain summation have one, too.
    most = _TIMES_PLAIN * (drift + plain.max() / len(plain) ** 0.5 + once.max())
    return wrong if wrong.any() or abs(errors.mean()) <= most else np.ones_like(wrong)


def _norms(columns: np.ndarray) -> np.ndarray:
    """The 2-norm of each column."""
    return norms_of(np.ascontiguousarray(columns.T, np.float64))
