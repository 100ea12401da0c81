# SPDX-License-Identifier: MIT
"""What AddressSanitizer and ThreadSanitizer say of a student's kernel, in CUDA's words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from hybrid.emulation.child import Ended

_PLACE = re.compile(r"#\d+ .*?([\w.+-]+\.(?:cuh?|h)):(\d+)")
_ACCESS = re.compile(r"\n(?=  (?:Previous )?(?:atomic )?(?:read|write) of size)", re.IGNORECASE)
_NEAR = 2  # rows and columns beside a matrix that are named after it


def race_in(ended: Ended) -> str:
    """Two accesses that nothing orders; "" if there is no report of any."""
    if "ThreadSanitizer: data race" not in ended.err:
        return ""
    accesses = []
    for access in _ACCESS.split(ended.err)[1:3]:
        place = _PLACE.search(access)
        accesses.append((int(place[2]) if place else 0, "write of size" in access.lower()))
    variable = re.search(r"Location is global '[^']*?(\w+)'", ended.err)
    address = re.search(r"of size \d+ at 0x([0-9a-f]+)", ended.err)
    what = variable[1] if variable else _named(ended.out, int(address[1], 16) if address else 0)
    return race_told(accesses, what, within_block=variable is not None)


def race_told(accesses: Sequence[tuple[int, bool]], what: str, *, within_block: bool) -> str:
    """Of each access its line, and whether it writes. `within_block`: a barrier would order them."""
    lines: dict[int, str] = {}
    for line, writes in accesses:
        lines[line] = "writes" if writes or lines.get(line) == "writes" else "reads"
    who = " and ".join(f"line {line} {does}" for line, does in sorted(lines.items()))
    if within_block:
        return f"data race: {who} {what}, in different threads of a block, and no __syncthreads() stands between them"
    return f"data race: {who} {what} in different threads"


def stray_access_in(ended: Ended) -> str:
    """An access beyond an array, or another that C++ does not define; "" if there is no report of any."""
    found = re.search(r"AddressSanitizer: (\S+)", ended.err)
    if found is None:
        undefined = re.search(r"[\w.+-]+\.(?:cuh?|h):(\d+)(?::\d+)?: runtime error: (.*)", ended.err)
        return f"line {undefined[1]}: {undefined[2]}" if undefined else ""
    access = re.search(r"(READ|WRITE) of size \d+", ended.err)
    does = {"READ": "reads", "WRITE": "writes"}.get(access[1] if access else "", "uses")
    place = _PLACE.search(ended.err)
    where = f"line {place[2]} {does}" if place else f"it {does}"
    if shared := re.search(r"global variable '[^']*?(\w+)'", ended.err):
        return f"out of bounds: {where} beyond the shared array {shared[1]}"
    address = re.search(r"on (?:unknown )?address 0x([0-9a-f]+)", ended.err)
    return f"out of bounds: {where} {_named(ended.out, int(address[1], 16)) if address else 'memory that is not there'}"


def _named(out: str, address: int) -> str:
    """The element of a matrix that is there, or would be, were the matrix a little larger."""
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
