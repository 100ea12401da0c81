# SPDX-License-Identifier: MIT
"""The pictures of a student's kernel: the map of C's elements, and the roofline with its points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from hybrid.core.problem import record
from hybrid.reporting import svg

KINDS = ("right", "wrong", "never written", "written by several threads")  # of elements of C, in the order of a map's numbers
COLOURS = ("", "second", "third", "first")  # of the kinds
POINTS = ("second", "first")  # colours of the roofline's points
_MAP, _WIDTH = 288, 372  # lengths: a map's longer side, and a picture's width


@record
class Roofline:
    """A GPU's roofline, and one or two points on it."""

    gpu: str
    bandwidth: float  # GB/s
    peak: float  # GF/s
    points: Mapping[str, float]  # operations a byte, by what the point stands for


def squares(elements: Sequence[Sequence[int]]) -> Iterator[str]:
    """The map's rectangles, one for each run of neighbouring squares of the same kind in a row. A square has the side 1."""
    for y, row in enumerate(elements):
        x = 0
        while x < len(row):
            end = next((i for i in range(x, len(row)) if row[i] != row[x]), len(row))
            if row[x]:
                yield svg.rectangle(x, y, end - x, 1, f"fill-{COLOURS[row[x]]}")
            x = end


def write_map(path: str, title: str, elements: Sequence[Sequence[int]], scale: str) -> None:
    """Write a map of C to an SVG file. `scale`: what a square stands for."""
    rows, columns = len(elements), max(map(len, elements))
    side = _MAP / max(rows, columns)
    keys = [kind for kind in range(1, len(KINDS)) if any(kind in row for row in elements)]
    width, height = max(_WIDTH, columns * side + 24), 44 + rows * side + 22 * (len(keys) + 1)

    def drawn() -> Iterator[str]:
        yield svg.text(12, 20, title, more='style="font-weight: 600"')
        yield f'<g transform="translate(12 34) scale({side:g})" shape-rendering="crispEdges">'
        yield svg.rectangle(0, 0, columns, rows, "stroke-soft", f'fill="none" stroke-width="{1 / side:.3g}"')
        yield from squares(elements)
        yield "</g>"
        yield svg.text(12, 54 + rows * side, f"a square is {scale}", "fill-soft")
        for number, kind in enumerate(keys, 1):
            y = 54 + rows * side + 20 * number
            yield svg.rectangle(12, y - 10, 11, 11, f"fill-{COLOURS[kind]}")
            yield svg.text(29, y, KINDS[kind])

    svg.write(path, title, (width, height), drawn())


def write_roofline(path: str, title: str, roofline: Roofline) -> None:
    """Write a roofline to an SVG file."""

    def drawn() -> Iterator[str]:
        yield svg.text(12, 20, title, more='style="font-weight: 600"')
        yield '<g transform="translate(0 28)">'
        yield from roofs(roofline)
        yield "</g>"
        for number, said in enumerate(roofline.points):
            y = 290 + 20 * number
            yield svg.rectangle(40, y - 10, 11, 11, f"fill-{POINTS[number]}")
            yield svg.text(57, y, said)

    svg.write(path, title, (_WIDTH, 284 + 20 * len(roofline.points)), drawn())


def roofs(roofline: Roofline) -> Iterator[str]:
    """The elements of a roofline's drawing, within 372×245. Both axes are logarithmic, so memory's roof is a rising line."""
    ridge = roofline.peak / roofline.bandwidth
    values = [ridge, *roofline.points.values()]
    first, last = math.floor(math.log10(min(values) / 2)), math.ceil(math.log10(max(values) * 2))
    top = math.ceil(math.log10(roofline.peak * 1.5))
    bottom = math.floor(math.log10(min(roofline.peak, 10.0**first * roofline.bandwidth)))

    def x(intensity: float) -> float:
        return 40 + 310 * (math.log10(intensity) - first) / (last - first)

    def y(rate: float) -> float:
        return 205 - 185 * (math.log10(rate) - bottom) / (top - bottom)

    for power in range(first, last + 1):
        at = x(10.0**power)
        yield f'<line class="stroke-line" x1="{at:.1f}" y1="20" x2="{at:.1f}" y2="205"/>'
        yield svg.text(at, 219, f"{10.0**power:g}", "fill-soft", 'text-anchor="middle"')
    for power in range(bottom, top + 1):
        at = y(10.0**power)
        yield f'<line class="stroke-line" x1="40" y1="{at:.1f}" x2="350" y2="{at:.1f}"/>'
        yield svg.text(36, at + 4, _short(10.0**power), "fill-soft", 'text-anchor="end"')
    roof = [(10.0**first, 10.0**first * roofline.bandwidth), (ridge, roofline.peak), (10.0**last, roofline.peak)]
    points = " ".join(f"{x(intensity):.1f},{y(rate):.1f}" for intensity, rate in roof)
    yield f'<polyline class="stroke-ink" fill="none" stroke-width="2" points="{points}"/>'
    yield svg.text(348, y(roofline.peak) - 6, f"arithmetic: {roofline.peak:,.0f} GF/s", "fill-soft", 'text-anchor="end"')
    yield svg.text(60, 198, f"slope: global memory, {roofline.bandwidth:,.0f} GB/s", "fill-soft")
    yield svg.text(195, 236, "operations a byte of global memory", "fill-soft", 'text-anchor="middle"')
    yield svg.text(2, 12, "GF/s", "fill-soft")
    for number, (said, intensity) in enumerate(roofline.points.items()):
        at, rate = x(intensity), min(roofline.peak, intensity * roofline.bandwidth)
        title = f"<title>{escape(said)}</title>"
        yield f'<circle class="fill-{POINTS[number]}" cx="{at:.1f}" cy="{y(rate):.1f}" r="5">{title}</circle>'


def _short(number: float) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number / 1000:g}k" if number >= 1000 else f"{number:g}"
