# SPDX-License-Identifier: MIT
"""The model of this machine's processors."""

from __future__ import annotations

import platform
from pathlib import Path


def processor() -> str:
    """The model's name, as far as the system knows it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # no such file outside Linux
    return platform.processor() or platform.machine()
