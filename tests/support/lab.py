# SPDX-License-Identifier: MIT
"""python -m hybrid.lab as students start it, and what a source says that the lab must find in it.

A comment `//! CODE` stands on the line that a finding must name, `//! CASE: CODE` where a file has several cases.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.commands import module, without_progress
from support.forked import quickly

LAB = module("hybrid.lab")
DATA = Path(__file__).resolve().parents[1] / "contract" / "lab" / "data"
_MARK = re.compile(r"//! (?:([\w ]+): )?([\w-]+)")
_LINE = re.compile(r"(?:\bline |\.\w+:)(\d+)")

Found = tuple[str, int]  # a code, and the first line that the finding names, or 0


@dataclass(frozen=True)
class Verdict:
    """What the lab said of a file."""

    code: int  # its exit code
    said: str
    record: dict[str, Any]  # its JSON line

    @property
    def findings(self) -> set[Found]:
        """Of a kernel on all shapes, or of a program."""
        cases = self.record.get("cases", [self.record])
        return {found_in(each) for case in cases for each in case["findings"]}


def lab(*arguments: Any, **options: Any) -> Any:
    """The process that has ended."""
    return quickly(LAB, *arguments, **{"limit": 180, **options})


def judged(command: str, *arguments: Any, **options: Any) -> Verdict:
    """By `run FILE …` or `check EXERCISE FILE …`."""
    words = list(map(str, arguments))
    at = words.index("--") if "--" in words else len(words)
    done = lab(command, *words[:at], "--json", "-", *words[at:], **options)
    assert done.stdout.count("\n") == 1, done.stderr
    return Verdict(done.returncode, without_progress(done.stderr), json.loads(done.stdout))


def found_in(finding: Any) -> Found:
    """The code and the line of a finding in JSON."""
    line = _LINE.search(finding["text"])
    return finding["code"], int(line[1]) if line else 0


def marks(text: str, case: str = "") -> set[Found]:
    """The codes that a source's comments give, with their lines."""
    return {
        (code, number)
        for number, line in enumerate(text.splitlines(), 1)
        for of_case, code in _MARK.findall(line)
        if of_case == case
    }


def cases(text: str) -> list[str]:
    """Those that a source's comments name, in their order."""
    return list(dict.fromkeys(case for case, _ in _MARK.findall(text)))


def changed(text: str, changes: Iterable[tuple[str, str]]) -> str:
    """The text with each old part, which is there once, replaced by a new one."""
    for old, new in changes:
        assert text.count(old) == 1, (text.count(old), old)
        text = text.replace(old, new)
    return text
