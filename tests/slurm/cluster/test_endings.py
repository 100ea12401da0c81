# SPDX-License-Identifier: MIT
"""Jobs that do not end by themselves: cancelled, asked to end, or with a rank killed. All end soon, and nothing stays."""

from __future__ import annotations

import re
import signal

import pytest
from jobs import SECONDS, STARTS, submit
from support.processes import catches

SOON = 30.0  # seconds, on a machine that does other things as well


@pytest.fixture(params=STARTS, ids=["srun", "mpirun"])
def endless(request, cluster):
    """A job whose two ranks, on two nodes, multiply until they are stopped."""
    sizes, options = (32, 32, 32), "-N 2 --ntasks-per-node=1 -p GPU-small"
    job = submit(
        cluster, "matmul.sbatch", *sizes, "--repeat", 10**9, "--threads", 1,
        options=options, HYBRID_DEVICE="cpu", **request.param,
    )  # fmt: skip
    job.wait_for_output("2 ranks on 2 nodes", SECONDS - SOON)
    yield job
    job.cancel()


def matrices(job, state):
    """Demand that it ends in `state`, and that no process of it stays on any node."""
    assert job.wait(SOON) == [state], job.output()
    job.wait_until(lambda: not job.processes(), SOON)


def test_a_cancelled_job_is_gone(endless):
    endless.cancel()
    matrices(endless, "CANCELLED")


def test_a_job_that_is_asked_to_end_reports_what_it_has_finished(cluster, endless):
    """As a minute before its time is up, through --signal=TERM@60; after its first product, from which on workers catch it."""
    endless.wait_until(lambda: all(catches(signal.SIGTERM, status) for status in statuses(cluster, endless)), SOON)
    endless.cancel("--signal=TERM")
    matrices(endless, "FAILED")
    assert endless.exit_codes() == ["143:0"]  # 128 + SIGTERM
    assert re.search(r"^hybrid: asked to end: \d+ of 1000000000 products", endless.output(), re.MULTILINE)
    assert re.search(r"^total .* check ok \(exact", endless.output(), re.MULTILINE)
    (result,) = endless.results()
    assert 0 < result["repeat"] < 10**9


@pytest.mark.parametrize("which", ["guard", "worker"])
def test_a_killed_rank_ends_the_job(cluster, endless, which):
    """Of the two processes of a rank the launcher started one, and that one the other."""
    processes = [int(line.split()[0]) for line in endless.processes()]
    assert len(processes) == 4
    parents = {process: parent(cluster, process) for process in processes}
    victim = next(process for process in processes if (parents[process] in processes) == (which == "worker"))
    cluster.run("kill", "-KILL", str(victim))
    matrices(endless, "FAILED")
    if which == "worker":
        assert re.search(r"hybrid: rank \d on p100[ab], .*: was killed by SIGKILL", endless.output())


def statuses(cluster, job):
    return [cluster.run("cat", f"/proc/{line.split()[0]}/status", check=False).stdout for line in job.processes()]


def parent(cluster, process):
    return int(cluster.run("ps", "-o", "ppid=", "-p", str(process)).stdout)


def test_an_overdue_job_is_ended(overdue):
    assert overdue.wait(110) == ["TIMEOUT"]
    overdue.wait_until(lambda: not overdue.processes(), SOON)
