# SPDX-License-Identifier: MIT
"""Nothing that this project makes in shared memory or in the temporary folder may stay there after the tests.

A file counts where it is this user's, was made in this run, and has the number of a process in its name that is gone; and only
where this is the only run of the user's tests, since another one kills processes, too. Files of MPI say less, and are not
looked at here: jobs of tests/support/jobs.py have folders of their own.
"""

import fcntl
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

SECONDS = 10.0  # within which what a process has left is removed by those that it belonged to, too
_NAME = re.compile(r"hybrid-.*-(\d+)-.*")
_FOLDERS = {Path("/dev/shm"), Path(tempfile.gettempdir())}
_began = time.time()


def left(since: float) -> set[Path]:
    """What processes of this user that are gone have made since then."""
    found = set()
    for path in (path for folder in _FOLDERS if folder.is_dir() for path in folder.glob("hybrid-*")):
        with suppress(FileNotFoundError):  # gone by now
            status, named = path.lstat(), _NAME.fullmatch(path.name)
            if named and status.st_uid == os.geteuid() and status.st_mtime >= since and not Path("/proc", named[1]).exists():
                found.add(path)
    return found


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.running = open(Path(tempfile.gettempdir(), f"tests-of-hybrid-{os.geteuid()}.lock"), "w")  # noqa: SIM115
        fcntl.flock(config.running, fcntl.LOCK_SH)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    deadline = time.monotonic() + SECONDS
    while (remaining := left(_began)) and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        fcntl.flock(session.config.running, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return  # it may be the other run's
    if remaining:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f"\nleft behind by the tests: {', '.join(sorted(map(str, remaining)))}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
