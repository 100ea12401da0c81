# SPDX-License-Identifier: MIT
"""Of which type a product is, and of which real numbers it is computed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hybrid.core.problem import ITEM_SIZES, Problem
from hybrid.core.record import record
from hybrid.errors import UsageError

_REAL_PARTS = {"float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64"}


@record
class ProductType:
    """The types of one product, the same on every rank.

    `computed`: of the real product that gives C. `result`: of C. `complex_a`: in that product's A the real and imaginary parts of
    A stand beside each other, so that its l is twice as large; `complex_b`: likewise those of B and C, so that its m is.
    """

    computed: str
    result: str
    complex_a: bool = False
    complex_b: bool = False

    @property
    def item_size(self) -> int:
        """Bytes of a real number."""
        return ITEM_SIZES[self.computed]

    @property
    def promoted(self) -> str:
        """To what an operand with real and imaginary parts is converted."""
        return {"float32": "complex64", "float64": "complex128"}[self.computed]

    @property
    def operand_a(self) -> str:
        """The type of an A that need not be converted."""
        return self.promoted if self.complex_a else self.computed

    @property
    def operand_b(self) -> str:
        return self.promoted if self.complex_b else self.computed

    def __str__(self) -> str:
        return self.result + (" (real times complex)" if self.complex_b and not self.complex_a else "")

    def problem(self, n: int, l: int, m: int) -> Problem:
        """The real product that gives a C of n×m elements, from an A of l columns."""
        return Problem(n, l * (1 + self.complex_a), m * (1 + self.complex_b), self.computed)


@lru_cache(maxsize=64)
def product_type(a: np.dtype, b: np.dtype) -> ProductType:
    """NumPy's for these operands; UsageError for a type in which nothing can be computed here."""
    try:
        promoted = np.result_type(a, b).newbyteorder("=")
    except TypeError:
        promoted = None
    if promoted is None or promoted.name not in _REAL_PARTS:
        types = f"{a}" if a == b else f"{a} and {b}"
        raise UsageError(
            f"{types} would give {promoted}: only products in float32, float64, complex64 or complex128 can be computed; "
            "convert with .astype"
        )
    has_parts = a.kind == "c", b.kind == "c"
    return ProductType(_REAL_PARTS[promoted.name], promoted.name, has_parts[0], any(has_parts))
