# SPDX-License-Identifier: MIT
"""The variables of a compiled program, by their places, and what its text calls their elements."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid.classroom.c_text import blanked, constants_in, dynamic_arrays, element_text, extents_of


def symbols_of(program: Path) -> list[tuple[str, str, int, int]]:
    """Of each variable its name, TLS (of __shared__ ones) or OBJECT, its place and its bytes."""
    reader = shutil.which("readelf")
    if reader is None:
        return []
    out = subprocess.run([reader, "-sW", str(program)], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    lines = re.findall(r"^ *\d+: ([0-9a-f]+) +(\d+|0x[0-9a-f]+) (TLS|OBJECT) +\w+ +\w+ +\S+ (\S+)", out, re.MULTILINE)
    return [(_plain_name(name), kind, int(begin, 16), int(size, 0)) for begin, size, kind, name in lines]


def _plain_name(mangled: str) -> str:
    """As in _ZZ12MatMulKernel6MatrixS_S_E2As: of a variable of a function."""
    for found in reversed(list(re.finditer(r"E(\d+)", mangled))):
        name = mangled[found.end() : found.end() + int(found[1])]
        if len(name) == int(found[1]) and re.fullmatch(r"(_\d+|__\d+_)?", mangled[found.end() + len(name) :]):
            return name
    of_file = re.fullmatch(r"_ZN12_GLOBAL__N_1\d+(\w+)E", mangled)  # in an anonymous namespace
    return of_file[1] if of_file else re.sub(r"^_ZL\d+", "", mangled)


class Variables:
    """Of a program with these lines: its __shared__, dynamic shared and __device__ variables."""

    def __init__(self, program: Path, sources: Mapping[str, Sequence[str]]) -> None:
        self._symbols = symbols_of(program)
        plain = blanked("\n".join(line for lines in sources.values() for line in lines))
        self._extents = extents_of(plain, constants_in(plain))
        self._dynamic = dynamic_arrays(plain)

    def of_shared(self, offset: int, item: int) -> str:
        return self._element("TLS", offset, item) or "shared memory"

    def of_device(self, offset: int, item: int) -> str:
        return self._element("OBJECT", offset, item) or "a __device__ variable"

    def of_dynamic_shared(self, offset: int, item: int) -> str:
        """`item`: the bytes of the access. Several names mean different parts of it, or different types."""
        if len(self._dynamic) == 1 and offset % item == 0:
            return f"{self._dynamic[0]}[{offset // item}]"
        return f"dynamic shared memory, byte {offset}"

    def _element(self, kind: str, offset: int, item: int) -> str:
        for name, of_kind, begin, size in self._symbols:
            if of_kind == kind and begin <= offset < begin + size:
                return name if size <= item else element_text(name, (offset - begin) // item, self._extents.get(name, ()))
        return ""
