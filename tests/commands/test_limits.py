# SPDX-License-Identifier: MIT
"""What the system refuses, or takes away meanwhile, is one line that names it: limits, full disks, a small /dev/shm."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import module, own_lines, start, without_progress
from support.selection import exhaustive

from hybrid.ranks.launcher import family_of, mpirun

pytestmark = pytest.mark.launcher

MEDDLED = [sys.executable, str(Path(__file__).parent / "programs" / "meddled.py")]
FILL = (  # but for so many MiB
    "there = os.statvfs('/dev/shm'); file = os.open('/dev/shm/other', os.O_CREAT | os.O_WRONLY); "
    "os.posix_fallocate(file, 0, there.f_bavail * there.f_frsize - ({leave} << 20))"
)
MATMUL = module("hybrid.matmul")


def limited(limits: str, *command: object, ranks: int = 0) -> list[str]:
    """The command below a shell that first sets limits, or mounts something in a namespace of its own."""
    return ["sh", "-c", f'{limits} && exec "$@"', "sh", *(mpirun(ranks) if ranks else []), *map(str, command)]


def in_namespace(mounts: str, *command: object, ranks: int = 0) -> list[str]:
    return ["unshare", "--mount", *limited(mounts, *command, ranks=ranks)]


def refusal(command: list[str], ranks: int = 0, **options: object) -> str:
    """The only line of ours, of a command that fails; alone it says nothing else, and ends with 1."""
    done = start(command, **options)
    (line,) = own_lines(done.stderr)
    assert "Traceback" not in done.stderr
    assert "total" not in done.stdout
    if not ranks:
        assert without_progress(done.stderr) == line + "\n"
    assert done.returncode == 1
    return line


def is_mpich() -> bool:
    return family_of(mpirun(1)[0]) == "MPICH"


def test_a_limit_to_the_size_of_files_is_known_before_anything_is_computed(tmp_path):
    line = refusal(limited("ulimit -f 100", *MATMUL, 200, 200, 200, "--out", tmp_path / "C.npy"))
    limit = r"\d+\.\d KiB"  # shells count in blocks of 512 or 1024 bytes
    assert re.search(rf"C\.npy takes 312\.6 KiB, files may have {limit} at most: ulimit -f unlimited", line)
    assert not list(tmp_path.iterdir())


def test_too_few_open_files_for_mpi_are_named():
    line = refusal(limited("true", "sh", "-c", 'ulimit -n 32 && exec "$@"', "sh", *MATMUL, 9, 9, 9, ranks=2), ranks=2)
    assert "a process may open 32 files only" in line
    assert "ulimit -n 1024" in line


def test_a_low_limit_is_raised_where_it_may_be():
    done = start(limited("true", "sh", "-c", 'ulimit -S -n 32 && exec "$@"', "sh", *MATMUL, 9, 9, 9, ranks=2))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
@pytest.mark.parametrize(("code", "said"), [
    ("shutil.rmtree('out')", "{folder} is no folder any more"),
    ("shutil.rmtree('out'); open('out', 'w').close()", "{folder} is no folder any more"),
    ("os.mkdir('out/C.npy')", "Is a directory"),
])  # fmt: skip
def test_an_output_folder_that_vanishes_or_becomes_something_else(tmp_path, ranks, code, said):
    (tmp_path / "out").mkdir()
    command = limited("true", *MEDDLED, "multiply", code, 20, 20, 20, "--out", "out/C.npy", ranks=ranks)
    line = refusal(command, ranks, cwd=tmp_path)
    assert line.endswith(f": out/C.npy cannot be written: {said.format(folder=tmp_path / 'out')}")


@pytest.mark.parametrize("ranks", exhaustive([2], [0, 2]))
def test_a_matrix_that_is_cut_short_while_it_is_read(tmp_path, ranks):
    """Memory that is mapped to it would end the process by a SIGBUS, as a full /dev/shm does."""
    np.save(tmp_path / "A.npy", np.ones((600, 500)))
    command = limited("true", *MEDDLED, "fill", "os.truncate('A.npy', 10000)", 600, 500, 40, "--a", "A.npy", ranks=ranks)
    line = refusal(command, ranks, cwd=tmp_path)
    assert re.search(r": \S+/A\.npy has become shorter while it was read", line)


@pytest.mark.needs("namespaces")
def test_a_full_disk_is_known_before_anything_is_computed(tmp_path):
    mount = f"mount -t tmpfs -o size=128k tmpfs {tmp_path}"
    line = refusal(in_namespace(mount, *MATMUL, 200, 200, 200, "--out", tmp_path / "C.npy"))
    assert line.endswith(f"C.npy takes 312.6 KiB, 128.0 KiB are free in {tmp_path}: 184.6 KiB are missing")
    fill = f"{mount} && {{ cat /dev/zero >{tmp_path}/other 2>{tmp_path}/said || true; }}"
    line = refusal(in_namespace(fill, *MATMUL, 200, 200, 200, "--out", tmp_path / "C.npy"))
    assert line.endswith(f"C.npy takes 312.6 KiB, 0 B are free in {tmp_path}: 312.6 KiB are missing")


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("form", [
    "npy", pytest.param("h5", marks=pytest.mark.needs("h5py")), pytest.param("zarr", marks=pytest.mark.needs("zarr")), "mtx",
])  # fmt: skip
@pytest.mark.parametrize("taken", ["cat", "head -c 600k"])  # all that is free, or most of it
def test_a_disk_that_fills_meanwhile_is_named_with_the_file(tmp_path, form, taken):
    fill = f"os.system('{{}} /dev/zero >{tmp_path}/other 2>/dev/null')"
    command = [*MEDDLED, "multiply", fill.format(taken), 150, 150, 150, "--out", tmp_path / f"C.{form}"]
    line = refusal(in_namespace(f"mount -t tmpfs -o size=700k tmpfs {tmp_path}", *command))
    takes = {"npy": r"175\.9", "mtx": r"549\.4"}.get(form, r"1\d\d\.\d")
    wanted = (
        rf"C\.{form} cannot be written: No space left on device: it takes {takes} KiB, \d+(\.0 Ki| )B are free in {tmp_path}$"
    )
    assert re.search(wanted, line)


@pytest.mark.needs("c compiler")
@pytest.mark.needs("namespaces")
def test_kernels_that_the_caches_disk_has_no_room_for_are_kept_among_the_temporary_files(tmp_path):
    cache, temporary = tmp_path / "cache", tmp_path / "temporary"
    for folder in (cache, temporary):
        folder.mkdir()
    command = (*MATMUL, 9, 9, 9, "--device", "cpu", "--kernel", "loops")
    environment = {"XDG_CACHE_HOME": str(cache), "TMPDIR": str(temporary)}
    full = f"mount -t tmpfs -o size=8k tmpfs {cache}"
    done = start(in_namespace(full, *command), **environment)
    assert done.returncode == 0, done.stderr
    why = f"{cache}/hybrid-runner/emulation cannot be used (No space left on device)"
    kept = temporary / f"hybrid-runner-{os.geteuid()}" / "emulation"
    said = f"hybrid.matmul: compiled kernels are kept in {kept}: {why}; HYBRID_CACHE names a better place"
    assert own_lines(done.stderr) == [said]
    assert list(kept.glob("*.so"))
    shutil.rmtree(kept)
    nowhere = f"{full} && mount -t tmpfs -o size=8k tmpfs {temporary}"
    line = refusal(in_namespace(nowhere, *command), **environment)
    assert line.endswith(
        f"compiled kernels cannot be kept in {cache}/hybrid-runner/emulation, nor in {kept} (No space left on device): "
        "make room there, or set HYBRID_CACHE"
    )


@pytest.mark.needs("namespaces")
def test_a_read_only_dev_shm():
    command = in_namespace("mount -t tmpfs tmpfs /dev/shm && mount -o remount,ro /dev/shm", *MATMUL, 9, 9, 9, ranks=2)
    if is_mpich():
        assert "/dev/shm is read-only" in refusal(command, ranks=2)
    else:  # Open MPI takes the folder for temporary files, and so do we
        done = start(command)
        assert done.returncode == 0, done.stderr


@pytest.mark.needs("namespaces")
def test_a_dev_shm_that_is_too_small_for_mpi_or_the_matrices_is_named_with_what_is_missing():
    small = in_namespace("mount -t tmpfs -o size=1m tmpfs /dev/shm", *MATMUL, 300, 300, 300, ranks=2)
    wanted = r"MPI needs 2\.0 MiB of /dev/shm for 2 ranks" if is_mpich() else r"needs 2\.1 MiB of shared memory"
    assert re.search(rf"{wanted}.* 1\.0 MiB are free: 1\.\d MiB are missing", refusal(small, ranks=2))


@pytest.mark.needs("namespaces")
def test_a_dev_shm_that_is_filled_while_the_job_starts():
    mount = "mount -t tmpfs -o size=40m tmpfs /dev/shm"
    late = in_namespace(mount, *MEDDLED, "scatter", FILL.format(leave=10), 1200, 1200, 500, ranks=2)
    assert re.search(
        r"matrices need \d+\.\d MiB of /dev/shm, for the next \S+ MiB of them too little was free", refusal(late, ranks=2)
    )


@pytest.mark.needs("namespaces")
@pytest.mark.exhaustive
def test_a_dev_shm_that_is_filled_before_mpi_takes_its_part():
    if not is_mpich():
        pytest.skip("needs MPICH, whose memory ends the process where there is none")
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    done = start(in_namespace(mount, *MEDDLED, "MPI start", FILL.format(leave=1), 9, 9, 9, ranks=2))
    lines = own_lines(done.stderr)
    assert lines
    assert all(re.search(r"start: was killed by SIGBUS \(is /dev/shm full\? .* are free, 8\.0 MiB were", line) for line in lines)
