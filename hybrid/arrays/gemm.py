# SPDX-License-Identifier: MIT
"""What a call asks for beside A and B, as BLAS's GEMM has it: C = alpha · op(A) · op(B) + beta · C."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid.arrays.product_type import ProductType, type_name
from hybrid.core.record import record
from hybrid.core.settings import as_int
from hybrid.errors import UsageError

_LARGEST = 1 << 1023  # alpha or beta: a float holds it
_LARGEST_FACTOR = 1 << 63  # alpha or beta of a product of integers


@record
class Gemm:
    """The numbers and flags of a call, the same on every rank.

    op is the matrix, its transpose, its complex conjugate, or both. `dtype`: the type of C; "": NumPy's.
    """

    alpha: Any = 1
    beta: Any = 0
    transpose_a: bool = False
    transpose_b: bool = False
    conjugate_a: bool = False
    conjugate_b: bool = False
    dtype: str = ""

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Gemm:
        """The numbers and flags that a call asks for. UsageError where one is no number, no truth value or no type."""
        if all(map(operator.is_, asked.values(), map(_USUAL.get, asked))):
            return PRODUCT
        asked = {**asked, "beta": 0} if asked.get("beta") is None else asked
        known: dict[str, Any] = {}
        for name, value in asked.items():
            if name == "dtype":
                known[name] = type_name(value)
            else:
                known[name] = _number(name, value) if name in ("alpha", "beta") else _flag(name, value)
        return cls(**known)

    def as_dict(self) -> dict[str, str]:
        """The values as texts, to be compared with those of other ranks: NaN would differ from itself."""
        return {name: str(_shortest(value)) for name, value in vars(self).items()}

    @property
    def combines(self) -> bool:
        """Whether C is not the product itself: it is multiplied by alpha, or C is added."""
        return bool(self.alpha != 1 or self.beta != 0)

    def of_type(self, types: ProductType) -> Gemm:
        """The same with alpha and beta as numbers of C's kind. UsageError where they are not such."""
        if self.alpha is PRODUCT.alpha and self.beta is PRODUCT.beta:
            return self
        return replace(self, alpha=_of_kind("alpha", self.alpha, types), beta=_of_kind("beta", self.beta, types))


# What most calls ask for: it need not be validated.
_USUAL = {
    "alpha": 1,
    "beta": None,
    **dict.fromkeys(("transpose_a", "transpose_b", "conjugate_a", "conjugate_b"), False),
    "dtype": None,
}
PRODUCT = Gemm()  # C = A · B


def _number(name: str, value: Any) -> Any:
    """The number as one of Python's. UsageError where it is none."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    whole = as_int(value)
    if type(whole) is int:
        if abs(whole) > _LARGEST:
            raise UsageError(f"{name} is too large a number, of {whole.bit_length()} bits", code="scalars")
        return whole
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, (complex, np.complexfloating)):
        return complex(value)
    raise UsageError(f"{name} must be a number, not {value!r}", code="scalars")


def _shortest(value: Any) -> Any:
    """A whole number as an int: the same text, also where one rank has it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name} must be True or False, not {value!r}", code="scalars")
    return bool(value)


def _of_kind(name: str, value: Any, types: ProductType) -> Any:
    """The number alpha or beta as one of C's kind. UsageError where it is not."""
    if types.result == "bool" and value != (name == "alpha"):
        raise UsageError(f"{name} is {value}, and a product of bool is no number: pass dtype='int64'", code="scalars")
    if types.exact:
        whole = value.real if isinstance(value, complex) and not value.imag else value
        if isinstance(whole, float) and whole.is_integer():
            whole = int(whole)
        if type(whole) is not int or abs(whole) > _LARGEST_FACTOR:
            which = " between -2⁶³ and 2⁶³" if type(whole) is int else ""
            raise UsageError(
                f"{name} is {value}, and a product of {types.result} is exact: pass an integer{which}, or dtype='float64'",
                code="scalars",
            )
        return whole
    if isinstance(value, complex) and not types.result.startswith("complex"):
        raise UsageError(f"{name} is {value}, and the product real: pass dtype='complex128' (or complex64)", code="scalars")
    return float(value) if type(value) is int else value
