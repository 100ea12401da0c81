# SPDX-License-Identifier: MIT
"""The branches of a kernel, by line: how often the lanes of a warp diverge there."""

from __future__ import annotations

import ctypes
from pathlib import Path

from hybrid.core.problem import record
from hybrid.emulation.requests import places_of


class _Branch(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_ulonglong), ("executions", ctypes.c_longlong), ("divergent", ctypes.c_longlong))


@record
class Branch:
    """The branches of one line."""

    line: int
    executions: int  # by warps
    divergent: int  # executions in which the lanes of the warp went different ways


def branches_of(code: ctypes.CDLL, library: Path, file_name: str) -> tuple[Branch, ...]:
    """The branches that the last launch took, by line of this file; without those whose line is unknown, and without those of
    functions from other files."""
    first = ctypes.POINTER(_Branch)()
    count = code.branches_taken(ctypes.byref(first))
    found = [first[number] for number in range(count)]
    by_line: dict[int, list[int]] = {}
    places = places_of([each.offset for each in found], library, {file_name}, innermost=True)
    for (_, line), each in zip(places, found, strict=True):
        if line:
            of_line = by_line.setdefault(line, [0, 0])
            of_line[:] = of_line[0] + each.executions, of_line[1] + each.divergent
    return tuple(Branch(line, *by_line[line]) for line in sorted(by_line))
