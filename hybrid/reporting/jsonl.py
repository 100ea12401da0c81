# SPDX-License-Identifier: MIT
"""Records of runs as JSON lines: the writer and reader of the commands and scripts."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from hybrid.errors import UsageError, one_line
from hybrid.host.files import written_to
from hybrid.host.memory import processor

SCHEMA = 1


def versions() -> dict[str, str]:
    """The versions that a run's result and speed may depend on: of Python, packages, and MPI if loaded."""
    found = {"python": platform.python_version(), **_packages()}
    if mpi := sys.modules.get("mpi4py.MPI"):
        found["mpi"] = " ".join(mpi.Get_library_version().split("\n")[0].strip("\0").split())
    return found


@cache  # each is read from a file, for hundreds of lines of scripts
def _packages() -> dict[str, str]:
    found = {}
    for distribution in ("hybrid-runner", "numpy", "mpi4py", "cupy-cuda12x", "cupy-cuda13x"):
        with suppress(metadata.PackageNotFoundError):
            found[distribution] = metadata.version(distribution)
    return found


def machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()}


def write(record: Mapping[str, Any], path: str) -> None:
    """Append one line to the file, or print it for `-`. Adds schema, date, versions and machine."""
    full = {"schema": SCHEMA, "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), **record}
    full |= {"versions": versions(), "machine": machine()}
    line = (json.dumps(_plain(full), allow_nan=False) + "\n").encode()
    if path == "-":
        sys.stdout.write(line.decode())
        return
    with written_to(path), open(path, "ab", buffering=0) as lines:
        fcntl.flock(lines, fcntl.LOCK_EX)  # other runs may append at the same time
        end = lines.seek(0, os.SEEK_END)
        if lines.write(line) != len(line):
            lines.truncate(end)
            raise OSError(errno.ENOSPC, "no space left for the run's line")


def read(path: str) -> Iterator[dict[str, Any]]:
    """The records of a file, in its order. UsageError, with the line's number, for a line that is no record."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", code="file-unreadable") from None
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: not JSON ({one_line(error)[:80]})", code="file-format") from None
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            raise UsageError(f"{path}, line {number}: not a record of schema {SCHEMA}", code="file-format")
        yield record


def _plain(value: Any) -> Any:
    """The value with null for infinity and NaN, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return value
