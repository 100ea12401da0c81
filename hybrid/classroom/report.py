# SPDX-License-Identifier: MIT
"""One screen about a student's kernel, and its JSON line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hybrid.classroom.c_map import drawn
from hybrid.classroom.counters import Names, divergence, traffic, use_of_memory
from hybrid.classroom.examination import Case, Examination
from hybrid.classroom.on_gpu import OnGpu
from hybrid.classroom.student_file import StudentFile
from hybrid.core.text import counted

_NO_VALUE = -1e37  # and below: bytes of 0xFE, with which variables begin; no right sum is there


def told(file: StudentFile, examination: Examination, gpu: OnGpu | None = None) -> Iterator[str]:
    """The lines; with those about a GPU."""
    kernel, meaning, launch = examination.kernel, examination.meaning, examination.launch
    yield f"{file.path.name}, line {kernel.line}: {kernel}"
    yield f"  {meaning.told(kernel)}"
    yield f"  {launch}"
    yield f"  {launch.why}"
    if file.has_main:
        yield "  host code is left out: main() does not run, and the lab launches the kernel"
    for case in examination.cases:
        yield ""
        yield from _of_case(case, meaning.names(kernel), file.lines)
        if case is examination.cases[0]:  # the other's rows begin anywhere in a sector, and its edges leave lanes without work
            counters = [use_of_memory(site, meaning.names(kernel)) for site in case.sites]
            yield from (f"    line {counter.line} {counter.text}" for counter in counters)
    if gpu is not None:
        yield ""
        yield from gpu.told()
    yield ""
    yield verdict(examination)


def verdict(examination: Examination) -> str:
    right = [case.is_right for case in examination.cases]
    if right == [True, False]:
        return "right where C consists of whole blocks, wrong where it does not"
    return "right" if all(right) else "wrong"


def _of_case(case: Case, names: Names, source: Sequence[str]) -> Iterator[str]:
    (n, _, m), c = case.sizes, names[2]
    yield heading(case, names)
    for text in findings(case, c):
        yield f"  * {text}"
        for line in sorted(lines_named(text)):
            if 0 < line <= len(source):
                yield f"      {line:>4}  {source[line - 1].strip()}"
    if case.wrong or case.uncertain:
        yield from (f"    {line}" for line in drawn((n, m), case.wrong, case.never, case.uncertain))
    if case.is_right:
        divergent = [f"line {counter.line} {counter.text}" for counter in divergence(case)]
        yield f"  {traffic(case, names)}"
        yield f"  divergent branches: {', '.join(divergent) or 'none'}"


def heading(case: Case, names: Names) -> str:
    """The shape, the launch and whether C is right."""
    (n, l, m), (a, b, c) = case.sizes, names
    grid, block = ("×".join(map(str, each)) for each in (case.grid, case.block))
    is_right = "right in every order of the threads" if case.is_right else "WRONG"
    return f"{c} ({n}×{m}) = {a} ({n}×{l}) · {b} ({l}×{m}), {grid} blocks of {block} threads: {is_right}"


def lines_named(finding: str) -> set[int]:
    """Lines of the student's file that it names."""
    return {int(number) for pair in re.findall(r"\bline (\d+)|\w\.cuh?:(\d+)", finding) for number in pair if number}


def findings(case: Case, c: str) -> list[str]:
    """What is wrong, the cause before its consequences. `c`: the kernel's name of C."""
    n, _, m = case.sizes
    found = list(case.faults)
    for name, number in case.outside:
        found.append(f"it writes {name}[{number // m}][{number % m}], where nothing may be written")
    if case.uncertain:
        found.append(f"{counted(len(case.uncertain), 'element')} of {c} written by several threads")
    if case.never:
        found.append(f"{len(case.never)} of {c}'s {n * m} elements never written")
    worst = max(case.outcomes.values(), key=lambda outcome: len(outcome.wrong), default=None)
    if worst is not None and worst.nan > len(case.never):
        cause = "shared memory or a variable that no thread has written is read, or memory beside them"
        found.append(f"{c} has NaN, and its factors have none: {cause}")
    if worst is not None and worst.first_wrong is not None:
        row, column = divmod(worst.wrong[0], m)
        is_now, right = worst.first_wrong
        first = f"the first {c}[{row}][{column}]: {is_now:g} instead of {right:g}"
        if is_now < _NO_VALUE:
            found.append("a variable is used that has never been given a value: here it then begins with a huge negative one")
        found.append(f"{len(case.wrong)} of {n * m} elements are wrong, {first}")
    if case.depends_on_order:
        found.append(f"{c} depends on the order in which blocks, warps and threads run")
    return found


def first_finding(examination: Examination) -> str:
    """In a line: a shape on which it is wrong, and why; "" where there is none."""
    c = examination.meaning.names(examination.kernel)[2]
    for case in examination.cases:
        if not case.is_right:
            return ": ".join(["×".join(map(str, case.sizes)), *findings(case, c)[:1]])
    return ""


def as_record(file_name: str, examination: Examination, gpu: OnGpu | None = None) -> dict[str, Any]:
    """For a JSON line."""
    c = examination.meaning.names(examination.kernel)[2]
    cases = [
        {
            **dict(zip("nlm", case.sizes, strict=True)),
            "grid": list(case.grid),
            "block": list(case.block),
            "right": case.is_right,
            "findings": findings(case, c),
            "wrong": len(case.wrong),
            "requests": [asdict(site) for site in case.sites],
            "branches": [asdict(branch) for branch in case.branches],
            "loads": list(next(iter(case.outcomes.values())).loads) if case.outcomes else None,
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
