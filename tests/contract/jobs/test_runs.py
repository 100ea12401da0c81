# SPDX-License-Identifier: MIT
"""`python -m hybrid.run program.py` is `python program.py`: output, exit code, traceback and arguments are the program's,
alone and as rank 0 of a job, whose other ranks serve its products. What ends a rank ends the program, with one line."""

import os
import subprocess
import sys
import time
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1

import pytest
from support.commands import ROOT, module, mpirun, own_lines, start, successful
from support.selection import exhaustive

pytestmark = pytest.mark.needs("compiler")
RUN = module("hybrid.run")
RANKS = [0, pytest.param(2, marks=pytest.mark.launcher)]
PROGRAM = """
import atexit, os, pickle, signal, sys, threading, time
assert "numpy" not in sys.modules
import numpy

class Own(Exception):
    pass

def inner(word):
    if word == "raise":
        raise Own("because") from ValueError("of this")
    if word == "interrupt":
        raise KeyboardInterrupt
    if word == "fork":
        sys.stdout.flush()
        child = os.fork()
        if not child:
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if word == "signal":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        os.kill(os.getpid(), signal.SIGTERM)
    if word == "wait":
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(each, lambda *_: (time.sleep(6), sys.exit(7)))
        print("ready", flush=True)
        time.sleep(100)
    if word == "hook":
        sys.excepthook = lambda kind, *_: sys.exit(9)
        raise Own
    if word in ("3", "text"):
        sys.exit(int(word) if word.isdecimal() else word)

def later():
    time.sleep(0.2)
    print("thread", (a @ b).sum(), pickle.loads(pickle.dumps(Own("late"))))

if __name__ == "__main__":
    atexit.register(lambda: print("atexit", (a @ b).sum()))
    print(sys.argv, __file__, sys.path[0], sys.stdin.read())
    print("to standard error", file=sys.stderr)
    a, b = numpy.ones((40, 30)), numpy.ones((30, 20))
    print((a @ b).sum(), (a.T @ a).sum())
    if "thread" in sys.argv:
        threading.Thread(target=later).start()
    inner(sys.argv[-1])
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def ended(words, ranks=0, text="from standard input"):
    """Standard output, what stands on standard error but for the launcher's, and the exit code."""
    command = [*(mpirun(ranks) if ranks else []), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, input=text, timeout=100, cwd=ROOT)
    lines = done.stderr.splitlines()
    launchers = next((i for i, line in enumerate(lines) if line.startswith(("---", "====", "\n---"))), len(lines))
    return done.stdout, [line for line in lines[:launchers] if line.strip("\0 ")], done.returncode


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("words", ["one --two", "thread 3", "text", "raise", "interrupt", "signal", "fork", "hook"])
def test_a_program_does_what_it_does_by_itself(program, words, ranks):
    words = words.split()
    out, errors, code = ended([sys.executable, program, *words])
    got = ended([*RUN, "--threshold", 1, "--threads", 1, "--report", program, *words], ranks)
    report = [line for line in got[1] if line.startswith("hybrid.run: ")]
    assert got[0] == out
    assert [line for line in got[1] if line not in report] == errors
    # An interrupt that nobody catches ends a process by the signal, and a rank by the exit code that a shell makes of it.
    assert got[2] == (code if code >= 0 or not ranks else 128 - code)
    made = 3 + (words[0] == "thread" and not ranks)  # products of other threads than the main one are not shared
    assert report[0].startswith(f"hybrid.run: {made} of ")


@pytest.mark.parametrize("ranks", RANKS)
def test_a_module_runs_as_by_python_m(ranks):
    asked = ["-m", "json.tool", "--compact", "-"]
    assert ended([*RUN, *asked], ranks, "[1,   2]") == ended([sys.executable, *asked], text="[1,   2]")


@pytest.mark.launcher
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_ends_the_program_with_one_line(start, rank):
    waiting = "import numpy, time; a = numpy.ones((50, 50)); print((a @ (a + 1)).sum(), flush=True); time.sleep(100)"
    job = start(["-m", "hybrid.run", "--threshold", 1, "-m", "timeit", "-n", 1, "-r", 1, waiting], 2)
    job.wait_for("5000")
    if rank:
        time.sleep(3)
        before, began = taken(job.processes()[1]), time.monotonic()
        time.sleep(3)
        # A rank that waits sleeps: docs/use-it.md tells 0.6 % of a core; one that spins takes all that others leave to it.
        assert taken(job.processes()[1]) - before < 0.2 * (time.monotonic() - began)
    job.send(SIGKILL, job.processes()[rank][1])
    end = job.end()
    assert (end.code, end.codes, end.left) == (137, ["killed"], [])


def taken(processes):
    """The seconds of a core that they have had."""
    tasks = (each for process in processes for each in Path(f"/proc/{process}/task").glob("*/schedstat"))
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


@pytest.mark.launcher
@pytest.mark.parametrize("signum", exhaustive([SIGTERM], [SIGINT, SIGTERM, SIGUSR1]))
def test_the_program_decides_what_a_signal_to_all_ranks_does(start, program, signum):
    job = start(["-m", "hybrid.run", "--threshold", 1, program, "wait"], words=mpirun(2))  # without a /tmp of its own
    job.wait_for("ready")
    job.send(signum, *(-os.getpgid(pair[0]) for pair in job.processes().values()))
    end = job.end()
    assert (end.code, end.out.splitlines()[-1], end.lines) == (7, "atexit 24000.0", [])


@pytest.mark.launcher
def test_a_program_that_uses_mpi_itself_is_refused_in_a_job_and_runs_alone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("try:\n    import mpi4py\nexcept ImportError: pass\nprint('done')\n")
    assert successful(start(RUN, program)).stdout == "done\n"
    done = start(RUN, program, ranks=2)
    assert done.returncode == 2
    assert [line.rpartition(" ")[2] for line in own_lines(done.stderr)] == ["[option-combination]"]
    assert "hybrid.use(comm)" in done.stderr
