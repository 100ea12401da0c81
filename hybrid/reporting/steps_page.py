# SPDX-License-Identifier: MIT
"""A small product step by step: as an HTML page with buttons, as a picture with a panel for each step of a thread block, as
lectures draw it, or as text."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hybrid.core.problem import record
from hybrid.core.text import aligned, counted
from hybrid.reporting import markup
from hybrid.reporting.markup import document

_MOST_THREADS, _MOST_WALK = 4, 8  # in text: threads with a column; printed elements of a walk
_FEW_THREADS = 16  # told on the page
_CELL, _SHARED, _GAP, _NAME = 27, 38, 12, 16  # sides of cells, space between arrays, space above each
_ACROSS, _TOP, _CAPTION, _LEAST = 3, 60, 48, 400
_MOST = 12  # panels
_STYLE = """\
.now { stroke-width: 2; fill: none }
.mark { font-size: 9px; fill: #000000; text-anchor: middle } .held { font-size: 9px; text-anchor: middle }
.was { fill-opacity: 0.12 } .grown { fill-opacity: 0.45 } .code { font: 10px ui-monospace, monospace }
"""
PAGE_STYLE = _STYLE + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
PAGE_SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")

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
        steps = self.steps.get(block, ())
        numbers = sorted({touch.thread for step in steps for touch in step.touches})
        shown = numbers[:_MOST_THREADS]
        more = f" (and {counted(len(numbers) - len(shown), 'thread')} more)" if len(numbers) > len(shown) else ""
        rows = [(f"block ({block[0]},{block[1]})", *(f"thread ({self.thread(each)})" for each in shown))]
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
            touches = [each for step in steps for each in step.touches if each.thread == 0 and each.array == number]
            walk = [each.element for each in touches if not each.writes]
            strides = {after - before for before, after in pairwise(walk)}
            first = ", ".join(map(str, walk[:_MOST_WALK])) + (", …" if len(walk) > _MOST_WALK else "")
            stride = f", stride {strides.pop()}" if len(strides) == 1 else ""
            what = f"{array.name}[{first}] as memory numbers them{stride}" if walk else f"nothing of {array.name}"
            yield f"thread (0,0) loads {what}"

    def for_page(self, block: tuple[int, int]) -> Iterator[dict[str, object]]:
        """Each step of this block: its line and barriers, which step it is as text, and what its threads do as HTML."""
        for number, step in enumerate(self.steps[block], 1):
            threads = list(dict.fromkeys(touch.thread for touch in step.touches))
            said = f"Block ({block[0]},{block[1]}), step {number} of {len(self.steps[block])}"
            ahead = f": {self.thread(threads[0])} runs ahead" if step.ahead else ""
            said += f", {counted(step.barriers, 'barrier')} passed, line {step.line}{ahead}"
            told = ""
            for each in threads[:_FEW_THREADS]:
                name = f'<span class="thread" style="background: {_colour(each)}">{self.thread(each)}</span>'
                told += f'<span class="told">{name} {escape(self._did(step, each))}</span>'
            more = f"and {len(threads) - _FEW_THREADS} more" if len(threads) > _FEW_THREADS else ""
            yield {"line": step.line, "barriers": step.barriers, "said": said, "threads": told + more}

    def thread(self, number: int) -> str:
        """The name x,y of a thread of a block."""
        return f"{number % self.block[0]},{number // self.block[0]}"

    def _did(self, step: Step, thread: int) -> str:
        """A thread's accesses in a step: M[0][1] → Ms[0][1] for a load and a store, → Ms[0][1] for a store alone."""
        own = [touch for touch in step.touches if touch.thread == thread]
        loads, stores = (
            [self.arrays[each.array].element(each.element) for each in own if each.writes == writes] for writes in (False, True)
        )
        return " ".join([*loads, *(["→", *stores] if stores else [])])


def page(title: str, picture: Picture) -> str:
    """A page with nothing but the steps."""
    body = [f"<h1>{escape(title)}, step by step</h1>", *stage(picture)]
    return document(title, body, markup.STYLE + PAGE_STYLE, PAGE_SCRIPT)


def stage(picture: Picture) -> Iterator[str]:
    """The lines of HTML that show the steps, for a page with `markup.STYLE`, `PAGE_STYLE` and `PAGE_SCRIPT`."""
    yield f'<p class="soft">{escape(f"{picture.kernel}: {picture.title}{picture.note}")}</p>'
    if picture.wrong:
        yield f'<p class="wrong">{escape(picture.wrong)}</p>'
    yield f"<noscript><pre>{escape(chr(10).join(picture.told()))}</pre></noscript>"
    choice = "".join(f'<button aria-pressed="false">{x},{y}</button>' for x, y in picture.steps)
    yield f'<div id="blocks" class="buttons" role="group" aria-label="thread block"><span>blockIdx</span>{choice}</div>'
    yield (
        '<div class="buttons"><button id="phase-before">|◀ barrier</button><button id="before">◀ step</button>'
        '<button id="play">▶ play</button><button id="after">step ▶</button><button id="phase-after">barrier ▶|</button></div>'
    )
    yield '<p id="said" aria-live="polite"></p>'
    yield (
        '<p class="soft">Coloured: the threads (x,y) that load or store the element. Grey: loaded before. '
        f"Bars in {escape(picture.arrays[2].name)}: how much of the sum is there.</p>"
    )
    yield '<div class="stage"><div><div id="drawn" hidden>'
    places, (wide, high) = _layout(picture.arrays)
    for steps in picture.steps.values():
        yield f'<svg viewBox="-2 0 {wide + 4} {high + 2}" style="width: {1.5 * wide:g}px">{"".join(_frames(picture, places))}'
        for first, last, one in _timeline(picture, steps, places):
            yield f'<g data-first="{first}" data-last="{last}">{one}</g>'
        yield "</svg>"
    yield '</div><p id="threads" class="soft"></p></div><pre id="source">'
    yield "".join(f"<span>{number:3}  {escape(line)}\n</span>" for number, line in enumerate(picture.source, 1))
    data = [list(picture.for_page(block)) for block in picture.steps]
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    yield f'</pre></div><script type="application/json" id="data">{text}</script>'


def write_picture(path: str, title: str, picture: Picture, block: tuple[int, int]) -> None:
    """Write the picture of this block's steps to an SVG file."""
    steps = picture.steps[block]
    places, (wide, high) = _layout(picture.arrays)
    timeline = _timeline(picture, steps, places)
    across = min(_ACROSS, len(steps))
    panels = min(_MOST, len(steps))
    size = (max(_LEAST, _GAP + across * (wide + 2 * _GAP)), _TOP + -(-panels // across) * (high + _CAPTION + _GAP))

    def drawn() -> Iterator[str]:
        yield markup.text(_GAP, 18, title, more='style="font-weight: 600"')
        which = f"block ({block[0]},{block[1]})" + (f", the first {panels} of {len(steps)} steps" if panels < len(steps) else "")
        yield markup.text(_GAP, 35, f"{which}; the coloured threads (x,y) load or store the element;", "fill-soft")
        bars = f"bars in {picture.arrays[2].name}: how much of the sum is there"
        yield markup.text(_GAP, 49, f"grey: loaded before; {bars}", "fill-soft")
        for number, step in enumerate(steps[:panels]):
            x, y = _GAP + number % across * (wide + 2 * _GAP), _TOP + number // across * (high + _CAPTION + _GAP)
            yield f'<g transform="translate({x} {y})">'
            ahead = ", ahead" if step.ahead else ""
            yield markup.text(0, 10, f"step {number + 1}: line {step.line}, {counted(step.barriers, 'barrier')} passed{ahead}")
            code = picture.source[step.line - 1].strip() if step.line else ""
            for line, text in enumerate(textwrap.wrap(code, wide // 6, max_lines=2, placeholder="…")):
                yield markup.text(0, 24 + 12 * line, text, "code fill-soft")
            yield f'<g transform="translate(0 {_CAPTION - 8})">'
            yield from _frames(picture, places)
            yield from (one for first, last, one in timeline if first <= number <= last)
            yield "</g></g>"

    markup.write_svg(path, title, size, drawn(), _STYLE)


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


def _frames(picture: Picture, places: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    """The names and cells of all arrays."""
    for array, (x, y, side) in zip(picture.arrays, places, strict=True):
        yield markup.text(x, y - 4, array.name + (", shared" if array.shared else ""), more='style="font-weight: 600"')
        across = "".join(f"M{x} {y + row * side}h{array.columns * side}" for row in range(array.rows + 1))
        down = "".join(f"M{x + column * side} {y}v{array.rows * side}" for column in range(array.columns + 1))
        yield f'<path class="stroke-line" fill="none" d="{across}{down}"/>'


def _timeline(picture: Picture, steps: Sequence[Step], places: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, str]]:
    """What is drawn in the arrays: the first and last step that show it, and its SVG, in the order of drawing."""
    touches = [(number, touch) for number, step in enumerate(steps) for touch in step.touches]
    summed = range(3, len(picture.arrays)) if len(picture.arrays) > 3 else range(2)  # arrays whose loads make up the sums
    every = Counter(touch.thread for _, touch in touches if touch.array in summed and not touch.writes)
    owned = {touch.thread: (2, touch.element) for _, touch in touches if touch.array == 2 and touch.writes}
    read, grown, held = (dict[Place, dict[int, str]]() for _ in range(3))  # by element: its SVG from each step on
    now: dict[tuple[int, Place], dict[int, None]] = {}  # by step and element: the threads, in order
    done = Counter[int]()

    def cell(place: Place) -> tuple[int, int, int]:
        x, y, side = places[place[0]]
        row, column = divmod(place[1], picture.arrays[place[0]].columns)
        return x + column * side, y + row * side, side

    for number, touch in touches:
        place = touch.array, touch.element
        x, y, side = cell(place)
        now.setdefault((number, place), {})[touch.thread] = None
        if touch.array < 3 and not touch.writes:
            read.setdefault(place, {number: markup.rectangle(x, y, side, side, "was fill-ink")})
        if touch.array >= 3 and touch.writes:
            held.setdefault(place, {})[number] = markup.text(x + side / 2, y + 11, touch.stored, "held fill-soft")
        if touch.array in summed and not touch.writes and touch.thread in owned:
            done[touch.thread] += 1
            x, y, side = cell(owned[touch.thread])
            height = side * done[touch.thread] / every[touch.thread]
            bar = markup.rectangle(x, y + side - height, side, height, "grown fill-third")
            grown.setdefault(owned[touch.thread], {})[number] = bar
    changes = [changes for layer in (read, grown, held) for changes in layer.values()]
    spans = [(first, after - 1, of[first]) for of in changes for first, after in pairwise([*of, len(steps)])]
    return spans + [(at, at, _marks(*cell(place), [*who], picture, place[0] >= 3)) for (at, place), who in now.items()]


def _marks(x: int, y: int, side: int, threads: Sequence[int], picture: Picture, below: bool) -> str:
    """The threads that touch an element, two of them by name; `below` what the element holds."""
    shown, height = threads[:2], 11
    top = y + 14 if below else y + (side - height * len(shown)) / 2
    drawn = markup.rectangle(x, y, side, side, "now stroke-ink")
    for number, thread in enumerate(shown):
        name = picture.thread(thread) + ("…" if number == 1 and len(threads) > 2 else "")
        at = f'x="{x + 3:g}" y="{top + height * number:g}" width="{side - 6}" height="{height - 1}"'
        drawn += f'<rect {at} rx="2" fill="{_colour(thread)}"/>'
        drawn += markup.text(x + side / 2, top + height * number + 8.2, name, "mark")
    return drawn


def _colour(thread: int) -> str:
    return markup.COLOURS[thread % len(markup.COLOURS)]
