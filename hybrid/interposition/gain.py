# SPDX-License-Identifier: MIT
"""How much time a product gains by leaving BLAS, by the machine model."""

from __future__ import annotations

from collections.abc import Callable

from hybrid.core.problem import Problem
from hybrid.interposition.blas_calls import GEMM, TYPES
from hybrid.planning.machine_model import MachineModel

_SMALLEST, _LARGEST, _STEP = 16, 1 << 20, 1.1  # edges of squares that are tried
_MOST_KEPT = 1000  # shapes
Shape = tuple[int, int, int, int, int]  # kind and type of blas_calls, and m, n, k


class Gain:
    """Seconds that products gain. `ours`: gives the seconds of a product by `hybrid.multiply`; None: nothing is faster than
    BLAS. `threads`: of BLAS."""

    def __init__(self, model: MachineModel, threads: int, ours: Callable[[Problem], float] | None) -> None:
        self._model, self._threads, self._ours = model, threads, ours
        self._known: dict[Shape, float] = {}

    def of(self, shape: Shape) -> float:
        """Below 0 where BLAS is faster."""
        if self._ours is None:
            return 0.0
        if shape not in self._known:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            kind, number, m, n, k = shape
            # A complex product is one of real matrices, of A's rows and B with twice the rows and columns.
            problem = Problem(m, k, n, TYPES[number]) if number < 2 else Problem(m, 2 * k, 2 * n, TYPES[number - 2])
            blas = self._model.blas_seconds(problem, self._threads)
            self._known[shape] = (blas if kind == GEMM else blas / 2) - self._ours(problem)
        return self._known[shape]

    def threshold(self, number: int) -> float:
        """Multiply-adds of the smallest product of square matrices that gains, of a type in TYPES."""
        edge = _SMALLEST
        while self._ours is not None and edge < _LARGEST:
            if self.of((GEMM, number, edge, edge, edge)) > 0:
                return edge**3
            edge = int(edge * _STEP)
        return float("inf")
