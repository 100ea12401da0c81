# SPDX-License-Identifier: MIT
"""A small product step by step: as an HTML page with buttons, as a picture with a panel for each step of a thread block, as
lectures draw it, or as text."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hybrid.core.problem import record
from hybrid.core.text import aligned, counted
from hybrid.reporting import svg
from hybrid.reporting.html_page import document

_MOST_THREADS, _MOST_WALK = 4, 8  # in text: threads with a column; printed elements of a walk
_CELL, _SHARED, _GAP, _NAME = 27, 38, 12, 16  # sides of cells, space between arrays, space above each
_ACROSS, _TOP, _CAPTION, _LEAST = 3, 60, 48, 400
_MOST = 12  # panels
_STYLE = """\
.now { stroke-width: 2; fill: none }
.mark { font-size: 9px; fill: #000000; text-anchor: middle } .held { font-size: 9px; text-anchor: middle }
.was { fill-opacity: 0.12 } .grown { fill-opacity: 0.45 } .code { font: 10px ui-monospace, monospace }
"""

Place = tuple[int, int]  # an array's number, and an element's


@record
class Array:
    """A matrix, or a plane of a block's shared variable."""

    name: str
    rows: int
    columns: int
    shared: bool
    variable: str = ""  # of the plane

    def element(self, number: int) -> str:
        """The name of an element, numbered row by row, as in memory."""
        return f"{self.name}[{number // self.columns}][{number % self.columns}]"


class Touch(NamedTuple):
    """A thread's load or store of one element."""

    thread: int
    array: int  # its number in the picture
    element: int  # row by row
    writes: bool
    stored: str  # what a store leaves in shared memory, as M0,1


@record
class Step:
    """The accesses of a block's threads when they execute a line once, as if in lockstep."""

    barriers: int  # passed before
    line: int
    touches: tuple[Touch, ...]
    ahead: bool = False  # one thread executes it while the others wait


@record
class Picture:
    """All blocks' steps. The first three arrays are A, B and C."""

    kernel: str
    source: tuple[str, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arrays: tuple[Array, ...]
    steps: Mapping[tuple[int, int], tuple[Step, ...]]  # by block
    note: str = ""  # about the launch
    wrong: str = ""  # an error of the launch

    @property
    def title(self) -> str:
        """The product and the launch."""
        a, b, c = (f"{each.name} ({each.rows}×{each.columns})" for each in self.arrays[:3])
        grid, threads = ("×".join(map(str, each)) for each in (self.grid, self.block))
        return f"{c} = {a} · {b}, {grid} blocks of {threads} threads"

    def told(self, block: tuple[int, int] = (0, 0)) -> Iterator[str]:
        """The lines: the launch, the steps of this block, and the walks of its first thread through A and B."""
        yield f"{self.kernel}: {self.title}"
        yield from filter(None, [self.wrong])
        yield ""
        steps, across = self.steps.get(block, ()), self.block[0]
        numbers = sorted({touch.thread for step in steps for touch in step.touches})
        shown = numbers[:_MOST_THREADS]
        more = f" (and {counted(len(numbers) - len(shown), 'thread')} more)" if len(numbers) > len(shown) else ""
        rows = [(f"block ({block[0]},{block[1]})", *(f"thread ({each % across},{each // across})" for each in shown))]
        for step in steps:
            rows.append((f"line {step.line}{' ahead' if step.ahead else ''}", *(self._did(step, number) for number in shown)))
        lines = [*aligned(rows, "l" * len(rows[0]))]
        yield lines[0] + more
        for before, step, line in zip((None, *steps), steps, lines[1:], strict=False):
            if before is None or step.barriers != before.barriers:
                yield f"-- {counted(step.barriers, 'barrier')} passed"
            yield line
        yield ""
        for number, array in enumerate(self.arrays[:2]):
            loads = [
                each for step in steps for each in step.touches if (each.thread, each.array, each.writes) == (0, number, False)
            ]
            walk = [each.element for each in loads]
            strides = {after - before for before, after in pairwise(walk)}
            first = ", ".join(map(str, walk[:_MOST_WALK])) + (", …" if len(walk) > _MOST_WALK else "")
            stride = f", stride {strides.pop()}" if len(strides) == 1 else ""
            what = f"{array.name}[{first}] as memory numbers them{stride}" if walk else f"nothing of {array.name}"
            yield f"thread (0,0) loads {what}"

    def _did(self, step: Step, thread: int) -> str:
        """A thread's accesses in a step: M[0][1] → Ms[0][1] for a load and a store, → Ms[0][1] for a store alone."""
        own = [touch for touch in step.touches if touch.thread == thread]
        loads, stores = (
            [self.arrays[each.array].element(each.element) for each in own if each.writes == writes] for writes in (False, True)
        )
        return " ".join([*loads, *(["→", *stores] if stores else [])])


def page(title: str, picture: Picture) -> str:
    """A page with nothing but the steps."""
    return document(title, [f"<h1>{escape(title)}, step by step</h1>", *stage(picture)], beside("css"), beside("js"))


def stage(picture: Picture) -> list[str]:
    """The lines of HTML that show the steps, for a page with the css and js of `beside`."""
    data = {
        "block": picture.block,
        "colours": svg.COLOURS,
        "arrays": list(map(asdict, picture.arrays)),
        "source": picture.source,
        "blocks": [{"at": f"{x},{y}", "steps": list(map(asdict, steps))} for (x, y), steps in picture.steps.items()],
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return [
        f'<p class="soft">{escape(f"{picture.kernel}: {picture.title}{picture.note}")}</p>',
        *([f'<p class="wrong">{escape(picture.wrong)}</p>'] if picture.wrong else []),
        f"<noscript><pre>{escape(chr(10).join(picture.told()))}</pre></noscript>",
        '<div id="blocks" class="buttons" role="group" aria-label="thread block"></div>',
        '<div class="buttons"><button id="phase-before">|◀ barrier</button><button id="before">◀ step</button>'
        '<button id="play">▶ play</button><button id="after">step ▶</button><button id="phase-after">barrier ▶|</button></div>',
        '<p id="said" aria-live="polite"></p>',
        '<p class="soft">Coloured: the threads (x,y) that load or store the element. Grey: loaded before. '
        f"Bars in {escape(picture.arrays[2].name)}: how much of the sum is there.</p>",
        '<div class="stage"><div><div id="matrices"></div>',
        '<div id="shared"></div>',
        '<p id="threads" class="soft"></p></div>',
        '<pre id="source"></pre></div>',
        f'<script type="application/json" id="data">{text}</script>',
    ]


@cache
def beside(kind: str) -> str:
    """The page's css or js, from the file beside this one."""
    return Path(__file__).resolve().with_suffix(f".{kind}").read_text(encoding="utf-8")


def write_picture(path: str, title: str, picture: Picture, block: tuple[int, int]) -> None:
    """Write the picture of this block's steps to an SVG file."""
    steps = picture.steps[block]
    places, (wide, high) = _layout(picture.arrays)
    across = min(_ACROSS, len(steps))
    panels = min(_MOST, len(steps))
    size = (max(_LEAST, _GAP + across * (wide + 2 * _GAP)), _TOP + -(-panels // across) * (high + _CAPTION + _GAP))

    def drawn() -> Iterator[str]:
        yield svg.text(_GAP, 18, title, more='style="font-weight: 600"')
        which = f"block ({block[0]},{block[1]})" + (f", the first {panels} of {len(steps)} steps" if panels < len(steps) else "")
        yield svg.text(_GAP, 35, f"{which}; the coloured threads (x,y) load or store the element;", "fill-soft")
        yield svg.text(
            _GAP, 49, f"grey: loaded before; bars in {picture.arrays[2].name}: how much of the sum is there", "fill-soft"
        )
        for number in range(panels):
            x, y = _GAP + number % across * (wide + 2 * _GAP), _TOP + number // across * (high + _CAPTION + _GAP)
            yield f'<g transform="translate({x} {y})">'
            yield from _panel(picture, steps, number, places, wide)
            yield "</g>"

    svg.write(path, title, size, drawn(), _STYLE)


def _layout(arrays: Sequence[Array]) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    """The place of each array in a panel, as x, y and the side of its cells; and the panel's width and height.

    B is above C, A beside C, and the shared arrays are below.
    """
    a, b, c = arrays[:3]
    left, upper = _CELL * a.columns + _GAP, _CELL * b.rows + _GAP + _NAME
    places = [(0, upper + _NAME, _CELL), (left, _NAME, _CELL), (left, upper + _NAME, _CELL)]
    x, y = 0, upper + _NAME + _CELL * max(a.rows, c.rows) + _GAP + _NAME
    wide, high = left + _CELL * max(b.columns, c.columns), y - _GAP - _NAME
    for array in arrays[3:]:
        width = _SHARED * array.columns
        if x and x + width > wide:
            x, y = 0, high + _GAP + _NAME
        places.append((x, y, _SHARED))
        x, high = x + width + 2 * _GAP, max(high, y + _SHARED * array.rows)
        wide = max(wide, places[-1][0] + width)
    return places, (wide, high)


def _panel(
    picture: Picture, steps: Sequence[Step], number: int, places: Sequence[tuple[int, int, int]], wide: int
) -> Iterator[str]:
    now, (held, read, grown) = steps[number], _state(picture.arrays, steps, number)
    touching: dict[Place, list[int]] = {}
    for touch in now.touches:
        threads = touching.setdefault((touch.array, touch.element), [])
        if touch.thread not in threads:
            threads.append(touch.thread)
    code = picture.source[now.line - 1].strip() if now.line else ""
    ahead = ", ahead" if now.ahead else ""
    yield svg.text(0, 10, f"step {number + 1}: line {now.line}, {counted(now.barriers, 'barrier')} passed{ahead}")
    for line, text in enumerate(textwrap.wrap(code, wide // 6, max_lines=2, placeholder="…")):
        yield svg.text(0, 24 + 12 * line, text, "code fill-soft")
    yield f'<g transform="translate(0 {_CAPTION - 8})">'
    for index, (array, (x, y, side)) in enumerate(zip(picture.arrays, places, strict=True)):
        yield svg.text(x, y - 4, array.name + (", shared" if array.shared else ""), more='style="font-weight: 600"')
        rows, columns = array.rows, array.columns
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
                yield from _marks(left, top, side, touching[place], picture.block[0], place in held)
    yield "</g>"


def _marks(x: int, y: int, side: int, threads: Sequence[int], across: int, below: bool) -> Iterator[str]:
    """The threads that touch an element, two of them by name."""
    yield svg.rectangle(x, y, side, side, "now stroke-ink")
    shown, height = threads[:2], 11
    top = y + 14 if below else y + (side - height * len(shown)) / 2
    for number, thread in enumerate(shown):
        name = f"{thread % across},{thread // across}" + ("…" if number == 1 and len(threads) > 2 else "")
        colour = f'fill="{svg.COLOURS[thread % len(svg.COLOURS)]}"'
        yield f'<rect x="{x + 3:g}" y="{top + height * number:g}" width="{side - 6}" height="{height - 1}" rx="2" {colour}/>'
        yield svg.text(x + side / 2, top + height * number + 8.2, name, "mark")


def _state(arrays: Sequence[Array], steps: Sequence[Step], last: int) -> tuple[dict[Place, str], set[Place], dict[Place, float]]:
    """The state after step `last`: the content of shared arrays, the elements of A, B and C that have been read, and the summed
    fraction of each element of C."""
    held: dict[Place, str] = {}
    read: set[Place] = set()
    owner: dict[int, Place] = {}
    every, done = Counter[int](), Counter[int]()
    for number, step in enumerate(steps):
        for thread, array, element, writes, stored in step.touches:
            if array == 2 and writes:
                owner[thread] = (array, element)
            if not writes and (array >= 3 if len(arrays) > 3 else array < 2):
                every[thread] += 1
                done[thread] += number <= last
            if number <= last and not writes and array < 3:
                read.add((array, element))
            elif number <= last and writes and array >= 3:
                held[array, element] = stored
    return held, read, {place: done[thread] / every[thread] for thread, place in owner.items() if every[thread]}
