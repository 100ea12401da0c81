# SPDX-License-Identifier: MIT
"""A signal to a worker, its supervisor, all ranks or mpirun ends the job within seconds: with the exit code of the table in
docs/failures.md, one line that names the cause by its code, and nothing that stays."""

import contextlib
import os
import re
import socket
import subprocess
import threading
from pathlib import Path
from signal import SIGABRT, SIGBUS, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, SIGUSR1, SIGUSR2

import pytest
from support.jobs import open_mpi
from support.selection import exhaustive

pytestmark = pytest.mark.launcher

SIZES = ("-m", "hybrid.matmul", 200, 200, 200, "--threads", 1)
ENDLESS = (*SIZES, "--repeat", 10**7)
SUPERVISOR, WORKER = 0, 1


@pytest.fixture
def running(start):
    """A job whose ranks multiply, and of each rank its supervisor and its worker."""

    def one(ranks=2, arguments=ENDLESS, **more):
        job = start(arguments, ranks, **more)
        job.wait_for("C (200×200)")
        return job, job.processes()

    return one


# The signal, to whom of rank 1, the exit code of mpirun, and the code of the only line.
OF_A_RANK = [
    (SIGKILL, WORKER, 137, "killed"), (SIGSEGV, WORKER, 139, "killed"), (SIGUSR1, WORKER, 138, "killed"),
    (SIGHUP, WORKER, 129, "killed"), (SIGTERM, SUPERVISOR, 143, "terminated"), (SIGABRT, SUPERVISOR, 134, "killed"),
    (SIGUSR1, SUPERVISOR, 138, "killed"), (SIGUSR2, SUPERVISOR, 140, "killed"), (SIGHUP, SUPERVISOR, 129, "killed"),
    (SIGINT, SUPERVISOR, 1, "interrupted"),
]  # fmt: skip


@pytest.mark.parametrize(("signum", "whom", "code", "cause"), exhaustive([OF_A_RANK[i] for i in (0, 4, 6, 9)], OF_A_RANK))
def test_mpirun_ends_with_the_code_of_the_rank_that_was_hit(running, signum, whom, code, cause):
    job, processes = running()
    job.send(signum, processes[1][whom])
    end = job.end()
    assert (end.code, end.codes, end.left) == (code, [cause], [])
    # Where the first product was complete, a request to end is answered by rank 0, for all.
    assert cause == "terminated" or re.search(rf"rank 1 on {re.escape(os.uname().nodename)}, [a-z ]+: ", end.lines[0])


@pytest.mark.parametrize("signum", exhaustive([SIGKILL], [SIGBUS, SIGKILL, SIGUSR1]))
def test_ranks_that_get_a_signal_all_at_once_say_so_once(running, signum):
    """As where the kernel finds /dev/shm or memory full, or Slurm's --signal ends a step."""
    job, processes = running(3)
    job.send(signum, *(pair[WORKER] for pair in processes.values()))
    end = job.end()
    assert (end.code, end.codes, end.left) == (128 + signum, ["killed"], [])


# To mpirun, or to its group of processes as from a terminal: the exit code and our lines with MPICH, and with Open MPI.
TO_MPIRUN = [
    (SIGTERM, (143, ["terminated"]), (1, [])),
    (SIGINT, (1, ["interrupted"]), (1, [])),
    (SIGHUP, (-SIGHUP, []), (1, [])),
    (SIGUSR1, (138, ["killed"]), (138, ["killed"])),
    (SIGUSR2, (-SIGUSR2, []), (140, ["killed"])),
    (SIGKILL, (-SIGKILL, []), (-SIGKILL, [])),
]
CASES = [(*case, group) for case in TO_MPIRUN for group in (False, True) if not (group and case[0] == SIGKILL)]


@pytest.mark.parametrize(
    ("signum", "mpich", "of_open_mpi", "group"),
    exhaustive([case for i, case in enumerate(CASES) if i in (0, 3, 4, 6, 10)], CASES),
)
def test_what_mpirun_makes_of_a_signal(running, signum, mpich, of_open_mpi, group):
    job, _ = running(3 if signum in (SIGTERM, SIGINT) else 2)
    if group:
        os.killpg(job.launcher, signum)
    else:
        launchers = job.launchers() if signum == SIGKILL else [job.launcher]
        if signum == SIGKILL:  # else one of them ends the ranks before it is killed itself
            job.send(SIGSTOP, *launchers)
        job.send(signum, *launchers)
    end = job.end()
    assert (end.code, end.codes) == (of_open_mpi if open_mpi() else mpich)
    left = [what for what in end.left if what.startswith("process") or not (open_mpi() and signum == SIGKILL)]
    assert left == [], "without mpirun the ranks end, too; files of an Open MPI that was killed are the doctor's"


def test_a_supervisor_that_is_killed_takes_its_rank_along(running):
    job, processes = running()
    job.send(SIGKILL, processes[1][SUPERVISOR])
    end = job.end()
    assert (end.code, end.codes) == (137 if open_mpi() else 9, [])
    assert not [what for what in end.left if what.startswith("process")]


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_alone_has_a_supervisor_too(running, number):
    """Its own process is the supervisor: Ctrl-C, or the kernel's killing of the worker, ends it with a line."""
    job, processes = running(0)
    job.send((SIGINT, SIGKILL)[number], processes[0][number])
    end = job.end()
    assert (end.code, end.codes, end.left) == ((1, 137)[number], [("interrupted", "killed")[number]], [])


def test_of_one_rank_under_a_launcher_no_file_stays_when_all_of_it_is_killed(running):
    job, processes = running(1)
    job.send(SIGKILL, *processes[0])
    end = job.end()
    assert end.code != 0
    assert open_mpi() or end.left == []


def test_where_no_line_can_be_written_the_exit_code_stays(running):
    with open("/dev/full", "w") as full:
        job, processes = running(0, errors=full.fileno())
        job.send(SIGKILL, processes[0][WORKER])
        assert job.end().code == 137


def test_what_ignores_interrupts_and_hangups_goes_on_ignoring_them(running):
    """As what a script runs in the background, or by nohup."""
    job, processes = running(0, (*SIZES, "--repeat", 300), ignoring=[SIGINT, SIGHUP])
    job.send(SIGINT, *processes[0])
    job.send(SIGHUP, *processes[0])
    end = job.end()
    assert (end.code, end.lines, end.left) == (0, [], [])
    assert "check ok" in end.out


def test_an_interrupt_while_modules_are_loaded_is_one_line(start):
    job = start(["-X", "importtime", "-m", "hybrid.paths", "five", "--length", 3], errors=subprocess.STDOUT)
    job.wait_for("argparse")  # has been loaded, and much else has not
    job.send(SIGINT, -job.launcher)  # to its group, as a terminal does: by now it may be a supervisor and a worker
    end = job.end()
    assert end.code == 1
    (line,) = (line for line in end.out.splitlines() if not line.startswith("import time:"))
    where = re.escape(f"rank 0 on {os.uname().nodename}, start: ")  # told where the rank is known already
    assert re.fullmatch(rf"hybrid(\.paths)?: ({where})?interrupted \[interrupted\]", line)


# --- processes that stand still

STALL = ("--stall", 6)


@pytest.mark.parametrize("ranks", exhaustive([2], [2, 4]))
def test_a_worker_that_stands_still_is_named_and_ended(running, ranks):
    job, processes = running(ranks, (*ENDLESS, *STALL))
    job.send(SIGSTOP, *processes[1][WORKER:])
    end = job.end()
    assert (end.code, end.codes, end.left) == (1, ["stalled"], [])
    assert "rank 1 on" in end.lines[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_job_that_was_put_to_sleep_as_a_whole_goes_on(running, ranks):
    job, processes = running(ranks, (*SIZES, "--repeat", 200, *STALL))
    everybody = [process for pair in processes.values() for process in pair]
    job.send(SIGSTOP, *everybody)
    assert not job.has_ended(16)  # longer than any rank may be silent
    job.send(SIGCONT, *everybody)
    end = job.end()
    assert (end.code, end.lines, end.left) == (0, [], [])
    assert "check ok" in end.out


def test_datagrams_of_others_change_nothing(running):
    """At the sockets of a job, while it says why it ends."""
    job, processes = running(3)
    ended = threading.Event()

    def flood():
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            while not ended.is_set():
                for name in re.findall(r"@(hybrid-\S+)", Path("/proc/net/unix").read_text()):
                    with contextlib.suppress(OSError):  # its queue is full
                        while True:
                            sending.sendto(b"rank 7 is well", f"\0{name}")

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        job.send(SIGKILL, processes[1][WORKER])
        end = job.end()
    finally:
        ended.set()
        flooding.join()
    assert (end.code, end.codes, end.left) == (137, ["killed"], [])
