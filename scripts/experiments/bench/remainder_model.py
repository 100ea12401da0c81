# SPDX-License-Identifier: MIT
"""Products from remainders in NumPy, as kernels/norms.cu, guard.cu, remainders.cu and reconstruct.cu define them, without
remainders: the integers' product is exact here, and so are the moduli's parts of it. Also native arithmetic, as one chain.

For some hundreds of rows and columns and thousands along k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hybrid.planning.arithmetic import INTEGER_BITS, MODULI, UNIT, Arithmetic, Summary, choose, sampling

_DIGIT = 21  # bits: products of two signed digits, added up along 8192 of k, are exact in float64
_LONGEST = 8192
_LOOSE, _NEARLY_ONE = 0.999999, np.uint32(0x3F3F3F3F).view(np.float32)  # of kernels/guard.cu, and its first ratio
_MEAN, _MOST = 8, 127  # of magnitudes


@dataclass(frozen=True)
class Lines:
    """A's rows, or B's columns, each of which is a row here."""

    numbers: np.ndarray

    @property
    def dtype(self) -> str:
        return self.numbers.dtype.name

    @property
    def inner(self) -> int:
        return self.numbers.shape[1]

    @property
    def wide(self) -> np.ndarray:
        return self.numbers.astype(np.float64)

    @property
    def squares(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.square(self.wide).sum(axis=1)

    @property
    def most(self) -> np.ndarray:
        return np.abs(self.wide).max(axis=1, initial=0)

    def summary(self) -> Summary:
        squares, most = self.squares, self.most
        with np.errstate(invalid="ignore"):
            integral = bool((self.numbers == np.rint(self.numbers)).all())
        in_range = (squares < 1e280) & ((most == 0) | (squares > 1e-280))
        least = np.sqrt(squares[most > 0]).min(initial=math.inf)
        return Summary(float(most.max(initial=0)), integral, bool(in_range.all()), float(least))

    def exponents(self, arithmetic: Arithmetic) -> np.ndarray:
        """Of the powers of two by which they are multiplied."""
        limit, norms, most = arithmetic.limit(self.inner), np.sqrt(self.squares), self.most
        if not limit:
            return np.zeros(len(norms), int)
        exponents = _floor_log2(limit) - _floor_log2(norms)
        exponents -= np.ldexp(norms, exponents) >= limit
        exponents = np.minimum(exponents, INTEGER_BITS[self.dtype] - 2 - _floor_log2(most))
        return np.where(most > 0, exponents, 0)

    def integers(self, exponents: np.ndarray) -> np.ndarray:
        """Nearest ones, ties to even."""
        return np.rint(self.wide * np.ldexp(1.0, exponents)[:, None]).astype(np.int64)

    def magnitudes(self) -> tuple[np.ndarray, np.ndarray]:
        """What the guard multiplies, of the units along k that it looks at, and what one step of them is, in norms."""
        sums = np.abs(self.wide).sum(axis=1)
        with np.errstate(all="ignore"):
            cuts = np.where(sums > 0, _MEAN * self.inner / sums, 0)
            steps = (sums / (_MEAN * self.inner * np.sqrt(self.squares))).astype(np.float32)  # NaN for a line of zeros
        every, there = sampling(self.inner, self.dtype), -(-self.inner // UNIT)
        places = [min(unit * every + (unit * 5 + 3) % every, there - 1) for unit in range(-(-there // every))]
        looked_at = np.isin(np.arange(self.inner) // UNIT, places)
        scaled = np.abs(self.wide[:, looked_at]) * (cuts * _LOOSE)[:, None]
        return np.floor(np.minimum(scaled, _MOST)), steps


def _floor_log2(x: np.ndarray | float) -> np.ndarray:
    return np.frexp(x)[1] - 1


def least_ratio(a: Lines, b: Lines) -> float:
    """As the guard finds it for a tile of all rows and columns."""
    (of_a, a_steps), (of_b, b_steps) = a.magnitudes(), b.magnitudes()
    sums = of_a.astype(np.float64) @ of_b.T.astype(np.float64)
    ratios = sums.astype(np.float32) * (a_steps[:, None] * b_steps[None, :])
    return float(np.fmin.reduce(ratios, axis=None, initial=_NEARLY_ONE))


def chosen(a: np.ndarray, b: np.ndarray, *, fast: bool) -> tuple[Arithmetic, float | None]:
    """What a product as one tile is computed in, and its proved error."""
    rows, columns = Lines(a), Lines(b.T)
    return choose(rows.summary(), columns.summary(), rows.inner, rows.dtype, lambda: least_ratio(rows, columns), fast=fast)


def exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers below 2⁶² in magnitude, a · bᵀ, as Python's integers."""
    whole = np.zeros((len(a), len(b)), object)
    for first in range(0, a.shape[1], _LONGEST):
        of_a, of_b = (_digits(x[:, first : first + _LONGEST]) for x in (a, b))
        for place in range(len(of_a) + len(of_b) - 1):
            pairs = [(i, place - i) for i in range(len(of_a)) if 0 <= place - i < len(of_b)]
            parts = sum((of_a[i] @ of_b[j].T).astype(np.int64) for i, j in pairs)
            whole += np.asarray(parts).astype(object) << _DIGIT * place
    return whole


def _digits(x: np.ndarray) -> list[np.ndarray]:
    """To base 2²¹, from -2²⁰ to 2²⁰, the lowest first."""
    digits = []
    half = 1 << _DIGIT - 1
    for _ in range(2):
        digit = (x + half & (1 << _DIGIT) - 1) - half
        digits.append(digit.astype(np.float64))
        x = x - digit >> _DIGIT
    return [*digits, x.astype(np.float64)]


def integer_product(a: np.ndarray, b: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
    """The integers whose remainders are multiplied: their product, and the exponents of two that bring it back to C."""
    rows, columns = Lines(a), Lines(np.ascontiguousarray(b.T))
    of_a, of_b = rows.exponents(arithmetic), columns.exponents(arithmetic)
    return exact_product(rows.integers(of_a), columns.integers(of_b)), -(of_a[:, None] + of_b[None, :])


def from_remainders(a: np.ndarray, b: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """The product, rounded as the last step rounds it: from an integer to float64, and from that to the type."""
    product, back = integer_product(a, b, arithmetic)
    if arithmetic.moduli > 1:
        of_all = math.prod(MODULI[: arithmetic.moduli])
        product = (product + of_all // 2) % of_all - of_all // 2
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(product.astype(np.float64), back).astype(a.dtype)


def native(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One chain of fused multiply-adds along k."""
    c = np.zeros((len(a), b.shape[1]), a.dtype)
    if a.dtype == np.float32:  # products are exact in float64
        for column, row in zip(a.T.astype(np.float64), b.astype(np.float64), strict=True):
            c = (c + np.multiply.outer(column, row)).astype(np.float32)
        return c
    for column, row in zip(a.T, b, strict=True):
        high, low = two_product(column[:, None], row[None, :])
        total = c + high
        rest = total - c
        c = total + (((c - (total - rest)) + (high - rest)) + low)
    return c


def two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a · b = high + low, exactly."""
    high = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of 26 bits each."""
    large = x * (2.0**27 + 1)
    high = large - (large - x)
    return high, x - high
