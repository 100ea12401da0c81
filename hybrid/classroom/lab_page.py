# SPDX-License-Identifier: MIT
"""What the lab found of a student's kernel, as one HTML page: the source with counters in its margin, maps of C, the roofline; or
as one picture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import numpy as np

from hybrid.classroom.case import (
    Case,
    Counter,
    Examination,
    Names,
    divergence,
    findings,
    intensity,
    lines_named,
    traffic,
    use_of_memory,
)
from hybrid.classroom.on_gpu import OnGpu
from hybrid.classroom.report import KINDS, heading, map_of, verdict
from hybrid.classroom.student_file import StudentFile
from hybrid.core.problem import Problem
from hybrid.reporting import steps_page, svg
from hybrid.reporting.html_page import document
from hybrid.reporting.steps_page import Picture

_MOST = (96, 96)  # squares of a map, each way
_COLOURS = ("", "second", "third", "first")  # of the kinds
_POINTS = ("second", "first")  # colours of the roofline's points
_MAP, _WIDTH = 288, 372  # lengths: a map's longer side, and a picture's width

_Drawing = tuple[str, tuple[float, float], Sequence[str]]  # a title, width and height, and SVG elements
_STYLE = (
    svg.STYLE
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
svg { display: block; width: 100%; max-width: 30rem; height: auto; margin: 0.5rem 0; }
@media (max-width: 52rem) {
  .source tr { display: block; }
  .source td { display: inline; }
  .source .margin { display: block; width: auto; padding-left: 2.4rem; }
}
"""
)


def page_of(file: StudentFile, examination: Examination, gpu: OnGpu | None, steps: Picture | str) -> str:
    """The page's text. `steps`: of a small launch, or why they are not shown."""
    kernel, meaning = examination.kernel, examination.meaning
    names, told, title = examination.names, verdict(examination), f"{file.path.name}, {kernel.name}"
    body = [
        f"<h1>{escape(title)}: {_coloured(told, examination.is_right)}</h1>",
        *(
            f'<p class="soft">{escape(line)}</p>'
            for line in (str(kernel), meaning.told(kernel), str(examination.launch), examination.launch.why)
        ),
        *(line for case in examination.cases for line in _case(case, names)),
        "<h2>The kernel, line by line</h2>",
        *_source(file.text.removesuffix("\n").split("\n"), examination, names),
        "<h2>Step by step</h2>",
        *([f"<p>{escape(steps)}</p>"] if isinstance(steps, str) else steps_page.stage(steps)),
    ]
    if gpu is not None:
        first, *others = gpu.told()
        about, _, first = first.partition(": ")
        body += [f"<h2>{escape(_sentence(about)[:-1])}</h2>", *(f"<p>{escape(_sentence(line))}</p>" for line in (first, *others))]
        if points := _points(gpu, examination.cases[0]):
            body += _drawn(_roofline_of(f"roofline of {gpu.gpu.name}", gpu, points))
    if isinstance(steps, str):
        return document(f"{title}: {told}", body, _STYLE)
    return document(f"{title}: {told}", body, _STYLE + steps_page.beside("css"), steps_page.beside("js"))


def write_picture(path: str, examination: Examination, gpu: OnGpu | None) -> bool:
    """Draw the map of the first C that is wrong or, where none is, the roofline of this GPU. False where there is neither."""
    names, drawn = examination.names, None
    wrong = next((case for case in examination.cases if case.wrong or case.uncertain), None)
    if wrong is not None:
        drawn = _map_of(heading(wrong, names).partition(", ")[0], *map_of(wrong, names[2], _MOST))
    elif gpu is not None and (points := _points(gpu, examination.cases[0])):
        drawn = _roofline_of(f"{examination.kernel.name} on {gpu.gpu.name}, {examination.meaning.dtype}", gpu, points)
    if drawn is not None:
        svg.write(path, *drawn)
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
    """One shape on which the kernel was run."""
    yield f"<h2>{_coloured(heading(case, names), case.is_right)}</h2>"
    if case.is_right:
        yield f"<p>{escape(_sentence(traffic(case, names)))}</p>"
        divergent = [f"line {counter.line} {counter.text}" for counter in divergence(case)]
        yield f"<p>Divergent branches: {escape(', '.join(divergent) or 'none')}.</p>"
        if operations := intensity(case):
            yield f"<p>{operations:.3g} operations for each byte of global memory that is moved.</p>"
        return
    yield from ("<ul>", *(f"<li>{escape(finding.line)}</li>" for finding in findings(case, names)), "</ul>")
    if case.wrong or case.uncertain:
        yield from _drawn(_map_of(f"map of {names[2]}", *map_of(case, names[2], _MOST)))


def _source(lines: Sequence[str], examination: Examination, names: Names) -> Iterator[str]:
    """The table of the source: what findings name is marked, and counters are in the margin."""
    first, cases = examination.cases[0], examination.cases
    margin: dict[int, list[tuple[Counter, str]]] = defaultdict(list)
    for counter in (use_of_memory(site, names) for site in first.sites):
        margin[counter.line].append((counter, ""))
    for case in cases:
        for counter in divergence(case):
            margin[counter.line].append((counter, f"{case.sizes[0]}×{case.sizes[2]}: divergent "))
    named = {line for case in cases for finding in findings(case, names) for line in lines_named(finding)}
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
    """What is shown on a GPU's roofline, with its operations a byte: the kernel, and one that would move each element once."""
    if gpu is None or gpu.intensity is None or not gpu.gpu.rate(gpu.dtype):
        return {}
    problem = Problem(*case.sizes, gpu.dtype)
    return {"this kernel": gpu.intensity, "each element moved once": problem.operations / problem.bytes_of_matrices}


def _map_of(title: str, elements: np.ndarray, scale: str) -> _Drawing:
    """A map of C. `elements`: for each square the largest of the KINDS of its elements; `scale`: what a square stands for."""
    rows, columns = elements.shape
    side = _MAP / max(rows, columns)
    drawn = [
        svg.text(12, 20, title, more='style="font-weight: 600"'),
        f'<g transform="translate(12 34) scale({side:g})" shape-rendering="crispEdges">',
        svg.rectangle(0, 0, columns, rows, "stroke-soft", f'fill="none" stroke-width="{1 / side:.3g}"'),
    ]
    for y, row in enumerate(elements.tolist()):
        x = 0
        while x < len(row):  # a rectangle for each run of neighbouring squares of the same kind, which have the side 1
            end = next((i for i in range(x, len(row)) if row[i] != row[x]), len(row))
            if row[x]:
                drawn.append(svg.rectangle(x, y, end - x, 1, f"fill-{_COLOURS[row[x]]}"))
            x = end
    drawn += ["</g>", svg.text(12, 54 + rows * side, f"a square is {scale}", "fill-soft")]
    keys = [kind for kind in range(1, len(KINDS)) if kind in elements]
    for number, kind in enumerate(keys, 1):
        below = 54 + rows * side + 20 * number
        drawn += [svg.rectangle(12, below - 10, 11, 11, f"fill-{_COLOURS[kind]}"), svg.text(29, below, KINDS[kind])]
    return title, (max(_WIDTH, columns * side + 24), 44 + rows * side + 22 * (len(keys) + 1)), drawn


def _roofline_of(title: str, gpu: OnGpu, points: Mapping[str, float]) -> _Drawing:
    """A roofline with its points."""
    drawn = [svg.text(12, 20, title, more='style="font-weight: 600"'), '<g transform="translate(0 28)">']
    drawn += [*_roofs(gpu.gpu.bandwidth, gpu.gpu.rate(gpu.dtype), points), "</g>"]
    for number, said in enumerate(points):
        y = 290 + 20 * number
        drawn += [svg.rectangle(40, y - 10, 11, 11, f"fill-{_POINTS[number]}"), svg.text(57, y, said)]
    return title, (_WIDTH, 284 + 20 * len(points)), drawn


def _roofs(bandwidth: float, peak: float, points: Mapping[str, float]) -> Iterator[str]:
    """The elements of a roofline's drawing, within 372×245, of GB/s, GF/s and operations a byte. Both axes are logarithmic, so
    memory's roof is a rising line."""
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
        yield svg.text(at, 219, f"{10.0**power:g}", "fill-soft", 'text-anchor="middle"')
    for power in range(bottom, top + 1):
        at = y(10.0**power)
        yield f'<line class="stroke-line" x1="40" y1="{at:.1f}" x2="350" y2="{at:.1f}"/>'
        yield svg.text(36, at + 4, _short(10.0**power), "fill-soft", 'text-anchor="end"')
    roof = [(10.0**first, 10.0**first * bandwidth), (ridge, peak), (10.0**last, peak)]
    corners = " ".join(f"{x(intensity):.1f},{y(rate):.1f}" for intensity, rate in roof)
    yield f'<polyline class="stroke-ink" fill="none" stroke-width="2" points="{corners}"/>'
    yield svg.text(348, y(peak) - 6, f"arithmetic: {peak:,.0f} GF/s", "fill-soft", 'text-anchor="end"')
    yield svg.text(60, 198, f"slope: global memory, {bandwidth:,.0f} GB/s", "fill-soft")
    yield svg.text(195, 236, "operations a byte of global memory", "fill-soft", 'text-anchor="middle"')
    yield svg.text(2, 12, "GF/s", "fill-soft")
    for number, (said, each) in enumerate(points.items()):
        at, rate = x(each), min(peak, each * bandwidth)
        title = f"<title>{escape(said)}</title>"
        yield f'<circle class="fill-{_POINTS[number]}" cx="{at:.1f}" cy="{y(rate):.1f}" r="5">{title}</circle>'


def _short(number: float) -> str:
    return f"{number / 1e6:g}M" if number >= 1e6 else f"{number / 1000:g}k" if number >= 1000 else f"{number:g}"
