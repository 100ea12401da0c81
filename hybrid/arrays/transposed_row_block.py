# SPDX-License-Identifier: MIT
"""The transpose of a matrix of which every rank has some rows: a view, whose elements are moved only when rows of it are
needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybrid.arrays.distributed import Distributed
from hybrid.arrays.row_block import RowBlock


@dataclass(frozen=True, eq=False)
class TransposedRowBlock(Distributed):
    """`rows.T`: this rank's consecutive columns of the transpose, which are its rows of the matrix.

    `shape`, `len` and `nbytes` are of these columns; `array` is a view of them. In a product its rows are moved between the ranks
    first, in equal shares; `hybrid.scatter` gives them as a `RowBlock`.
    """

    rows: RowBlock

    @property
    def array(self) -> Any:  # type: ignore[override]
        return self.rows.array.T

    @property
    def comm(self) -> Any:  # type: ignore[override]
        return self.rows.comm

    @property
    def T(self) -> RowBlock:
        """The RowBlock of which this is the transpose."""
        return self.rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns that this rank has. How many columns others have, it does not know."""
        columns, rows = self.rows.shape
        return rows, columns

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{self.rows!r}.T"

    def _like(self, array: Any, comm: Any) -> TransposedRowBlock:
        return type(self)(RowBlock(array.T, comm, self.rows.first_row))
