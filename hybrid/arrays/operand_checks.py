# SPDX-License-Identifier: MIT
"""Whether the arrays of a call fit together: each function answers one question, or refuses in one line what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hybrid.arrays.distributed import Distributed
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.product_type import ProductType, numpy_type
from hybrid.errors import UsageError

_MOST_WORK = 100_000  # steps of NumPy's search for a common element: some milliseconds


def can_hold(out: np.ndarray, dtype: str) -> bool:
    """Whether C can be computed in `out` itself, without a copy at the end."""
    return out.flags.c_contiguous and out.flags.aligned and out.dtype.isnative and out.dtype == dtype


def refuse_unused_c(c: Any, asked_gemm: Mapping[str, Any]) -> None:
    """UsageError for a C that is given without a word on beta; callers of BLAS pass beta=0 when C is not to be read."""
    if c is not None and asked_gemm.get("beta") is None:
        or_out = "" if isinstance(c, Distributed) else ", or out=c to write to it"
        raise UsageError(f"c is given, but beta is 0: pass beta=1 to add c, beta=0 to leave it unread{or_out}", code="addend")


def refuse_wrong_c(c: Any, gemm: Gemm, shape: tuple[int, ...], types: ProductType) -> None:
    """UsageError unless beta times this C can be added to the product. Where beta is 0, it is not looked at."""
    if gemm.beta == 0:
        return
    if c is None:
        raise UsageError(f"beta is {gemm.beta:g}, but c is None: pass the matrix that is added", code="addend")
    if c.shape != shape:
        raise UsageError(f"c has shape {c.shape}, the product {shape}", code="addend")
    if types.exact and c.dtype.kind not in "biu":
        raise UsageError(
            f"c is of {c.dtype}, and a product of {types.result} is exact: pass integers, or dtype='float64'", code="addend"
        )
    if not types.exact and not np.can_cast(c.dtype, numpy_type(types.result), "same_kind"):
        raise UsageError(f"c is of {c.dtype}, which cannot be added to a product of {types.result}", code="addend")


def refuse_out(out: Any, shape: tuple[int, ...], dtype: np.dtype, what: str = "product") -> None:
    """UsageError unless `what`, of this shape and type, can be written to `out`."""
    if isinstance(out, np.ma.MaskedArray):
        raise UsageError(f"out is a masked array, whose mask would hide elements of the {what}: pass out.data", code="masked")
    if not isinstance(out, np.ndarray):
        raise UsageError(f"out must be a NumPy array, not {type(out).__name__}", code="out")
    if out.shape != shape:
        raise UsageError(f"out has shape {out.shape}, the {what} {shape}", code="out")
    if out.dtype != dtype:
        order = " in this machine's byte order" if dtype.isnative else ""
        raise UsageError(f"out must be an array of {dtype}{order}, not of {out.dtype}", code="out")
    if not out.flags.writeable:
        raise UsageError("out must be writable, and this array is not", code="out")
    if _overlaps_itself(out):
        raise UsageError(f"out has strides {out.strides}, with which several of its elements share memory", code="out")


def refuse_wrong_out(out: np.ndarray, operands: Iterable[Any], c: Any, shape: tuple[int, ...], types: ProductType) -> None:
    """UsageError unless the product can be written to `out` while A and B, the `operands`, and C are still read."""
    refuse_out(out, shape, numpy_type(types.result))
    if any(_overlap(out, each) for each in operands):
        raise UsageError("out overlaps a or b, which are still read while it is written", code="overlap")
    if c is not None and _overlap(out, c) and not _is_same(out, c):
        raise UsageError("out overlaps c without being the same array", code="overlap")


def _overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether an element of one array shares memory with one of the other.

    Neighbouring blocks of columns of one matrix do not, though each reaches from its first row to its last.
    """
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)  # type: ignore[arg-type]  # any number may be given
    except RuntimeError:  # TooHardError
        return True


def _is_same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the two arrays have the same elements at the same place."""
    return one.__array_interface__["data"] == other.__array_interface__["data"] and (one.strides, one.dtype) == (
        other.strides,
        other.dtype,
    )


def _overlaps_itself(array: np.ndarray) -> bool:
    """Whether several elements share memory: they may unless the elements of each dimension lie within one step of the next."""
    reach = array.itemsize
    for step, extent in sorted((abs(step), extent) for step, extent in zip(array.strides, array.shape, strict=True)):
        if extent > 1:
            if step < reach:
                return array.size > 0
            reach += step * (extent - 1)
    return False


def refuse_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """UsageError unless a matrix of shape `a` can be multiplied by one of shape `b`."""
    if a[1] != b[0]:
        raise UsageError(f"a has {a[1]} columns and b {b[0]} rows: they must be the same", code="shapes")
