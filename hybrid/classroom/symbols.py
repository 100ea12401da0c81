# SPDX-License-Identifier: MIT
"""The variables of a compiled program, by their places."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path


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
    return re.sub(r"^_ZL\d+", "", mangled)
