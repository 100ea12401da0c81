# SPDX-License-Identifier: MIT
"""The blocks of a launch over the matrix that they cover: which threads have an element of C, and which lie outside of it."""

from typing import Any

from experiments.common import plots
from experiments.lectures.launch_arithmetic import covering
from hybrid.errors import UsageError

MOST_BLOCKS = 2000  # that a picture shows


def draw(path: str, rows: int, columns: int, x: int, y: int) -> None:
    """Blocks of x×y threads; beside them, where x and y differ, the same with x and y exchanged. UsageError for too many."""
    ways = [(x, y)] if x == y else [(x, y), (y, x)]
    for way in ways:
        blocks = covering(rows, columns, *way)["blocks"]
        if isinstance(blocks, int) and blocks > MOST_BLOCKS:
            raise UsageError(f"a picture of {blocks:,} blocks would be black: {MOST_BLOCKS:,} are the most")
    wide = columns >= rows
    reach = _reach(columns, [x, y]), _reach(rows, [x, y] if x != y else [y])
    scale = max(reach)
    shorter = [_reach(rows, [way[1]]) if wide else _reach(columns, [way[0]]) for way in ways]  # each panel's own
    lengths = [1.3 + 7.6 * max(0.15, each / scale) for each in shorter]
    lengths = lengths if wide else [max(3.2, each) for each in lengths]
    size = (9.0, 0.5 + sum(lengths)) if wide else (0.5 + sum(lengths), 9.0)
    with plots.figure(path, size, f"C of {rows}×{columns}, a thread for each element") as figure:
        shape = (len(ways), 1) if wide else (1, len(ways))
        ratios = {"height_ratios" if wide else "width_ratios": lengths}
        panels = figure.subplots(*shape, squeeze=False, gridspec_kw=ratios).flat
        for panel, way, own in zip(panels, ways, shorter, strict=True):
            _draw(panel, rows, columns, *way)
            across, down = (reach[0], own) if wide else (own, reach[1])
            panel.set_xlim(-0.01 * reach[0], across + 0.01 * reach[0])
            panel.set_ylim(down + 0.01 * reach[1], -0.01 * reach[1])


def _reach(length: int, sides: list[int]) -> int:
    """Of the longer of the grids."""
    return max(-(-length // side) * side for side in sides)


def _draw(panel: Any, rows: int, columns: int, x: int, y: int) -> None:
    from matplotlib.patches import Rectangle

    numbers = covering(rows, columns, x, y)
    across, down = numbers["grid"]  # type: ignore[misc]
    whole, beside = numbers["blocks"], numbers["have nothing to do"]
    title = f"blocks of x = {x}, y = {y}: {across} × {down} = {whole:,} blocks"
    title += f"{', ' if columns >= rows else chr(10)}{beside:,} threads lie outside of C"
    panel.set_title(title, loc="left", fontsize=10)
    panel.add_patch(Rectangle((0, 0), across * x, down * y, facecolor="none", edgecolor=plots.LECTURE, hatch="////", linewidth=0))
    panel.add_patch(Rectangle((0, 0), columns, rows, facecolor="#dbe6f1", edgecolor=plots.HERE, linewidth=2))
    width = 0.9 if across * down <= 400 else 0.3
    for line in range(across + 1):
        panel.plot([line * x, line * x], [0, down * y], color=plots.TEXT, linewidth=width)
    for line in range(down + 1):
        panel.plot([0, across * x], [line * y, line * y], color=plots.TEXT, linewidth=width)
    if across * down <= 60 and across <= 20:
        for block_x in range(across):
            for block_y in range(down):
                panel.annotate(f"{block_x},{block_y}", (block_x * x, block_y * y), (3, -3), textcoords="offset points",
                               va="top", fontsize=7)  # fmt: skip
    panel.set_aspect("equal")
    panel.spines[:].set_visible(False)
    panel.xaxis.tick_top()
    panel.xaxis.set_label_position("top")
    panel.set_xlabel("column, x", fontsize=9)
    panel.set_ylabel("row, y", fontsize=9)
    panel.set_xticks(_ticks(columns, across * x))
    panel.set_yticks(_ticks(rows, down * y))


def _ticks(length: int, covered: int) -> list[int]:
    """Where C ends, and where the last block does, unless their numbers would touch."""
    return [0, length, covered] if covered - length > 0.08 * length else [0, length]
