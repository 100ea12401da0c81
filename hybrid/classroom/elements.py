# SPDX-License-Identifier: MIT
"""The elements of a trial's matrices: by a seed, as C is handed over, and which elements of it are wrong."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_EXACT = {"float32": 2**24, "float64": 2**53}  # up to here every integer is a number of the type
_LARGEST = {"float32": 99, "float64": 1 << 20}  # in float64 sums are beyond float32
_FRACTION = 8  # elements are multiples of 1/8: a sum in an int is wrong


@dataclass(frozen=True)
class Comparison:
    """Of a C with the right one. Elements are numbered row by row."""

    wrong: tuple[int, ...]
    first_wrong: tuple[float, float] | None  # what it is, and what is right
    nan: int
    digest: str  # of C


def operands(
    sizes: Sequence[int], dtype: str, seed: int, scales: Sequence[float] = (1, 0)
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, B and C before the launch, and in float64 the right C after it; the same for the same seed.

    `scales`: alpha and beta in C = alpha·A·B + beta·C. C begins as NaN, unless it is added to. All sums are exact in this type,
    in whatever order they are summed.
    """
    n, l, m = sizes
    random = np.random.default_rng([seed, n, l, m])
    (alpha, beta), terms = scales, l + (tuple(scales) != (1, 0))
    most = min(_LARGEST[dtype], math.isqrt(_EXACT[dtype] // max(1, terms)))
    a, b = ((random.integers(1, most, shape, endpoint=True) / _FRACTION).astype(dtype) for shape in ((n, l), (l, m)))
    c = np.full((n, m), np.nan, dtype)
    right = alpha * (a.astype(np.float64) @ b.astype(np.float64))
    if beta:
        c[:] = random.integers(1, _FRACTION, c.shape, endpoint=True)
        right += beta * c
    return a, b, c, right


def encoded(c: np.ndarray) -> str:
    """As text, for JSON."""
    return base64.b64encode(c.tobytes()).decode()


def decoded(text: str, sizes: Sequence[int], dtype: str) -> np.ndarray:
    """C that was encoded. ValueError where the text is not that of a matrix of this shape."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError("no matrix") from None
    return np.frombuffer(content, dtype).reshape(sizes[0], sizes[2])


def compared(c: np.ndarray, right: np.ndarray) -> Comparison:
    wrong, first = wrong_in(c, right)
    return Comparison(tuple(wrong.tolist()), first, int(np.isnan(c).sum()), hashlib.sha256(c.tobytes()).hexdigest())


def wrong_in(c: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, tuple[float, float] | None]:
    """The wrong elements' numbers, and of the first what it is and what is right."""
    wrong = np.flatnonzero(c != right)
    return wrong, (float(c.flat[wrong[0]]), float(right.flat[wrong[0]])) if len(wrong) else None


def mistaken_for(c: np.ndarray, a: np.ndarray, b: np.ndarray, alpha: float) -> str:
    """Which other product this wrong C is, element by element: the matrices, as A, B and C, of which row and column are
    exchanged ("B", "ABC"), or "AA" and "BB" for these products; "" where it is none."""
    if np.isnan(c).any():
        return ""
    as_read = [(each, each.ravel().reshape(each.shape[::-1]).T) for each in (a.astype(np.float64), b.astype(np.float64))]
    for matrices in ("A", "B", "C", "AB", "ABC", "AC", "BC"):
        x, y = (both[letter in matrices] for both, letter in zip(as_read, "AB", strict=True))
        product = alpha * (x @ y)
        if np.array_equal(c, product.T.reshape(c.shape) if "C" in matrices else product):
            return matrices
    squares = {"AA": as_read[0][0], "BB": as_read[1][0]} if a.shape == b.shape == a.shape[::-1] else {}
    return next((name for name, each in squares.items() if np.array_equal(c, alpha * (each @ each))), "")
