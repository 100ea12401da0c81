# SPDX-License-Identifier: MIT
"""Some rows of a matrix, indexed as rows of the whole."""

from __future__ import annotations

from typing import Any

from hybrid.core.spans import Span


class RowView:
    """Rows `rows` of a matrix, which `array` holds, in host or GPU memory."""

    def __init__(self, array: Any, rows: Span) -> None:
        self.array = array
        self.rows = rows

    def __getitem__(self, rows: Span) -> Any:
        """These rows of the whole matrix, which must lie in `self.rows`."""
        return self.array[rows.within(self.rows).slice]
