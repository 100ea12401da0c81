# SPDX-License-Identifier: MIT
"""Some rows of a matrix that any rank can make, as a matrix of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hybrid.arrays.sources import AnyRanksMatrix, MatrixSource
from hybrid.core.spans import Span


class PartOfRows(AnyRanksMatrix):
    """Rows `part` of a source that is not the root's."""

    def __init__(self, source: MatrixSource, part: Span) -> None:
        self.shape = len(part), source.shape[1]
        self._source, self._part = source, part

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Callable[[int], None]) -> None:
        first = self._part.lo
        self._source.rows(Span(first + rows.lo, first + rows.hi), into, threads, progress)
