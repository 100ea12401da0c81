# SPDX-License-Identifier: MIT
"""The type of a product, and the type of the real numbers from which it is computed."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hybrid.core.installation import install
from hybrid.core.problem import DTYPES, INTEGERS, ITEM_SIZES, Problem
from hybrid.core.record import record
from hybrid.errors import UsageError

# The types of results, and the least type of real numbers from which each is computed: 16 bits are rounded from sums of 32.
_FLOATS = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
_COMPLEX = {"complex64": "float32", "complex128": "float64"}
_SHORT = ("float16", "bfloat16")
_REAL_PARTS = _FLOATS | _COMPLEX


@record
class ProductType:
    """The types of one product, the same on every rank.

    `computed`: the type of the real product that gives C. `result`: the type of C. `complex_a`: in the real product's A, the
    real and imaginary parts of A stand beside each other, so that its l is twice as large; `complex_b`: likewise those of B and
    C, so that its m is. `exact`: it is of integers, none of which may be rounded or wrapped (see hybrid.arrays.integers).
    `short_operands`: the type of A and B where both have the same one of 16 bits, which some devices multiply as they are; else
    empty.
    """

    computed: str
    result: str
    complex_a: bool = False
    complex_b: bool = False
    exact: bool = False
    short_operands: str = ""

    @property
    def item_size(self) -> int:
        """The bytes of a real number."""
        return ITEM_SIZES[self.computed]

    @property
    def promoted(self) -> str:
        """The complex type to which an operand with real and imaginary parts is converted."""
        return {"float32": "complex64", "float64": "complex128"}[self.computed]

    @property
    def operand_a(self) -> str:
        """The type of an A that need not be converted."""
        return self.promoted if self.complex_a else self.computed

    @property
    def operand_b(self) -> str:
        """The type of a B that need not be converted, in which C is computed."""
        return self.promoted if self.complex_b else self.computed

    @property
    def converts(self) -> bool:
        """Whether C has another type than it is computed in."""
        return self.exact or self.result != self.operand_b

    def problem(self, n: int, l: int, m: int) -> Problem:
        """The real product that gives a C of n×m elements, from an A of l columns."""
        return Problem(n, l * (1 + self.complex_a), m * (1 + self.complex_b), self.computed)

    def __str__(self) -> str:
        return self.result + (" (real times complex)" if self.complex_b and not self.complex_a else "")


def numpy_type(name: str) -> np.dtype:
    """NumPy's type of this name, also where a package has added it. UsageError where that package is missing."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(f"bfloat16 needs the package ml_dtypes: {install('bfloat16')}", code="package-missing") from None
    return np.dtype(ml_dtypes.bfloat16)


def is_number(dtype: np.dtype) -> bool:
    """Whether these are numbers of fixed size: NumPy's, or those of a package that adds some, such as bfloat16."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.isbuiltin == 2)


def type_name(dtype: Any) -> str:
    """The name of a type that a user asks for; "" for None. UsageError for one that no product has here."""
    if dtype is None:
        return ""
    try:
        name = np.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError):  # NumPy raises these for some texts
        name = str(dtype)
    if name == "bfloat16":
        numpy_type(name)
    if name not in DTYPES:
        raise UsageError(f"dtype {name} is no type of a product: one of {', '.join(DTYPES)}", code="dtype")
    return name


@lru_cache(maxsize=64)
def product_type(a: np.dtype, b: np.dtype, asked: str = "") -> ProductType:
    """The types of the product of such operands: NumPy's, or those for the type of C that is asked for.

    UsageError where such a product cannot be computed here, or the type that is asked for does not hold it. A product is
    computed in a type that holds the operands and the result, and rounded to the result's type once.
    """
    promoted = _promoted(a, b)
    result = asked or promoted.name
    if a.kind in "biu" and b.kind in "biu" and (result in INTEGERS or result == promoted.name == "bool"):
        return ProductType("float64", result, exact=True)
    wide = np.float32 if result == "bfloat16" else result
    computed = np.result_type(np.float32 if promoted.name == "bfloat16" else promoted, wide)
    complex_a, complex_b = a.kind == "c", a.kind == "c" or b.kind == "c"
    if computed.name not in _REAL_PARTS or result not in _REAL_PARTS or (complex_b and result not in _COMPLEX):
        lost = "it would lose more than rounding"
        raise UsageError(
            f"a product of {_types(a, b)} cannot have dtype {result}: {lost}; convert the operands with .astype", code="dtype"
        )
    short = a.name if a == b and a.isnative and a.name in _SHORT and _REAL_PARTS[computed.name] == "float32" else ""
    return ProductType(_REAL_PARTS[computed.name], result, complex_a, complex_b, short_operands=short)


def _promoted(a: np.dtype, b: np.dtype) -> np.dtype:
    """The type that NumPy has for both. UsageError where no product has it."""
    try:
        promoted = np.result_type(a, b).newbyteorder("=")
    except TypeError:
        if (
            "bfloat16" in (a.name, b.name) and is_number(a) and is_number(b)
        ):  # with types that it has no common one with: taken as float32
            return _promoted(*(np.dtype(np.float32) if each.name == "bfloat16" else each for each in (a, b)))
        promoted = None
    if promoted is None or promoted.name not in DTYPES:
        gives = f"would give {promoted}" if promoted is not None else "have no product"
        raise UsageError(
            f"{_types(a, b)} {gives}: only products of integers, bool and floating-point numbers of up to 64 bits, "
            "and of complex numbers of two such, can be computed; convert with .astype",
            code="dtype",
        )
    return promoted


def _types(a: np.dtype, b: np.dtype) -> str:
    """The names of the two types, for a message."""
    return f"{a}" if a == b else f"{a} and {b}"
