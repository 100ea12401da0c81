# SPDX-License-Identifier: MIT
"""Finds the names of a compiled program's variables, and of their elements, by their addresses."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid.classroom.c_text import blanked, constants_in, dynamic_arrays, element_text, extents_of


def symbols_of(program: Path) -> list[tuple[str, str, int, int]]:
    """For each variable its name, its kind (TLS for __shared__ ones, else OBJECT), its place and its bytes."""
    reader = shutil.which("readelf")
    if reader is None:
        return []
    out = subprocess.run([reader, "-sW", str(program)], capture_output=True, text=True, errors="replace").stdout  # noqa: S603
    lines = re.findall(r"^ *\d+: ([0-9a-f]+) +(\d+|0x[0-9a-f]+) (TLS|OBJECT) +\w+ +\w+ +\S+ (\S+)", out, re.MULTILINE)
    return [(_plain_name(name), kind, int(begin, 16), int(size, 0)) for begin, size, kind, name in lines]


def _plain_name(mangled: str) -> str:
    """The name of a variable in the program's text, as As for _ZZ12MatMulKernel6MatrixS_S_E2As."""
    for found in reversed(list(re.finditer(r"E(\d+)", mangled))):
        name = mangled[found.end() : found.end() + int(found[1])]
        if len(name) == int(found[1]) and re.fullmatch(r"(_\d+|__\d+_)?", mangled[found.end() + len(name) :]):
            return name
    of_file = re.fullmatch(r"_ZN12_GLOBAL__N_1\d+(\w+)E", mangled)  # in an anonymous namespace
    return of_file[1] if of_file else re.sub(r"^_ZL\d+", "", mangled)


class Variables:
    """The __shared__, dynamic shared and __device__ variables of a program. The methods name the element at an offset, for
    messages; `item` is the bytes of the access."""

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
        # Several names may mean different parts of the memory, or different types.
        if len(self._dynamic) == 1 and offset % item == 0:
            return f"{self._dynamic[0]}[{offset // item}]"
        return f"dynamic shared memory, byte {offset}"

    def _element(self, kind: str, offset: int, item: int) -> str:
        for name, of_kind, begin, size in self._symbols:
            if of_kind == kind and begin <= offset < begin + size:
                return name if size <= item else element_text(name, (offset - begin) // item, self._extents.get(name, ()))
        return ""
