# SPDX-License-Identifier: MIT
"""The accesses of a small launch, one by one: which thread, which line, which element."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from hybrid.emulation.errors import EmulationError
from hybrid.emulation.requests import places_of, shared_variables

_SHARED, _DYNAMIC = 3, 4  # spaces; else the number of the matrix
DYNAMIC = "extern __shared__"


class _Access(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("instruction", "byte")),
        *((name, ctypes.c_int) for name in ("space", "bytes", "writes")),
        *((name, ctypes.c_uint) for name in ("block_x", "block_y", "thread", "barriers")),
    )


@dataclass(frozen=True)
class Access:
    """`of`: the number of a matrix, or the name of a shared variable; `byte`: where in it. `barriers`: that the thread has
    passed. `instruction`: the same for all accesses by one."""

    instruction: int
    block: tuple[int, int]
    thread: int
    barriers: int
    line: int
    of: int | str
    byte: int
    bytes: int
    writes: bool


def accesses_of(code: ctypes.CDLL, library: Path, file_name: str) -> list[Access]:
    """Of the last launch, in the order in which the accesses happened, those by lines of this file."""
    first = ctypes.POINTER(_Access)()
    code.accesses_traced.restype = ctypes.c_longlong
    count = code.accesses_traced(ctypes.byref(first))
    if count < 0:
        raise EmulationError("launch", "the kernel accesses memory more often than can be shown: take smaller sizes")
    found = [first[number] for number in range(count)]
    instructions = sorted({each.instruction for each in found})
    lines = dict(zip(instructions, (line for _, line in places_of(instructions, library, {file_name})), strict=True))
    variables = shared_variables(library) or []
    traced = []
    for each in found:
        of: int | str = each.space
        byte = each.byte
        if each.space == _SHARED:
            of, byte = next(((name, byte - at) for name, at, size in variables if at <= byte < at + size), ("", byte))
        elif each.space == _DYNAMIC:
            of = DYNAMIC
        if lines[each.instruction]:
            block = (each.block_x, each.block_y)
            traced.append(
                Access(
                    each.instruction,
                    block,
                    each.thread,
                    each.barriers,
                    lines[each.instruction],
                    of,
                    byte,
                    each.bytes,
                    bool(each.writes),
                )
            )
    return traced
