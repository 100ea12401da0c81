# SPDX-License-Identifier: MIT
"""The lines that a report is made of. Files may hold anything: what cannot be used is named, and the rest is taken."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from experiments.common import schema
from experiments.common.records import Line
from experiments.page.sections import SOURCES
from hybrid.reporting import jsonl

RESULTS = {source.name: source.results for source in SOURCES}
LONGEST = 16 << 20  # bytes of a line
NAMED = 10  # of one file, one by one


@dataclass
class Found:
    """Good lines by the command that wrote them, oldest first. `broken` and `unknown` say where the others are; commands that
    have no section here may have written many, which are counted."""

    lines: dict[str, list[Line]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def found_in(paths: Sequence[str]) -> Found:
    """UsageError for a file that cannot be read."""
    found = Found()
    for path in paths:
        broken, others = [], Counter[str]()
        for number, raw in enumerate(_raw_lines(path), 1):
            try:
                line = _parsed(raw)
            except ValueError as error:
                broken.append(f"line {number}: {error}")
                continue
            command = line.get("command")
            results = RESULTS.get(command) if isinstance(command, str) else None
            if results is None:
                others[str(command) if schema.name(command) else "an unknown command"] += 1
            elif reason := results.fault(line):
                broken.append(f"line {number}, of {command}: {reason}")
            else:
                found.lines.setdefault(results.command, []).append(line)
        unknown = [f"{count} line{'s' * (count > 1)} of {name}, which has no section here" for name, count in others.items()]
        for reasons, into in ((broken, found.broken), (unknown, found.unknown)):
            into += [f"{os.path.basename(path)}, {reason}" for reason in reasons[:NAMED]]
            if len(reasons) > NAMED:
                into.append(f"{os.path.basename(path)}: {len(reasons) - NAMED} more")
    return found


def _raw_lines(path: str) -> Iterator[bytes]:
    with jsonl.opened(path) as file:
        while raw := file.readline(LONGEST + 1):
            yield raw
            while len(raw) > LONGEST and not raw.endswith(b"\n"):  # the rest of it
                raw = file.readline(LONGEST + 1)


def _parsed(raw: bytes) -> Line:
    """ValueError with the reason for what is no record."""
    if len(raw) > LONGEST:
        raise ValueError(f"longer than {LONGEST >> 20} MiB")
    try:
        line = json.loads(raw.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({jsonl.why_not_json(error)})") from None
    if not isinstance(line, dict) or line.get("schema") != jsonl.SCHEMA:
        raise ValueError(f"not a record of schema {jsonl.SCHEMA}")
    return line


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number there")
