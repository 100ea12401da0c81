# SPDX-License-Identifier: MIT
"""Jobs of Slurm that do not end by themselves: cancelled, asked to end, overdue, or with a rank killed. All end, and no process
of them stays on any node (slurm/README.md, docs/failures.md)."""

import itertools
import re

import pytest
from cluster import STARTS, submit
from support.selection import exhaustive


@pytest.fixture
def endless(request, cluster):
    """A job whose two ranks, on two nodes, multiply until they are stopped."""
    job = submit(
        cluster, "matmul.sbatch", 32, 32, 32, "--repeat", 10**9, "--threads", 1,
        options="-N 2 --ntasks-per-node=1 -p GPU-small", HYBRID_DEVICE="cpu", **STARTS[request.param],
    )  # fmt: skip
    job.wait_for_output("2 ranks on 2 nodes")
    yield job
    job.cancel()


def gone(job, state):
    """Demand that it ends in this state, and all of its processes with it."""
    assert job.wait() == [state], job.output()
    job.wait_until(lambda: not job.processes())


def codes(job):
    return re.findall(r"^hybrid.*? \[([a-z-]+)\]$", job.output(), re.MULTILINE)


@pytest.mark.parametrize("endless", exhaustive(["srun"], ["srun", "mpirun"]), indirect=True)
def test_a_cancelled_job_is_gone(endless):
    endless.cancel()
    gone(endless, "CANCELLED")


@pytest.mark.parametrize(
    ("endless", "whom"),
    exhaustive([("srun", "worker"), ("mpirun", "worker")], itertools.product(STARTS, ["supervisor", "worker"])),
    indirect=["endless"],
)
def test_a_killed_rank_ends_the_job(cluster, endless, whom):
    """Of the two processes of a rank the launcher started one, and that one the other."""
    processes = [int(line.split()[0]) for line in endless.processes()]
    assert len(processes) == 4
    parents = {process: int(cluster.run("ps", "-o", "ppid=", "-p", str(process)).stdout) for process in processes}
    victim = next(process for process in processes if (parents[process] in processes) == (whom == "worker"))
    cluster.run("kill", "-KILL", str(victim))
    gone(endless, "FAILED")
    said = codes(endless)  # MPI of the other rank may tell of the lost connection before the supervisor tells of the signal
    assert said in (["killed"], ["rank-failed"]) if whom == "worker" else len(said) <= 1, endless.output()


@pytest.mark.parametrize("start", exhaustive(["mpirun"], STARTS))
def test_a_job_that_is_asked_to_end_reports_what_it_has_finished(cluster, start):
    """As a minute before its time is up, through --signal=TERM@60; here, when it tells by its first result that there is one."""
    program = cluster.shared / "asked.py"
    program.write_text(
        "import hybrid.testing, runpy, sys\n"
        "sys.argv = 'm 32 32 32 --repeat 1000000000 --threads 1 --device cpu --json asked.jsonl'.split()\n"
        "with hybrid.testing.plant('rank', rank=0, phase='gather', at=3, how=lambda: print('three', flush=True)):\n"
        "    runpy.run_module('hybrid.matmul', run_name='__main__')\n"
    )
    script = cluster.shared / "asked.sh"
    script.write_text('#!/bin/bash\nset -euo pipefail\nsource "$HYBRID_ROOT/slurm/job.sh"\nlaunch python asked.py\n')
    job = submit(cluster, script, options="--output=asked-%j.out -N 2 --ntasks-per-node=1 -p GPU-small", **STARTS[start])
    job.wait_for_output("three")
    job.cancel("--signal=TERM")
    gone(job, "FAILED")
    assert job.exit_codes() == ["143:0"]
    assert re.search(r"^hybrid: asked to end: [1-9]\d* of 1000000000 products", job.output(), re.MULTILINE)
    assert re.search(r"^total .* check ok \(exact", job.output(), re.MULTILINE)


def test_an_overdue_job_is_ended(overdue):
    assert overdue.wait() == ["TIMEOUT"]
    overdue.wait_until(lambda: not overdue.processes())
