# SPDX-License-Identifier: MIT
"""Records which lines of the package each test runs, in its own process and in those that it starts.

It is a plugin of pytest, and `start` is called in every process.
"""

import atexit
import json
import os
import time
from collections.abc import Iterator
from typing import Any

import coverage
import pytest

FOLDER, RANKS = os.environ["MUTANTS_RECORD"], os.environ["MUTANTS_RANKS"]
_recording: Any = None


def start() -> None:
    """To be called once in a process."""
    global _recording
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]  # that has started this process
    _recording = coverage.Coverage(
        data_file=os.path.join(FOLDER, "data"),
        data_suffix=True,
        include=[os.path.join(os.environ["MUTANTS_TREE"], "hybrid", "*")],
        context=f"{RANKS} {test}",
        config_file=False,
        messages=False,
    )
    _recording.start()
    atexit.register(save)


def save() -> None:
    """To be called before a process ends in a way that Python does not see."""
    _recording.stop()
    _recording.save()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    began = time.monotonic()
    _recording.switch_context(item.nodeid)
    yield
    _recording.switch_context("")
    with open(os.path.join(FOLDER, f"times-{os.getpid()}"), "a") as file:
        file.write(json.dumps([f"{RANKS} {item.nodeid}", time.monotonic() - began]) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    if report.failed:
        with open(os.path.join(FOLDER, f"failed-{os.getpid()}"), "a") as file:
            file.write(f"{RANKS} {report.nodeid}\n")
