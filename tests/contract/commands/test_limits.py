# SPDX-License-Identifier: MIT
"""What the system refuses, or takes away meanwhile, is one line that names it (docs/failures.md): open files, a small
/dev/shm, memory, and threads that cannot be started."""

import os
import shlex
import sys

import numpy as np
import pytest
from support.commands import start
from support.jobs import open_mpi
from support.matmul import MATMUL, code_in, good, line_of_failure, record, run

import hybrid
from hybrid.testing import mpirun

pytestmark = pytest.mark.launcher


def below(limits, *command, namespace=False):
    """The command below a shell that first sets limits, or mounts something in a namespace of its own."""
    words = f"{limits} && exec {shlex.join(map(str, command))}"
    return start([*(["unshare", "--mount"] if namespace else []), "sh", "-c", words], limit=120)


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize(
    ("mount", "word"),
    [
        ("mount -t tmpfs tmpfs /dev/shm && mount -o remount,ro /dev/shm", "/dev/shm"),
        ("mount -t tmpfs -o size=1m tmpfs /dev/shm", "1.0 MiB"),
    ],
)
def test_a_dev_shm_that_is_read_only_or_too_small_is_named(mount, word):
    done = below(mount, *mpirun(2), *MATMUL, 300, 300, 300, namespace=True)
    if "ro" in mount.split(",") and open_mpi():  # Open MPI takes the folder for temporary files
        assert done.returncode == 0, done.stderr
        return
    line = line_of_failure(done, 1)
    assert word in line
    assert code_in(line) == "shared-memory"


@pytest.mark.needs("namespaces")
def test_a_dev_shm_that_mpi_alone_fits_is_enough():
    done = below("mount -t tmpfs -o size=24m tmpfs /dev/shm", *mpirun(2), *MATMUL, 1200, 1200, 2000, namespace=True)
    assert done.returncode == 0, done.stderr


def test_a_matrix_as_text_that_needs_more_memory_than_there_is_is_refused_before(tmp_path):
    with open(tmp_path / "A.mtx", "w") as file:
        file.write("%%MatrixMarket matrix coordinate real general\n1000000000000 1000000000000 1\n1 1 1\n")
    line = line_of_failure(run("--a", "A.mtx", "--b", "A.mtx", cwd=tmp_path), 1)
    assert code_in(line) == "host-memory"


def test_threads_are_those_asked_for_and_say_who_asked():
    of_slurm = {"SLURM_CPUS_PER_TASK": "2", "OMP_NUM_THREADS": "5"}
    assert good(8, 8, 8, way="2 ranks", **of_slurm).stdout.count("2 threads (SLURM_CPUS_PER_TASK)") == 2
    assert "3 threads (--threads)" in good(8, 8, 8, "--threads", 3, **of_slurm).stdout
    assert "5 threads (OMP_NUM_THREADS)" in good(8, 8, 8, OMP_NUM_THREADS="5,2", SLURM_CPUS_PER_TASK="").stdout


def test_without_a_word_a_rank_takes_its_share_of_the_cores_it_may_use():
    cores = sorted(os.sched_getaffinity(0))
    command = [*MATMUL, "8", "8", "8"]
    program = f"import os; os.sched_setaffinity(0, {cores[:1]}); os.execvp({command[0]!r}, {command!r})"
    assert "1 thread " in start([sys.executable, "-c", program], OMP_NUM_THREADS="", SLURM_CPUS_PER_TASK="").stdout
    all_of_them = good(8, 8, 8, OMP_NUM_THREADS="", SLURM_CPUS_PER_TASK="").stdout
    assert f"{len(cores)} thread" in all_of_them or "quota" in all_of_them
    both = record(8, 8, 8, way="2 ranks", OMP_NUM_THREADS="", SLURM_CPUS_PER_TASK="")["placements"]
    assert all(each["threads"] == max(1, len(cores) // 2) for each in both) or "quota" in str(both)


@pytest.mark.parametrize(
    "shown_by", [lambda c: c[3:5], lambda c: c.T, lambda c: memoryview(c), np.from_dlpack, lambda c: c.view(np.uint8)]
)
def test_memory_of_results_serves_the_next_ones_but_never_what_is_still_shown(shown_by):
    a, b = np.ones((700, 2)), np.ones((2, 700))
    view = shown_by(hybrid.multiply(a, b))
    kept = np.array(view)
    for factor in range(2, 5):
        assert (hybrid.multiply(a, factor * b) == 2 * factor).all()
    np.testing.assert_array_equal(np.asarray(view), kept)
