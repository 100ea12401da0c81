# SPDX-License-Identifier: MIT
"""The accesses to memory of a small launch, one by one: by which thread, in which line, to which element."""

from __future__ import annotations

import ctypes
from pathlib import Path

from hybrid.core.problem import record
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.requests import places_of, shared_variables

_SHARED, _DYNAMIC = 3, 4  # spaces; others have the number of the matrix
DYNAMIC = "extern __shared__"


class _Access(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("instruction", "byte")),
        *((name, ctypes.c_int) for name in ("space", "bytes", "writes")),
        *((name, ctypes.c_uint) for name in ("block_x", "block_y", "thread", "barriers")),
    )


@record
class Access:
    """One access of a thread to memory."""

    instruction: int  # the same number for all accesses by one instruction
    block: tuple[int, int]
    thread: int
    barriers: int  # that the thread has passed
    line: int
    of: int | str  # the number of a matrix, or the name of a shared variable
    byte: int  # where in it
    bytes: int
    writes: bool


def accesses_of(code: ctypes.CDLL, library: Path, file_name: str) -> list[Access]:
    """The accesses of the last launch by lines of this file, in the order in which they happened. EmulationError where there are
    too many to be kept."""
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
    for each in (each for each in found if lines[each.instruction]):
        of, byte = DYNAMIC if each.space == _DYNAMIC else each.space, each.byte
        if each.space == _SHARED:
            of, byte = next(((name, byte - at) for name, at, size in variables if at <= byte < at + size), ("", byte))
        block, line, writes = (each.block_x, each.block_y), lines[each.instruction], bool(each.writes)
        traced.append(Access(each.instruction, block, each.thread, each.barriers, line, of, byte, each.bytes, writes))
    return traced
