# SPDX-License-Identifier: MIT
"""The errors of a product's elements, exactly: products of two elements as sums of two doubles, which math.fsum adds up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from experiments.accuracy.model import two_product

UNITS = {"float64": 2.0**-53, "float32": 2.0**-24}


# Times native's errors, root mean square and maximum; 1.8 and 2.3 were seen, where powers of two lose most.
_ALLOWED = {"14 moduli": (2.0, 3.0)}


def above(errors: Sequence[float], native: Sequence[float], arithmetic: str = "") -> bool:
    """Whether root mean square or maximum are larger than native's, or than what this arithmetic may have. Where native is not
    exact, an element may always err by one unit, as what is rounded once may."""
    rms, most = _ALLOWED.get(arithmetic, (1.0, 1.0))
    return errors[0] > rms * native[0] or errors[1] > max(most * native[1], 1.0 if native[1] else 0.0)


class Reference:
    """A·B as pairs of doubles, and |A||B|. Rows of A and columns of B are brought near 1 by powers of two: so nothing underflows
    that counts."""

    def __init__(self, a: np.ndarray, b: np.ndarray) -> None:
        self._unit = UNITS[a.dtype.name]
        a, b = a.astype(np.float64), b.T.astype(np.float64)
        of_a, of_b = (-np.frexp(np.abs(x).max(axis=1, initial=0))[1] for x in (a, b))
        self._exponents = of_a[:, None] + of_b[None, :]
        a, b = np.ldexp(a, of_a[:, None]), np.ldexp(b, of_b[:, None])
        self.sizes = np.abs(a) @ np.abs(b).T
        self.high, self.low = np.empty((2, len(a), len(b)))
        for i, row in enumerate(a):
            for j, parts in enumerate(np.concatenate(two_product(row, b), axis=1).tolist()):
                self.high[i, j] = high = math.fsum(parts)
                self.low[i, j] = math.fsum([*parts, -high])

    def errors(self, c: np.ndarray) -> np.ndarray:
        """(C - A·B) / |A||B| in units of 2⁻⁵³ or 2⁻²⁴; 0 where |A||B| is."""
        with np.errstate(all="ignore"):
            scaled = np.ldexp(c.astype(np.float64), self._exponents)
            errors = ((scaled - self.high) - self.low) / self.sizes / self._unit
        return np.where((self.sizes == 0) & (scaled == 0), 0, errors)

    def rms_and_max(self, c: np.ndarray) -> tuple[float, float]:
        errors = np.abs(self.errors(c))
        return float(np.sqrt(np.square(errors).mean())), float(errors.max())
