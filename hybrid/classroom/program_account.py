# SPDX-License-Identifier: MIT
"""The account of a whole program's run: how it ended, what was found, and which CUDA call failed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hybrid.classroom.compiler_warnings import dropped_results, used_without_value
from hybrid.classroom.finding import Finding, Place
from hybrid.classroom.program_findings import Telling
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
    looked_at: str = ""  # what was looked at, and what was not; "" where the program was ended

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
    end = next(telling.of("end"), None)
    failed = _first_failed(ran.findings, dropped_results(warnings), telling)
    notes = list(telling.notes())
    if end and not (ran.status or failed) and all(each.code == "wrong-elements" for each in found):
        unused, more = telling.unused()
        found, notes = [*found, *unused], [*more, *notes]
    launches = end["launches"] if end else None
    return Account(ran.status, launches, tuple(found), tuple(notes), failed, sources, _looked_at(end) if end else "")


def _launches(number: int) -> str:
    return f"{number} launch{'' if number == 1 else 'es'}"


def _looked_at(end: Mapping[str, int]) -> str:
    """What was looked at, and what was not."""
    launches, sampled, compared = (end[key] for key in ("launches", "sampled", "compared"))
    accesses = f"every access of {_launches(launches - sampled)}" if launches > sampled or not sampled else ""
    some = f"accesses of some blocks of {_launches(sampled)}, all writes among them" if sampled else ""
    of_products = f"the product of {_launches(compared)}" if compared else ""
    left = "" if compared else "products (no launch has the shape of one)"
    looked = ", ".join(filter(None, [accesses, some, of_products, "copies, streams and CUDA's calls"]))
    return f"looked at: {looked}; not: {', '.join(filter(None, [left, 'what the host computes']))}"


def _first_failed(events: Sequence[dict[str, Any]], dropped: set[Place], telling: Telling) -> str:
    """The CUDA call that failed first, why, and whether the program looks at its error; "" if none failed. `dropped`:
    the places of calls whose result is ignored."""
    number, first = next(((i, each) for i, each in enumerate(events) if each["event"] in ("error", "unseen")), (0, None))
    if first is None:
        return ""
    if first["event"] == "unseen":
        launch = f"the launch of {first['kernel']} in line {first['line']}"
        return f"{launch} failed, and no call waits for it, so no call tells the program"
    looked = any(each["event"] == "looked" for each in events[number:])
    is_launch = first["call"].startswith("the launch of")
    seen = looked or (not is_launch and (first["file"], first["line"]) not in dropped)
    why = f": {telling.told(first['why'])}" if first["why"] else ""
    sees = "the program looks at its error" if seen else "the program does not look at its error"
    tells = ", the first call that waits for the kernel" if first["of_kernel"] else ""
    return f"{first['call']} in line {first['line']}{tells}: {first['text']} ({first['name']}){why}; {sees}"
