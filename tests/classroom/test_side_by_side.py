# SPDX-License-Identifier: MIT
"""Threads that wait for compilers and kernels: an error or an interrupt ends all of them, and is not kept waiting for ever."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hybrid.classroom import side_by_side
from hybrid.classroom.examination import Trials
from hybrid.classroom.side_by_side import SideBySide
from hybrid.commands import lab

TILED = Path(__file__).resolve().parents[2] / "docs" / "examples" / "tiled.cu"


def wait_for_child(folder: Path) -> int:
    (folder / "begun").touch()
    return subprocess.run([sys.executable, "-c", "import time; time.sleep(60)", str(folder)], check=False).returncode


def test_who_asks_gets_the_result_or_the_error(tmp_path):
    threads = SideBySide(str(tmp_path))
    assert threads.begin(divmod, 17, 5).result(30) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        threads.begin(divmod, 17, 0).result(30)


@pytest.mark.needs("shared memory")  # of Linux, whose /proc tells which processes these are
def test_at_the_end_child_processes_of_the_folder_are_killed_and_the_threads_have_ended(tmp_path):
    threads = SideBySide(str(tmp_path))
    waiting = threads.begin(wait_for_child, tmp_path)
    while not (tmp_path / "begun").exists():
        assert not waiting.done()
    threads.end()
    assert waiting.result(0) == -9


def test_a_compiler_that_cannot_be_ended_does_not_keep_an_error_waiting(monkeypatch):
    """As one that the kernel keeps in a call to a disk of another machine."""
    monkeypatch.setattr(side_by_side, "_PATIENCE", 0.2)
    hangs, told = threading.Event(), []
    monkeypatch.setattr(Trials, "_built", lambda *given: hangs.wait(60) and "")

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)

    def examine():
        with pytest.raises(KeyboardInterrupt) as error:
            lab.work(lab.parse(["run", str(TILED)]))
        told.append(error)

    examining = threading.Thread(target=examine, daemon=True)
    examining.start()
    examining.join(20)
    hangs.set()
    assert told
    examining.join(20)


def test_a_thread_that_goes_on_does_not_keep_the_process_from_ending():
    program = """
import threading
from hybrid.classroom.side_by_side import SideBySide
SideBySide("/none").begin(threading.Event().wait)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
