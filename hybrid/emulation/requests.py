# SPDX-License-Identifier: MIT
"""How the lines of a kernel use memory: sectors of requests to global memory, bank conflicts of requests to shared memory."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from hybrid.core.problem import record

_NUMBERS = ("requests", "lanes", "addresses", "sectors", "bytes", "steps", "least_steps")
SHARED = 3  # the space of a site in shared memory; others have the number of the matrix
SECTOR_BYTES = 32
_KINDS = ("load", "store", "atomic")


class _Site(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_ulonglong),
        *((name, ctypes.c_longlong) for name in ("space", "kind", *_NUMBERS)),
    )


@record
class Site:
    """The loads, stores or atomic updates of one line, by all warps."""

    line: int
    space: int  # the number of the matrix, or SHARED
    kind: str  # load, store or atomic
    requests: int  # instructions of a warp
    lanes: int  # that took part, over all requests
    addresses: int  # different ones of each request, over all requests
    sectors: int  # of 32 bytes that were moved
    bytes: int  # that were wanted of them
    steps: int  # in which the banks of shared memory served all requests
    least_steps: int  # the same without conflicts


def sites_of(code: ctypes.CDLL, library: Path, file_name: str) -> tuple[Site, ...]:
    """The sites of the last launch, by line of this file, without those whose line is unknown."""
    first = ctypes.POINTER(_Site)()
    count = code.sites_of_requests(ctypes.byref(first))
    found = [first[number] for number in range(count)]
    numbers: dict[tuple[int, int, str], list[int]] = {}
    places = places_of([each.offset for each in found], library, {file_name})
    for (_, line), each in zip(places, found, strict=True):
        if line:
            of_line = numbers.setdefault((line, each.space, _KINDS[each.kind]), [0] * len(_NUMBERS))
            of_line[:] = [so_far + getattr(each, name) for so_far, name in zip(of_line, _NUMBERS, strict=True)]
    return tuple(Site(*key, *numbers[key]) for key in sorted(numbers))


def shared_variables(library: Path) -> list[tuple[str, int, int]] | None:
    """The name, the offset in the library and the bytes of each __shared__ variable of a compiled file; None without nm."""
    program = shutil.which("nm")
    if program is None:
        return None
    out = subprocess.run([program, "-S", "-C", str(library)], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    found = re.findall(r"^([0-9a-f]+) ([0-9a-f]+) . (.+)$", out, re.MULTILINE)
    symbols = [(name.rpartition("::")[2], int(at, 16), int(size, 16)) for at, size, name in found]
    offsets = {name: at for name, at, _ in symbols}
    first, last = offsets["shared_first"], offsets["shared_last"]
    return [symbol for symbol in symbols if first < symbol[1] < last]


def places_of(offsets: Sequence[int], library: Path, names: Collection[str], *, innermost: bool = False) -> list[tuple[str, int]]:
    """For each call that returns to one of these offsets in the library, the innermost place, as file and line, that is in one of
    these files; ("", 0) where there is none, or where it is not known.

    `innermost`: only the innermost place of all counts, so calls in functions of other files that were inlined have none.
    """
    program = shutil.which("addr2line")
    unknown = [("", 0)] * len(offsets)
    if program is None or not offsets:
        return unknown
    addresses = [hex(offset - 1) for offset in offsets]
    command = [program, "-a", "-i", "-e", str(library), *addresses]
    out = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    found = []
    for frames in re.split(r"^0x[0-9a-f]+\n", out, flags=re.MULTILINE)[1:]:  # the innermost function first
        lines = [(Path(file).name, int(line)) for file, line in re.findall(r"^(.*):(\d+)", frames, re.MULTILINE)]
        lines = lines[:1] if innermost else lines
        found.append(next((place for place in lines if place[0] in names), ("", 0)))
    return found if len(found) == len(offsets) else unknown
