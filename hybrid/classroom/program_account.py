# SPDX-License-Identifier: MIT
"""The account of a whole program's run: how it ended, what was found, and which CUDA call failed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid.classroom.compiler_warnings import dropped_results, used_without_value
from hybrid.classroom.finding import Finding, Place
from hybrid.classroom.program_findings import Telling
from hybrid.classroom.wording import product_text
from hybrid.core.problem import record
from hybrid.emulation.whole_program import Ran


@record
class Account:
    """What came of a program's run."""

    status: int  # of its process
    launches: int | None  # None where the program was ended
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    failed: str  # the first CUDA call that failed, in a line; "" if none did
    sources: Mapping[str, Sequence[str]]  # the lines of each file; the program's own is the first

    @property
    def is_right(self) -> bool:
        return not (self.status or self.findings or self.failed)


def account_of(ran: Ran, program: Path, warnings: str, sources: Mapping[str, Sequence[str]], seconds: int) -> Account:
    """The account of a process. `program`: the executable, which still exists; `warnings`: the compiler's; `sources`: the lines
    of each file; `seconds`: that it had."""
    telling = Telling(ran, program, sources, f"{seconds} s, which --stall sets")
    found = [
        Finding(f"line {line} uses {name}, which has no value yet", "no-value", ((file, line),))
        for file, line, name in used_without_value(warnings)
    ]
    found += telling.findings()
    launches = next((each["launches"] for each in ran.findings if each["event"] == "end"), None)
    failed = _first_failed(ran.findings, dropped_results(warnings))
    return Account(ran.status, launches, tuple(found), tuple(telling.notes()), failed, sources)


def _first_failed(events: Sequence[dict[str, Any]], dropped: set[Place]) -> str:
    """A line about the CUDA call that failed first, and whether the program looks at its error; "" if none failed. `dropped`: the
    places of calls whose result is ignored."""
    number, first = next(((i, each) for i, each in enumerate(events) if each["event"] in ("error", "unseen")), (0, None))
    if first is None:
        return ""
    if first["event"] == "unseen":
        launch = f"the launch of {first['kernel']} in line {first['line']}"
        return f"{launch} failed, and no call waits for it, so no call tells the program"
    looked = any(each["event"] == "looked" for each in events[number:])
    is_launch = first["call"].startswith("the launch of")
    seen = looked or (not is_launch and (first["file"], first["line"]) not in dropped)
    size = next((each for each in events if each["event"] == "configuration" and each["line"] == first["line"]), None)
    why = ""
    if size:
        block, grid = product_text(size["block"]), product_text(size["grid"])
        why = f" (blocks of {block} threads, a grid of {grid}; a block has 1 to 1024, 64 in z)"
    sees = "the program looks at its error" if seen else "the program does not look at its error"
    tells = ", the first call that waits for the kernel" if first["of_kernel"] else ""
    return f"{first['call']} in line {first['line']}{tells}: {first['text']} ({first['name']}){why}; {sees}"
