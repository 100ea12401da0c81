# SPDX-License-Identifier: MIT
"""The elements of a trial's matrices: drawn by a seed, handed over as text, and compared with the right ones."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Sequence

import numpy as np

from hybrid.core.problem import record

_EXACT = {
    "float32": 2**24,
    "float64": 2**53,
    "float16": 2**11,
    "int32": 2**31 - 1,
}  # every integer up to this is a number of the type
_LARGEST = {"float32": 99, "float64": 1 << 20, "float16": 99, "int32": 99}  # in float64 so large that sums in float32 are wrong
_FRACTION = 8  # elements are multiples of 1/8, so that sums in an int are wrong


@record
class Comparison:
    """What comparing a C with the right one has found. Elements are numbered row by row."""

    wrong: tuple[int, ...]
    first_wrong: tuple[float, float] | None  # what the first wrong element is, and what is right
    nan: int  # how many elements are NaN
    digest: str  # a hash of C


def operands(
    sizes: Sequence[int], dtype: str, seed: int, scales: Sequence[float] = (1, 0)
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, B and C before the launch, and the right C after it, in float64; the same for the same seed.

    `scales`: alpha and beta in C = alpha·A·B + beta·C. C begins as NaN, unless beta is not 0. All sums are exact in this type, in
    whatever order they are added up.
    """
    n, l, m = sizes
    random = np.random.default_rng([seed, n, l, m])
    (alpha, beta), terms = scales, l + (tuple(scales) != (1, 0))
    most = min(_LARGEST[dtype], math.isqrt(_EXACT[dtype] // max(1, terms)))
    parts = 1 if dtype == "int32" else _FRACTION
    a, b = ((random.integers(1, most, shape, endpoint=True) / parts).astype(dtype) for shape in ((n, l), (l, m)))
    c = np.full((n, m), np.iinfo(dtype).min if parts == 1 else np.nan, dtype)
    right = alpha * (a.astype(np.float64) @ b.astype(np.float64))
    if beta:
        c[:] = random.integers(1, _FRACTION, c.shape, endpoint=True)
        right += beta * c
    return a, b, c, right


def encoded(c: np.ndarray) -> str:
    """C as text, for JSON."""
    return base64.b64encode(c.tobytes()).decode()


def decoded(text: str, sizes: Sequence[int], dtype: str) -> np.ndarray:
    """The C that was encoded. ValueError where the text is not that of a matrix of this shape."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError("no matrix") from None
    return np.frombuffer(content, dtype).reshape(sizes[0], sizes[2])


def compared(c: np.ndarray, right: np.ndarray) -> Comparison:
    """Compare C with the right one."""
    wrong, first = wrong_in(c, right)
    return Comparison(tuple(wrong.tolist()), first, int(np.isnan(c).sum()), hashlib.sha256(c.tobytes()).hexdigest())


def wrong_in(c: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, tuple[float, float] | None]:
    """The numbers of the wrong elements; and what the first one is, and what is right."""
    wrong = np.flatnonzero(c != right)
    return wrong, (float(c.flat[wrong[0]]), float(right.flat[wrong[0]])) if len(wrong) else None
