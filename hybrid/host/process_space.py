# SPDX-License-Identifier: MIT
"""The space in which a process number names one process: this run of the machine's kernel, and this PID namespace.

The name of the host does not tell it: containers may have one in common, and a folder.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def kernel() -> str:
    """Eight digits that tell this run of the machine's kernel from that of another machine, and from the next one here."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return os.urandom(4).hex()  # not Linux: as if no other process were of this kernel


@cache
def process_space() -> str:
    """Sixteen digits: those of `kernel`, and those of this process's PID namespace, such as a container's."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = int.from_bytes(os.urandom(4), "big")
    return f"{kernel()}{namespace:08x}"
