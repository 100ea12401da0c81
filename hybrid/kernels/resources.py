# SPDX-License-Identifier: MIT
"""The registers and memory that kernels take of a GPU, from what NVIDIA's assembler (ptxas) says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hybrid.errors import HybridError


@dataclass(frozen=True)
class Resources:
    """What one instance of a kernel takes of a GPU."""

    registers: int = 0  # of a thread
    shared: int = 0  # bytes that the source declares
    stack: int = 0  # bytes of a thread
    spill_stores: int = 0  # bytes
    spill_loads: int = 0
    most_threads: int = 0  # of a block, by its __launch_bounds__; 0: it has none


def resources_in(log: str, ptx: str = "") -> dict[str, Resources]:
    """By mangled name, what `--ptxas-options=-v` says in `log` of each kernel, with the functions that it calls. `ptx`: the
    kernels' PTX, for their __launch_bounds__."""
    bounds = {
        name: int(x) * int(y) * int(z)
        for name, x, y, z in re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), (\d+), (\d+)", ptx)
    }
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part.split("'")[1]
        local = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if registers is None:
            raise HybridError(f"the compiler's log says nothing of the registers of {name}", code="compile-failed")
        stack, stores, loads = (sum(map(int, column)) for column in zip(*local, strict=True)) if local else (0, 0, 0)
        found[name] = Resources(int(registers[1]), int(shared[1]) if shared else 0, stack, stores, loads, bounds.get(name, 0))
    return found
