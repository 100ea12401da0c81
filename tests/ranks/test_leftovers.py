# SPDX-License-Identifier: MIT
"""Files of jobs that were killed: which count as such, and how they go."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commands import start, successful

from hybrid.ranks import hydra
from hybrid.ranks.leftovers import find_leftovers
from hybrid.ranks.shared_memory import shared_memory_folder

pytestmark = pytest.mark.needs("shared memory")


@pytest.fixture
def make():
    """A file in shared memory, so many seconds old."""
    made = []

    def one(name: str, age: float = 1000.0) -> Path:
        path = shared_memory_folder() / name
        made.append(path)
        path.write_bytes(bytes(4096))
        os.utime(path, (time.time() - age,) * 2)
        return path

    yield one
    for path in made:
        path.unlink(missing_ok=True)


def number() -> str:
    return secrets.token_hex(4)


def found() -> set[Path]:
    return {leftover.path for leftover in find_leftovers()}


def test_old_files_that_nobody_uses_are_found_and_nothing_else(make):
    gone = {make(f"mpich_shm_{number()}_0"), make(f"hybrid-1234-{number()}{number()}"), make(f"sm_segment.node.0.{number()}.1")}
    young, mine = make(f"mpich_shm_{number()}_0", age=5), make(f"hybrid-results-{number()}")
    used = make(f"mpich_shm_{number()}_1")
    link = shared_memory_folder() / f"mpich_shm_{number()}_7"
    with ExitStack() as stack:
        stack.enter_context(used.open("rb"))
        link.symlink_to(mine)
        stack.callback(link.unlink)
        assert found() & {*gone, young, mine, used, link} == gone


def test_the_doctor_removes_and_names_them(make):
    old, young = make(f"mpich_shm_{number()}_0"), make(f"mpich_shm_{number()}_0", age=5)
    said = successful(start_doctor("--clean")).stdout
    assert f"removed {old} (4.0 KiB)" in said
    assert not old.exists()
    assert young.exists()
    assert "0 files of ended jobs removed, 0 B" in successful(start_doctor("--clean")).stdout


def start_doctor(*arguments):
    return start([sys.executable, "-m", "hybrid.doctor"], *arguments)


@pytest.fixture
def launcher(monkeypatch):
    """Hydra's end of the line to this process."""
    ours, its = socket.socketpair()
    monkeypatch.setenv("PMI_FD", str(ours.fileno()))
    monkeypatch.setenv("PMI_HOSTNAME", "node")
    with ours, its:
        yield its


def test_hydra_is_told_to_abort_with_a_code(launcher):
    assert hydra.abort(137)
    assert launcher.recv(100) == b"cmd=abort exitcode=137\n"


def test_hydra_says_which_file_it_made_also_after_an_answer_to_another(launcher):
    path = "/tmp/hydra_hwloc_xmlfile_AbC123"
    asked = []

    def answer():
        launcher.send(b"cmd=barrier_out rc=0\n")
        for words in (b"cmd=my_kvsname rc=0 kvsname=kvs_1\n", f"cmd=get_result rc=0 value={path}\n".encode()):
            asked.append(launcher.recv(1000))
            launcher.send(words)

    hydra_process = threading.Thread(target=answer)
    hydra_process.start()
    assert hydra.topology_file() == path
    hydra_process.join()
    assert asked == [b"cmd=get_my_kvsname\n", b"cmd=get kvsname=kvs_1 key=PMI_hwloc_xmlfile\n"]


def test_a_launcher_that_does_not_answer_is_not_waited_for(launcher):
    assert hydra.topology_file() is None


@pytest.mark.parametrize("environment", [{}, {"PMI_FD": "7"}, {"PMI_FD": "x", "PMI_HOSTNAME": "n"}])
def test_under_other_launchers_nobody_is_told(monkeypatch, environment):
    for name in ("PMI_FD", "PMI_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not hydra.abort(1)
    assert hydra.topology_file() is None
