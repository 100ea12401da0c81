# SPDX-License-Identifier: MIT
"""An examination as a page or a picture: selects what is shown, and where."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid.classroom.c_map import kinds, reduced
from hybrid.classroom.case import Case, Examination
from hybrid.classroom.case_findings import findings, lines_named
from hybrid.classroom.counters import divergence, intensity, traffic, use_of_memory
from hybrid.classroom.on_gpu import OnGpu
from hybrid.classroom.report import heading, verdict
from hybrid.classroom.student_file import StudentFile
from hybrid.core.problem import Problem
from hybrid.reporting import lab_pictures
from hybrid.reporting.lab_page import CaseView, LabPage, Note, page
from hybrid.reporting.lab_pictures import Roofline
from hybrid.reporting.steps_page import Steps

_MOST = 96  # squares of a map, each way


def page_of(file: StudentFile, examination: Examination, gpu: OnGpu | None = None, steps: Steps | str = "") -> str:
    """The page's text. `steps`: of a small launch, or why they are not shown."""
    kernel, meaning = examination.kernel, examination.meaning
    names, first = meaning.names(kernel), examination.cases[0]
    counters = [use_of_memory(site, names) for site in first.sites]
    found = [finding for case in examination.cases for finding in findings(case, names)]
    notes: dict[int, list[Note]] = {}
    for counter in counters:
        notes.setdefault(counter.line, []).append(Note(counter.text, counter.dear))
    for case in examination.cases:
        for counter in divergence(case):
            n, _, m = case.sizes
            notes.setdefault(counter.line, []).append(Note(f"{n}×{m}: divergent {counter.text}", counter.dear))
    about = [str(kernel), meaning.told(kernel), str(examination.launch), examination.launch.why]
    return page(
        LabPage(
            title=f"{file.path.name}, {kernel.name}",
            verdict=verdict(examination),
            right=examination.is_right,
            about=about,
            cases=[_view(case, names, meaning.dtype) for case in examination.cases],
            source=[*file.lines[:-1], *(line for line in file.lines[-1:] if line)],
            notes=notes,
            named=frozenset(line for finding in found for line in lines_named(finding)),
            gpu=[_sentence(line) for line in gpu.told()] if gpu is not None else [],
            roofline=_roofline(gpu, first) if gpu is not None else None,
            steps=steps,
        )
    )


def write_picture(path: str, examination: Examination, gpu: OnGpu | None) -> bool:
    """Draw the map of the first C that is wrong or, where none is, the roofline of this GPU. False where there is neither."""
    names, dtype = examination.meaning.names(examination.kernel), examination.meaning.dtype
    for view in (_view(case, names, dtype) for case in examination.cases):
        if view.elements:
            lab_pictures.write_map(path, view.heading.partition(", ")[0], view.elements, view.scale)
            return True
    drawn = _roofline(gpu, examination.cases[0]) if gpu is not None else None
    if drawn is not None:
        lab_pictures.write_roofline(path, f"{examination.kernel.name} on {drawn.gpu}, {dtype}", drawn)
    return drawn is not None


def _view(case: Case, names: tuple[str, str, str], dtype: str) -> CaseView:
    n, _, m = case.sizes
    if case.is_right:
        divergent = [f"line {counter.line} {counter.text}" for counter in divergence(case)]
        told = [_sentence(traffic(case, names)), f"Divergent branches: {', '.join(divergent) or 'none'}."]
        if operations := intensity(case):
            told.append(f"{operations:.3g} operations for each byte of global memory that is moved.")
        return CaseView(heading(case, names), True, (), told)
    if not (case.wrong or case.uncertain):
        return CaseView(heading(case, names), False, _told(case, names), ())
    height, width = -(-n // _MOST), -(-m // _MOST)
    codes = reduced(kinds((n, m), case.wrong, case.never, case.uncertain), height, width)
    scale = f"{height}×{width} elements of {names[2]}" if height * width > 1 else f"an element of {names[2]}"
    return CaseView(heading(case, names), False, _told(case, names), (), codes.tolist(), scale)


def _told(case: Case, names: tuple[str, str, str]) -> list[str]:
    return [finding.line for finding in findings(case, names)]


def _sentence(line: str) -> str:
    text = line.strip()
    return f"{text[0].upper()}{text[1:]}."


def _roofline(gpu: OnGpu, case: Case) -> Roofline | None:
    """The GPU's roofline with two points: the kernel, and one that would move each element once."""
    peak = gpu.gpu.rate(gpu.dtype)
    if gpu.intensity is None or not peak:
        return None
    return Roofline(gpu.gpu.name, gpu.gpu.bandwidth, peak, dict(_points(gpu.intensity, Problem(*case.sizes, gpu.dtype))))


def _points(intensity: float, problem: Problem) -> Iterator[tuple[str, float]]:
    yield "this kernel", intensity
    yield "each element moved once", problem.operations / problem.bytes_of_matrices
