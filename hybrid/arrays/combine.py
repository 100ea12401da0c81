# SPDX-License-Identifier: MIT
"""C = alpha · product + beta · C, from a product in floating point: by threads, in row blocks that stay in a core's cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.arrays.gemm import Gemm
from hybrid.arrays.interop import empty_like, on_device_of, on_gpu, on_host, to_device_of
from hybrid.arrays.product_type import ProductType, numpy_type
from hybrid.arrays.rounding import round_into, rounds
from hybrid.core.spans import Span
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about

_PART_BYTES = 1 << 19  # of a part of the product, which fits a core's cache with its part of C and a temporary one


def finished(product: Any, types: ProductType, gemm: Gemm, c: Any, out: np.ndarray | None, threads: int) -> Any:
    """C in its own type, from the real or complex product: in `out` where that is given, else in the product's memory where it
    can be.

    The arrays are NumPy's or CuPy's.
    """
    into = out
    if out is None:
        rows, columns = product.shape
        into = empty_like(product, rows, columns, numpy_type(types.result)) if types.converts else product
    elif np.may_share_memory(out, product):
        into = product  # it was computed there
    if c is not None:
        c = to_device_of(product, c) if on_gpu(product) else on_host(c)
    with on_device_of(product):
        combine(product, gemm, c, into, threads)
    return into


def combine(product: Any, gemm: Gemm, c: Any, into: Any, threads: int) -> None:
    """Write alpha · product + beta · c into `into`, converted to its type.

    `into` may be the product itself or `c`, but no other memory of theirs. The product's memory is used for the computation. C
    is not read where beta is 0.

    The sum is computed in the product's type, or where a real product becomes complex in the complex type of its size. In C's
    own type, where that is narrower, beta · C would be rounded, or overflow.
    """
    wide = product.dtype
    if into.dtype.kind == "c" and wide.kind != "c":
        wide = np.result_type(wide, np.complex64)
    wide_c = np.result_type(wide, c.dtype) if c is not None else wide

    def work(rows: Span) -> None:
        part = product[rows.slice].astype(wide, copy=False)
        with np.errstate(all="ignore"):
            if gemm.alpha != 1:
                part *= gemm.alpha
            if gemm.beta != 0:
                part += c[rows.slice] if gemm.beta == 1 else gemm.beta * c[rows.slice].astype(wide_c, copy=False)
            if is_rounded and part.dtype == np.float32:
                round_into(into[rows.slice], part)
            elif into is not product:
                into[rows.slice] = part

    rows, is_rounded = Span(0, len(product)), rounds(product, into)
    at_once = CALL_BYTES if is_rounded and not gemm.combines else _PART_BYTES  # in a single step nothing is read twice
    parts = [rows] if on_gpu(product) else rows_of_about(at_once, rows, product.shape[1] * product.itemsize)
    for _ in on_threads(threads, work, parts):
        pass
