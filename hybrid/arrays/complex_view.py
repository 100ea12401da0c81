# SPDX-License-Identifier: MIT
"""Complex matrices and their real and imaginary parts, in the same memory. The functions take NumPy's arrays and CuPy's."""

from __future__ import annotations

from typing import Any


def real_view(matrix: Any) -> Any:
    """The same memory as real numbers: for a matrix in row-major order, the real and imaginary part of each element beside each
    other."""
    return matrix.view(matrix.real.dtype)


def complex_view(matrix: Any) -> Any:
    """The same memory as complex numbers: the inverse of `real_view`."""
    return matrix.view(matrix.dtype.char.upper())
