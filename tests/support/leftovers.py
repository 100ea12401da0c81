"""Nothing that this project makes in shared memory or in the temporary folder may stay there after the tests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hybrid.ranks.shared_memory import shared_memory_folder

_before: set[Path] = set()


def _seen() -> set[Path]:
    return {path for folder in {str(shared_memory_folder()), tempfile.gettempdir()} for path in Path(folder).glob("hybrid-*")}


def _is_used(path: Path) -> bool:
    """By a program that still runs, where its number is in the name: another run of the tests may go on beside this one."""
    number = path.name.split("-")[1]
    return number.isdigit() and Path("/proc", number).exists()


def pytest_sessionstart() -> None:
    _before.update(_seen())


def pytest_sessionfinish(session: pytest.Session) -> None:
    left = sorted(str(path) for path in _seen() - _before if not _is_used(path))
    if left and not hasattr(session.config, "workerinput"):
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"\nleft behind by the tests: {', '.join(left)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
