# SPDX-License-Identifier: MIT
"""Files of jobs that were killed: which count as such, and how they go."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commands import start, successful

from hybrid.host.process_space import process_space
from hybrid.ranks import hydra, leftovers
from hybrid.ranks.leftovers import remove_leftovers
from hybrid.ranks.shared_memory import shared_memory_folder

pytestmark = pytest.mark.needs("shared memory")

YOUNG = 40.0  # seconds: a minute is old


@pytest.fixture(autouse=True)
def one_at_a_time():
    """Each removes what another worker's test has just made."""
    with open(Path(tempfile.gettempdir()) / f"test-leftovers-{os.geteuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def make():
    """A file in shared memory, so many seconds old: older than any other test's job, which would take it for its own."""
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


def own_name(kernel: str = "") -> str:
    """As shared memory of a process here is named, or of one of another kernel."""
    return f"hybrid-{kernel or process_space()[:8]}{process_space()[8:]}-1234-{number()}{number()}"


def test_old_files_that_nobody_uses_are_removed_and_nothing_else(make):
    names = f"mpich_shm_{number()}_0", own_name(), f"sm_segment.node.0.{number()}.1", f"ucx_shm_posix_{number()}"
    gone = {make(name) for name in names}
    young, mine = make(f"mpich_shm_{number()}_0", age=YOUNG), make(f"hybrid-results-{number()}")
    used = make(f"mpich_shm_{number()}_1")
    link = shared_memory_folder() / f"mpich_shm_{number()}_7"
    with ExitStack() as stack:
        stack.enter_context(used.open("rb"))
        link.symlink_to(mine)
        stack.callback(link.unlink)
        found = {leftover.path: leftover.kept for leftover in remove_leftovers()}
        assert found.items() >= dict.fromkeys(gone, "").items()
        assert found[young] == "a job that is starting may need it; it goes when it is a minute old"
        assert not found.keys() & {mine, used, link}
        assert {path for path in (*gone, young, mine, used, link) if os.path.lexists(path)} == {young, mine, used, link}


def test_a_file_that_only_another_machine_can_know_of_is_kept_and_said(make):
    path = make(own_name("0" * 8))
    (leftover,) = [leftover for leftover in remove_leftovers() if leftover.path == path]
    assert leftover.kept.startswith("it was made on another machine")
    assert path.exists()


def test_where_nobody_knows_whether_a_file_is_used_it_is_kept_and_said(make, monkeypatch):
    monkeypatch.delattr(fcntl, "F_SETLEASE")
    path = make(own_name())
    (leftover,) = [leftover for leftover in remove_leftovers() if leftover.path == path]
    assert leftover.kept.startswith("whether a process uses it cannot be seen here")
    assert path.exists()


@pytest.mark.parametrize(("hours", "stays"), [(23, True), (25, False)])
def test_what_hydra_wrote_for_ranks_that_may_start_mpi_late_stays_for_a_day(monkeypatch, hours, stays):
    monkeypatch.setattr(leftovers, "_runs", lambda name: True)  # a Hydra, which may be theirs
    path = Path("/tmp") / f"hydra_hwloc_xmlfile_{secrets.token_hex(3)}"
    path.write_text("")
    os.utime(path, (time.time() - hours * 3600,) * 2)
    (leftover,) = [leftover for leftover in remove_leftovers() if leftover.path == path]
    assert leftover.young == stays == leftover.kept.endswith("it goes when it is a day old")
    assert path.exists() == stays
    path.unlink(missing_ok=True)


STARTED_ALONE = """\
import os, signal
from pathlib import Path
from hybrid.ranks.world import start_mpi
start_mpi()
print(*(line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line), sep="\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.launcher
def test_a_process_that_starts_mpi_alone_leaves_nothing_even_when_it_is_killed():
    done = subprocess.run([sys.executable, "-u", "-c", STARTED_ALONE], capture_output=True, text=True, timeout=60, check=False)
    mapped = done.stdout.splitlines()
    assert mapped, done.stderr
    assert [path for path in mapped if os.path.lexists(path)] == []


MAPPING = """\
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
mapped = mmap.mmap(descriptor, 0)
os.close(descriptor)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.needs("namespaces")
def test_what_a_process_of_another_container_has_mapped_stays(make):
    """From a PID namespace of its own the process that uses it cannot be seen."""
    used, gone = make(f"sm_segment.node.0.{number()}.1"), make(f"sm_segment.node.0.{number()}.2")
    command = [sys.executable, "-c", MAPPING, used]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "mapped\n"
        contained = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-m", "hybrid.doctor", "--clean"]
        said = successful(start(contained)).stdout
        assert f"removed {gone}" in said
        assert str(used) not in said
        assert used.exists()
        process.stdin.close()


def test_of_a_worker_that_is_killed_while_mpi_starts_the_files_go_that_nobody_has_mapped(make):
    before = make(f"mpich_shm_{number()}_0", 60)
    unused = make(f"mpich_shm_{number()}_0", 0), make(f"ucx_shm_posix_{number()}", 0)
    used, other = make(f"mpich_shm_{number()}_0", 0), make(f"mine_{number()}_0", 0)
    with open(used):
        leftovers.remove_files_of_job([], since=time.time() - 1)
        assert not any(path.exists() for path in unused)
        assert all(path.exists() for path in (before, used, other))
    leftovers.remove_files_of_job([])
    assert used.exists(), "only in a supervisor whose worker has not started MPI"


def test_a_young_file_that_is_open_is_not_named(make):
    path = make(f"mpich_shm_{number()}_0", age=YOUNG)
    with path.open("rb"):
        assert path not in [leftover.path for leftover in remove_leftovers()]


def test_the_doctor_removes_and_names_them(make):
    old, young = make(f"mpich_shm_{number()}_0"), make(f"mpich_shm_{number()}_0", age=YOUNG)
    said = successful(start_doctor("--clean")).stdout
    assert f"removed {old} (4.0 KiB)" in said
    assert not old.exists()
    assert young.exists()
    assert f"kept {young} (4.0 KiB): a job that is starting may need it; it goes when it is a minute old" in said
    said = successful(start_doctor("--clean")).stdout
    assert str(old) not in said
    assert re.search(r"^\d+ files of ended .*; [1-9]\d* kept that may be those of jobs that are starting$", said, re.MULTILINE)


@pytest.mark.needs("namespaces")
def test_what_the_doctor_cannot_remove_is_said_and_a_failure(make):
    old = make(f"mpich_shm_{number()}_0")
    mount = "mount --bind /dev/shm /dev/shm && mount -o remount,bind,ro /dev/shm"
    command = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-m", "hybrid.doctor", "--clean"]
    done = start(command)
    assert done.returncode == 1
    assert f"kept {old} (4.0 KiB): Read-only file system\n" in done.stdout
    assert re.search(r"^0 files of ended jobs removed, 0 B(; \d+ kept .*)?\n\Z", done.stdout, re.MULTILINE)
    assert done.stderr == ""


def test_without_shared_memory_there_is_nothing_to_remove(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "_SHARED_MEMORY", str(tmp_path / "missing"))
    (tmp_path / "file").write_text("")
    assert not [leftover for leftover in remove_leftovers() if leftover.path.is_relative_to(tmp_path)]
    monkeypatch.setattr(leftovers, "_SHARED_MEMORY", str(tmp_path / "file"))
    assert not [leftover for leftover in remove_leftovers() if leftover.path.is_relative_to(tmp_path)]


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
