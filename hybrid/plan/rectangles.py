# SPDX-License-Identifier: MIT
"""Parts of a matrix: what a rank has of it, needs of it, or is sent of it."""

from __future__ import annotations

from collections.abc import Iterator

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
        """The rectangle that is in both."""
        return Rectangle(self.rows.common(other.rows), self.columns.common(other.columns))

    def within(self, other: Rectangle) -> tuple[slice, slice]:
        """The slices that this rectangle has in an array that holds `other`."""
        return self.rows.within(other.rows).slice, self.columns.within(other.columns).slice


@record
class Part:
    """Some rows of some columns of a matrix. They need not be neighbours, but do not overlap. An array holds them one after the
    other."""

    rows: tuple[Span, ...]
    columns: tuple[Span, ...]

    @classmethod
    def of(cls, rectangle: Rectangle) -> Part:
        return cls((rectangle.rows,), (rectangle.columns,))

    @property
    def shape(self) -> tuple[int, int]:
        return sum(map(len, self.rows)), sum(map(len, self.columns))

    @property
    def elements(self) -> int:
        rows, columns = self.shape
        return rows * columns

    def stretched(self, down: int, across: int) -> Part:
        """The part of a matrix in which each row has become `down` rows, and each column `across` columns."""
        rows, columns = (
            tuple(Span(span.lo * by, span.hi * by) for span in spans) for spans, by in ((self.rows, down), (self.columns, across))
        )
        return Part(rows, columns)

    def common(self, rectangle: Rectangle) -> Iterator[tuple[Rectangle, tuple[slice, slice]]]:
        """The rectangles of this part that lie in `rectangle`, each with the slices that it has in the part's array."""
        columns = [*_common(self.columns, rectangle.columns)]
        for rows, down in _common(self.rows, rectangle.rows):
            for across, place in columns:
                yield Rectangle(rows, across), (down, place)

    def elements_in(self, rectangle: Rectangle) -> int:
        """The number of elements of this part that lie in `rectangle`."""
        down, across = (
            sum(len(span.common(whole)) for span in spans)
            for spans, whole in ((self.rows, rectangle.rows), (self.columns, rectangle.columns))
        )
        return down * across


def _common(spans: tuple[Span, ...], with_: Span) -> Iterator[tuple[Span, slice]]:
    """For spans that an array holds one after the other: the spans in which they overlap with `with_`, each with its slice in
    the array."""
    before = 0
    for span in spans:
        common = span.common(with_)
        if len(common):
            yield common, slice(before + common.lo - span.lo, before + common.hi - span.lo)
        before += len(span)
