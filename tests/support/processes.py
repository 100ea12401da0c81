# SPDX-License-Identifier: MIT
"""What the kernel tells of a process in /proc/PID/status."""

from __future__ import annotations

import re


def catches(signum: int, status: str) -> bool:
    """Whether the process has a handler for the signal."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signum - 1) & 1)
