# SPDX-License-Identifier: MIT
"""Products of complex matrices as one product of real ones.

In memory a complex A (n×l) is a real matrix of n×2l numbers, real and imaginary parts in turn, and so is C (n×2m). With B
expanded to 2l×2m numbers, in which row 2k holds the parts of B's row k and row 2k + 1 those of i times it, the real product of
the two is C:

    re C = Σ re A · re B + im A · (-im B)        im C = Σ re A · im B + im A · re B

These are the four real products of a complex one, as one that every kernel computes and that is checked as any other. Where A is
real, B need not be expanded: its memory is a real matrix as well. The functions take NumPy's arrays and CuPy's.
"""

from __future__ import annotations

from typing import Any

from hybrid.arrays.complex_view import complex_view, real_view
from hybrid.arrays.gemm import PRODUCT, Gemm
from hybrid.arrays.interop import as_rows, empty_like, on_device_of, on_gpu
from hybrid.arrays.product_type import ProductType
from hybrid.core.spans import Span
from hybrid.host.row_copy import tiles_of
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about


def write_expanded(b: Any, rows: Span, into: Any, threads: int, gemm: Gemm = PRODUCT) -> None:
    """Write rows `rows` of the expanded B, which has two for each row of B, into `into` by several threads.

    Where `gemm` wants the conjugate of A, signs are changed in the expanded B instead: A stays as it is.
    """
    numbers, whole = Span(rows.lo // 2, -(-rows.hi // 2)), complex_view(into)  # `numbers`: the rows of B itself

    def write(part: Span) -> None:
        for odd in (0, 1):
            first = part.lo + (2 * part.lo + odd < rows.lo)  # the first or the last row may be asked for alone
            last = max(first, part.hi - (2 * part.hi - 2 + odd >= rows.hi))
            for down, across in tiles_of(b, Span(first, last)):
                start = 2 * down.start + odd - rows.lo
                stop = max(start, start + 2 * (down.stop - down.start) - 1)
                _write_parts(b[down, across], whole[start:stop:2, across], odd, gemm)

    for _ in on_threads(threads, write, rows_of_about(CALL_BYTES, numbers, 2 * into.shape[1] * into.itemsize)):
        pass


def _write_parts(of_b: Any, to: Any, odd: int, gemm: Gemm) -> None:
    """Write the real and imaginary parts of some rows of B; with `odd`, of i times these rows."""
    if not odd:
        to[...] = of_b
    elif of_b.dtype.kind == "c":
        to.real, to.imag = -of_b.imag, of_b.real
    else:
        to.real, to.imag = 0, of_b
    for part in [to.real if odd else to.imag] * gemm.conjugate_b + [to.real, to.imag] * (gemm.conjugate_a and odd):
        part *= -1  # not the complex number, in which infinity would become NaN


def real_operands(a: Any, b: Any, types: ProductType, gemm: Gemm, *, device: str, threads: int) -> tuple[Any, Any]:
    """A and B of the real product that gives the product of `a` and `b`, of which b is complex or becomes so; in memory that
    `device` can read."""
    b = as_rows(b, types.promoted, device=device, threads=threads)
    if not types.complex_a:
        with on_device_of(b):
            return a, real_view(b.conj() if gemm.conjugate_b else b)
    with on_device_of(b):  # the current device is this thread's alone
        expanded = empty_like(real_view(b), 2 * b.shape[0], 2 * b.shape[1])
        write_expanded(b, Span(0, len(expanded)), expanded, 1 if on_gpu(b) else threads, gemm)
    return real_view(as_rows(a, types.promoted, device=device, threads=threads)), expanded
