# SPDX-License-Identifier: MIT
"""Signals to a worker, its supervisor, both, or the launcher: one line, the documented exit code, and nothing stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import own_lines
from support.processes import catches
from support.selection import exhaustive

from experiments.ordeal.job import Job
from hybrid.ranks.launcher import family_of, mpirun

pytestmark = [pytest.mark.launcher, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")]

STALL = 2  # seconds
LIMIT = 15  # seconds within which a job must have ended
LONG = ("-m", "hybrid.matmul", "600", "600", "600", "--threads", "1", "--stall", str(STALL), "--repeat")


_jobs: list[Job] = []  # of the test that runs


@pytest.fixture(autouse=True)
def jobs_end():
    """Those of a test that fails, too, which would multiply a million times."""
    yield
    while _jobs:
        job = _jobs.pop()
        if not job.ended(0):
            job.end()


def started(ranks: int, repeat: int) -> tuple[Job, dict[int, list[int]]]:
    """A job whose ranks multiply, and of each rank its supervisor and its worker."""
    job = Job([*LONG, str(repeat)], ranks, {}, {})
    _jobs.append(job)
    deadline = time.monotonic() + LIMIT
    while "C (600×600)" not in job.printed() and time.monotonic() < deadline:
        time.sleep(0.05)
    return job, job.rank_processes()


def ended(job: Job) -> tuple[int | None, str, list[str]]:
    """The exit code, standard output, and the lines of ours that are no progress."""
    in_time = job.ended(LIMIT)
    remains = job.remains()
    code, (out, err) = job.exit_code, job.said()
    assert in_time, err
    assert remains == [], err
    return code, out, own_lines(err)


def of_open_mpi() -> bool:
    return family_of(mpirun(1)[0]) == "Open MPI"


WORKER, SUPERVISOR = 1, 0
ENDS = [
    (signal.SIGKILL, WORKER, 137, r"was killed by SIGKILL \(out of memory\?\)"),
    (signal.SIGSEGV, WORKER, 139, "was killed by SIGSEGV"),
    (signal.SIGTERM, SUPERVISOR, 143, "asked to end"),
    (signal.SIGABRT, SUPERVISOR, 134, "was killed by SIGABRT"),
    (signal.SIGUSR1, WORKER, 138, "was killed by SIGUSR1"),
    (signal.SIGUSR1, SUPERVISOR, 138, "was killed by SIGUSR1"),
    (signal.SIGHUP, WORKER, 129, "was killed by SIGHUP"),
    (signal.SIGHUP, SUPERVISOR, 129, "was killed by SIGHUP"),
    (signal.SIGUSR2, SUPERVISOR, 140, "was killed by SIGUSR2"),
    (signal.SIGINT, SUPERVISOR, 1, "interrupted"),
]


@pytest.mark.parametrize(("signum", "whom", "code", "words"), exhaustive([ENDS[0], ENDS[2], *ENDS[4:8]], ENDS))
def test_the_launcher_ends_with_the_code_of_the_rank_that_was_hit(signum, whom, code, words):
    job, processes = started(2, 10**6)
    job.send(signum, [processes[1][whom]])
    got, _, (line,) = ended(job)
    # A request to end that comes after the first product is answered by rank 0, which reports what was finished.
    assert re.search(rf"(rank 1 on \S+, .+: |^hybrid: (?=asked)).*{words}", line), line
    assert got == code


def test_a_job_that_is_asked_to_end_after_its_first_products_reports_them():
    job, processes = started(2, 10**6)
    supervisor, worker = processes[0]
    while not catches(signal.SIGTERM, Path(f"/proc/{worker}/status").read_text()):  # which it does from its first product on
        time.sleep(0.05)
    job.send(signal.SIGTERM, [supervisor])
    code, out, (line,) = ended(job)
    assert re.fullmatch(r"hybrid: asked to end: [1-9]\d* of 1000000 products were finished", line), line
    assert "check ok" in out
    assert code == 143


@pytest.mark.parametrize(("signum", "code", "words"), [(signal.SIGTERM, 143, "asked to end"), (signal.SIGINT, 1, "interrupted")])
def test_a_launcher_that_is_asked_to_end_says_so_once(signum, code, words):
    if of_open_mpi():
        pytest.skip("Open MPI's mpirun says it itself, and ends with 1")
    job, _ = started(3, 10**6)
    job.send(signum, [job.launcher])
    got, _, (line,) = ended(job)
    assert words in line
    assert got == code


def test_a_job_of_which_all_get_sigusr1_says_so_once():
    """As Slurm's --signal=USR1 does it; mpirun passes it on."""
    job, processes = started(2, 10**6)
    job.send(signal.SIGUSR1, [process for pair in processes.values() for process in pair])
    job.send(signal.SIGUSR1, [job.launcher])
    code, _, (line,) = ended(job)
    assert re.search(r"rank \d on \S+, .+: was killed by SIGUSR1", line), line
    assert code == 138


@pytest.mark.parametrize(("signum", "expected"), [(signal.SIGBUS, 135), (signal.SIGKILL, 137)])
def test_ranks_that_the_kernel_kills_all_at_once_say_so_once(signum, expected):
    """As where /dev/shm becomes full, or memory."""
    job, processes = started(3, 10**6)
    job.send(signum, [pair[WORKER] for pair in processes.values()])
    code, _, (line,) = ended(job)
    assert re.search(rf"rank 0 on \S+, .+: was killed by {signum.name}", line), line
    assert code == expected


def test_sigusr1_to_the_launcher_alone_ends_the_job_in_a_line():
    job, _ = started(2, 10**6)
    job.send(signal.SIGUSR1, [job.launcher])
    code, _, (line,) = ended(job)
    assert re.search(r"rank \d on \S+, .+: was killed by SIGUSR1", line), line
    assert code == 138


@pytest.mark.parametrize(
    ("signum", "with_mpich", "with_open_mpi"),
    [
        (signal.SIGHUP, -signal.SIGHUP, 1),
        (signal.SIGUSR2, -signal.SIGUSR2, 140),
        pytest.param(signal.SIGTERM, None, 1, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGINT, None, 1, marks=pytest.mark.exhaustive),
    ],
)
def test_what_the_launcher_makes_of_a_signal_to_its_process_group(signum, with_mpich, with_open_mpi):
    """As the table of exit codes says. Where the launcher is killed, or drops what the ranks print, no line of ours comes."""
    expected = with_open_mpi if of_open_mpi() else with_mpich
    if expected is None:
        pytest.skip("MPICH's mpirun passes it on")
    job, _ = started(2, 10**6)
    os.killpg(job.launcher, signum)
    code, _, lines = ended(job)
    assert code == expected
    assert len(lines) == (code == 140)


def starting(ranks: int, processes: int) -> tuple[Job, dict[int, list[int]]]:
    """A job of which each rank has so many processes at least: first its supervisor, then its worker, which starts MPI."""
    job, there = Job([*LONG, "1000000"], ranks, {}, {}), {}
    while sum(len(own) >= processes for own in there.values()) < ranks and not job.ended(0.01):
        there = job.rank_processes()
    return job, there


@pytest.mark.parametrize(("signum", "whom"), [(signal.SIGUSR1, SUPERVISOR), (signal.SIGUSR1, WORKER), (signal.SIGKILL, WORKER)])
def test_a_rank_that_is_killed_while_mpi_starts_is_named_and_no_other_that_fails_for_that(signum, whom):
    job, processes = starting(2, 2)
    job.send(signum, [processes[1][whom]])
    code, _, (line,) = ended(job)
    assert re.search(rf"rank 1 on \S+, \S+: was killed by {signum.name}", line), line
    assert code == 128 + signum


def test_a_rank_that_is_asked_to_end_while_mpi_starts_says_so_before_mpi_ends_the_others():
    job, processes = starting(2, 2)
    worker = processes[1][WORKER]
    while not any("libmpi" in line for line in Path(f"/proc/{worker}/maps").read_text().splitlines()) and not job.ended(0.01):
        pass  # before that nobody waits for it in MPI_Init
    time.sleep(0.1)
    job.send(signal.SIGTERM, [processes[1][SUPERVISOR]])
    code, _, lines = ended(job)
    assert len(lines) == 1, lines
    line = lines[0]
    assert re.search(r"rank 1 on \S+, \S+: was asked to end", line), line
    assert code == 143 or (of_open_mpi() and code == 14)  # what Open MPI's MPI_Init ends rank 0 with when it has lost rank 1


@pytest.mark.parametrize("ranks", exhaustive([2], [2, 3]))
def test_a_launcher_that_is_interrupted_while_mpi_starts_says_so_once(ranks):
    if of_open_mpi():
        pytest.skip("Open MPI's mpirun says it itself, and ends with 1")
    job, _ = starting(ranks, 2)
    job.send(signal.SIGINT, [job.launcher])
    code, _, (line,) = ended(job)
    assert code == 1
    assert line.endswith("interrupted")


@pytest.mark.exhaustive
def test_a_rank_that_stands_still_before_it_has_a_worker_leaves_no_file_of_the_others():
    job, processes = starting(3, 1)
    job.send(signal.SIGSTOP, processes[1])
    code, _, (line,) = ended(job)
    assert code == 1
    assert re.search(r"start: (showed no progress|has heard nothing)", line), line


@pytest.mark.parametrize("ranks", exhaustive([2], [2, 4]))
def test_a_rank_of_which_all_processes_stand_still_is_named(ranks):
    job, processes = started(ranks, 10**6)
    job.send(signal.SIGSTOP, processes[1])
    code, _, (line,) = ended(job)
    assert code == 1
    assert re.search(rf"rank {2 % ranks} on \S+, .+: has heard nothing of rank 1 on \S+ for 3\.5 s", line), line


def test_a_supervisor_that_stands_still_keeps_no_job_from_ending():
    job, processes = started(2, 100)
    job.send(signal.SIGSTOP, [processes[1][SUPERVISOR]])
    code, out, lines = ended(job)
    assert (code, lines) == (0, [])
    assert "check ok" in out


@pytest.mark.exhaustive
def test_a_job_that_slept_for_longer_than_any_rank_may_be_silent_goes_on():
    job, processes = started(2, 100)
    everybody = [process for pair in processes.values() for process in pair]
    job.send(signal.SIGSTOP, everybody)
    time.sleep(3 * STALL)
    job.send(signal.SIGCONT, everybody)
    code, out, lines = ended(job)
    assert (code, lines) == (0, [])
    assert "check ok" in out


def test_without_its_launcher_a_job_ends_and_leaves_nothing():
    job, _ = started(2, 10**6)
    job.send(signal.SIGKILL, [job.launcher])
    assert job.ended(LIMIT)
    assert job.remains() == []
    job.said()


def test_what_ignores_interrupts_goes_on_ignoring_them():
    """As what a shell script runs in the background."""
    job = Job([*LONG, "100"], 0, {}, {}, ignoring=[signal.SIGINT, signal.SIGHUP])
    while "C (600×600)" not in job.printed() and not job.ended(0.05):
        pass
    job.send(signal.SIGINT, *job.rank_processes().values())
    job.send(signal.SIGHUP, *job.rank_processes().values())
    code, out, lines = ended(job)
    assert (code, lines) == (0, [])
    assert "check ok" in out


def test_where_nothing_can_be_written_a_killed_worker_s_code_stays():
    command = [sys.executable, *LONG, "1000000"]
    with open("/dev/full", "w") as full, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=full, text=True) as process:
        assert process.stdout is not None
        assert "C (600×600)" in process.stdout.readline()
        (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        assert process.wait(LIMIT) == 137
