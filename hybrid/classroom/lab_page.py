# SPDX-License-Identifier: MIT
"""HTML pages and pictures of a student's kernel: the source with counters in its margin, maps of C, the roofline, the steps of a
small launch; and a class's page."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np

from hybrid.classroom import report
from hybrid.classroom.cuda_text import blanked, extents_of
from hybrid.classroom.examination import Trials
from hybrid.classroom.exercise import Part
from hybrid.classroom.launch import launch_of
from hybrid.classroom.report import Examination, Names, OnGpu, findings
from hybrid.classroom.student_file import StudentFile, parsed
from hybrid.classroom.trial import Case, Sizes
from hybrid.core.problem import Problem
from hybrid.emulation.observed import Access
from hybrid.errors import UsageError
from hybrid.reporting import markup, steps_page
from hybrid.reporting.markup import document
from hybrid.reporting.steps_page import Array, Picture, Step, Touch

_MOST = (96, 96)  # squares of a map, down and across
_COLOURS = ("", "second", "third", "first")  # of report.KINDS
_POINTS = ("second", "first")  # colours of the roofline's points
_MAP, _WIDTH = 288, 372  # a map's longer side, a picture's width

_Drawing = tuple[str, tuple[float, float], Sequence[str]]  # a title, width and height, and SVG elements
_STYLE = (
    markup.STYLE
    + """\
main { max-width: 76rem; }
.source { font: 0.8rem/1.5 ui-monospace, monospace; border-bottom: 0; table-layout: fixed; }
.source td { border-bottom: 0; padding: 0 0.6rem 0 0; }
.source .number { width: 2.4rem; }
.source .text { white-space: pre-wrap; }
.source .named { background: color-mix(in srgb, var(--bad) 14%, transparent); }
.margin { font: 0.8rem/1.5 system-ui, sans-serif; width: 23rem; }
.margin span { display: block; }
.dear { color: var(--bad); }
.points { white-space: nowrap; width: 5rem; }
.lines { white-space: pre-wrap; font-size: 0.8rem; }
a { color: inherit; }
svg { display: block; width: 100%; max-width: 30rem; height: auto; margin: 0.5rem 0; }
@media (max-width: 52rem) {
  .source tr { display: block; }
  .source td { display: inline; }
  .source .margin { display: block; width: auto; padding-left: 2.4rem; }
}
"""
)


def page_of(
    file: StudentFile, examination: Examination, gpu: OnGpu | None, steps: Picture | str, parts: Sequence[Part] = ()
) -> str:
    """The page of a kernel. `steps`: of a small launch, or why they are not shown, or "". `parts`: of an exercise's judgement."""
    names, title = examination.names, f"{file.path.name}, {examination.kernel.name}"
    told, _, assumed = report.verdict(examination).partition("; ")
    about = report.about(examination.kernel, examination.meaning, examination.launch)
    body = [
        f"<h1>{escape(title)}: {_coloured(told, examination.is_right)}</h1>",
        *_points_for(parts),
        *(f'<p class="soft">{escape(line)}</p>' for line in (*about, assumed) if line),
        *(line for case in examination.cases for line in _case(case, names)),
        "<h2>The kernel, line by line</h2>",
        *_source(file.text.removesuffix("\n").split("\n"), examination, names),
    ]
    if steps:
        shown = [f"<p>{escape(steps)}</p>"] if isinstance(steps, str) else steps_page.stage(steps)
        body += ["<h2>Step by step</h2>", *shown]
    if gpu is not None:
        first, *others = gpu.told()
        which, _, first = first.partition(": ")
        body += [f"<h2>{escape(_sentence(which)[:-1])}</h2>", *(f"<p>{escape(_sentence(line))}</p>" for line in (first, *others))]
        if points := _points(gpu, examination.cases[0]):
            body += _drawn(_roofline_of(f"roofline of {gpu.gpu.name}", gpu, points))
    if isinstance(steps, str):
        return document(f"{title}: {told}", body, _STYLE)
    return document(f"{title}: {told}", body, _STYLE + steps_page.PAGE_STYLE, steps_page.PAGE_SCRIPT)


def plain_page(title: str, parts: Sequence[Part], lines: Iterable[str]) -> str:
    """The page of a file that is no kernel or could not be judged."""
    text = escape("\n".join(lines))
    return document(title, [f"<h1>{escape(title)}</h1>", *_points_for(parts), f'<pre class="lines">{text}</pre>'], _STYLE)


def class_page(title: str, rows: Iterable[tuple[str, str]], summary: Iterable[str]) -> str:
    """The page of a class. `rows`: for each file its points and, as HTML, its name with what is wrong."""
    body = [f"<h1>{escape(title)}</h1>", "<ul>", *(f"<li>{escape(line.strip())}</li>" for line in summary), "</ul>"]
    return document(title, [*body, *_table(rows)], _STYLE)


def _points_for(parts: Sequence[Part]) -> list[str]:
    if not parts:
        return []
    got, all_points = sum(points for _, points, _ in parts), sum(most for *_, most in parts)
    rows = ((f"{points} of {most}", escape(text)) for text, points, most in parts)
    return [f"<h2>{got} of {all_points} points</h2>", *_table(rows)]


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    lines = (f'<tr><td class="points">{points}</td><td>{text}</td></tr>' for points, text in rows)
    return ["<table>", *lines, "</table>"]


def write_picture(path: str, examination: Examination, gpu: OnGpu | None) -> bool:
    """Draw a map of the first wrong C, else the roofline of this GPU. False if there is neither."""
    names, drawn = examination.names, None
    wrong = next((case for case in examination.cases if case.wrong or case.uncertain), None)
    if wrong is not None:
        drawn = _map_of(report.heading(wrong, names).partition(", ")[0], *report.map_of(wrong, names[2], _MOST))
    elif gpu is not None and (points := _points(gpu, examination.cases[0])):
        drawn = _roofline_of(f"{examination.kernel.name} on {gpu.gpu.name}, {examination.dtype}", gpu, points)
    if drawn is not None:
        markup.write_svg(path, *drawn)
    return drawn is not None


def _drawn(drawing: _Drawing) -> list[str]:
    title, (width, height), elements = drawing
    return [f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">', *elements, "</svg>"]


def _coloured(text: str, right: bool) -> str:
    return escape(text) if right else f'<span class="wrong">{escape(text)}</span>'


def _sentence(line: str) -> str:
    text = line.strip()
    return f"{text[0].upper()}{text[1:]}."


def _case(case: Case, names: Names) -> Iterator[str]:
    yield f"<h2>{_coloured(report.heading(case, names), case.is_right)}</h2>"
    if case.is_right:
        yield from (f"<p>{escape(_sentence(line))}</p>" for line in report.costs(case, names))
        return
    yield from ("<ul>", *(f"<li>{escape(finding.line)}</li>" for finding in findings(case, names)), "</ul>")
    if case.wrong or case.uncertain:
        yield from _drawn(_map_of(f"map of {names[2]}", *report.map_of(case, names[2], _MOST)))


def _source(lines: Sequence[str], examination: Examination, names: Names) -> Iterator[str]:
    """The source as a table: lines that findings name are marked, and counters are in the margin."""
    first, cases = examination.cases[0], examination.cases
    margin: dict[int, list[tuple[report.Counter, str]]] = defaultdict(list)
    for counter in (report.use_of_memory(site, names) for site in first.sites):
        margin[counter.line].append((counter, ""))
    for case in cases:
        for counter in report.divergence(case):
            margin[counter.line].append((counter, f"{'×'.join(map(str, case.sizes[:: len(case.sizes) - 1 or 1]))}: divergent "))
    named = {line for case in cases for finding in findings(case, names) for line in report.lines_named(finding)}
    has_margin = bool(margin)
    yield '<table class="source">'
    for number, line in enumerate(lines, 1):
        notes = "".join(
            f"<span{' class=dear' * each.dear}>{escape(before + each.text)}</span>" for each, before in margin[number]
        )
        text = escape(line.expandtabs(4)) or "&nbsp;"
        in_margin = f'<td class="margin">{notes}</td>' if has_margin else ""
        row = f'<tr id="line-{number}"{" class=named" * (number in named)}><td class="number soft">{number}</td>'
        yield f'{row}<td class="text">{text}</td>{in_margin}</tr>'
    yield "</table>"


def _points(gpu: OnGpu | None, case: Case) -> dict[str, float]:
    """The points of a GPU's roofline, in operations a byte: this kernel, and one that moves each element once."""
    if gpu is None or gpu.intensity is None or not gpu.gpu.rate(gpu.dtype):
        return {}
    n, l, m = case.sizes
    problem = Problem(n, l, m, gpu.dtype)
    return {"this kernel": gpu.intensity, "each element moved once": problem.operations / problem.bytes_of_matrices}


def _map_of(title: str, elements: np.ndarray, scale: str) -> _Drawing:
    """A map of C, with the two results of `map_of`."""
    rows, columns = elements.shape
    side = _MAP / max(rows, columns)
    drawn = [
        markup.text(12, 20, title, more='style="font-weight: 600"'),
        f'<g transform="translate(12 34) scale({side:g})" shape-rendering="crispEdges">',
        markup.rectangle(0, 0, columns, rows, "stroke-soft", f'fill="none" stroke-width="{1 / side:.3g}"'),
    ]
    for y, row in enumerate(elements.tolist()):
        for kind, run in groupby(range(columns), row.__getitem__):  # a rectangle for each run of squares of the same kind
            squares = [*run]
            if kind:
                drawn.append(markup.rectangle(squares[0], y, len(squares), 1, f"fill-{_COLOURS[kind]}"))
    drawn += ["</g>", markup.text(12, 54 + rows * side, f"a square is {scale}", "fill-soft")]
    keys = [kind for kind in range(1, len(report.KINDS)) if kind in elements]
    for number, kind in enumerate(keys, 1):
        below = 54 + rows * side + 20 * number
        drawn += [markup.rectangle(12, below - 10, 11, 11, f"fill-{_COLOURS[kind]}"), markup.text(29, below, report.KINDS[kind])]
    return title, (max(_WIDTH, columns * side + 24), 44 + rows * side + 22 * (len(keys) + 1)), drawn


def _roofline_of(title: str, gpu: OnGpu, points: Mapping[str, float]) -> _Drawing:
    drawn = [markup.text(12, 20, title, more='style="font-weight: 600"'), '<g transform="translate(0 28)">']
    drawn += [*_roofs(gpu.gpu.bandwidth, gpu.gpu.rate(gpu.dtype), points), "</g>"]
    for number, said in enumerate(points):
        y = 290 + 20 * number
        drawn += [markup.rectangle(40, y - 10, 11, 11, f"fill-{_POINTS[number]}"), markup.text(57, y, said)]
    return title, (_WIDTH, 284 + 20 * len(points)), drawn


def _roofs(bandwidth: float, peak: float, points: Mapping[str, float]) -> Iterator[str]:
    """The SVG elements of a roofline, within 372×245. `bandwidth`: GB/s; `peak`: GF/s; `points`: operations a byte. Both axes are
    logarithmic."""
    ridge = peak / bandwidth
    values = [ridge, *points.values()]
    first, last = math.floor(math.log10(min(values) / 2)), math.ceil(math.log10(max(values) * 2))
    top = math.ceil(math.log10(peak * 1.5))
    bottom = math.floor(math.log10(min(peak, 10.0**first * bandwidth)))

    def x(intensity: float) -> float:
        return 40 + 310 * (math.log10(intensity) - first) / (last - first)

    def y(rate: float) -> float:
        return 205 - 185 * (math.log10(rate) - bottom) / (top - bottom)

    for power in range(first, last + 1):
        at = x(10.0**power)
        yield f'<line class="stroke-line" x1="{at:.1f}" y1="20" x2="{at:.1f}" y2="205"/>'
        yield markup.text(at, 219, f"{10.0**power:g}", "fill-soft", 'text-anchor="middle"')
    for power in range(bottom, top + 1):
        at, rate = y(10.0**power), 10.0**power
        short = f"{rate / 1e6:g}M" if rate >= 1e6 else f"{rate / 1000:g}k" if rate >= 1000 else f"{rate:g}"
        yield f'<line class="stroke-line" x1="40" y1="{at:.1f}" x2="350" y2="{at:.1f}"/>'
        yield markup.text(36, at + 4, short, "fill-soft", 'text-anchor="end"')
    roof = [(10.0**first, 10.0**first * bandwidth), (ridge, peak), (10.0**last, peak)]
    corners = " ".join(f"{x(intensity):.1f},{y(rate):.1f}" for intensity, rate in roof)
    yield f'<polyline class="stroke-ink" fill="none" stroke-width="2" points="{corners}"/>'
    yield markup.text(348, y(peak) - 6, f"arithmetic: {peak:,.0f} GF/s", "fill-soft", 'text-anchor="end"')
    yield markup.text(60, 198, f"slope: global memory, {bandwidth:,.0f} GB/s", "fill-soft")
    yield markup.text(195, 236, "operations a byte of global memory", "fill-soft", 'text-anchor="middle"')
    yield markup.text(2, 12, "GF/s", "fill-soft")
    for number, (said, each) in enumerate(points.items()):
        at, rate = x(each), min(peak, each * bandwidth)
        title = f"<title>{escape(said)}</title>"
        yield f'<circle class="fill-{_POINTS[number]}" cx="{at:.1f}" cy="{y(rate):.1f}" r="5">{title}</circle>'


_TILE = re.compile(
    r"^([ \t]*(?:#[ \t]*define[ \t]+|(?:static\s+)?(?:const|constexpr)\s+(?:unsigned\s+)?int\s+)"
    r"\w*(?:TILE|BLOCK)\w*[ \t]*=?[ \t]*)(\d+)",
    re.MULTILINE | re.IGNORECASE,
)
_MOST_PRODUCTS = 1 << 12  # multiplications in a picture
_SMALL, _LARGEST = 2, 16  # tile width, if it can be changed; largest width of matrices otherwise

Block = tuple[int, int]
Element = tuple[int, int]  # the matrix (0: A, 1: B, 2: C) and the element's number


def with_tile(texts: Mapping[Path, str], tile: int) -> dict[Path, str]:
    """The texts with another tile width. UsageError unless exactly one constant is named TILE or BLOCK."""
    changed = {path: _TILE.subn(rf"\g<1>{tile}", text) for path, text in texts.items()}
    count = sum(each for _, each in changed.values())
    if count != 1:
        has = f"{count} such constants, and which is meant cannot be told" if count else "none"
        what = "--tile changes the constant of the file that is called TILE… or BLOCK…"
        raise UsageError(f"{what}: it has {has}", code="lab-shown")
    return {path: text for path, (text, _) in changed.items()}


def picture(trials: Trials, *shapes: Sizes) -> Picture:
    """The picture of a launch on the first of these shapes on which the kernel is wrong, else on the first of all. UsageError if
    one is too large, EmulationError if the kernel does not compile or crashes."""
    for sizes in shapes:
        if (products := math.prod(sizes)) > _MOST_PRODUCTS:
            text = f"{'×'.join(map(str, sizes))} are {products} multiplications: at most {_MOST_PRODUCTS} can be shown"
            raise UsageError(f"{text}, such as --width 16", code="lab-shown")
    if trials.meaning.dtype != trials.meaning.of_factors:
        raise UsageError(f"a picture shows matrices of one type, and these are {trials.meaning.types}", code="lab-shown")
    if any(len(extents) > 2 for extents in (trials.launch.grid, trials.launch.block)):
        text = f"a picture shows blocks and threads by x and y, and this launch has a z: {trials.launch}"
        raise UsageError(text, code="lab-shown")
    case, accesses = trials.traced(*shapes)
    wrong = findings(case, trials.meaning.names(trials.kernel))[:1]
    races = [{line for _, line in each.places} for each in wrong if each.code == "data-race"]
    arrays = _arrays(trials, case, accesses)
    by_block: dict[Block, list[Access]] = {}
    for access in accesses:
        by_block.setdefault(access.block, []).append(access)
    item = np.dtype(trials.meaning.dtype).itemsize
    steps = {
        block: tuple(_steps(by_block[block], races, arrays, item)) for block in sorted(by_block, key=lambda each: each[::-1])
    }
    source = tuple(trials.file.text.rstrip("\n").split("\n"))
    return Picture(str(trials.kernel), source, case.grid, case.block, arrays, steps, wrong="".join(each.line for each in wrong))


def _steps(accesses: Sequence[Access], races: Sequence[set[int]], arrays: Sequence[Array], item: int) -> Iterator[Step]:
    """The steps of a block: a step is the n-th execution of a line, by all of the block's threads.

    A thread executes a line anew if an instruction of the line repeats, or after another line. Steps are in the order in which a
    thread first makes them. In a race one thread runs ahead.
    """
    now: dict[int, tuple[int, int, set[int]]] = {}  # by thread: barriers, line and instructions of its current execution
    counts: dict[tuple[int, int, int], int] = {}  # of executions, by thread, barriers and line
    position: dict[int, int] = {}  # by thread: executions begun
    runs: dict[tuple[int, bool, int, int], tuple[int, list[Access]]] = {}  # by barriers, not ahead, line and n
    ahead = _ahead(accesses, races)
    for place, access in enumerate(accesses):
        barriers, line, seen = now.get(access.thread, (-1, 0, set()))
        key = (access.thread, access.barriers, access.line)
        if (barriers, line) != key[1:] or access.instruction in seen:
            seen = set()
            counts[key] = counts.get(key, 0) + 1
            position[access.thread] = position.get(access.thread, 0) + 1
        now[access.thread] = (access.barriers, access.line, seen | {access.instruction})
        run = (access.barriers, place not in ahead, access.line, counts[key])
        first, of_run = runs.setdefault(run, (position[access.thread], []))
        of_run.append(access)
        runs[run] = (min(first, position[access.thread]), of_run)
    in_order = sorted(runs.items(), key=lambda each: (*each[0][:2], each[1][0], each[0][2]))
    stored = iter(_with_elements([access for _, (_, of_run) in in_order for access in of_run], item))
    for (barriers, is_behind, line, _), (_, of_run) in in_order:
        touches = tuple(touch for _ in of_run for touch in _touches(*next(stored), arrays, item))
        yield Step(barriers, line, touches, not is_behind)


def _with_elements(accesses: Sequence[Access], item: int) -> Iterator[tuple[Access, Element | None]]:
    """Each access with the element that it reads or stores, also through shared memory; None for a stored 0.

    A store to shared memory is taken to store the first element that its thread has read, from this array's matrix, and not
    stored.
    """
    cells: dict[tuple[tuple[int, int], int | str, int], Element | None] = {}
    home: dict[int | str, int] = {}  # the matrix of a shared array's elements
    waiting: dict[tuple[tuple[int, int], int], list[Element]] = {}  # read and not yet stored, by block and thread
    for access in accesses:
        own, cell = waiting.setdefault((access.block, access.thread), []), (access.block, access.of, access.byte)
        if isinstance(access.of, int):
            first = access.byte // item
            if access.of != 2:
                own += [(access.of, first + each) for each in range(-(-access.bytes // item))]
            elif access.writes:
                own.clear()
            yield access, (access.of, first)
        else:
            if access.writes:
                read = next((each for each in own if home.setdefault(access.of, each[0]) == each[0]), None)
                cells[cell] = read
                if read:
                    own.remove(read)
            yield access, cells.get(cell)


def _ahead(accesses: Sequence[Access], races: Sequence[set[int]]) -> set[int]:
    """The positions of the accesses of the thread that comes first in a race between these lines: from the last barrier to the
    access that conflicts with another thread's."""
    uses: dict[tuple[int, int | str, int], list[int]] = {}
    for place, access in enumerate(accesses if races else ()):
        for earlier in uses.setdefault((access.barriers, access.of, access.byte), []):
            one = accesses[earlier]
            if one.thread != access.thread and (one.writes or access.writes) and {one.line, access.line} in races:
                own = (one.thread, one.barriers)
                return {each for each in range(earlier + 1) if (accesses[each].thread, accesses[each].barriers) == own}
        uses[access.barriers, access.of, access.byte].append(place)
    return set()


def _touches(access: Access, stored: Element | None, arrays: Sequence[Array], item: int) -> Iterator[Touch]:
    """The elements that an access touches, several for a vector load. `stored`: the element that shared memory gets."""
    own = [number for number, each in enumerate(arrays) if each.variable == access.of or number == access.of]
    first, size = access.byte // item, arrays[own[0]].rows * arrays[own[0]].columns
    for element in range(first, -(-(access.byte + access.bytes) // item)):
        plane, text = own[min(element // size, len(own) - 1)], ""
        if access.writes and arrays[plane].shared:
            of = arrays[stored[0]] if stored else None
            text = "{}{},{}".format(of.name, *divmod(stored[1] + element - first, of.columns)) if of and stored else "0"
        yield Touch(access.thread, plane, element - size * own.index(plane), access.writes, text)


def _arrays(trials: Trials, case: Case, accesses: Sequence[Access]) -> tuple[Array, ...]:
    """The matrices, and the 2D planes of shared arrays: t[0] and t[1] for t[2][4][4]."""
    (n, l, m), names = case.sizes, trials.meaning.names(trials.kernel)
    arrays = [Array(name, *shape, False) for name, shape in zip(names, ((n, l), (l, m), (n, m)), strict=True)]
    known, item = extents_of(trials.kernel.body, trials.file.constants), np.dtype(trials.meaning.dtype).itemsize
    for name in dict.fromkeys(access.of for access in accesses if isinstance(access.of, str)):
        elements = 1 + max(access.byte for access in accesses if access.of == name) // item
        *planes, rows, columns = (1, *known.get(name, (elements,)))
        named = [name + "".join(f"[{index}]" for index in each) for each in np.ndindex(*planes[1:])]
        arrays += [Array(each, rows, columns, True, name) for each in named]
    return tuple(arrays)


def small_steps(trials: Trials, anew: Callable[[StudentFile], Trials]) -> Picture:
    """The steps of a launch on small matrices, of a wrong one if there is one. Tiles or blocks have the width 2 if that can be
    changed, else their own. `anew`: makes the trials of a changed file. HybridError if nothing can be shown."""
    for changed, note in ((_with_small_tiles(trials, anew), "tiles"), (_with_small_blocks(trials), "blocks")):
        if changed is not None:
            return replace(picture(changed, *_whole_and_ragged(changed, 2 * _SMALL)), note=f", with {note} of {_SMALL}")
    _, block, _ = trials.launch.at({**trials.file.constants, "n": _LARGEST, "l": _LARGEST, "m": _LARGEST})
    return picture(trials, *_whole_and_ragged(trials, min(_LARGEST, 2 * max(block))))


def _whole_and_ragged(trials: Trials, width: int) -> list[Sizes]:
    ragged = (width - 1,) * 3 if trials.meaning.square else (width - 1, width + 1, width)
    return [trials.meaning.on(each) for each in ((width,) * 3, ragged) if min(each)]


def _with_small_tiles(trials: Trials, anew: Callable[[StudentFile], Trials]) -> Trials | None:
    """The trials with smaller tiles. None unless exactly one constant is named TILE or BLOCK, the launch follows it, and the file
    has its number nowhere else."""
    text = "\n".join(trials.file.texts.values())
    found = [int(width) for _, width in _TILE.findall(text)]
    if len(found) != 1 or found[0] <= _SMALL or len(re.findall(rf"\b{found[0]}\b", blanked(text))) > 1:
        return None
    changed = anew(parsed(with_tile(trials.file.texts, _SMALL)))
    sizes = dict.fromkeys("nlm", found[0])
    (_, before, _), (_, after, _) = (each.launch.at({**each.file.constants, **sizes}) for each in (trials, changed))
    return changed if max(after) <= _SMALL * _SMALL < max(before) * max(before) else None


def _with_small_blocks(trials: Trials) -> Trials | None:
    """The trials with smaller blocks. None unless the grid follows the block, and the kernel uses blockDim and blockIdx but
    neither shared memory nor the block's width as a number."""
    body, launch = trials.kernel.body, trials.launch
    has_width = any(re.search(rf"\b{re.escape(width)}\b", body) for width in launch.block if width != "1")
    follows = launch.follows_block and {"blockDim", "blockIdx"} <= set(re.findall(r"\w+", body))
    if not follows or has_width or "__shared__" in body:
        return None
    block = f"{_SMALL},{_SMALL}" if launch.block[1] != "1" else str(_SMALL)
    return replace(trials, launch=launch_of(trials.file, trials.kernel, trials.meaning, {"block": block}))
