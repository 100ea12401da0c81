# SPDX-License-Identifier: MIT
"""The check of a product of integers, from its operands to C in its own type: C·x is compared with alpha·A·(B·x) + beta·C₀·x
modulo 2⁶⁴, where the matrices lie. So it covers what floating-point products are made of, and what is made of them.

An odd x hides no single wrong element of a row; several whose differences are multiples of 2ᵏ are hidden by one x in 2⁶⁴⁻ᵏ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.arrays.integers import Room, by_parts
from hybrid.arrays.interop import empty_beside, to_device_of
from hybrid.core.spans import Span


def odd_words(random: np.random.Generator, count: int) -> np.ndarray:
    """Random odd numbers of 64 bits."""
    return random.integers(0, 1 << 64, count, np.uint64).view(np.int64) | 1


def times(matrix: Any, x: np.ndarray, threads: int) -> Any:
    """matrix·x modulo 2⁶⁴, of integers of any type, or of floating-point numbers that are integers, on the GPU where the matrix
    lies, or in host memory."""
    product, there = empty_beside(matrix, (len(matrix),), np.int64), to_device_of(matrix, x)

    def multiply(rows: Span, room: Room) -> None:
        part = matrix[rows.slice]
        if part.dtype.kind == "f" or part.dtype == np.uint64:  # whose products would be rounded
            with np.errstate(invalid="ignore"):  # of what is no integer, any number will do
                part = part.astype(np.int64)
        on_host = type(part) is np.ndarray  # where this takes a third of the time
        product[rows.slice] = np.einsum("ij,j->i", part, there) if on_host else (part * there).sum(axis=1)

    by_parts(matrix, matrix.shape, multiply, threads, with_room=False)
    return product


def wrapped(number: int) -> np.int64:
    """The number modulo 2⁶⁴."""
    return np.int64((number + (1 << 63)) % (1 << 64) - (1 << 63))
