# SPDX-License-Identifier: MIT
"""Finds in the C++ compiler's warnings about a whole program what they are about, and where."""

from __future__ import annotations

import re

_DROPPED = re.compile(r"^(?:.*/)?([^/:\n]+):(\d+):\d+: warning: ignoring return", re.MULTILINE)
_NO_VALUE = re.compile(
    r"^(?:.*/)?([^/:\n]+):(\d+):\d+: warning: (?:variable )?'([^'\n]+)' is (?:used uninitialized|uninitialized when used)",
    re.MULTILINE,
)


def dropped_results(warnings: str) -> set[tuple[str, int]]:
    """File and line of each call whose result is ignored."""
    return {(file, int(line)) for file, line in _DROPPED.findall(warnings)}


def used_without_value(warnings: str) -> list[tuple[str, int, str]]:
    """File, line and name of each variable that is used before it has a value."""
    found = _NO_VALUE.findall(re.sub("[‘’]", "'", warnings))
    return [(file, int(line), name) for file, line, name in dict.fromkeys(found)]
