# SPDX-License-Identifier: MIT
"""What is said of a student's kernel, on one screen, with a map of C in characters; and its JSON line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hybrid.classroom.case import (
    Case,
    Examination,
    Names,
    divergence,
    findings,
    intensity,
    kind_of,
    lines_named,
    traffic,
    use_of_memory,
)
from hybrid.classroom.finding import Finding
from hybrid.classroom.first_kernel import FirstKernel
from hybrid.classroom.on_gpu import OnGpu
from hybrid.classroom.student_file import StudentFile
from hybrid.core.text import counted

_MOST = 4  # findings of a shape that are shown
_MOST_PRINTED = 8  # lines
_MOST_CHARACTERS = (16, 40)  # of a map: lines and columns
KINDS, _CHARACTERS = ("right", "wrong", "never written", "written by several threads"), ".x?!"  # of elements of C


def told(file: StudentFile, examination: Examination, gpu: OnGpu | None = None) -> Iterator[str]:
    """The lines about an examination, and about what a GPU would make of the kernel."""
    kernel, meaning, launch = examination.kernel, examination.meaning, examination.launch
    yield f"{file.path.name}, line {kernel.line}: {kernel}"
    yield f"  {meaning.told(kernel)}"
    yield f"  {launch}"
    yield f"  {launch.why}"
    # Wrong elements that the kernel itself explains tell nothing of the launch.
    explained = any(outcome.mistake for case in examination.cases for outcome in case.outcomes) or any(
        fault.code in ("data-race", "kernel-barrier", "uninitialised") for case in examination.cases for fault in case.faults
    )
    is_known = any(case.is_right for case in examination.cases) or (explained and not launch.is_unsure)
    if launch.is_guess and not is_known:
        yield "  this guess may be wrong: --grid and --block, or a line // lab: grid(…) block(…), tell another launch"
    if not examination.is_right and (strides := meaning.row_strides(kernel)):
        by_columns = (f"--let {name}={'l' if matrix == 'B' else 'n'}" for name, matrix in strides.items())
        yield f"  row strides: {', '.join(strides)}; of matrices that are stored column by column: {' '.join(by_columns)}"
    if file.has_main:
        yield "  host code is left out: main() does not run, and the lab launches the kernel"
    shown = _Shown()
    for case in examination.cases:
        yield ""
        yield from _of_case(case, examination.names, file.lines, shown)
        # Only for the first shape: the other's rows begin anywhere in a sector, and its edges leave lanes without work.
        if case is examination.cases[0] and case.is_right:
            for counter in (use_of_memory(site, examination.names) for site in case.sites):
                yield f"    line {counter.line} {counter.text}"
            if operations := intensity(case):
                yield f"  arithmetic: {operations:.3g} operations for each byte of global memory that is moved"
    if gpu is not None:
        yield ""
        yield from gpu.told()
    yield ""
    yield verdict(examination)


def told_of_first(first: FirstKernel, cases: Sequence[tuple[tuple[int, ...], Sequence[Finding]]]) -> Iterator[str]:
    """The lines about a first kernel and what was found on its shapes."""
    yield f"{first.file.path.name}, line {first.kernel.line}: {first.kernel}"
    yield f"  {first.launch}"
    yield f"  {first.launch.why}"
    shown = _Shown()
    for sizes, found in cases:
        new = [finding for finding in found if kind_of(finding) not in shown.kinds]
        shown.kinds.update(map(kind_of, new))
        again = ", as found above" * (len(new) < len(found))
        yield f"{'×'.join(map(str, sizes))} elements: {f'WRONG{again}' if found else 'no error found'}"
        for finding in new:
            yield from _with_lines(finding, first.file.lines, shown)
    if any(found for _, found in cases):
        yield "wrong"
    elif first.is_plain:
        yield f"right: {first.promised}"
    else:
        yield f"no error found; what {first.kernel.name} should compute is not known, so its results were not compared"


def _with_lines(finding: Finding, source: Sequence[str], shown: _Shown) -> Iterator[str]:
    """A finding, and the lines that it names and that were not shown before."""
    new = lines_named(finding) - shown.lines
    shown.lines |= new
    yield from finding.told({"": source}, [("", line) for line in sorted(new)])


def verdict(examination: Examination) -> str:
    """Whether the kernel is right, in a few words."""
    right = [case.is_right for case in examination.cases]
    if right[0] and not all(right):
        sizes = ("×".join(map(str, case.sizes)) for case in examination.cases if not case.is_right)
        return f"right on the first shape, wrong on {', '.join(sizes)}"
    return "right" if all(right) else "wrong"


def _of_case(case: Case, names: Names, source: Sequence[str], shown: _Shown) -> Iterator[str]:
    """The lines about one shape, without what other shapes have shown."""
    n, _, m = case.sizes
    yield heading(case, names)
    found = findings(case, names)
    faults = [finding for finding in found if finding in case.faults]
    new = [finding for finding in faults if kind_of(finding) not in shown.kinds]
    shown.kinds.update(map(kind_of, new))
    if len(new) < len(faults):
        told = list(dict.fromkeys(_in_short(finding) for finding in faults if finding not in new))
        again = "; ".join([*told[:_MOST], *([f"{len(told) - _MOST} more"] if len(told) > _MOST else [])])
        yield f"  * {'also' if new else 'again'} what was found above: {again}"
    for finding in [*new[:_MOST], *(finding for finding in found if finding not in faults)]:
        yield from _with_lines(finding, source, shown)
    if len(new) > _MOST:
        yield f"  and {len(new) - _MOST} more; --json FILE keeps all"
    differing = case.wrong | case.uncertain
    if differing and len(case.wrong) < n * m and (new or not faults) and not shown.map:
        shown.map = True
        squares, scale = map_of(case, names[2], _MOST_CHARACTERS)
        legend = ", ".join(map(" ".join, zip(_CHARACTERS[::-1], KINDS[::-1], strict=True)))
        yield f"    a character is {scale}{', the worst of them' * ('×' in scale)}: {legend}"
        yield from (f"    {line}" for line in map_lines(squares, 1, 1, _CHARACTERS))
    yield from (f"  note: {note}" for note in case.notes)
    if case.printed and not shown.printed:
        shown.printed = True
        yield "  the kernel prints:"
        yield from (f"      {line}" for line in case.printed[:_MOST_PRINTED])
        if len(case.printed) > _MOST_PRINTED:
            yield f"      and {counted(len(case.printed) - _MOST_PRINTED, 'line')} more; --json FILE keeps all"
    if case.is_right:
        yield f"  {traffic(case, names)}"
    if case.is_right and case.sites:
        divergent = [f"line {counter.line} {counter.text}" for counter in divergence(case)]
        yield f"  divergent branches: {', '.join(divergent) or 'none'}"


@dataclass
class _Shown:
    """What has been shown, and need not be shown again."""

    kinds: set[str] = field(default_factory=set)  # of findings
    lines: set[int] = field(default_factory=set)
    map: bool = False
    printed: bool = False


def _in_short(finding: Finding) -> str:
    """The finding in a few words, as: data-race in lines 7 and 9."""
    lines = sorted(lines_named(finding))
    return finding.code + (f" in line{'s' * (len(lines) > 1)} {' and '.join(map(str, lines))}" if lines else "")


def heading(case: Case, names: Names) -> str:
    """The shape, the launch and whether C is right."""
    (n, l, m), (a, b, c) = case.sizes, names
    grid, block = ("×".join(map(str, each)) for each in (case.grid, case.block))
    orders = " in every order of the threads" if len(case.outcomes) > 1 else ""
    is_right = f"right{orders}" if case.is_right else "WRONG"
    launch = f", {grid} blocks of {block} threads" if any(case.grid) else ""
    return f"{c} ({n}×{m}) = {a} ({n}×{l}) · {b} ({l}×{m}){launch}: {is_right}"


def first_finding(examination: Examination) -> str:
    """A shape on which the kernel is wrong, and why, in a line; "" where it is right."""
    names = examination.names
    for case in examination.cases:
        if not case.is_right:
            return ": ".join(["×".join(map(str, case.sizes)), *(finding.line for finding in findings(case, names)[:1])])
    return ""


def as_record(file_name: str, examination: Examination, gpu: OnGpu | None = None) -> dict[str, Any]:
    """The entries of a JSON line."""
    names = examination.names
    cases = [
        {
            **dict(zip("nlm", case.sizes, strict=True)),
            "grid": list(case.grid),
            "block": list(case.block),
            "right": case.is_right,
            "findings": [finding.as_record() for finding in findings(case, names)],
            "notes": list(case.notes),
            "printed": list(case.printed),
            "wrong": len(case.wrong),
            "requests": [asdict(site) for site in case.sites if case.is_right],
            "branches": [asdict(branch) for branch in case.branches if case.is_right],
            "loads": list(case.outcomes[0].loads) if case.outcomes else None,
        }
        for case in examination.cases
    ]
    return {
        "file": file_name,
        "kernel": examination.kernel.name,
        "dtype": examination.meaning.dtype,
        "launch": str(examination.launch),
        "right": examination.is_right,
        "cases": cases,
        "on_gpu": gpu.as_record() if gpu is not None else None,
    }


def map_of(case: Case, name: str, most: tuple[int, int]) -> tuple[np.ndarray, str]:
    """For each square of a map of C, which has at most so many lines and columns, the largest of the KINDS of its elements; and
    what a square stands for. A matrix of one column is drawn as a line."""
    n, _, m = case.sizes
    codes = np.zeros((n, m), int)
    for code, elements in enumerate((case.wrong, case.never, case.uncertain), 1):
        codes.flat[list(elements)] = code
    codes = codes.T if m == 1 else codes
    height, width = (-(-size // of) for size, of in zip(codes.shape, most, strict=True))
    scale = f"{height}×{width} elements of {name}" if height * width > 1 else f"an element of {name}"
    return _reduced(codes, height, width), scale


def map_lines(codes: np.ndarray, height: int, width: int, characters: str) -> list[str]:
    """Lines with a character for each `height`×`width` codes: that of the largest code."""
    return ["".join(characters[cell] for cell in line).rstrip() for line in _reduced(codes, height, width)]


def _reduced(codes: np.ndarray, height: int, width: int) -> np.ndarray:
    """The largest code of each `height`×`width` codes."""
    rows, columns = codes.shape
    padded = np.pad(codes, ((0, -rows % height), (0, -columns % width)))
    return padded.reshape(-(-rows // height), height, -(-columns // width), width).max(axis=(1, 3))
