# SPDX-License-Identifier: MIT
"""`python -m hybrid.doctor --clean` removes and names your files of jobs that were killed, and nothing else (docs/cluster.md)."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.commands import ROOT
from support.commands import start as started
from support.jobs import may_mount, mpirun, open_mpi, private

USER = os.geteuid()
MINUTE = 60.0

pytestmark = [
    pytest.mark.skipif(not may_mount(), reason="needs leave to mount a /dev/shm and a /tmp of its own"),
    pytest.mark.skipif(
        ROOT.is_relative_to("/tmp") or Path(sys.prefix).is_relative_to("/tmp"), reason="this checkout lies in /tmp"
    ),
]


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture
def temporary(tmp_path):
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def aged(path: Path, age: float) -> Path:
    for each in (*path.rglob("*"), path):
        os.utime(each, (time.time() - age,) * 2)
    return path


def file(path: Path, age: float = 1000.0) -> Path:
    path.write_bytes(bytes(4096))
    return aged(path, age)


def clean(shared: Path, temporary: Path, *words: str, read_only: bool = False, ranks: int = 0):
    """The exit code, and what was said of each file or folder: "removed", or why it was kept."""
    mounts = private({"/dev/shm": str(shared), "/tmp": str(temporary)})
    if read_only:
        mounts[-2] = mounts[-2].replace('exec "$@"', 'mount -o remount,bind,ro /dev/shm && exec "$@"')
    command = [*mounts, *words, *(mpirun(ranks) if ranks else []), sys.executable, "-m", "hybrid.doctor", "--clean"]
    done = started(command, TMPDIR="/tmp", limit=120)
    said = re.findall(r"^(removed|kept) (/dev/shm|/tmp)/(\S+) \(.* \w*B\)(?:: (.*))?$", done.stdout, re.MULTILINE)
    assert len(said) == len(done.stdout.splitlines()) - 1, done
    outside = {"/dev/shm": shared, "/tmp": temporary}
    return done.returncode, {outside[where] / name: why or what for what, where, name, why in said}


def test_old_files_that_nobody_uses_are_removed_and_nothing_else(shared, temporary):
    with ExitStack() as stack:
        removed = [
            *(file(shared / name) for name in ("mpich_shm_1a2b_0", "sm_segment.node.0.1a2b.1", "vader_segment.node.0.1a2b.1")),
            file(shared / "ucx_shm_posix_1a2b"),
        ]
        young = [file(shared / "mpich_shm_1a2b_1", MINUTE / 2)]
        used = [file(shared / "mpich_shm_1a2b_2"), file(shared / "mpich_shm_1a2b_3", MINUTE / 2)]
        for path in used:
            stack.enter_context(open(path, "rb"))
        others = [*used, file(shared / "results"), file(shared / "hybrid-mine"), file(temporary / "mpich_shm_1a2b_4")]
        (shared / "mpich_shm_1a2b_7").symlink_to(others[3])
        others.append(shared / "mpich_shm_1a2b_7")
        if USER == 0:
            others.append(file(shared / "mpich_shm_1a2b_8"))
            os.chown(others[-1], 1000, 1000)
        code, said = clean(shared, temporary)
    assert {path for path, what in said.items() if what == "removed"} == set(removed)
    assert {path for path, what in said.items() if what != "removed"} == set(young), said
    assert code == 0
    assert {*shared.iterdir(), *temporary.iterdir()} == {*young, *others}


def test_what_cannot_be_removed_is_kept_and_a_failure(shared, temporary):
    path = file(shared / "mpich_shm_1a2b_0")
    code, said = clean(shared, temporary, read_only=True)
    assert (code, said, path.exists()) == (1, {path: "Read-only file system"}, True)


MAPPING = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_what_a_process_of_another_container_has_mapped_stays(shared, temporary):
    """From a PID namespace of its own the process that uses it cannot be seen."""
    used, gone = file(shared / "mpich_shm_1a2b_0"), file(shared / "mpich_shm_1a2b_1")
    command = [sys.executable, "-c", MAPPING, used]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "mapped\n"
        code, said = clean(shared, temporary, "unshare", "--pid", "--fork", "--mount-proc")
        process.stdin.close()
    assert (code, said[gone], used in said, used.exists()) == (0, "removed", False, True)
    assert list(said) == [gone]


PROGRAM = """
import hybrid, numpy, os, signal
from mpi4py import MPI
a = numpy.ones((9, 9)) if MPI.COMM_WORLD.rank == 0 else None
hybrid.multiply(a, a, comm=MPI.COMM_WORLD)
MPI.COMM_WORLD.Barrier()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.launcher
def test_what_a_killed_program_leaves_is_removed_when_it_is_old(start, shared, temporary):
    """Of a program of one's own MPI's file stays, where MPI was started before this package could see to it."""
    end = start(["-c", PROGRAM], 2).end()
    assert end.code == 128 + signal.SIGKILL or (not open_mpi() and end.code == signal.SIGKILL), end
    left = [Path(name) for name in (*end.left, *end.of_mpich) if not name.startswith("process")]
    assert not [name for name in end.left if name.startswith("process")]
    for name in left:
        assert re.match(r"mpich_shm_|hydra_hwloc|sm_segment|ompi\.|pmix|0", name.parts[0]), left
        if re.match(r"mpich_shm_|sm_segment", name.name):
            file(shared / name.name)
    code, said = clean(shared, temporary)
    assert (code, set(said.values()) <= {"removed"}, list(shared.iterdir())) == (0, True, [])
