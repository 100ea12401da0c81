# SPDX-License-Identifier: MIT
"""Elements of matrices as kernels take them, in arrays: bfloat16, which neither NumPy nor CuPy has, as the bits of a uint16."""

from __future__ import annotations

from typing import Any

import numpy as np

_BITS = np.dtype(np.uint16)
_NOT_A_NUMBER = 0x7FFF
_IN_C = {"float32": "float", "float64": "double", "float16": "Float16", _BITS.name: "Bfloat16"}  # by the array's type
_LARGEST_BYTE, _SPREAD_OF_BYTES = 127, 32.0


def storage(dtype: str) -> np.dtype:
    return _BITS if dtype == "bfloat16" else np.dtype(dtype)


def not_a_number(dtype: str) -> Any:
    """Of integers, which have none, one that `stored` never gives."""
    if np.dtype(storage(dtype)).kind == "i":
        return np.iinfo(dtype).min
    return _NOT_A_NUMBER if dtype == "bfloat16" else np.nan


def spread_of(dtype: str) -> float:
    """By which numbers around 1 are multiplied before `stored`, so that bytes have many values."""
    return _SPREAD_OF_BYTES if dtype == "int8" else 1.0


def largest_rounding(dtype: str) -> float:
    """Of a sum of this type, as a part of it; integers are exact."""
    return 0.0 if np.dtype(dtype).kind == "i" else float(np.finfo(dtype).eps)


def elements_of(array: Any) -> Any:
    """A view of an array of numbers: of the package ml_dtypes' bfloat16 as its bits."""
    return array.view(_BITS) if array.dtype.name == "bfloat16" else array


def stored(numbers: Any, dtype: str) -> Any:
    """Finite numbers, rounded to the nearest of this type, to the even one of two; bytes are within ±127."""
    if dtype == "int8":
        return numbers.round().clip(-_LARGEST_BYTE, _LARGEST_BYTE).astype(dtype)
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + (bits >> 16 & 1) + 0x7FFF) >> 16).astype(_BITS)


def numbers_of(elements: Any) -> Any:
    """What they stand for, in a type that can compute."""
    return (elements.astype(np.uint32) << 16).view(np.float32) if elements.dtype == _BITS else elements


def c_type(elements: Any) -> str:
    """Of the elements of an array, in the kernels."""
    return _IN_C[elements.dtype.name]
