# SPDX-License-Identifier: MIT
"""Translates AddressSanitizer's reports on a student's kernel into CUDA's words."""

from __future__ import annotations

import json
import re

from hybrid.classroom.finding import Finding
from hybrid.emulation.child import Ended

_PLACE = re.compile(r"#\d+ .*?([\w.+-]+\.(?:cuh?|h)):(\d+)")
_NEAR = 2  # rows and columns beside a matrix that are named after it


def stray_access_in(ended: Ended) -> Finding | None:
    """A sentence about an access beyond an array, or about something else that C++ does not define; None if nothing
    was reported."""
    found = re.search(r"AddressSanitizer: (\S+)", ended.err)
    if found is None:
        undefined = re.search(r"[\w.+-]+\.(?:cuh?|h):(\d+)(?::\d+)?: runtime error: (.*)", ended.err)
        return Finding(f"line {undefined[1]}: {undefined[2]}", "undefined") if undefined else None
    access = re.search(r"(READ|WRITE) of size \d+", ended.err)
    does = {"READ": "reads", "WRITE": "writes"}.get(access[1] if access else "", "uses")
    place = _PLACE.search(ended.err)
    where = f"line {place[2]} {does}" if place else f"it {does}"
    if shared := re.search(r"global variable '[^']*?(\w+)'", ended.err):
        return Finding(f"out of bounds: {where} beyond the shared array {shared[1]}", "out-of-bounds")
    address = re.search(r"on (?:unknown )?address 0x([0-9a-f]+)", ended.err)
    what = _named(ended.out, int(address[1], 16)) if address else "memory that is not there"
    return Finding(f"out of bounds: {where} {what}", "out-of-bounds")


def _named(out: str, address: int) -> str:
    """The element of a matrix at this address, or the one that would be there if the matrix were a little larger. `out`: the
    trial's output, which says where the matrices are."""
    line = next((line for line in out.splitlines() if line.startswith('{"places"')), '{"places": {}}')
    nearest, text = -1, "memory that is no matrix's"
    for name, (start, (rows, columns), item) in json.loads(line)["places"].items():
        number = (address - start) // item
        distance = max(-number, number - rows * columns + 1, 0)
        if distance <= (rows + _NEAR) * (columns + _NEAR) and (nearest < 0 or distance < nearest):
            nearest = distance
            row, column = divmod(number, columns)
            text = f"{name}[{row}][{column}]" + (f", and {name} is {rows}×{columns}" if distance else "")
    return text
