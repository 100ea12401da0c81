# SPDX-License-Identifier: MIT
"""Where the network to a node is cut, in whichever phase, the job ends in one line that names the node, and all is gone there,
too; a firewall that only drops datagrams is no fault (docs/failures.md). Network namespaces stand for nodes: root is needed."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess

import pytest
from support.jobs import SLOW, Network, open_mpi, why_not
from support.selection import exhaustive

REASON = why_not()
pytestmark = [pytest.mark.launcher, pytest.mark.skipif(bool(REASON), reason=REASON)]

PRODUCT = ("-m", "hybrid.matmul", 300, 300, 300, "--device", "cpu", "--threads", 1, "--stall", 6)
CUT = """
import subprocess, time
def cut():
    subprocess.run(["ip", "netns", "exec", {switch!r}, "ip", "link", "set", {port!r}, "down"], check=True)
"""


@pytest.fixture
def on_nodes(start, tmp_path):
    """A job with a rank on each of so many nodes."""

    def one(network, arguments):
        words, environment = network.launch()
        return start(arguments, network.ranks, words=words, **environment)

    return one


def cutting(folder, network, rank, phase, at=0):
    """The words before a command of which this rank cuts its own link when it enters the phase."""
    program = folder / "cut.py"
    program.write_text(CUT.format(switch=network.names[0].replace("-0", "-switch"), port=f"port{rank}"))
    return ("-m", "hybrid.testing", "--plant", f"rank rank={rank} phase={phase} at={at} how={program}:cut")


PHASES = ["start", "agree", "prepare", "fill", "scatter", "multiply", "gather", "check", "report"]
CASES = [(grid, phase, rank) for grid, phase, rank in itertools.product(("1x3", "rows"), PHASES, (0, 1))]


@pytest.mark.parametrize(("grid", "phase", "rank"), exhaustive([("1x3", "start", 1), ("rows", "multiply", 0)], CASES))
def test_a_link_that_is_cut_ends_the_job_and_the_node_is_named(on_nodes, tmp_path, grid, phase, rank):
    """Of node 0, where mpirun is, no line comes through from elsewhere; of another one it may be that of either side."""
    with Network(3, "1gbit") as network:
        cut = cutting(tmp_path, network, rank, phase, at=2 * (phase == "start"))  # before, nobody knows its neighbours
        end = on_nodes(network, (*cut, *PRODUCT, "--grid", grid, "--repeat", 10**6)).end()
    assert end.code != 0
    assert (end.codes, end.left) == (["node-silent"], [])
    assert re.search(rf"(rank {rank} on|nothing of rank {rank} on) {network.names[rank]}\b", end.lines[0]), end.lines


def test_a_link_that_is_cut_before_mpi_has_started_ends_the_job_too(on_nodes, tmp_path):
    """Nobody can say yet whose it is."""
    with Network(2, "") as network:
        end = on_nodes(network, (*cutting(tmp_path, network, 1, "MPI start"), *PRODUCT)).end()
    assert end.code != 0
    assert (end.codes, [what for what in end.left if what.startswith("process")]) == (["stalled"], [])


def test_where_no_datagram_comes_through_nobody_is_missed(on_nodes):
    """As where a firewall stands between the nodes."""
    with Network(2, "") as network:
        for name in network.names:
            subprocess.run(["ip", "-n", name, "rule", "add", "ipproto", "udp", "blackhole"], check=True)
        end = on_nodes(network, (*PRODUCT, "--repeat", 100)).end()
    assert (end.code, end.lines, end.left) == (0, [], [])
    assert "check ok" in end.out


@pytest.mark.exhaustive
def test_a_slow_link_is_no_cut_one(on_nodes):
    with Network(2, SLOW) as network:
        end = on_nodes(network, ("-m", "hybrid.matmul", 60, 50, 40, "--device", "cpu", "--threads", 1, "--stall", 20)).end()
    assert (end.code, end.lines, end.left) == (0, [], [])


def test_an_mpirun_that_stands_still_is_ended_after_its_job(on_nodes):
    """As Hydra does, which waits for the rest of a message from a node whose link was cut: it passes on no line any more."""
    with Network(2, "") as network:
        job = on_nodes(network, (*PRODUCT, "--repeat", 10**6))
        job.wait_for("C (300×300)")
        worker = job.processes()[0][1]
        job.send(signal.SIGSTOP, job.launcher)
        job.send(signal.SIGKILL, worker)
        end = job.end()
    assert (end.code, end.left) == (-signal.SIGKILL, [])
    assert open_mpi() or end.codes == ["killed"]
