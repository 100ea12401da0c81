# SPDX-License-Identifier: MIT
"""A small product step by step: one HTML page with buttons, or one picture with a panel for each step of a thread block; the
picture that lectures draw."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from hybrid.core.problem import record
from hybrid.reporting import svg
from hybrid.reporting.html_page import document


@record
class Steps:
    """The steps of a kernel."""

    about: str  # what is launched, and how
    data: Mapping[str, Any]  # arrays, source, and each block's steps, as steps_page.js reads them
    in_words: Sequence[str]  # for readers without scripts


def page(title: str, steps: Steps) -> str:
    """A page with nothing but the steps."""
    return document(title, [f"<h1>{escape(title)}, step by step</h1>", *stage(steps)], beside("css"), beside("js"))


def stage(steps: Steps) -> list[str]:
    """The lines of HTML that show the steps, in a page that has the css and js that lie beside this file."""
    text = json.dumps(steps.data, separators=(",", ":")).replace("<", "\\u003c")
    return [
        f'<p class="soft">{escape(steps.about)}</p>',
        f"<noscript><pre>{escape(chr(10).join(steps.in_words))}</pre></noscript>",
        '<div id="blocks" class="buttons" role="group" aria-label="thread block"></div>',
        '<div class="buttons"><button id="phase-before">|◀ barrier</button><button id="before">◀ step</button>'
        '<button id="play">▶ play</button><button id="after">step ▶</button><button id="phase-after">barrier ▶|</button></div>',
        '<p id="said" aria-live="polite"></p>',
        '<p class="soft">Coloured: the threads (x,y) that load or store the element. Grey: loaded before. '
        f"Bars in {escape(steps.data['arrays'][2]['name'])}: how much of the sum is there.</p>",
        '<div class="stage"><div><div id="matrices"></div>',
        '<div id="shared"></div>',
        '<p id="threads" class="soft"></p></div>',
        '<pre id="source"></pre></div>',
        f'<script type="application/json" id="data">{text}</script>',
    ]


@cache
def beside(kind: str) -> str:
    """The text of the page's css or js, which lie beside this file."""
    return Path(__file__).resolve().with_suffix(f".{kind}").read_text(encoding="utf-8")


# Okabe and Ito's colours, which the colour-blind tell apart, as in steps_page.js.
_COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7", "#d55e00", "#8fa8ff", "#b8b8b8")
_CELL, _SHARED, _GAP, _NAME = 27, 38, 12, 16  # sides of cells, between arrays, above each
_ACROSS, _TOP, _CAPTION, _LEAST = 3, 60, 48, 400
_MOST = 12  # panels
_STYLE = """\
.now { stroke-width: 2; fill: none }
.mark { font-size: 9px; fill: #000000; text-anchor: middle } .held { font-size: 9px; text-anchor: middle }
.was { fill-opacity: 0.12 } .grown { fill-opacity: 0.45 } .code { font: 10px ui-monospace, monospace }
"""

Place = tuple[int, int]  # an array's number, and an element's


def write_picture(path: str, title: str, data: Mapping[str, Any], block: str) -> None:
    """Write the picture to an SVG file. `block`: the one whose steps are drawn, as "x,y"."""
    steps: Sequence[Any] = next(each["steps"] for each in data["blocks"] if each["at"] == block)
    places, (wide, high) = _layout(data["arrays"])
    across = min(_ACROSS, len(steps))
    panels = min(_MOST, len(steps))
    size = (max(_LEAST, _GAP + across * (wide + 2 * _GAP)), _TOP + -(-panels // across) * (high + _CAPTION + _GAP))

    def drawn() -> Iterator[str]:
        yield svg.text(_GAP, 18, title, more='style="font-weight: 600"')
        which = f"block ({block})" + (f", the first {panels} of {len(steps)} steps" if panels < len(steps) else "")
        yield svg.text(_GAP, 35, f"{which}; the coloured threads (x,y) load or store the element;", "fill-soft")
        c = data["arrays"][2]["name"]
        yield svg.text(_GAP, 49, f"grey: loaded before; bars in {c}: how much of the sum is there", "fill-soft")
        for number in range(panels):
            x, y = _GAP + number % across * (wide + 2 * _GAP), _TOP + number // across * (high + _CAPTION + _GAP)
            yield f'<g transform="translate({x} {y})">'
            yield from _panel(data, steps, number, places, wide)
            yield "</g>"

    svg.write(path, title, size, drawn(), _STYLE)


def _layout(arrays: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    """The place of each array in a panel, as x, y and the side of its cells; and the panel's width and height.

    B is above C, A beside C, and the shared arrays are below.
    """
    a, b, c = arrays[:3]
    left, upper = _CELL * a["columns"] + _GAP, _CELL * b["rows"] + _GAP + _NAME
    places = [(0, upper + _NAME, _CELL), (left, _NAME, _CELL), (left, upper + _NAME, _CELL)]
    x, y = 0, upper + _NAME + _CELL * max(a["rows"], c["rows"]) + _GAP + _NAME
    wide, high = left + _CELL * max(b["columns"], c["columns"]), y - _GAP - _NAME
    for array in arrays[3:]:
        width = _SHARED * array["columns"]
        if x and x + width > wide:
            x, y = 0, high + _GAP + _NAME
        places.append((x, y, _SHARED))
        x, high = x + width + 2 * _GAP, max(high, y + _SHARED * array["rows"])
        wide = max(wide, places[-1][0] + width)
    return places, (wide, high)


def _panel(
    data: Mapping[str, Any], steps: Sequence[Any], number: int, places: Sequence[tuple[int, int, int]], wide: int
) -> Iterator[str]:
    arrays, now = data["arrays"], steps[number]
    held, read, grown = _state(arrays, steps, number)
    touching: dict[Place, list[int]] = {}
    for thread, number_of, row, column, *_ in now["touches"]:
        threads = touching.setdefault((number_of, row * arrays[number_of]["columns"] + column), [])
        if thread not in threads:
            threads.append(thread)
    code = data["source"][now["line"] - 1].strip() if now["line"] else ""
    passed = "1 barrier passed" if now["barriers"] == 1 else f"{now['barriers']} barriers passed"
    yield svg.text(0, 10, f"step {number + 1}: line {now['line']}, {passed}")
    for line, text in enumerate(textwrap.wrap(code, wide // 6, max_lines=2, placeholder="…")):
        yield svg.text(0, 24 + 12 * line, text, "code fill-soft")
    yield f'<g transform="translate(0 {_CAPTION - 8})">'
    for index, (array, (x, y, side)) in enumerate(zip(arrays, places, strict=True)):
        yield svg.text(x, y - 4, array["name"] + (", shared" if array["shared"] else ""), more='style="font-weight: 600"')
        rows, columns = array["rows"], array["columns"]
        across = "".join(f"M{x} {y + at}h{columns * side}" for at in range(0, rows * side + 1, side))
        down = "".join(f"M{x + at} {y}v{rows * side}" for at in range(0, columns * side + 1, side))
        yield f'<path class="stroke-line" fill="none" d="{across}{down}"/>'
        cells = [((index, each), x + each % columns * side, y + each // columns * side) for each in range(rows * columns)]
        for place, left, top in cells:
            if place in read:
                yield svg.rectangle(left, top, side, side, "was fill-ink")
            if share := grown.get(place):
                yield svg.rectangle(left, top + side * (1 - share), side, side * share, "grown fill-third")
            if place in held:
                yield svg.text(left + side / 2, top + 11, held[place], "held fill-soft")
        for place, left, top in cells:
            if place in touching:
                yield from _marks(left, top, side, touching[place], data["block"][0], place in held)
    yield "</g>"


def _marks(x: int, y: int, side: int, threads: Sequence[int], across: int, below: bool) -> Iterator[str]:
    """The threads that touch an element, two of them by name."""
    yield svg.rectangle(x, y, side, side, "now stroke-ink")
    shown, height = threads[:2], 11
    top = y + 14 if below else y + (side - height * len(shown)) / 2
    for number, thread in enumerate(shown):
        name = f"{thread % across},{thread // across}" + ("…" if number == 1 and len(threads) > 2 else "")
        colour = f'fill="{_COLOURS[thread % len(_COLOURS)]}"'
        yield f'<rect x="{x + 3:g}" y="{top + height * number:g}" width="{side - 6}" height="{height - 1}" rx="2" {colour}/>'
        yield svg.text(x + side / 2, top + height * number + 8.2, name, "mark")


def _state(
    arrays: Sequence[Mapping[str, Any]], steps: Sequence[Any], last: int
) -> tuple[dict[Place, str], set[Place], dict[Place, float]]:
    """The state after step `last`: what elements of shared arrays hold, which elements of A, B and C have been read, and how much
    of each element of C has been added up, as a fraction."""
    held: dict[Place, str] = {}
    read: set[Place] = set()
    owner: dict[int, Place] = {}
    every, done = Counter[int](), Counter[int]()
    by_shared = len(arrays) > 3
    for number, step in enumerate(steps):
        for thread, array, row, column, writes, stored in step["touches"]:
            place = (array, row * arrays[array]["columns"] + column)
            if array == 2 and writes:
                owner[thread] = place
            if not writes and (array >= 3 if by_shared else array < 2):
                every[thread] += 1
                done[thread] += number <= last
            if number > last:
                continue
            if not writes and array < 3:
                read.add(place)
            elif writes and array >= 3:
                held[place] = stored
    return held, read, {place: done[thread] / every[thread] for thread, place in owner.items() if every[thread]}
