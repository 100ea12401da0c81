# SPDX-License-Identifier: MIT
"""What the CPU runtime found in one launch of a student's kernel, in sentences: which thread did what to which element, in which
line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid.classroom.allocations import Allocations
from hybrid.classroom.compiler_warnings import perhaps_without_value, used_without_value
from hybrid.classroom.finding import Finding, Place
from hybrid.classroom.program_findings import Telling
from hybrid.classroom.wording import index_text, thread_text
from hybrid.core.problem import record
from hybrid.emulation.whole_program import Ran

Matrix = tuple[str, int, int]  # its name in the kernel, its rows and columns; of an array 0 rows, and its length


@record
class Looked:
    """What was found in one launch."""

    findings: tuple[Finding, ...]
    hints: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()  # lines

    @property
    def is_endless(self) -> bool:
        """Whether the launch was ended because its time was up."""
        return any(finding.code == "no-end" for finding in self.findings)


def looked(
    ran: Ran,
    program: Path,
    warnings: str,
    sources: Mapping[str, Sequence[str]],
    limit: str,
    matrices: Sequence[Matrix],
    printed: str,
) -> Looked:
    """What was found, from what the program's process left.

    `program`: the executable, which still exists. `warnings`: the compiler's. `sources`: the lines of each file; the kernel's is
    the first. `limit`: the time that the launch had. `matrices`: A, B and C. `printed`: what the kernel printed.
    """
    telling = _OfKernel(ran, program, sources, limit, matrices)
    own = next(iter(sources))
    without_value = [
        Finding(f"line {line} uses {name}, which has no value yet", "no-value")
        for file, line, name in used_without_value(warnings)
        if file == own
    ]
    found = telling.findings()
    if not found and ran.status > 0 and not without_value:
        found = [Finding(f"the kernel ended the process with exit status {ran.status}", "exit-status")]
    hints = [
        Finding(f"line {line}: {name} may be used before it has a value", "no-value")
        for file, line, name in perhaps_without_value(warnings)
        if file == own
    ]
    for each in telling.of("undefined"):
        text = f"line {each['line']} takes values of lanes that take no part in this shuffle: have they left the loop or kernel?"
        hints.append(Finding(text, "uninitialised"))
    return Looked((*without_value, *found), tuple(hints), tuple(telling.notes()), tuple(printed.splitlines()))


class _OfKernel(Telling):
    """The sentences about a whole program, but with rows and columns of the matrices, and without the launch."""

    _never = "which no thread has written"

    def __init__(
        self, ran: Ran, program: Path, sources: Mapping[str, Sequence[str]], limit: str, matrices: Sequence[Matrix]
    ) -> None:
        without_ends = Ran(ran.status, tuple(each for each in ran.findings if each["event"] not in ("leak", "unseen", "use")))
        super().__init__(without_ends, program, sources, limit, _Matrices(matrices))

    def _by(self, event: dict[str, Any]) -> str:
        if "thread" not in event or "block" not in event:
            return ""
        if event.get("kind") == "race" and event["other_thread"] >= 0:  # the threads are named already
            return f", {index_text(event, 'block')}"
        return f" ({thread_text(event)})"

    def _null(self, event: dict[str, Any], place: Place, _: Place) -> str:
        return f"illegal address: {self._does(event, place)} through a null pointer"

    def _host(self, event: dict[str, Any], place: Place, _: Place) -> str:
        return f"out of bounds: {self._does(event, place)} memory that is no matrix's"


class _Matrices(Allocations):
    """The arrays of a kernel: its matrices, which are numbered from 1 on in the order in which they are allocated."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        super().__init__((), {})
        self._matrices = dict(enumerate(matrices, 1))

    def name(self, number: int) -> str:
        return self._matrices[number][0]

    def named(self, number: int, *, with_line: bool) -> str:
        return self.name(number)

    def element(self, number: int, offset: int, item: int) -> str:
        name, rows, columns = self._matrices[number]
        if not rows:
            return f"{name}[{offset // item}]"
        row, column = divmod(offset // item, columns)
        return f"{name}[{row}][{column}]"

    def size(self, number: int, item: int) -> str:
        name, rows, columns = self._matrices[number]
        return f"{name} is {rows}×{columns}" if rows else f"{name} has {columns} elements"
