# SPDX-License-Identifier: MIT
"""Is C = A·B? The one check of all experiments, on the host and on a GPU."""

from importlib import import_module
from typing import Any

import numpy as np

from hybrid.errors import CheckFailed
from hybrid.host.threads import limited_threads

WHOLE = 2_000_000_000  # multiply-adds up to which every element is compared
SAMPLED = 32  # rows and columns that are compared of larger products, beside the last ones


class ProductCheck:
    """What A·B is in float64, and how far a product in the operands' type may be from it: NumPy's arrays or CuPy's.

    Every element of a small product is compared. Of a large one some rows and columns are, each row times a random vector,
    and NaN is found anywhere. `roundings`: how many rounding errors of an element may add up; by default as many as there can
    be, in whatever order the sum is made.
    """

    def __init__(self, a: Any, b: Any, roundings: int = 0) -> None:
        (n, l), m = a.shape, b.shape[1]
        self._xp = xp = np if isinstance(a, np.ndarray) else import_module("cupy")
        self._what = f"{a.dtype.name} {n}×{l} · {l}×{m}"
        every, random, unit = slice(None), np.random.default_rng(), float(np.finfo(a.dtype).eps)
        with limited_threads(1):  # more would look for work for a while after it, on the cores of what is timed next
            of_rows, of_columns = (
                xp.sqrt((matrix * matrix.conj()).real.sum(axis=axis, dtype=np.float64)) for matrix, axis in ((a, 1), (b, 0))
            )
            # By Cauchy and Schwarz an element's terms add up to no more than its row's norm times its column's.
            # Each part of a complex one has twice as many.
            allowed = (roundings or (l + 2) * (1 if a.dtype.kind == "f" else 4)) * unit
            # Without the last row and column an error at the edge would seldom show.
            rows, columns = (xp.asarray(np.append(random.integers(0, length, SAMPLED), length - 1)) for length in (n, m))
            parts: list[tuple[Any, Any]] = [(every, every)] if n * l * m <= WHOLE else [(rows, every), (every, columns)]
            self._parts = [
                (
                    some,
                    others,
                    _wide(a[some]) @ _wide(b[:, others]),
                    allowed * of_rows[some][:, None] * of_columns[others][None, :],
                )
                for some, others in parts
            ]
            self._x = x = xp.asarray(random.random(m))
            self._image = _wide(a) @ (_wide(b) @ x)
            self._image_off = (allowed + (l + 2 * m) * float(np.finfo(np.float64).eps)) * of_rows * (of_columns @ x)

    def refuse_wrong(self, what: str, c: Any) -> float:
        """The largest error, relative to the largest element. CheckFailed where rounding does not explain it. C of operands in
        host memory may lie on a GPU."""
        if self._xp is np and not isinstance(c, np.ndarray):
            c = import_module("cupy").asnumpy(c)
        wrong, error, largest = int(self._xp.isnan(c).sum()), 0.0, 0.0
        for rows, columns, exact, allowed in self._parts:
            off = abs(_wide(c[rows][:, columns]) - exact)
            wrong += int((~(off <= allowed)).sum())
            error, largest = max(error, float(off.max())), max(largest, float(abs(exact).max()))
        if wrong:
            raise CheckFailed(f"{what} is wrong for {self._what}: {wrong} elements")
        with limited_threads(1):
            wrong = int((~(abs(_wide(c) @ self._x - self._image) <= self._image_off)).sum())
        if wrong:
            raise CheckFailed(f"{what} is wrong for {self._what}: {wrong} rows")
        return error / largest if largest else error


class IntegerCheck:
    """Of integers, whose product is exact: in int64, modulo 2⁶⁴, some rows and columns, and each row times a random vector."""

    def __init__(self, a: Any, b: Any) -> None:
        xp = np if isinstance(a, np.ndarray) else import_module("cupy")
        self._what = f"{a.dtype.name} {a.shape[0]}×{a.shape[1]} · {a.shape[1]}×{b.shape[1]}"
        random = np.random.default_rng()
        first, second = (matrix.astype(np.int64) for matrix in (a, b))
        self._row, self._column = (int(random.integers(length)) for length in (len(a), b.shape[1]))
        self._x = xp.asarray(random.integers(1, 2**31, b.shape[1]))
        self._expected = first[self._row] @ second, first @ second[:, self._column], first @ (second @ self._x)

    def refuse_wrong(self, what: str, c: Any) -> None:
        """CheckFailed where an element is not exact."""
        found = c[self._row], c[:, self._column], c @ self._x
        for part, expected in zip(found, self._expected, strict=True):
            if not bool((part == expected).all()):
                raise CheckFailed(f"{what} is wrong for {self._what}")


def refuse_wrong(what: str, a: Any, b: Any, c: Any) -> float:
    """For one product of these operands."""
    return ProductCheck(a, b).refuse_wrong(what, c)


def _wide(part: Any) -> Any:
    return part.astype(np.complex128 if part.dtype.kind == "c" else np.float64, copy=False)
