# SPDX-License-Identifier: MIT
"""Elements of matrices as kernels take them, in NumPy's arrays: bfloat16, which NumPy lacks, as the bits of a uint16."""

from __future__ import annotations

from typing import Any

import numpy as np

_BITS = np.dtype(np.uint16)
_NOT_A_NUMBER = 0x7FFF


def storage(dtype: str) -> np.dtype:
    return _BITS if dtype == "bfloat16" else np.dtype(dtype)


def not_a_number(dtype: str) -> Any:
    return _NOT_A_NUMBER if dtype == "bfloat16" else np.nan


def stored(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Finite numbers, rounded to the nearest of this type, to the even one of two."""
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + (bits >> 16 & 1) + 0x7FFF) >> 16).astype(_BITS)


def numbers_of(elements: np.ndarray, dtype: str) -> np.ndarray:
    """What they stand for, in NumPy's types."""
    return (elements.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else elements
