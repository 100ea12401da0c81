# SPDX-License-Identifier: MIT
"""What the lab found of a student's kernel, as one HTML page: the source with counters in its margin, maps of C, the roofline; or
as one picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape

from hybrid.classroom.c_map import kinds, reduced
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
from hybrid.classroom.report import heading, verdict
from hybrid.classroom.student_file import StudentFile
from hybrid.core.problem import Problem
from hybrid.reporting import steps_page, svg
from hybrid.reporting.html_page import document
from hybrid.reporting.lab_pictures import COLOURS, KINDS, POINTS, Roofline, roofs, squares, write_map, write_roofline
from hybrid.reporting.steps_page import Steps

_MOST = 96  # squares of a map, each way
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
svg { display: block; width: 100%; max-width: 34rem; height: auto; margin: 0.5rem 0; }
.map { max-width: 24rem; border: 1px solid var(--line); }
.keyed { display: inline-block; }
.key { display: inline-block; width: 0.8rem; height: 0.8rem; margin: 0 0.3rem 0 0.8rem; vertical-align: -0.1rem; }
@media (max-width: 52rem) {
  .source tr { display: block; }
  .source td { display: inline; }
  .source .margin { display: block; width: auto; padding-left: 2.4rem; }
}
"""
)


def page_of(file: StudentFile, examination: Examination, gpu: OnGpu | None, steps: Steps | str) -> str:
    """The page's text. `steps`: of a small launch, or why they are not shown."""
    kernel, meaning = examination.kernel, examination.meaning
    names, told, title = meaning.names(kernel), verdict(examination), f"{file.path.name}, {kernel.name}"
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
        if roofline := _roofline(gpu, examination.cases[0]):
            body += [f'<svg viewBox="0 0 372 245" role="img" aria-label="roofline of {escape(roofline.gpu)}">', *roofs(roofline)]
            keys = (_key(colour, escape(said)) for colour, said in zip(POINTS, roofline.points, strict=False))
            body += ["</svg>", f"<p>{' '.join(keys)}</p>"]
    if isinstance(steps, str):
        return document(f"{title}: {told}", body, _STYLE)
    return document(f"{title}: {told}", body, _STYLE + steps_page.beside("css"), steps_page.beside("js"))


def write_picture(path: str, examination: Examination, gpu: OnGpu | None) -> bool:
    """Draw the map of the first C that is wrong or, where none is, the roofline of this GPU. False where there is neither."""
    names = examination.meaning.names(examination.kernel)
    for case in examination.cases:
        if case.wrong or case.uncertain:
            write_map(path, heading(case, names).partition(", ")[0], *_map(case, names))
            return True
    if gpu is None or (drawn := _roofline(gpu, examination.cases[0])) is None:
        return False
    write_roofline(path, f"{examination.kernel.name} on {drawn.gpu}, {examination.meaning.dtype}", drawn)
    return True


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
        elements, scale = _map(case, names)
        keys = "".join(_key(colour, kind) for kind, colour in zip(KINDS[1:], COLOURS[1:], strict=True))
        yield f"<p>A square of this map is {escape(scale)}: {keys}</p>"
        size = f"0 0 {len(elements[0])} {len(elements)}"
        yield f'<svg class="map" viewBox="{size}" role="img" aria-label="map of C" shape-rendering="crispEdges">'
        yield from (*squares(elements), "</svg>")


def _map(case: Case, names: Names) -> tuple[list[list[int]], str]:
    """For each square of a map of C the largest of the KINDS of its elements; and what a square stands for."""
    n, _, m = case.sizes
    height, width = -(-n // _MOST), -(-m // _MOST)
    codes = reduced(kinds((n, m), case.wrong, case.never, case.uncertain), height, width)
    scale = f"{height}×{width} elements of {names[2]}" if height * width > 1 else f"an element of {names[2]}"
    return codes.tolist(), scale


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


def _roofline(gpu: OnGpu, case: Case) -> Roofline | None:
    """The GPU's roofline with two points: the kernel, and one that would move each element once."""
    peak = gpu.gpu.rate(gpu.dtype)
    if gpu.intensity is None or not peak:
        return None
    problem = Problem(*case.sizes, gpu.dtype)
    points = {"this kernel": gpu.intensity, "each element moved once": problem.operations / problem.bytes_of_matrices}
    return Roofline(gpu.gpu.name, gpu.gpu.bandwidth, peak, points)


def _key(colour: str, said: str) -> str:
    return f'<span class="keyed"><span class="key" style="background:var(--{colour})"></span>{said}</span> '
