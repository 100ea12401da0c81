# SPDX-License-Identifier: MIT
"""Whatever happens to one rank, in whichever phase: the job ends on all ranks, with the documented exit code and one line that
says which rank, host and phase, and why, by its code. Nothing of it stays (docs/failures.md)."""

import itertools
import os
import re

import pytest
from support.jobs import open_mpi
from support.selection import exhaustive

pytestmark = pytest.mark.launcher

PHASES = ["MPI start", "start", "agree", "fill", "scatter", "copy in", "multiply", "copy out", "gather", "check", "report"]
STARTING = PHASES[:1]  # then no other rank can be told, and the line says "start"
HOW = {  # how a rank fails: the exit code, and the code of the line
    "raise": (1, "rank-failed"),
    "memory": (1, "out-of-memory"),
    "exit 0": (1, "rank-left"),
    "exit 5": (1, "rank-left"),
    "SIGKILL": (137, "killed"),
    "SIGSEGV": (139, "killed"),
    "SIGTERM": (143, "killed"),
}
# So that every phase is passed: two pretended nodes, a device with memory of its own, and several panels.
ALL_PHASES = {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "40", "HYBRID_RANKS_PER_NODE": "1"}


def failures():
    """By default every way and most phases come once, on rank 0 or 1; with --all every way in every phase."""
    phases = [phase for phase in PHASES if phase not in ("start", "fill", "copy in", "copy out")]
    chosen = [(phase, how, number % 2) for number, (phase, how) in enumerate(zip(phases, HOW, strict=True))]
    return exhaustive(chosen, dict.fromkeys([*chosen, *itertools.product(PHASES, HOW, (0, 1))]))


def planted(fault, *arguments):
    return ["-m", "hybrid.testing", "--plant", f"rank {fault}", "-m", *arguments]


@pytest.mark.parametrize(("phase", "how", "rank"), failures())
def test_a_rank_that_fails_ends_the_job_with_one_line(start, phase, how, rank):
    code, cause = HOW[how]
    end = start(planted(f"rank={rank} phase={phase} how={how}", "hybrid.matmul", 200, 150, 100), 2, **ALL_PHASES).end()
    assert (end.codes, end.left) == ([cause], [])
    where = re.escape(os.uname().nodename)
    named = phase if phase not in STARTING else "start"
    assert re.match(rf"hybrid(\.matmul)?: rank {rank} (\(and 1 more\) )?on {where}, {named}: ", end.lines[0]), end.lines
    assert end.code == code or (open_mpi() and phase in STARTING and end.code == 14), end
    assert "total" not in end.out
    assert "Traceback" not in end.err


EXITS = """
import hybrid.testing, os, runpy, sys
how, sys.argv = sys.argv[1], ["hybrid.matmul", "50", "40", "30"]
with hybrid.testing.plant("rank", rank=1, phase="fill", how=lambda: eval(how)):
    runpy.run_module("hybrid.matmul", run_name="__main__")
"""


LEAVES = [
    ("os._exit(0)", 1, "rank-left"),  # as C code may end it
    ("[os.kill(os.getppid(), 15), __import__('time').sleep(300)]", 143, "terminated"),  # before any product is finished
    ("os._exit(9)", 9, "rank-left"),
]


@pytest.mark.parametrize(("how", "code", "cause"), exhaustive(LEAVES[:2], LEAVES))
def test_a_rank_whose_process_ends_without_a_word_is_named(start, how, code, cause):
    end = start(["-c", EXITS, how], 2).end()
    assert (end.code, end.codes, end.left) == (code, [cause], [])
    assert "rank 1 on" in end.lines[0]


@pytest.mark.parametrize("at", [3, 0])
def test_a_job_that_is_asked_to_end_reports_the_products_that_are_finished(start, at):
    """After the first product, of which there may be one; the request may come to any rank."""
    fault = f"rank={at % 2} phase=gather at={at} how=SIGTERM"
    end = start(planted(fault, "hybrid.matmul", 90, 90, 90, "--repeat", 1000, "--json", "-"), 2).end()
    assert (end.code, end.left) == (143, [])
    (line,) = end.lines
    if at:
        assert re.search(r" [1-9]\d* of 1000 ", line)
        assert re.search(r'"repeat": [1-9]\d{0,2}\b', end.out)
    else:
        assert end.codes == ["killed"]


@pytest.mark.parametrize("variable", ["HYBRID_GUARD", "HYBRID_DEBUG"])
def test_without_a_supervisor_or_with_tracebacks_an_exception_ends_the_job_too(start, variable):
    command = planted("rank=1 phase=multiply how=raise", "hybrid.matmul", 90, 90, 90)
    end = start(command, 2, **{variable: "0" if variable == "HYBRID_GUARD" else "1"}).end()
    assert (end.code, end.codes.count("rank-failed")) == (1, 1)
    assert ("Traceback" in end.err) is (variable == "HYBRID_DEBUG")


@pytest.mark.parametrize(("who", "wait"), exhaustive([("None", 8)], itertools.product(["None", "0", "1"], (8, 14, 20))))
def test_an_interrupt_while_ranks_wait_for_each_other_is_called_one(start, who, wait):
    """And not OverflowError or "out of memory", as where ranks take one exchange for another."""
    end = start(planted(f"rank={who} phase=wait at={wait} how=SIGINT", "hybrid.paths", "five", "--length", 3000), 2).end()
    assert (end.code, [cause for cause in end.codes if " " not in cause], end.left) == (1, ["interrupted"], [])
