# SPDX-License-Identifier: MIT
"""Draws a graph, and walks in it, as SVG. Vertices are placed by stress majorization."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from hybrid.core.text import counted
from hybrid.errors import UsageError
from hybrid.graphs.walks import Walk
from hybrid.reporting import markup

_MOST_VERTICES, _MOST_PANELS = 60, 12
# Lengths: the side of a single panel, of one of several, a panel's margin, a vertex's radius.
_SIDE, _SMALL, _MARGIN, _RADIUS = 460, 250, 34, 13
_HEADER = 48  # height above the panels
_EDGE, _STEP, _END = "soft", "second", "first"  # colours of the palette
_STYLE = """\
svg text { font-size: 13px } .v { text-anchor: middle; dominant-baseline: central } svg .small { font-size: 11px }
"""


def refuse(vertices: int) -> None:
    """UsageError for too many vertices for a picture."""
    if vertices > _MOST_VERTICES:
        raise UsageError(
            f"--picture: a graph of {vertices} vertices would be a tangle; {_MOST_VERTICES} are the most", code="number"
        )


def places(adjacency: np.ndarray) -> np.ndarray:
    """The vertices' places x + iy in the unit square, whose distances resemble the numbers of edges between them: a circle,
    improved by stress majorization; wider than high, the first vertex left of the middle and above it. Deterministic."""
    count = len(adjacency)
    at = -1j * np.exp(2j * math.pi * np.arange(count) / count) * count / 4
    apart = _distances(adjacency)
    np.fill_diagonal(apart, 1)
    weights = apart**-2.0
    np.fill_diagonal(weights, 0)
    for _ in range(300 if count > 2 else 0):
        towards = at[:, None] - at
        wanted = at + towards * (apart / np.maximum(np.abs(towards), 1e-9))
        at = (weights * wanted).sum(axis=1) / weights.sum(axis=1)
    at = at - at.mean()
    at = at * np.exp(-0.5j * np.angle((at**2).sum()))  # the longer axis is horizontal
    at = -at.conj() if at[0].real > 0 else at
    at = at.conj() if at[0].imag > 0 else at
    at = at / (max(np.ptp(at.real), np.ptp(at.imag)) or 1.0)
    return at - complex(at.real.min() + at.real.max(), at.imag.min() + at.imag.max()) / 2 + (0.5 + 0.5j)


def _distances(adjacency: np.ndarray) -> np.ndarray:
    """The edges on the shortest path between any two vertices, ignoring directions; without a path, one more than the longest."""
    count = len(adjacency)
    edges = (adjacency > 0) | (adjacency.T > 0)
    apart, reached = np.full((count, count), np.inf), np.eye(count) > 0
    for steps in range(count):
        apart[reached & np.isinf(apart)] = steps
        reached = reached @ edges
    finite = apart[np.isfinite(apart)]
    return np.where(np.isfinite(apart), apart, finite.max() + 1)


def write(
    path: str, title: str, adjacency: np.ndarray, names: Sequence[str], ends: Sequence[int] = (), walks: Sequence[Walk] = ()
) -> None:
    """Draw a graph to a file atomically. `ends`: marked vertices; `walks`: a panel each, up to _MOST_PANELS."""
    at = places(adjacency)
    shown: Sequence[Walk | None] = [walk for walk in walks[:_MOST_PANELS] if len(walk.vertices) <= 4 * _MOST_VERTICES] or [None]
    across = min(len(shown), 4 if len(shown) > 6 or len(shown) == 4 else 3)
    side = _SIDE if len(shown) == 1 else _SMALL
    down = 2 * _MARGIN + (side - 2 * _MARGIN) * max(0.25, float(np.ptp(at.imag))) + (22 if walks else 0)
    spread = (side - 2 * _MARGIN) * (at - 1j * at.imag.min()) + _MARGIN * (1 + 1j)

    def drawn() -> Iterator[str]:
        for name, size in ((_EDGE, 9), (_STEP, 10)):  # arrowheads
            yield (
                f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" markerHeight="{size}" '
                f'markerUnits="userSpaceOnUse" orient="auto"><path class="fill-{name}" d="M0 0 10 5 0 10z"/></marker>'
            )
        yield markup.text(12, 22, title, more='style="font-weight: 600"')
        if len(walks) > len(shown):
            yield markup.text(12, 40, f"the first {len(shown)} of {counted(len(walks), 'path')} are drawn", "fill-soft")
        for index, walk in enumerate(shown):
            yield f'<g transform="translate({side * (index % across)} {_HEADER + down * (index // across):.0f})">'
            yield from _panel(spread, adjacency, names, ends, walk)
            if walk is not None:
                yield markup.text(side / 2, down - 12, walk.told(names), f"v fill-{_STEP}")
            yield "</g>"

    markup.write_svg(path, title, (side * across, _HEADER + down * -(-len(shown) // across)), drawn(), _STYLE)


def _panel(at: np.ndarray, adjacency: np.ndarray, names: Sequence[str], ends: Sequence[int], walk: Walk | None) -> Iterator[str]:
    both_ways = bool((adjacency == adjacency.T).all())
    for tail, head in np.argwhere(adjacency > 0).tolist():
        if tail == head or not both_ways or tail < head:
            yield _edge(at, tail, head, "" if both_ways else _EDGE, both_ways)
            if (count := adjacency[tail, head].item()) != 1:  # parallel edges
                yield _beside(at, tail, head, 9 if both_ways else 18, f"×{count}", "soft", 0.3)
    steps: dict[tuple[int, int], list[int]] = {}
    for number, step in enumerate(pairwise(walk.vertices if walk else ()), 1):
        steps.setdefault(step, []).append(number)
    for (tail, head), numbers in steps.items():
        bent = (head, tail) in steps or not both_ways
        yield _edge(at, tail, head, _STEP, not bent)
        yield _beside(at, tail, head, 20 if bent else 11, ",".join(map(str, numbers)), _STEP)
    marked = {*ends, *(walk.vertices if walk else ())}
    for vertex, place in enumerate(at.tolist()):
        name, colour = names[vertex], _END if vertex in ends else _STEP if vertex in marked else _EDGE
        centre, weight = f'cx="{place.real:.1f}" cy="{place.imag:.1f}"', 3 if vertex in marked else 1.5
        yield f'<circle class="fill-ground stroke-{colour}" {centre} r="{_RADIUS}" stroke-width="{weight}"/>'
        size = 13 if len(name) < 3 else max(7, 38 // len(name))
        yield markup.text(place.real, place.imag, name, "v", f'style="font-size: {size}px"')


def _edge(at: np.ndarray, tail: int, head: int, marker: str, straight: bool) -> str:
    """A line from circle to circle, bent if another may go the other way; or a loop."""
    colour, width = (_STEP, 2.5) if marker == _STEP else (_EDGE, 1.5)
    arrow = f' marker-end="url(#{marker})"' if marker else ""
    if tail == head:
        path = f"M{_pair(at[tail] - 7 - 1j * (_RADIUS - 2))}c-14 -26 28 -26 14 0"
    else:
        way, turn = _direction(at, tail, head), np.exp(0.0 if straight else 0.35j)
        begin, end = at[tail] + _RADIUS * way / turn, at[head] - (_RADIUS + (2 if marker else 0)) * way * turn
        middle = (begin + end) / 2 - (0 if straight else 16j) * way
        path = f"M{_pair(begin)}Q{_pair(middle)} {_pair(end)}"
    return f'<path d="{path}" class="stroke-{colour}" fill="none" stroke-width="{width}"{arrow}/>'


def _beside(at: np.ndarray, tail: int, head: int, away: float, said: str, colour: str, part: float = 0.5) -> str:
    """A text to the left of an edge, after this fraction of its length; above a loop."""
    if tail == head:
        place = at[tail] - 1j * (2.6 * _RADIUS + 4)
    else:
        place = at[tail] + part * (at[head] - at[tail]) - 1j * away * _direction(at, tail, head)
    return markup.text(place.real, place.imag, said, f"v small fill-{colour}")


def _direction(at: np.ndarray, tail: int, head: int) -> complex:
    return complex((at[head] - at[tail]) / abs(at[head] - at[tail]))


def _pair(place: complex) -> str:
    return f"{place.real:.1f} {place.imag:.1f}"
