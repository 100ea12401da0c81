# SPDX-License-Identifier: MIT
"""Kinds of matrices that arithmetic may find easy or hard: A of n×l and B of l×m elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
Make = Callable[[np.random.Generator, int, int, int], Pair]

_PART_OF_SPARSE = 0.05
_HUGE, _SMALL = 2.0**30, 2.0**-20


def _both(fill: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]) -> Make:
    return lambda random, n, l, m: (fill(random, (n, l)), fill(random, (l, m)))


def _normal(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape)


def _spread(random: np.random.Generator, shape: tuple[int, int], phi: float) -> np.ndarray:
    return (random.random(shape) - 0.5) * np.exp(phi * random.standard_normal(shape))


def _any_spread(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    return _both(partial(_spread, phi=random.uniform(0, 2.5)))(random, n, l, m)


def _sparse(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape) * (random.random(shape) < _PART_OF_SPARSE)


def _huge_entry(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    numbers = random.standard_normal(shape)
    numbers[tuple(random.integers(shape))] *= _HUGE
    return numbers


def _integers(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.integers(-1000, 1001, shape).astype(np.float64)


def _hilbert(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    def of(rows: int, columns: int) -> np.ndarray:
        return 1 / (np.arange(rows)[:, None] + np.arange(columns) + 1.0)

    return of(n, l), of(l, m)


def _graded_rows(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    a, b = _both(_normal)(random, n, l, m)
    return a * 2.0 ** random.integers(-20, 21, (n, 1)), b * 2.0 ** random.integers(-20, 21, (1, m))


def _graded_k(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    """What is large along k in A is small in B."""
    a, b = _both(_normal)(random, n, l, m)
    grades = 2.0 ** np.linspace(-8, 8, l)
    return a * grades, b / grades[:, None]


def _halves(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    """Large elements of A meet only small ones of B."""
    a, b = _both(_normal)(random, n, l, m)
    a[:, : l // 2] *= _SMALL
    b[l // 2 :] *= _SMALL
    return a, b


def _orthogonal(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    lines = max(n, m)
    q = np.linalg.qr(random.standard_normal((max(lines, l), min(lines, l))))[0]
    q = q if lines > l else q.T
    return q[:n], q[:m].T


KINDS: dict[str, Make] = {
    "uniform": _both(lambda random, shape: random.random(shape)),
    "normal": _both(_normal),
    **{f"φ = {phi:g}": _both(partial(_spread, phi=phi)) for phi in (0.5, 1, 2, 4)},
    "graded rows": _graded_rows,
    "graded k": _graded_k,
    "Hilbert": _hilbert,
    "sparse": _both(_sparse),
    "halves": _halves,
    "orthogonal": _orthogonal,
    "one huge": _both(_huge_entry),
    "subnormals": _both(_normal),  # A becomes so small
    "integers": _both(_integers),
}
ALL_KINDS: dict[str, Make] = {**KINDS, "φ": _any_spread}
_LEAST = {"float64": 2.0**-1060, "float32": 2.0**-140}  # by which A's subnormal numbers are multiplied


def matrices(kind: str, dtype: str, n: int, l: int, m: int, random: np.random.Generator) -> Pair:
    a, b = ALL_KINDS[kind](random, n, l, m)
    if kind == "subnormals":
        a = a * _LEAST[dtype]
    with np.errstate(under="ignore", over="ignore"):
        return np.ascontiguousarray(a.astype(dtype)), np.ascontiguousarray(b.astype(dtype))


def varied(kind: str, dtype: str, n: int, l: int, m: int, random: np.random.Generator) -> Pair:
    """Multiplied by any number from 1 to 2 each: how much powers of two lose depends on it."""
    factors = random.uniform(1, 2, 2)
    a, b = matrices(kind, dtype, n, l, m, random)
    if kind in ("integers", "subnormals"):
        return a, b
    return (a * factors[0]).astype(dtype), (b * factors[1]).astype(dtype)
