# SPDX-License-Identifier: MIT
"""A graph as an SVG picture: its vertices placed by the number of edges between them, and walks drawn into it step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from hybrid.core.text import counted
from hybrid.errors import UsageError
from hybrid.graphs.limits import MOST_DRAWN, MOST_PANELS
from hybrid.graphs.walk_list import Walk
from hybrid.host.files import atomic_write

_ROUNDS = 300  # in which the vertices find their places
_SIDE, _SMALL, _MARGIN, _RADIUS = 460, 250, 34, 13  # of a panel, a panel of several, its edge, a vertex
_INK, _SOFT, _EDGE, _STEP, _END = "#22262a", "#5a626a", "#9aa3ab", "#d55e00", "#0072b2"  # told apart without red and green
_HEADER = 48
_STYLE = "text { font: 13px system-ui, sans-serif; fill: #22262a } .v { text-anchor: middle; dominant-baseline: central }"

Points = np.ndarray  # x and y of each vertex, from 0 to 1


def refuse(path: str, vertices: int | None = None) -> None:
    """UsageError for a name with another ending, and for a graph of which a picture would show nothing."""
    if not path.endswith(".svg"):
        raise UsageError(f"--picture {path}: the name must end in .svg")
    if vertices is not None and vertices > MOST_DRAWN:
        raise UsageError(f"--picture: a graph of {vertices} vertices would be a tangle; {MOST_DRAWN} are the most")


def places(adjacency: np.ndarray) -> Points:
    """So that distances on the paper are like those in edges: a circle, improved by stress majorization. Always the same."""
    count = len(adjacency)
    angles = 2 * math.pi * np.arange(count) / count
    at = np.column_stack([np.sin(angles), -np.cos(angles)]) * count / 4
    apart = _distances(adjacency)
    np.fill_diagonal(apart, 1)
    weights = apart**-2.0
    np.fill_diagonal(weights, 0)
    for _ in range(_ROUNDS if count > 2 else 0):
        towards = at[:, None] - at[None]
        length = np.maximum(np.hypot(towards[..., 0], towards[..., 1]), 1e-9)
        wanted = at[None] + towards * (apart / length)[..., None]
        at = (weights[..., None] * wanted).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    return _upright(at)


def _distances(adjacency: np.ndarray) -> np.ndarray:
    """Edges of the shortest way, whichever way they go; one more than the longest where there is none."""
    count = len(adjacency)
    edges = (adjacency > 0) | (adjacency.T > 0)
    apart, reached = np.full((count, count), np.inf), np.eye(count) > 0
    for steps in range(count):
        apart[reached & np.isinf(apart)] = steps
        reached = reached @ edges
    finite = apart[np.isfinite(apart)]
    return np.where(np.isfinite(apart), apart, finite.max() + 1)


def _upright(at: np.ndarray) -> Points:
    """Within the unit square, wider than high, the first vertex left and above its middle."""
    middle = at - at.mean(axis=0)
    middle = middle @ np.linalg.svd(middle)[2].T
    middle = middle * np.where(middle[0] > 0, -1, 1)
    size = float(np.ptp(middle, axis=0).max()) or 1.0
    middle = middle / size
    return middle - (middle.min(axis=0) + middle.max(axis=0)) / 2 + 0.5


def write(
    path: str, title: str, adjacency: np.ndarray, names: Sequence[str], ends: Sequence[int] = (), walks: Sequence[Walk] = ()
) -> None:
    """The file appears whole or not at all. `ends`: vertices that are marked; of `walks` each has a panel, up to twelve."""
    with atomic_write(path) as beside:
        beside.write_text("\n".join(drawn(title, adjacency, names, ends, walks)) + "\n", encoding="utf-8")


def drawn(
    title: str, adjacency: np.ndarray, names: Sequence[str], ends: Sequence[int] = (), walks: Sequence[Walk] = ()
) -> Iterator[str]:
    """The lines of the file."""
    at = places(adjacency)
    shown: Sequence[Walk | None] = [walk for walk in walks[:MOST_PANELS] if len(walk.vertices) <= 4 * MOST_DRAWN] or [None]
    across = min(len(shown), 4 if len(shown) > 6 or len(shown) == 4 else 3)
    side = _SIDE if len(shown) == 1 else _SMALL
    down = 2 * _MARGIN + (side - 2 * _MARGIN) * max(0.25, float(np.ptp(at[:, 1]))) + (22 if walks else 0)
    width, height = side * across, _HEADER + down * -(-len(shown) // across)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    yield f"<style>{_STYLE}</style>"
    yield (
        f'<marker id="way" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" '
        f'orient="auto"><path d="M0 0 10 5 0 10z" fill="{_EDGE}"/></marker>'
        f'<marker id="step" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="10" markerHeight="10" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 10 5 0 10z" fill="{_STEP}"/></marker>'
    )
    yield f'<rect width="100%" height="100%" fill="#ffffff"/><text x="12" y="22" style="font-weight:600">{escape(title)}</text>'
    if len(walks) > len(shown):
        yield f'<text x="12" y="40" style="fill:{_SOFT}">the first {len(shown)} of {counted(len(walks), "path")} are drawn</text>'
    spread = (side - 2 * _MARGIN) * (at - [0, at[:, 1].min()]) + [_MARGIN, _MARGIN]
    for index, walk in enumerate(shown):
        yield f'<g transform="translate({side * (index % across)} {_HEADER + down * (index // across):.0f})">'
        yield from _panel(spread, adjacency, names, ends, walk)
        if walk is not None:
            yield f'<text class="v" x="{side / 2:g}" y="{down - 12:.0f}" style="fill:{_STEP}">{escape(walk.told(names))}</text>'
        yield "</g>"
    yield "</svg>"


def _panel(at: np.ndarray, adjacency: np.ndarray, names: Sequence[str], ends: Sequence[int], walk: Walk | None) -> Iterator[str]:
    both_ways = bool((adjacency == adjacency.T).all())
    for tail, head in np.argwhere(adjacency > 0).tolist():
        if tail == head or not both_ways or tail < head:
            yield _edge(at, tail, head, "" if both_ways else "way", both_ways)
            yield from _number(at, tail, head, adjacency[tail, head].item(), both_ways)
    steps: dict[tuple[int, int], list[int]] = {}
    for number, step in enumerate(pairwise(walk.vertices if walk else ()), 1):
        steps.setdefault(step, []).append(number)
    for (tail, head), numbers in steps.items():
        bent = (head, tail) in steps or not both_ways
        yield _edge(at, tail, head, "step", not bent)
        x, y = _beside(at, tail, head, 20 if bent else 11)
        yield f'<text class="v" x="{x:.0f}" y="{y:.0f}" style="fill:{_STEP};font-size:11px">{",".join(map(str, numbers))}</text>'
    marked = {*ends, *(walk.vertices if walk else ())}
    for vertex, (x, y) in enumerate(at.tolist()):
        name, colour = names[vertex], _END if vertex in ends else _STEP if vertex in marked else _EDGE
        weight = 3 if vertex in marked else 1.5
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}" fill="#ffffff" stroke="{colour}" stroke-width="{weight}"/>'
        size = 13 if len(name) < 3 else max(7, 38 // len(name))
        yield f'<text class="v" x="{x:.1f}" y="{y:.1f}" style="font-size:{size}px">{escape(name)}</text>'


def _edge(at: np.ndarray, tail: int, head: int, marker: str, straight: bool) -> str:
    """A line from circle to circle; bent where another goes the other way, and around for a loop."""
    colour, width = (_STEP, 2.5) if marker == "step" else (_EDGE, 1.5)
    arrow = f' marker-end="url(#{marker})"' if marker else ""
    (x0, y0), (x1, y1) = at[tail], at[head]
    if tail == head:
        path = f"M{x0 - 7:.1f} {y0 - _RADIUS + 2:.1f}c-14 -26 28 -26 14 0"
    else:
        way = np.array([x1 - x0, y1 - y0]) / math.hypot(x1 - x0, y1 - y0)
        turn = 0.0 if straight else 0.35
        first, last = (_turned(way, -turn), _turned(way, turn))
        begin, end = at[tail] + _RADIUS * first, at[head] - (_RADIUS + (2 if marker else 0)) * last
        middle = (begin + end) / 2 + (0 if straight else 16) * np.array([way[1], -way[0]])
        path = f"M{begin[0]:.1f} {begin[1]:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{arrow}/>'


def _turned(way: np.ndarray, angle: float) -> np.ndarray:
    cos, sin = math.cos(angle), math.sin(angle)
    return np.array([cos * way[0] - sin * way[1], sin * way[0] + cos * way[1]])


def _number(at: np.ndarray, tail: int, head: int, value: int | float, both_ways: bool) -> Iterator[str]:
    """Of parallel edges, or the probability; none for a single edge."""
    if value != 1:
        x, y = _beside(at, tail, head, 9 if both_ways else 18, 0.3)
        text = f"{value:.3g}" if isinstance(value, float) else f"×{value}"
        yield f'<text class="v" x="{x:.0f}" y="{y:.0f}" style="fill:{_SOFT};font-size:11px">{text}</text>'


def _beside(at: np.ndarray, tail: int, head: int, away: float, part: float = 0.5) -> tuple[float, float]:
    """Where a number stands: left of the way, after this part of it, or above a loop."""
    if tail == head:
        return float(at[tail][0]), float(at[tail][1]) - 2.6 * _RADIUS - 4
    way = at[head] - at[tail]
    x, y = at[tail] + part * way + away * np.array([way[1], -way[0]]) / math.hypot(*way)
    return float(x), float(y)
