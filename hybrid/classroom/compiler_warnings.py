# SPDX-License-Identifier: MIT
"""Finds in the C++ compiler's warnings about a whole program what they are about, and where."""

from __future__ import annotations

import re

_DROPPED = re.compile(r"^(?:.*/)?([^/:\n]+):(\d+):\d+: warning: ignoring return", re.MULTILINE)
_NO_VALUE = re.compile(
    r"^(?:.*/)?([^/:\n]+):(\d+):\d+: warning: (?:variable )?'([^'\n]+)' "
    r"(?:is (?:used uninitialized|uninitialized when used)|(may be (?:used uninitialized|uninitialized when used)))",
    re.MULTILINE,
)


def dropped_results(warnings: str) -> set[tuple[str, int]]:
    """File and line of each call whose result is ignored."""
    return {(file, int(line)) for file, line in _DROPPED.findall(warnings)}


def used_without_value(warnings: str) -> list[tuple[str, int, str]]:
    """File, line and name of each variable that is used before it has a value."""
    return [place for place, may_be in _without_value(warnings) if not may_be]


def perhaps_without_value(warnings: str) -> list[tuple[str, int, str]]:
    """The same of variables that have no value on some way through the code, which may be one that is never taken."""
    return [place for place, may_be in _without_value(warnings) if may_be]


def _without_value(warnings: str) -> list[tuple[tuple[str, int, str], str]]:
    found = _NO_VALUE.findall(re.sub("[‘’]", "'", warnings))
    return [((file, int(line), name), may_be) for file, line, name, may_be in dict.fromkeys(found)]
