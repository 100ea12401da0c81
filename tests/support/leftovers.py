"""Nothing that this project makes in shared memory or in the temporary folder may stay there after the tests."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from hybrid.ranks.shared_memory import shared_memory_folder

SECONDS = 3  # within which what a process has left is removed by those that it belonged to, too

_before: set[Path] = set()


def _left() -> set[Path]:
    """What no running process uses: other tests may go on beside these. A name's number is that of the process that made it."""
    folders = {shared_memory_folder(), Path(tempfile.gettempdir())}
    found = {path for folder in folders for path in folder.glob("hybrid-*")}
    return {path for path in found if not any(Path("/proc", part).exists() for part in path.name.split("-") if part.isdigit())}


def pytest_sessionstart() -> None:
    _before.update(_left())


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    deadline = time.monotonic() + SECONDS
    while (left := _left() - _before) and time.monotonic() < deadline:
        time.sleep(0.1)
    if left:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"\nleft behind by the tests: {', '.join(sorted(map(str, left)))}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
