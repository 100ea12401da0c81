# SPDX-License-Identifier: MIT
"""The elements of matrices in arrays, as kernels take them. bfloat16, which neither NumPy nor CuPy has, is kept as the bits of a
uint16."""

from __future__ import annotations

from typing import Any

import numpy as np

_BITS = np.dtype(np.uint16)
_NOT_A_NUMBER = 0x7FFF
_IN_C = {"float32": "float", "float64": "double", "float16": "Float16", _BITS.name: "Bfloat16"}  # by the array's type
_LARGEST_BYTE, _SPREAD_OF_BYTES = 127, 32.0


def storage(dtype: str) -> np.dtype:
    """The type of an array that holds elements of this type."""
    return _BITS if dtype == "bfloat16" else np.dtype(dtype)


def not_a_number(dtype: str) -> Any:
    """A NaN of this type, as an array holds it; for integers, which have none, a number that `stored` never gives."""
    if np.dtype(storage(dtype)).kind == "i":
        return np.iinfo(dtype).min
    return _NOT_A_NUMBER if dtype == "bfloat16" else np.nan


def spread_of(dtype: str) -> float:
    """The factor by which numbers around 1 are multiplied before `stored`, so that bytes have many different values."""
    return _SPREAD_OF_BYTES if dtype == "int8" else 1.0


def largest_rounding(dtype: str) -> float:
    """The largest rounding error of a sum of this type, relative to the sum; 0 for integers, which are exact."""
    return 0.0 if np.dtype(dtype).kind == "i" else float(np.finfo(dtype).eps)


def elements_of(array: Any) -> Any:
    """The array as we keep it: one of bfloat16 from the package ml_dtypes is viewed as its bits, any other is returned as it
    is."""
    return array.view(_BITS) if array.dtype.name == "bfloat16" else array


def stored(numbers: Any, dtype: str) -> Any:
    """Finite numbers, rounded to the nearest of this type, ties to even; bytes are clipped to ±127."""
    if dtype == "int8":
        return numbers.round().clip(-_LARGEST_BYTE, _LARGEST_BYTE).astype(dtype)
    if dtype != "bfloat16":
        return numbers.astype(dtype)
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + (bits >> 16 & 1) + 0x7FFF) >> 16).astype(_BITS)


def numbers_of(elements: Any) -> Any:
    """The numbers that elements stand for, in a type that NumPy computes with."""
    return (elements.astype(np.uint32) << 16).view(np.float32) if elements.dtype == _BITS else elements


def c_type(elements: Any) -> str:
    """The name that the kernels have for the type of an array's elements."""
    return _IN_C[elements.dtype.name]
