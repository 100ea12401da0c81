# SPDX-License-Identifier: MIT
"""Is what a launch of a whole program has computed the product of what it was given?

A launch has the shape of a product if it reads two arrays and writes a third, and their sizes are those of A, B and C for some
n, l and m that are among its numbers or follow from its grid. C may be the product in any layout, scaled, or added to what was
there. If it is not, the launch is accused only where a part of C is the product, a known mistake explains all of it, or the
kernel's name says that it multiplies: programs may compute something else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from hybrid.core.problem import record

_FEW = 5  # places at which a sum may end that are tried
_PART = 0.1  # of C: so much is no product by chance
_WORDS = ("mul", "mm", "gemm", "prod")  # in a kernel's name


@record
class Judged:
    """What came of comparing. `text`: what is wrong, with {N} for the name of array N; "" for nothing."""

    text: str = ""
    at: int = 0  # the instruction that wrote the first wrong element


class _Layout:
    """The matrices in one of eight layouts: each lies row by row or column by column."""

    def __init__(self, arrays: list[np.ndarray], sizes: tuple[int, int, int], transposed: tuple[bool, ...]) -> None:
        n, l, m = sizes

        def matrix(array: np.ndarray, rows: int, columns: int, is_transposed: bool) -> np.ndarray:
            return array.reshape(columns, rows).T if is_transposed else array.reshape(rows, columns)

        x, y, c, old, writers = arrays
        self.x, self.y = (matrix(x, n, l, transposed[0]).astype("f8"), matrix(y, l, m, transposed[1]).astype("f8"))
        self.c, self.old, self.writers = (matrix(each, n, m, transposed[2]) for each in (c, old, writers))
        self.unit = 0.0 if c.dtype.kind == "i" else float(np.finfo(c.dtype).eps)
        self.product, self.size = self.x @ self.y, abs(self.x) @ abs(self.y)  # and its terms' absolute values
        self.right = self.is_near(self.product, self.size)

    def is_near(self, expected: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Which elements are near the expected ones, sums of terms of this size, or were not written by the launch."""
        if not self.unit:
            return (self.writers == 0) | ((self.c.astype("i8") - expected.astype("i8")) << 32 == 0)
        return (self.writers == 0) | (abs(self.c - expected) <= 4 * (self.x.shape[1] + 2) * self.unit * size)

    def is_meant(self, scales: list[float]) -> bool:
        """Whether it is the product times a number, or added to what was there, or without what is negative."""
        if self.right.all():
            return True
        old = np.where(np.isfinite(self.old), self.old, 0).astype("f8")
        most = np.unravel_index(abs(self.product).argmax(), self.product.shape)
        alphas = [1.0, *scales]
        # Of matrices whose elements are all alike a part of the sum is a multiple of it, too.
        if self.product[most] and np.ptp(self.product) > 0.01 * abs(self.product[most]):
            alphas.append(float(self.c[most]) / self.product[most])
        for alpha, beta in product(alphas, (0.0, 1.0, *scales)):
            size = abs(alpha) * self.size + abs(beta * old)
            if alpha and math.isfinite(alpha) and self.is_near(alpha * self.product + beta * old, size).all():
                return True
        return bool(np.where(self.product > 0, self.right, self.c == 0).all())

    def is_elementwise(self) -> bool:
        """Whether it is another operation, of the elements of square matrices one by one."""
        if self.x.shape != self.y.shape or self.x.shape != self.c.shape:
            return False
        with np.errstate(all="ignore"):
            others = (self.x * self.y, self.x + self.y, self.x - self.y, self.x / self.y)
            return any(np.allclose(self.c, each, rtol=1e-6, equal_nan=True) for each in others)

    def explained(self, names: tuple[str, str]) -> Iterator[str]:
        """Mistakes that explain all of C."""
        l = self.x.shape[1]
        if self.x.shape == self.y.shape == self.c.shape:
            for one, name, other in ((self.x, *names), (self.y, *names[::-1])):
                if self.is_near(one @ one, abs(one) @ abs(one)).all():
                    yield f"it is {name} · {name}, without {other}"
        row, column = np.argwhere(self.writers)[0]
        terms = self.x[row] * self.y[:, column]
        sums, got = np.cumsum(terms), float(self.c[row, column])
        near = 4 * (l + 2) * self.unit * abs(terms).sum()
        for k in (np.flatnonzero(abs(sums[:-1] - got) <= near) + 1)[:_FEW]:
            if self.is_near(self.x[:, :k] @ self.y[:k], self.size).all():
                yield f"its sums have the first {k} of {l} products only"
        for k in (np.flatnonzero(abs(sums[-1] - sums[:-1] - got) <= near) + 1)[-_FEW:]:
            if self.is_near(self.x[:, k:] @ self.y[k:], self.size).all():
                is_last = k == l - 1
                yield "each is the last product only" if is_last else f"its sums leave out the first {k} of {l} products"

    def edges(self) -> str:
        """Rows or columns from which on all is wrong; "" where that is not so."""
        texts = []
        for axis, what in ((1, "rows"), (0, "columns")):
            some_right = np.flatnonzero((self.right & (self.writers > 0)).any(axis=axis))
            wrong = np.flatnonzero(~self.right.all(axis=axis))
            if len(some_right) and len(beyond := wrong[wrong > some_right[-1]]):
                texts.append(f"all {what} from {beyond[0]} on")
        return " and ".join(texts)


def judged(event: dict[str, Any]) -> Judged | None:
    """What is found of a launch; None where it is not compared: it has not the shape of a product, or computes something else."""
    (x, of_x, reads_x), (y, of_y, reads_y), (c, of_c, reads_c) = event["operands"]
    sizes = _sizes(of_x, of_y, of_c, event)
    if sizes is None or not event["arrays"][4].any():
        return None
    layouts = []
    for transposed in product((False, True), repeat=3):
        layouts.append(_Layout(event["arrays"], sizes, transposed))
        if not np.isfinite(layouts[-1].product).all():
            return None
        if layouts[-1].is_meant(event["scales"]):
            return Judged()
    if reads_c or layouts[0].is_elementwise():
        return None
    why, layout = next(((why, each) for each in layouts for why in each.explained((f"{{{x}}}", f"{{{y}}}"))), ("", layouts[0]))
    if not why:
        shares = [(each.right & (each.writers > 0) & (each.product != 0)).mean() for each in layouts]
        layout = layouts[int(np.argmax(shares))]
        says_so = any(word in event["kernel"].lower() for word in _WORDS) and (reads_x > of_x or reads_y > of_y)
        if max(shares) < _PART and not says_so:
            return None
        why = layout.edges()
    row, column = map(int, np.argwhere(~layout.right)[0])
    n, l, m = sizes
    is_now, right = float(layout.c[row, column]), float(layout.product[row, column])
    wrong = (
        f"{{{c}}}, which is not {{{x}}} ({n}×{l}) · {{{y}}} ({l}×{m}): {(~layout.right).sum():,} of {n * m:,} elements are "
        f"wrong, the first in row {row}, column {column}: {is_now:.7g} instead of {right:.7g}"
    )
    return Judged("; ".join(filter(None, [wrong, why])), int(layout.writers[row, column]))


def _sizes(x: int, y: int, c: int, event: dict[str, Any]) -> tuple[int, int, int] | None:
    """n, l and m of arrays of these numbers of elements, if they exist and the launch's numbers or its grid tell them."""
    if not x * y * c:
        return None
    n, l, m = (round(math.sqrt(first * second / third)) for first, second, third in ((x, c, y), (x, y, c), (y, c, x)))
    if (n * l, l * m, n * m) != (x, y, c):
        return None
    told = {1, *event["numbers"]}
    launch = zip(event["grid"], event["block"], strict=True)
    along = [range((blocks - 1) * threads + 1, blocks * threads + 1) for blocks, threads in launch]
    outer = (m in told or m in along[0]) and (n in told or n in along[1])
    return (n, l, m) if outer and (l in told or l in (n, m)) else None
