# SPDX-License-Identifier: MIT
"""Folders of Open MPI that killed processes leave: which count as such, and who removes them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.commands import start, successful

from experiments.ordeal.job import Job
from hybrid.ranks import leftovers, session_folders
from hybrid.ranks.launcher import family_of, mpirun
from hybrid.ranks.leftovers import remove_leftovers

HOST, USER = os.uname().nodename, os.geteuid()
NOBODY = 2**22  # no process has such a number
LAUNCHER = """\
#!{python}
import time
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, of this process and of those that it starts."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def made(folder: Path, host: str = HOST, age: float = 1000.0) -> Path:
    """As Open MPI's launcher makes it, so many seconds ago."""
    (folder / "0").mkdir(parents=True)
    files = folder / f"pmix.{host.partition('.')[0]}.tool", folder / "0" / "pmix-gds-shmem2.session.1"
    for path in files:
        path.write_bytes(bytes(4096))
    aged(folder, age)
    return folder


def aged(folder: Path, age: float) -> None:
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (time.time() - age,) * 2)


def kept() -> dict[Path, str]:
    return {leftover.path: leftover.kept for leftover in remove_leftovers()}


def test_old_folders_of_launchers_that_are_gone_are_removed_and_no_others(temporary):
    gone = made(temporary / f"ompi.{NOBODY}"), made(temporary / f"prted.{NOBODY + 1}")
    young = made(temporary / f"ompi.{NOBODY + 2}", age=5)
    others = made(temporary / f"ompi.{NOBODY + 3}", host="another"), made(temporary / f"mine.{NOBODY}")
    link = temporary / f"ompi.{NOBODY + 4}"
    link.symlink_to(others[1])
    used = made(temporary / f"ompi.{NOBODY + 5}")
    with open(used / "0" / "pmix-gds-shmem2.session.1"):
        found = kept()
    assert [found[folder] for folder in gone] == ["", ""]
    assert found[young] == "a job that is starting may need it; it goes when it is a minute old"
    assert not found.keys() & {*others, link, used}
    assert set(temporary.iterdir()) == {young, *others, link, used}


def test_the_folder_of_a_launcher_that_runs_stays(temporary):
    program = temporary / "prterun"
    program.write_text(LAUNCHER.format(python=sys.executable))
    program.chmod(0o700)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "up\n"
        folder = made(temporary / f"ompi.{launcher.pid}")
        assert folder not in kept()
        launcher.kill()
        launcher.wait()
    assert kept()[folder] == ""
    assert made(temporary / f"ompi.{os.getpid()}").exists()
    assert kept()[temporary / f"ompi.{os.getpid()}"] == "", "its number is another program's by now"


def test_empty_folders_of_processes_without_a_launcher_go_when_all_are_old(temporary):
    folder = temporary / f"ompi.{HOST}.{USER}"
    (folder / "jf.0" / "123" / "0").mkdir(parents=True)
    aged(folder, 1000)
    os.utime(folder / "jf.0" / "123")
    assert kept()[folder].startswith("a job that is starting may need it")
    aged(folder, 1000)
    assert kept()[folder] == ""
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_a_folder_that_cannot_be_removed_is_kept_and_said(temporary):
    folder = made(temporary / f"ompi.{NOBODY}")
    (folder / "0").chmod(0o500)
    try:
        assert kept()[folder] == "Permission denied"
    finally:
        (folder / "0").chmod(0o700)


def test_the_doctor_removes_and_names_them(temporary):
    folder = made(temporary / f"ompi.{NOBODY}")
    said = successful(start([sys.executable, "-m", "hybrid.doctor", "--clean"])).stdout
    assert f"removed {folder} (8.0 KiB)" in said
    assert not folder.exists()


def test_only_the_folder_of_the_launcher_that_is_gone_is_its_own(temporary):
    folder = made(temporary / "ompi.1234")
    session_folders.remove_of_launcher(1235, {"PMIX_SERVER_TMPDIR": str(folder)})
    session_folders.remove_of_launcher(1234, {})
    assert folder.exists()
    session_folders.remove_of_launcher(1234, {"PMIX_SERVER_TMPDIR": str(folder)})
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_another_user_s_folders_are_left_alone(temporary):
    folder = made(temporary / f"ompi.{NOBODY}")
    os.chown(folder, USER + 1, -1)
    assert folder not in kept()
    session_folders.remove_of_launcher(NOBODY, {"PMIX_SERVER_TMPDIR": str(folder)})
    assert folder.exists()


def test_a_process_alone_removes_its_own_folder_and_no_other_s(temporary):
    above = temporary / f"ompi.{HOST}.{USER}" / "jf.0"
    for job in (0x73C50000, 5):
        (above / str(job) / "0").mkdir(parents=True)
    session_folders.remove_own([f"/dev/shm/sm_segment.{HOST}.{USER}.73c50000.0", "/dev/shm/mpich_shm_1_0"])
    assert [path.name for path in above.iterdir()] == ["5"]


STARTED_ALONE = """\
import os, signal
from hybrid.ranks.world import start_mpi
start_mpi()
print("started", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.launcher
def test_a_process_alone_that_is_killed_leaves_no_folder_of_its_job(temporary):
    done = subprocess.run([sys.executable, "-c", STARTED_ALONE], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "started\n", done.stderr
    assert not list(temporary.glob("ompi.*/jf.*/*"))


@pytest.mark.launcher
def test_when_mpirun_is_killed_the_ranks_remove_its_folder(temporary):
    if family_of(mpirun(1)[0]) != "Open MPI":
        pytest.skip("MPICH's has none")
    job = Job(["-m", "hybrid.matmul", "600", "600", "600", "--threads", "1", "--repeat", "1000000"], 2, {}, {})
    while "C (600×600)" not in job.printed() and not job.ended(0.05):
        pass
    assert [path.name for path in temporary.iterdir()] == [f"ompi.{job.launcher}"]
    job.send(signal.SIGKILL, [job.launcher])
    assert job.ended(20)
    assert job.remains() == []
    deadline = time.monotonic() + 20
    while (left := list(temporary.iterdir())) and time.monotonic() < deadline:  # a rank may be at it
        time.sleep(0.05)
    assert left == []
    job.said()


def test_the_ordeal_counts_the_folder_of_a_job_s_own_launcher_that_stays(temporary):
    tool = f"pmix.{HOST.partition('.')[0]}.tool"
    program = f"""
import os
for folder in (f"{temporary}/ompi.{{os.getpid()}}", "{temporary}/ompi.{NOBODY}"):
    os.mkdir(folder)
    open(f"{{folder}}/{tool}", "w").close()
"""
    job = Job(["-c", program], 0, {}, {})
    assert job.ended(20)
    assert [path for path in job.remains() if path.startswith(str(temporary))] == [str(temporary / f"ompi.{job.launcher}")]
    job.said()


@pytest.mark.parametrize(("runs", "removed"), [(False, True), (True, False)])
def test_where_all_processes_are_seen_what_hydra_wrote_goes_when_no_hydra_runs(monkeypatch, runs, removed):
    monkeypatch.setattr(leftovers, "_OUTSIDE_OF_CONTAINERS", os.readlink("/proc/self/ns/pid"))
    monkeypatch.setattr(leftovers, "_runs", lambda name: runs)
    descriptor, name = tempfile.mkstemp(prefix="hydra_hwloc_xmlfile_", dir="/tmp")
    os.close(descriptor)
    path = Path(name)
    if not re.fullmatch(r"hydra_hwloc_xmlfile_\w{6}", path.name):  # Python's names have eight letters
        path = path.rename(path.with_name(path.name[:-2]))
    try:
        os.utime(path, (time.time() - 100,) * 2)
        assert (kept().get(path) == "") is removed
        assert path.exists() is not removed
    finally:
        path.unlink(missing_ok=True)


def test_processes_are_found_by_their_names():
    own = Path("/proc/self/comm").read_text().strip()
    assert leftovers._runs(own)
    assert not leftovers._runs("no such program")
