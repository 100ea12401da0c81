"""A rank's share of the CPU: NumPy's BLAS on the host matrices where they lie.

With `staged` it copies into buffers of its own like a GPU does, so that machines without one run the same schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hybrid.devices import Mark


class CpuDevice:
    """Works at once: every mark is done when it is given."""

    name = "cpu"

    def __init__(self, staged: bool = False) -> None:
        self.staged = staged
        self._done: list[tuple[str, float, float]] = []

    def buffer(self, rows: int, columns: int, dtype: str) -> np.ndarray:
        return np.full((rows, columns), np.nan, dtype)  # whatever is read before it was written shows

    def copy_in(self, into: np.ndarray, source: np.ndarray) -> Mark:
        return self._do("copy in", lambda: np.copyto(into, source))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, after: list[Mark]) -> Mark:
        return self._do("multiply", lambda: blas(a, b, c))

    def copy_out(self, into: np.ndarray, source: np.ndarray, after: list[Mark]) -> Mark:
        return self._do("copy out", lambda: np.copyto(into, source))

    def finish(self) -> list[tuple[str, float, float]]:
        done, self._done = self._done, []
        return done

    def _do(self, phase: str, work: Callable[[], None]) -> Mark:
        began = time.perf_counter()
        work()
        self._done.append((phase, began, time.perf_counter()))
        return None


def blas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """c = a · b by the BLAS library NumPy was built with."""
    np.matmul(a, b, out=c)
