# SPDX-License-Identifier: MIT
"""Rectangles of a matrix: what a rank has of it, needs of it, or is sent of it."""

from __future__ import annotations

from hybrid.core.record import record
from hybrid.core.spans import Span

NOTHING = Span(0, 0)


@record
class Rectangle:
    """Some neighbouring rows of some neighbouring columns; empty where there are none of either."""

    rows: Span = NOTHING
    columns: Span = NOTHING

    @property
    def elements(self) -> int:
        return len(self.rows) * len(self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    def common(self, other: Rectangle) -> Rectangle:
        """What is in both."""
        return Rectangle(self.rows.common(other.rows), self.columns.common(other.columns))

    def within(self, other: Rectangle) -> tuple[slice, slice]:
        """Where it lies in an array that holds `other`."""
        return self.rows.within(other.rows).slice, self.columns.within(other.columns).slice
