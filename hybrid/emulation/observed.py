# SPDX-License-Identifier: MIT
"""Decodes what observers.cpp counted in a launch, by source line: sectors of global memory, bank conflicts of shared memory, and
divergent branches; or the trace of single accesses. Finds lines and variables of a program with addr2line and readelf."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.core.problem import record

ELEMENTS, REQUESTS, TRACE, VERSIONS = 1, 2, 4, 8  # bits of what the observers watch
SHARED, _DYNAMIC = 3, 4  # spaces: static and dynamic shared memory; a matrix's number is its space
SECTOR_BYTES = 32
DYNAMIC = "extern __shared__"
_KINDS = ("load", "store", "atomic")
_NUMBERS = ("requests", "lanes", "addresses", "sectors", "bytes", "steps", "least_steps")
_SITE = np.dtype([(name, "i8") for name in ("at", "space", "kind", *_NUMBERS)])
_BRANCH = np.dtype([(name, "i8") for name in ("at", "executions", "divergent")])
_ACCESS = np.dtype(
    [
        *((name, "i8") for name in ("at", "byte")),
        *((name, "i4") for name in ("space", "bytes", "writes", "block_x", "block_y", "thread", "barriers", "unused")),
    ]
)


@record
class Site:
    """The loads, stores or atomic updates of one line, by all warps."""

    line: int
    space: int  # the number of the matrix, or SHARED
    kind: str  # load, store or atomic
    requests: int  # instructions of a warp
    lanes: int  # active lanes, summed over the requests
    addresses: int  # different elements of a request, summed
    sectors: int  # 32-byte sectors moved
    bytes: int  # bytes of these that the lanes asked for
    steps: int  # passes of the banks of shared memory
    least_steps: int  # passes without conflicts


@record
class Branch:
    line: int
    executions: int  # by warps
    divergent: int  # executions in which the warp's lanes diverged


@record
class Access:
    instruction: int  # its offset in the program
    block: tuple[int, int]
    thread: int
    barriers: int  # that the thread has passed
    line: int
    of: int | str  # the number of a matrix, or the name of a shared variable
    byte: int  # offset there
    bytes: int
    writes: bool


def sites_of(content: np.ndarray, program: Path, file_name: str) -> tuple[Site, ...]:
    """The sites whose line in this file is known, by line."""
    found = content.view(_SITE)
    lines = places_of(found["at"].tolist(), program, {file_name})
    keys = [(line, int(each["space"]), _KINDS[each["kind"]]) for (_, line), each in zip(lines, found, strict=True)]
    return tuple(Site(*key, *sums) for key, sums in _sums(keys, found, _NUMBERS))


def branches_of(content: np.ndarray, program: Path, file_name: str) -> tuple[Branch, ...]:
    """The executed branches whose line is known, by line of this file, without those of functions inlined from other files."""
    found = content.view(_BRANCH)
    keys = [place[1:] for place in places_of(found["at"].tolist(), program, {file_name}, innermost=True)]
    return tuple(Branch(*key, *sums) for key, sums in _sums(keys, found, ("executions", "divergent")))


def _sums(keys: Sequence[tuple[Any, ...]], found: np.ndarray, names: Sequence[str]) -> list[tuple[tuple[Any, ...], list[int]]]:
    """The sums of these fields for each key that has a line, in the keys' order."""
    sums: dict[tuple[Any, ...], Any] = {}
    for key, each in zip(keys, found, strict=True):
        if key[0]:
            sums[key] = sums.get(key, 0) + np.array([each[name] for name in names])
    return [(key, sums[key].tolist()) for key in sorted(sums)]


def accesses_of(content: np.ndarray, program: Path, file_name: str, shared: Sequence[tuple[str, int, int]]) -> list[Access]:
    """The accesses by lines of this file, in order. `shared`: each __shared__ variable's name, offset and bytes."""
    found = content.view(_ACCESS)
    instructions = sorted(set(found["at"].tolist()))
    lines = dict(zip(instructions, (line for _, line in places_of(instructions, program, {file_name})), strict=True))
    traced = []
    for at, byte, space, size, writes, x, y, thread, barriers, _ in found.tolist():
        of, begin = DYNAMIC if space == _DYNAMIC else space, 0
        if space == SHARED:
            of, begin = next(((name, first) for name, first, length in shared if first <= byte < first + length), ("", 0))
        if lines[at]:
            traced.append(Access(at, (x, y), thread, barriers, lines[at], of, byte - begin, size, bool(writes)))
    return traced


def places_of(offsets: Sequence[int], program: Path, names: Collection[str], *, innermost: bool = False) -> list[tuple[str, int]]:
    """The file and line of each call, given by the offset to which it returns; ("", 0) where unknown.

    Of inlined functions, the innermost in one of the files `names`. `innermost`: none where the innermost function of all is in
    another file.
    """
    reader = shutil.which("addr2line")
    unknown = [("", 0)] * len(offsets)
    if reader is None or not offsets:
        return unknown
    command = [reader, "-a", "-i", "-e", str(program), *(hex(offset - 1) for offset in offsets)]
    out = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    found = []
    for frames in re.split(r"^0x[0-9a-f]+\n", out, flags=re.MULTILINE)[1:]:  # the innermost function first
        lines = [(Path(file).name, int(line)) for file, line in re.findall(r"^(.*):(\d+)", frames, re.MULTILINE)]
        lines = lines[:1] if innermost else lines
        found.append(next((place for place in lines if place[0] in names), ("", 0)))
    return found if len(found) == len(offsets) else unknown


def symbols_of(program: Path) -> list[tuple[str, str, int, int]]:
    """Each variable's name, kind (TLS for __shared__ ones, else OBJECT), offset and bytes."""
    reader = shutil.which("readelf")
    if reader is None:
        return []
    out = subprocess.run([reader, "-sW", str(program)], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    lines = re.findall(r"^ *\d+: ([0-9a-f]+) +(\d+|0x[0-9a-f]+) (TLS|OBJECT) +\w+ +\w+ +\S+ (\S+)", out, re.MULTILINE)
    return [(_plain_name(name), kind, int(begin, 16), int(size, 0)) for begin, size, kind, name in lines]


def _plain_name(mangled: str) -> str:
    """The variable's name in the source: As for _ZZ12MatMulKernel6MatrixS_S_E2As."""
    for found in reversed(list(re.finditer(r"E(\d+)", mangled))):
        name = mangled[found.end() : found.end() + int(found[1])]
        if len(name) == int(found[1]) and re.fullmatch(r"(_\d+|__\d+_)?", mangled[found.end() + len(name) :]):
            return name
    of_file = re.fullmatch(r"_ZN12_GLOBAL__N_1\d+(\w+)E", mangled)  # in an anonymous namespace
    return of_file[1] if of_file else re.sub(r"^_ZL\d+", "", mangled)
