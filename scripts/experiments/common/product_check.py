# SPDX-License-Identifier: MIT
"""Is C = A·B? The one check of all experiments, on the host and on a GPU."""

from importlib import import_module
from typing import Any

import numpy as np

from hybrid.errors import CheckFailed
from hybrid.host.threads import limited_threads

WHOLE = 2_000_000_000  # multiply-adds up to which every element is compared
SAMPLED = 32  # rows and columns that are compared of larger products, beside the last ones
_WIDE = {"f": np.float64, "c": np.complex128, "i": np.int64}


class ProductCheck:
    """What A·B is in float64, and how far a product in the operands' type may be from it: NumPy's arrays or CuPy's. Products of
    integers are exact, modulo 2⁶⁴.

    Every element of a small product is compared, of a large one some rows and columns; and each row times a random vector.
    `roundings`: how many rounding errors of an element may add up; by default as many as there can be, in whatever order the sum
    is made.
    """

    def __init__(self, a: Any, b: Any, roundings: int = 0) -> None:
        (n, l), m = a.shape, b.shape[1]
        self._xp = xp = np if isinstance(a, np.ndarray) else import_module("cupy")
        self._what = f"{a.dtype.name} {n}×{l} · {l}×{m}"
        every, random = slice(None), np.random.default_rng()
        whole, exact = n * l * m <= WHOLE, a.dtype.kind == "i"
        with limited_threads(1):  # more would look for work for a while after it, on the cores of what is timed next
            # By Cauchy and Schwarz an element's terms add up to no more than its row's norm times its column's. Each part of a
            # complex term has twice as many roundings.
            of_rows, of_columns, allowed, in_float64 = xp.zeros(n), xp.zeros(m), 0.0, 0.0
            if not exact:
                of_rows, of_columns = (
                    xp.sqrt((matrix * matrix.conj()).real.sum(axis=axis, dtype=np.float64)) for matrix, axis in ((a, 1), (b, 0))
                )
                allowed = (roundings or (l + 2) * (1 if a.dtype.kind == "f" else 4)) * float(np.finfo(a.dtype).eps)
                in_float64 = (l + 2 * m) * float(np.finfo(np.float64).eps)
            # Without the last row and column an error at the edge would seldom show.
            rows, columns = (xp.asarray(np.append(random.integers(0, length, SAMPLED), length - 1)) for length in (n, m))
            self._parts = [
                (some, others, _wide(a[some]) @ _wide(b[:, others]), allowed * of_rows[some][:, None] * of_columns[others])
                for some, others in ([(every, every)] if whole else [(rows, every), (every, columns)])
            ]
            self._x = x = xp.asarray(random.integers(1, 2**31, m) if exact else random.random(m))
            self._image = _wide(a) @ (_wide(b) @ x), (allowed + in_float64) * of_rows * (of_columns @ x)

    def refuse_wrong(self, what: str, c: Any) -> float:
        """The largest error, relative to the largest element. CheckFailed where rounding does not explain it. C of operands in
        host memory may lie on a GPU."""
        if self._xp is np and not isinstance(c, np.ndarray):
            c = import_module("cupy").asnumpy(c)
        error = largest = 0.0
        for rows, columns, exact, allowed in self._parts:
            off = abs(_wide(c[rows][:, columns]) - exact)
            self._refuse(what, off, allowed)
            error, largest = max(error, float(off.max())), max(largest, float(abs(exact).max()))
        with limited_threads(1):
            self._refuse(what, abs(_wide(c) @ self._x - self._image[0]), self._image[1])
        return error / largest if largest else error

    def _refuse(self, what: str, off: Any, allowed: Any) -> None:
        if wrong := int((~(off <= allowed)).sum()):  # as NaN is
            raise CheckFailed(f"{what} is wrong for {self._what}: {wrong} {'rows' if off.ndim == 1 else 'elements'}")


def refuse_wrong(what: str, a: Any, b: Any, c: Any) -> float:
    """For one product of these operands."""
    return ProductCheck(a, b).refuse_wrong(what, c)


def _wide(part: Any) -> Any:
    return part.astype(_WIDE[part.dtype.kind], copy=False)
