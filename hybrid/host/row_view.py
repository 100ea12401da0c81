"""Some rows of a matrix, asked for as rows of the whole."""

from __future__ import annotations

from typing import Any

from hybrid.core.spans import Span


class RowView:
    """Rows `rows` of a matrix. `array` holds them from its row 0 on, in the host's memory or a GPU's."""

    def __init__(self, array: Any, rows: Span) -> None:
        self.array = array
        self.rows = rows

    def __getitem__(self, rows: Span) -> Any:
        """These rows of the whole matrix; they must be among those that the view holds."""
        return self.array[rows.within(self.rows).slice]
