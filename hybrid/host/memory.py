# SPDX-License-Identifier: MIT
"""How much host memory and space in a folder this process may still take."""

from __future__ import annotations

import os
from pathlib import Path

from hybrid.core.ttl_cache import ttl_cached


def available_host_bytes(*, now: bool = False) -> int:
    """What `host_bytes_in` gives for this machine, from a short-lived cache; with `now`, looked up again."""
    return _host_bytes() if now else _host_bytes_lately()


def _host_bytes() -> int:
    return host_bytes_in(Path("/"))


_host_bytes_lately = ttl_cached(_host_bytes)


def host_bytes_in(root: Path) -> int:
    """The bytes that the system has available, or that this process's control groups still allow, whichever is less. `root`: the
    folder in which /proc and /sys are."""
    limits = []
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    except OSError:
        pass  # not Linux
    limits += _allowed_by_control_groups(root)
    return min(limits) if limits else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _allowed_by_control_groups(root: Path) -> list[int]:
    """The bytes that each control group above this process still allows."""
    try:
        own = [line.split(":", 2)[2] for line in (root / "proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    except OSError:
        return []
    allowed = []
    mounted = root / "sys/fs/cgroup"
    for path in own:
        folder = mounted / path.strip().lstrip("/")
        for level in (folder, *folder.parents):
            try:
                limit, used = (level / "memory.max").read_text().strip(), (level / "memory.current").read_text()
            except OSError:
                pass  # this level sets no limit, or is outside the container
            else:
                if limit != "max":
                    allowed.append(max(0, int(limit) - int(used)))
            if level == mounted:
                break
    return allowed


def free_bytes_in(folder: Path) -> int:
    """Bytes that this user may still write to the file system of `folder`; of /dev/shm these are memory."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
