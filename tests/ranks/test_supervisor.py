# SPDX-License-Identifier: MIT
"""The process that watches a rank, in its first moments. How it ends jobs, tests/commands tell."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from hybrid.ranks.pulse import Neighbours, Pulse

# The signal comes when there is a worker, and not yet a handler for it.
PROGRAM = """
import os, signal, sys, time
from hybrid.ranks import supervisor

signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # nohup has processes ignore SIGHUP, and a supervisor keeps to that
begin = supervisor._Watch.__init__

def begin_late(*given):
    os.kill(os.getpid(), int(sys.argv[1]))
    begin(*given)

supervisor._Watch.__init__ = begin_late
supervisor.supervised(lambda: time.sleep(60), 0, None)
"""


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM], ids=lambda signum: signum.name)
def test_a_signal_before_there_are_handlers_is_answered_by_them(signum):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(signum))], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 128 + signum
    (line,) = ended.stderr.splitlines()
    assert f"killed by {signum.name}" in line or (signum == signal.SIGTERM and "asked to end" in line), line


# Another rank has failed seconds ago, as the supervisors tell each other, and no launcher ends this rank, which goes on.
NODE_CUT_OFF = """
import time
from hybrid.ranks import supervisor
from hybrid.ranks.heartbeat import heartbeat
from hybrid.ranks.pulse import Pulse

began = time.monotonic()
Pulse.since_failure = lambda pulse: time.monotonic() - began
supervisor._JOB_ENDS = 0.5
supervisor._pulse = lambda stall: Pulse()

def work():
    while True:
        heartbeat("multiply")
        time.sleep(0.05)

supervisor.supervised(work, 60, None)
"""


def test_a_rank_that_its_launcher_does_not_end_after_another_s_failure_ends_without_a_word():
    """The other one has said why; this one's launcher is on a node that is cut off."""
    ended = subprocess.run([sys.executable, "-c", NODE_CUT_OFF], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


# The supervisor's own polls are too rare to hear a neighbour in time.
MEETING = """
import os, time
from hybrid.ranks import heartbeat, supervisor
from hybrid.ranks.pulse import Neighbours, Pulse

supervisor._POLL = supervisor._POLL_AT_START = 20.0
supervisor._pulse = lambda stall: Pulse()

def work():
    line = Neighbours("ab" * 16, heartbeat.supervisor_port(), ("127.0.0.1",), 0, False, "n").as_line()
    heartbeat.tell_neighbours(line)
    time.sleep(0.3)
    Pulse().start(line)
    deadline = time.monotonic() + 10
    while not heartbeat.neighbour_heard() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(heartbeat.neighbour_heard(), flush=True)
    heartbeat.report_exit_code(0)
    os._exit(0)

supervisor.supervised(work, 60, None)
"""


def test_a_supervisor_hears_its_neighbour_at_once():
    """Each poll that it waited for would make the start of a job on several nodes longer."""
    ended = subprocess.run([sys.executable, "-c", MEETING], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "True\n", ended.stderr


# What else is done where MPI cannot start: ends with 5.
ENDS = """
import os, sys
from hybrid.ranks import heartbeat, supervisor

def work():
    if sys.argv[1] == "started":
        heartbeat.mpi_started()
    os._exit(9)

supervisor.supervised(work, 0, lambda how: 5)
"""


@pytest.mark.parametrize(("when", "code"), [("before", 5), ("started", 9)])
def test_a_worker_that_ends_after_mpi_has_started_is_no_failed_start(when, code):
    ended = subprocess.run([sys.executable, "-c", ENDS, when], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == code
    assert ("exited with code 9" in ended.stderr) is (when == "started")


# Its neighbour listens at a port.
WITH_NEIGHBOUR = """
import os, sys
from hybrid.ranks import heartbeat, supervisor
from hybrid.ranks.pulse import Neighbours, Pulse

supervisor._pulse = lambda stall: Pulse()

def work():
    heartbeat.tell_neighbours(Neighbours("ab" * 16, int(sys.argv[1]), ("127.0.0.1",), 0, False, "n").as_line())
    if sys.argv[2] == "0":
        heartbeat.report_exit_code(0)
    os._exit(int(sys.argv[2]))

supervisor.supervised(work, 60, None)
"""


@pytest.mark.parametrize("code", [0, 9])
def test_a_rank_that_fails_and_no_other_tells_its_neighbour_so(code):
    listener = Pulse()
    listener.start(Neighbours("ab" * 16, 9, ("127.0.0.1",), 0, False, "n").as_line())
    command = [sys.executable, "-c", WITH_NEIGHBOUR, str(listener.port), str(code)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == code, ended.stderr
    listener.beat()
    time.sleep(0.01)
    assert (listener.since_failure() > 0) is (code > 0)
    assert listener.silence() == 0, "it has ended"
