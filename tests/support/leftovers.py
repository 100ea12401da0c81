# SPDX-License-Identifier: MIT
"""Nothing that this project makes in shared memory or in the temporary folder may stay there after the tests."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hybrid.ranks.shared_memory import shared_memory_folder

SECONDS = 3  # within which what a process has left is removed by those that it belonged to, too

_before: set[Path] = set()


def left() -> dict[Path, os.stat_result]:
    """What is there of this user's, but for what running processes made, whose numbers are in the names: other tests' perhaps."""
    found = {}
    for folder in {shared_memory_folder(), Path(tempfile.gettempdir())}:
        cache = folder / f"hybrid-runner-{os.geteuid()}"  # where home takes none; it stays
        for path in set(folder.glob("hybrid-*")) - {cache}:
            with suppress(FileNotFoundError):  # gone by now
                found[path] = path.lstat()
    return {path: status for path, status in found.items() if status.st_uid == os.geteuid() and not _is_used(path)}


def _is_used(path: Path) -> bool:
    return any(Path("/proc", part).exists() for part in path.name.split("-") if part.isdigit())


def pytest_sessionstart() -> None:
    _before.update(left())


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    deadline = time.monotonic() + SECONDS
    while (remaining := left().keys() - _before) and time.monotonic() < deadline:
        time.sleep(0.1)
    if remaining:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"\nleft behind by the tests: {', '.join(sorted(map(str, remaining)))}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
