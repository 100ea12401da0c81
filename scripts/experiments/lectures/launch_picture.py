# SPDX-License-Identifier: MIT
"""The blocks of a launch over the matrix that they cover: which threads have an element of C, and which lie outside of it."""

from collections.abc import Iterator

from experiments.lectures.launch_arithmetic import covering
from hybrid.errors import UsageError
from hybrid.reporting import svg

MOST_BLOCKS = 2000  # that a picture shows
_NUMBERED = 60  # blocks, of which each has its number
_LONG, _LEFT, _TOP, _HEAD, _BETWEEN = 640, 64, 34, 46, 24  # of the longer side, and of what is around a grid
_STYLE = """\
.covered { fill-opacity: 0.15 } .edge { fill: none; stroke-width: 2 } .blocks { fill: none; stroke-width: 0.7 }
"""
_HATCHES = (
    '<pattern id="outside" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="stroke-second" d="M0 0V6" stroke-width="2"/></pattern>'
)


def draw(path: str, rows: int, columns: int, x: int, y: int) -> None:
    """Blocks of x×y threads; beside them, where x and y differ, the same with x and y exchanged. UsageError for too many."""
    ways = [(x, y)] if x == y else [(x, y), (y, x)]
    for way in ways:
        blocks = covering(rows, columns, *way)["blocks"]
        if isinstance(blocks, int) and blocks > MOST_BLOCKS:
            raise UsageError(f"a picture of {blocks:,} blocks would be black: {MOST_BLOCKS:,} are the most")
    longest = max(max(_covered(columns, way[0]), _covered(rows, way[1])) for way in ways)
    scale = _LONG / longest
    sizes = [(_LEFT + scale * _covered(columns, way[0]) + 36, _TOP + _HEAD + scale * _covered(rows, way[1])) for way in ways]
    wide = columns >= rows
    widths, heights = zip(*sizes, strict=True)
    widths = tuple(max(width, 440) for width in widths)
    size = (max(widths), sum(heights)) if wide else (sum(widths), max(heights))

    def drawn() -> Iterator[str]:
        yield _HATCHES
        yield svg.text(12, 20, title, more='style="font-weight: 600"')
        across, down = 0.0, 0.0
        for way, (_, height), width in zip(ways, sizes, widths, strict=True):
            yield f'<g transform="translate({across:.0f} {down + 30:.0f})">'
            yield from _grid(rows, columns, *way, scale)
            yield "</g>"
            across, down = (0.0, down + height) if wide else (across + width, 0.0)

    title = f"C of {rows}×{columns}, a thread for each element"
    svg.write(path, title, (size[0], size[1] + _BETWEEN), drawn(), _STYLE)


def _covered(length: int, side: int) -> int:
    return -(-length // side) * side


def _grid(rows: int, columns: int, x: int, y: int, scale: float) -> Iterator[str]:
    numbers = covering(rows, columns, x, y)
    across, down = numbers["grid"]  # type: ignore[misc]
    whole, beside = numbers["blocks"], numbers["have nothing to do"]
    yield svg.text(
        12, 14, f"blocks of x = {x}, y = {y}: {across} × {down} = {whole:,} blocks, {beside:,} threads lie outside of C"
    )
    width, height = across * x * scale, down * y * scale
    yield f'<g transform="translate({_LEFT} {_TOP + 18})">'
    for at in dict.fromkeys((0, columns, across * x)):  # C's last column and the grid's may be near each other
        anchor = "middle" if at in (0, columns == across * x and at) else "end" if at == columns else "start"
        yield svg.text(at * scale, -6, str(at), "fill-soft", f'text-anchor="{anchor}"')
    for at in dict.fromkeys((0, rows, down * y)):
        lower = 4 if at != rows or (down * y - rows) * scale > 12 else -2
        yield svg.text(-6, at * scale + lower, str(at), "fill-soft", 'text-anchor="end"')
    yield svg.text(width / 2, -6, "column, x", "fill-soft", 'text-anchor="middle"')
    yield svg.text(-44, height / 2, "row, y", "fill-soft", f'text-anchor="middle" transform="rotate(-90 -44 {height / 2:.1f})"')
    yield f'<rect width="{width:.1f}" height="{height:.1f}" fill="url(#outside)"/>'
    inside = f'width="{columns * scale:.1f}" height="{rows * scale:.1f}"'
    yield f'<rect class="fill-ground" {inside}/><rect class="covered fill-first" {inside}/>'
    lines = "".join(f"M{line * x * scale:.1f} 0V{height:.1f}" for line in range(across + 1))
    lines += "".join(f"M0 {line * y * scale:.1f}H{width:.1f}" for line in range(down + 1))
    yield f'<path class="blocks stroke-ink" d="{lines}"/><rect class="edge stroke-first" {inside}/>'
    if across * down <= _NUMBERED and across <= 20:
        for block_y in range(down):
            for block_x in range(across):
                yield svg.text(block_x * x * scale + 3, block_y * y * scale + 12, f"{block_x},{block_y}")
    yield "</g>"
