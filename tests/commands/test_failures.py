# SPDX-License-Identifier: MIT
"""Whatever happens to one rank, the job ends soon, with an exit code and one line that says who, where and when."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import own_lines
from support.leftovers import left
from support.selection import exhaustive, pairwise

from hybrid.ranks.launcher import mpirun

pytestmark = pytest.mark.launcher

FAILING = Path(__file__).parent / "programs" / "failing_rank.py"
INTERRUPTED = FAILING.with_name("interrupted_exchange.py")
LIMIT = 10  # seconds within which a job with a failed rank must have ended
PHASES = ["start", "agree", "fill", "scatter", "copy in", "multiply", "copy out", "gather", "check", "report"]
SAID = {
    "exception": "ValueError: planted",
    "exit 0": r"left (by sys.exit\(0\)|with exit code 0)",
    "exit 5": r"left (by sys.exit\(5\)|with exit code 5)",
    "SIGKILL": "was killed by SIGKILL",
    "SIGTERM": "was killed by SIGTERM",
    "out of memory": "(out of memory|MemoryError)",
}
WAYS = [("exception", "out of memory"), ("exit 0", "exit 5"), ("SIGKILL", "SIGTERM")]  # of failing, with the kinds of each
RANKS = [0, 1]


def failures():
    """With --all every kind in every phase, and any two of phase, way of failing and rank come together; by default every
    phase and every kind comes twice."""
    turns = {way: itertools.cycle(way) for way in WAYS}
    pairs = [(phase, next(turns[way]), rank) for phase, way, rank in pairwise(PHASES, WAYS, RANKS)]
    of_each = [(phase, kind, RANKS[number % 2]) for number, (phase, kind) in enumerate(itertools.product(PHASES, SAID))]
    kinds = itertools.cycle(SAID)
    chosen = [(phase, next(kinds), rank) for rank in RANKS for phase in PHASES]
    return exhaustive(chosen, dict.fromkeys([*chosen, *pairs, *of_each]))


def run(ranks: int, command: list[str], limit: float = LIMIT, **environment: str) -> subprocess.CompletedProcess[str]:
    began = time.monotonic()
    done = subprocess.run(
        [*mpirun(ranks), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    assert time.monotonic() - began <= limit, done.stderr
    return done


@pytest.fixture(autouse=True)
def without_names():
    """A rank that is killed while it waits for one that failed leaves names of files in shared memory, which hold none yet."""
    before = left()
    yield
    for path, status in left().items():
        if path not in before and status.st_blocks == 0:
            path.unlink(missing_ok=True)  # another worker of pytest-xdist may be faster


@pytest.mark.parametrize(("phase", "kind", "rank"), failures())
def test_a_failing_rank_ends_the_job_with_one_line(phase, kind, rank):
    job = [str(FAILING), str(rank), phase, kind, "200", "150", "100"]
    done = run(2, job, HYBRID_STAGED="1", HYBRID_PANEL_ROWS="40", HYBRID_RANKS_PER_NODE="1")
    assert done.returncode != 0
    (line,) = own_lines(done.stderr)
    assert re.search(rf"rank {rank}\b.* on {re.escape(socket.gethostname())}, {phase}: .*{SAID[kind]}", line), line
    assert "total" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("rank", "kind"), exhaustive([(2, "SIGKILL")], itertools.product([0, 2], ["exception", "SIGKILL"])))
def test_any_of_three_ranks_may_fail(rank, kind):
    done = run(3, [str(FAILING), str(rank), "multiply", kind, "90", "90", "90"])
    assert done.returncode != 0
    (line,) = own_lines(done.stderr)
    assert f"rank {rank} " in line


@pytest.mark.parametrize("phase", exhaustive(["multiply"], ["start", "fill", "multiply"]))
def test_a_stopped_rank_is_named_and_the_job_ended(phase):
    done = run(2, [str(FAILING), "1", phase, "SIGSTOP", "200", "150", "100", "--stall", "2"], limit=2 + LIMIT)
    assert done.returncode != 0
    (line,) = own_lines(done.stderr)
    assert re.search(rf"rank 1 on \S+, {phase}: showed no progress for 2 s", line), line


def test_a_rank_alone_is_guarded_too():
    done = subprocess.run(
        [sys.executable, str(FAILING), "0", "multiply", "SIGKILL", "50", "50", "50"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 128 + 9
    assert own_lines(done.stderr) == [
        f"hybrid: rank 0 on {socket.gethostname()}, multiply: was killed by SIGKILL (out of memory?)"
    ]


def test_without_a_guard_an_exception_still_ends_the_job():
    done = run(2, [str(FAILING), "1", "multiply", "exception", "50", "50", "50"], HYBRID_GUARD="0")
    assert done.returncode != 0
    (line,) = own_lines(done.stderr)
    assert "rank 1" in line


def test_debug_shows_where():
    done = run(2, [str(FAILING), "1", "multiply", "exception", "50", "50", "50"], HYBRID_DEBUG="1")
    assert "Traceback" in done.stderr
    assert FAILING.name in done.stderr


@pytest.mark.parametrize("variable", ["HYBRID_GUARD", "HYBRID_DEBUG"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_switch_that_is_neither_on_nor_off_is_refused(variable, ranks):
    done = run(ranks, ["-m", "hybrid.matmul", "9", "8", "7"], **{variable: "maybe"})
    assert done.returncode == 2
    (line,) = own_lines(done.stderr)
    assert line.startswith(f"hybrid.matmul: {variable}='maybe' is neither 1 nor 0")


@pytest.mark.needs("shared memory")
def test_nothing_stays_behind_in_shared_memory():
    size = 310  # no other test's
    run(2, [str(FAILING), "1", "multiply", "SIGKILL", *[str(size)] * 3])
    assert not [path for path, status in left().items() if status.st_size == 8 * size**2]


@pytest.mark.exhaustive
def test_a_long_multiplication_is_no_standstill(tmp_path):
    program = tmp_path / "slow.py"
    program.write_text(
        "import sys, time, numpy, hybrid.devices.cpu, hybrid.commands.matmul\n"
        "def slow(a, b, c):\n"
        "    time.sleep(3)  # as a library may take, without giving a sign\n"
        "    numpy.matmul(a, b, out=c)\n"
        "hybrid.devices.cpu.blas = slow\n"
        "sys.exit(hybrid.commands.matmul.main())\n"
    )
    done = run(2, [str(program), "20", "20", "20", "--stall", "1.5"])
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("compiler")
def test_a_kernel_that_never_ends_is_ended(tmp_path):
    program = FAILING.with_name("endless_kernel.py")
    command = [sys.executable, str(program), str(tmp_path), "40", "30", "20", "--device", "emulate", "--kernel", "naive"]
    done = subprocess.run([*command, "--stall", "1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    (line,) = own_lines(done.stderr)
    assert "multiply: showed no progress for 1 s" in line


def alone(*arguments: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hybrid.matmul", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulate", marks=pytest.mark.needs("compiler"))])
def test_an_interrupt_of_the_process_one_started_ends_it(device):
    job = alone("500", "500", "500", "--repeat", "100000", "--device", device)
    assert job.stdout.readline().startswith("C (500×500)")
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=LIMIT)
    assert job.returncode == 1
    assert [line.endswith(": interrupted") for line in own_lines(said)] == [True]


@pytest.mark.parametrize(
    ("who", "wait"), exhaustive([("all", 8), ("0", 14), ("1", 20)], itertools.product(["all", "0", "1"], (8, 14, 20)))
)
def test_an_interrupt_while_ranks_wait_for_each_other_is_called_one(who, wait):
    """And not OverflowError, AttributeError or "out of memory", as where ranks take one exchange for another."""
    done = run(2, [str(INTERRUPTED), who, str(wait), "five", "--length", "3000"])
    assert done.returncode != 0
    assert [line.rpartition(": ")[2] for line in own_lines(done.stderr) if "hybrid.paths: " in line][-1] == "interrupted"
    (line,) = [line for line in own_lines(done.stderr) if not re.search(r"vertices|primes|multiply …", line)]
    assert line.endswith("interrupted")


def test_an_interrupt_during_the_start_is_one_line():
    job = subprocess.Popen([sys.executable, "-X", "importtime", "-m", "hybrid.paths", "five", "--length", "3"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    for line in job.stderr:
        if "argparse" in line:  # has been imported; much else has not
            break
    job.send_signal(signal.SIGINT)
    out, said = job.communicate(timeout=LIMIT)
    assert (job.returncode, out) == (1, "")
    assert own_lines(said) == ["hybrid.paths: interrupted"]
    assert "Traceback" not in said


@pytest.mark.exhaustive
def test_a_job_that_was_put_to_sleep_goes_on():
    job = alone("500", "500", "500", "--repeat", "100", "--stall", "2", start_new_session=True)
    assert job.stdout.readline().startswith("C (500×500)")
    os.killpg(job.pid, signal.SIGSTOP)
    time.sleep(4)
    os.killpg(job.pid, signal.SIGCONT)
    out, said = job.communicate(timeout=60)
    assert job.returncode == 0, said
    assert "check ok" in out


def test_an_error_of_one_rank_between_two_phases_is_told_by_its_own_name(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom hybrid.commands import matmul\nfrom hybrid.errors import DeviceUnavailable\n"
        "from hybrid.execution import product\n"
        "original = product.rows_from_root\n"
        "def fail(team, *given):\n"
        "    if team.rank == 1:\n        raise DeviceUnavailable('planted')\n"
        "    return original(team, *given)\n"
        "product.rows_from_root = fail\n"
        "sys.exit(matmul.main())\n"
    )
    done = run(2, [str(program), "30", "20", "10"])
    assert done.returncode != 0
    assert re.fullmatch(
        rf"hybrid.matmul: rank 1 on {re.escape(socket.gethostname())}, \w+: planted", "\n".join(own_lines(done.stderr))
    )
