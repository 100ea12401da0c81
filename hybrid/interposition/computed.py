# SPDX-License-Identifier: MIT
"""One BLAS call: its matrices as NumPy arrays, and C written as BLAS writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from hybrid.errors import UsageError
from hybrid.interposition.blas_calls import GEMM, HERK, TYPES, Product

Multiply = Callable[[np.ndarray, np.ndarray, "np.ndarray | None", "np.ndarray | None", Mapping[str, Any]], np.ndarray]


def computed(p: Product, multiply: Multiply, options: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the product and C: the same array if C is final, else arguments of `write`. `multiply` gets A, B, C or None, `out`
    or None, and the options of `hybrid.multiply`, including these."""
    a = _matrix(p.a, (p.k, p.m) if p.transposed_a else (p.m, p.k), p.lda, p.type)
    b = _matrix(p.b, (p.n, p.k) if p.transposed_b else (p.k, p.n), p.ldb, p.type)
    c = _matrix(p.c, (p.m, p.n), p.ldc, p.type)
    alpha, beta = (complex(*each) if each[1] else each[0] for each in (p.alpha, p.beta))
    if not alpha:
        raise UsageError("alpha is 0: BLAS does not read A and B", code="scalars")
    asked = {"alpha": alpha, "beta": beta, "transpose_a": bool(p.transposed_a), "transpose_b": bool(p.transposed_b)}
    asked |= options
    if p.type > 1:
        asked |= {"conjugate_a": bool(p.conjugated_a), "conjugate_b": bool(p.conjugated_b)}
    at_once = p.kind == GEMM and not beta
    return multiply(a, b, c if beta else None, c if at_once else None, asked), c


def _matrix(address: int, shape: tuple[int, int], leading_dimension: int, number: int) -> np.ndarray:
    """A row-major matrix in the caller's memory. `number`: the index of its type in TYPES."""
    element = np.dtype(TYPES[number])
    strides = leading_dimension * element.itemsize, element.itemsize
    where = {"version": 3, "data": (address, False), "shape": shape, "strides": strides, "typestr": element.str}
    return np.asarray(SimpleNamespace(__array_interface__=where))


def write(p: Product, product: np.ndarray, c: np.ndarray) -> None:
    """Write the product to C: for syrk and herk, only the triangle that BLAS writes; for herk, with a real diagonal."""
    if p.kind == GEMM:
        np.copyto(c, product)
        return
    if p.kind == HERK:
        np.einsum("ii->i", product).imag = 0
    for row in range(p.n):
        written = slice(0, row + 1) if p.lower else slice(row, p.n)
        c[row, written] = product[row, written]
