"""The largest triangles as a picture: for each type how far its entries fit, its sums are exact, and its products right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import lecture_picture


class Result(Protocol):
    """Of one type; None where nothing multiplies it."""

    dtype: str
    fit: int
    exact: int
    right: int | None


def draw(results: Sequence[Result], path: str, caption: str) -> None:
    """A group of bars for each type; no bar where nothing multiplies it."""
    kinds = (
        ("(a) fit", lecture_picture.LECTURE, [one.fit for one in results]),
        ("(b) exact", lecture_picture.OTHER, [one.exact for one in results]),
        ("(c) right", lecture_picture.HERE, [one.right for one in results]),
    )
    with lecture_picture.figure(path, (2.5 + 1.4 * len(results), 3.9), "The largest triangles of Pascal", caption) as figure:
        panel = figure.subplots()
        lecture_picture.plain(panel)
        for place, (name, color, sizes) in enumerate(kinds):
            there = [(group + 0.27 * (place - 1), size) for group, size in enumerate(sizes) if size is not None]
            drawn = panel.bar([at for at, _ in there], [size for _, size in there], 0.25, color=color, label=name)
            panel.bar_label(drawn, fontsize=8, padding=2)
        panel.set_xticks(range(len(results)), [one.dtype for one in results])
        panel.set_ylabel("N, rows and columns of the triangle")
        panel.margins(y=0.12)
        panel.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
