# SPDX-License-Identifier: MIT
"""The elements of a trial's matrices: A and B by a seed, C as it is handed over, and which of its elements are wrong."""

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


def operands(sizes: Sequence[int], dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A and B, the same for the same seed. Their product is exact in this type, in whatever order it is summed."""
    n, l, m = sizes
    random = np.random.default_rng([seed, n, l, m])
    most = min(_LARGEST[dtype], math.isqrt(_EXACT[dtype] // max(1, l)))
    a, b = (random.integers(1, most, shape, endpoint=True) / _FRACTION for shape in ((n, l), (l, m)))
    return a.astype(dtype), b.astype(dtype)


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


def compared(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> Comparison:
    right = a.astype(np.float64) @ b.astype(np.float64)
    wrong = np.flatnonzero(c != right).tolist()
    first = (float(c.flat[wrong[0]]), float(right.flat[wrong[0]])) if wrong else None
    return Comparison(tuple(wrong), first, int(np.isnan(c).sum()), hashlib.sha256(c.tobytes()).hexdigest())
