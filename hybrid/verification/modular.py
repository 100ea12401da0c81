# SPDX-License-Identifier: MIT
"""Freivalds' check modulo a random prime, for products of integers that are exact in float64, while the check's usual sums, whose
terms are multiplied by x, would be rounded."""

from __future__ import annotations

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.verification.group_sums import in_cache, over_rows

_LEAST, _MOST = 1 << 19, 1 << 20  # of the prime
_COLUMNS = 1 << 13  # so many products of two numbers below 2^20 add up to at most 2^53
_MOST_EXACT = 2.0**53


class Modular:
    """Products of matrices with vectors, modulo a prime. Ranks that seed the generator alike have the same prime and the same x.

    An error stays unseen if the prime divides it, or if several cancel: about one of 100,000 such checks does not see it.
    """

    def __init__(self, random: np.random.Generator, columns: int, threads: int) -> None:
        self._prime, self._threads = float(_next_prime(int(random.integers(_LEAST, _MOST - 1000)))), threads
        self._below_inverse = (1 - 2.0**-50) / self._prime
        self.x = random.integers(1, int(self._prime), columns).astype(np.float64)

    def times(self, matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """matrix·vector modulo the prime."""
        product = np.zeros(len(matrix))

        def multiply(where: slice, rows: np.ndarray) -> None:
            for part, values in in_cache(rows):
                into = product[where.start + part.start : where.start + part.stop]
                residues = self._residues(values)
                for some in pieces(Span(0, values.shape[1]), _COLUMNS):
                    into += self._residues(np.dot(residues[:, some.slice], vector[some.slice]))
                into[...] = self._residues(into)

        for _ in over_rows(matrix, self._threads, multiply):
            pass
        return product

    def _residues(self, values: np.ndarray) -> np.ndarray:
        """Residues of integers up to 2^53: as `fmod` gives them, but up to 8 above the prime, in a tenth of the time. The
        quotient is never too large, so its product with the prime is exact."""
        return values - np.trunc(values * self._below_inverse) * self._prime

    def differ(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Which elements are not the same modulo the prime; NaN never is."""
        return np.fmod(one - other, self._prime) != 0

    def impossible(self, matrix: np.ndarray) -> np.ndarray:
        """Which rows hold an element that no exact product of integers has: a fraction, or a number above 2^53."""
        found = np.zeros(len(matrix), bool)

        def look(where: slice, rows: np.ndarray) -> None:
            for part, values in in_cache(rows):
                right = (np.rint(values) == values) & (np.abs(values) <= _MOST_EXACT)
                found[where.start + part.start : where.start + part.stop] = ~right.all(axis=1)

        for _ in over_rows(matrix, self._threads, look):
            pass
        return found


def _next_prime(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number
