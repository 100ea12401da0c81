# SPDX-License-Identifier: MIT
"""What the lab found of a student's kernel, as one HTML page: the source with counters in its margin, maps of C, the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from hybrid.core.problem import record
from hybrid.reporting import steps_page, svg
from hybrid.reporting.html_page import document
from hybrid.reporting.lab_pictures import COLOURS, KINDS, POINTS, Roofline, roofs, squares
from hybrid.reporting.steps_page import Steps

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


@record
class Note:
    """A note in the margin of a line."""

    text: str
    dear: bool  # it is about something that costs more than it has to


@record
class CaseView:
    """One shape on which the kernel was run."""

    heading: str
    right: bool
    findings: Sequence[str]
    counters: Sequence[str]
    # The map of C: for each square the largest of the KINDS of its elements; empty where all elements are right.
    elements: Sequence[Sequence[int]] = ()
    scale: str = ""  # what a square of the map stands for


@record
class LabPage:
    """All that the page shows."""

    title: str
    verdict: str
    right: bool
    about: Sequence[str]
    cases: Sequence[CaseView]
    source: Sequence[str]
    notes: Mapping[int, Sequence[Note]]  # by line, from 1 on
    named: frozenset[int] = frozenset()  # lines that findings name
    gpu: Sequence[str] = ()
    roofline: Roofline | None = None
    steps: Steps | str = ""  # text: why there are none


def page(of: LabPage) -> str:
    """The page's text."""
    body = [
        f"<h1>{escape(of.title)}: {_coloured(of.verdict, of.right)}</h1>",
        *(f'<p class="soft">{escape(line)}</p>' for line in of.about),
        *(line for case in of.cases for line in _case(case)),
        "<h2>The kernel, line by line</h2>",
        *_source(of),
    ]
    if of.steps:
        shown = [f"<p>{escape(of.steps)}</p>"] if isinstance(of.steps, str) else steps_page.stage(of.steps)
        body += ["<h2>Step by step</h2>", *shown]
    if of.gpu:
        heading, _, first = of.gpu[0].partition(": ")
        body += [
            f"<h2>{escape(heading)}</h2>",
            *(f"<p>{escape(line)}</p>" for line in (first[:1].upper() + first[1:], *of.gpu[1:])),
        ]
    if of.roofline is not None:
        body += list(_roofline(of.roofline))
    if not isinstance(of.steps, Steps):
        return document(f"{of.title}: {of.verdict}", body, _STYLE)
    return document(f"{of.title}: {of.verdict}", body, _STYLE + steps_page.style(), steps_page.script())


def _coloured(text: str, right: bool) -> str:
    return escape(text) if right else f'<span class="wrong">{escape(text)}</span>'


def _case(case: CaseView) -> Iterator[str]:
    yield f"<h2>{_coloured(case.heading, case.right)}</h2>"
    if case.findings:
        yield "<ul>"
        yield from (f"<li>{escape(finding)}</li>" for finding in case.findings)
        yield "</ul>"
    yield from (f"<p>{escape(line)}</p>" for line in case.counters)
    if case.elements:
        yield from _map(case)


def _map(case: CaseView) -> Iterator[str]:
    rows, columns = len(case.elements), max(map(len, case.elements))
    keys = "".join(_key(colour, kind) for kind, colour in zip(KINDS[1:], COLOURS[1:], strict=True))
    yield f"<p>A square of this map is {escape(case.scale)}: {keys}</p>"
    yield f'<svg class="map" viewBox="0 0 {columns} {rows}" role="img" aria-label="map of C" shape-rendering="crispEdges">'
    yield from squares(case.elements)
    yield "</svg>"


def _source(of: LabPage) -> Iterator[str]:
    yield '<table class="source">'
    for number, line in enumerate(of.source, 1):
        notes = "".join(
            f"<span{' class=dear' if note.dear else ''}>{escape(note.text)}</span>" for note in of.notes.get(number, ())
        )
        named = ' class="named"' if number in of.named else ""
        text = escape(line.expandtabs(4)) or "&nbsp;"
        yield f'<tr id="line-{number}"{named}><td class="number soft">{number}</td><td class="text">{text}</td>'
        yield f'<td class="margin">{notes}</td></tr>' if of.notes else "</tr>"
    yield "</table>"


def _roofline(roofline: Roofline) -> Iterator[str]:
    yield f'<svg viewBox="0 0 372 245" role="img" aria-label="roofline of {escape(roofline.gpu)}">'
    yield from roofs(roofline)
    yield "</svg>"
    yield f"<p>{' '.join(_key(colour, escape(said)) for colour, said in zip(POINTS, roofline.points, strict=False))}</p>"


def _key(colour: str, said: str) -> str:
    return f'<span class="keyed"><span class="key" style="background:var(--{colour})"></span>{said}</span> '
