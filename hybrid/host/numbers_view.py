# SPDX-License-Identifier: MIT
"""Rows of elements of 16 bits as the numbers that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.core.spans import Span
from hybrid.host.row_view import RowView
from hybrid.kernels.elements import numbers_of


class NumbersView(RowView):
    """A matrix of 16 bits in host memory, seen as float32.

    Rows are converted when they are asked for, and the last ones are kept, since a check asks for the same ones again.
    """

    def __init__(self, view: RowView) -> None:
        super().__init__(view.array, view.rows)
        self._kept = RowView(np.empty((0, view.array.shape[1]), np.float32), Span(view.rows.lo, view.rows.lo))

    def __getitem__(self, rows: Span) -> Any:
        if not rows.lies_in(self._kept.rows):
            self._kept = RowView(numbers_of(super().__getitem__(rows)).astype(np.float32, copy=False), rows)
        return self._kept[rows]
