# SPDX-License-Identifier: MIT
"""scripts/bench_nodes.py: nodes that are network namespaces, and what their interfaces count."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
import time
from itertools import product
from pathlib import Path

import pytest
from support.commands import module, own_lines, start
from support.selection import exhaustive

from experiments.nodes import cli
from experiments.nodes.network import Network, why_not
from experiments.ordeal.job import Job
from hybrid.core.problem import Problem
from hybrid.core.spans import Topology
from hybrid.errors import HybridError
from hybrid.plan.grid import parse, received
from hybrid.plan.machine_model import MachineModel
from hybrid.plan.request import PlanRequest
from hybrid.ranks.launcher import family_of, mpirun
from hybrid.reporting import jsonl

SMALL = (1000, 900, 800)
MOST_RUNS = 6  # in which what TCP sends again, on a busy machine, may disturb a count of bytes
CUT_IN = Path(__file__).with_name("programs") / "cut_in.py"


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(cli.SHAPES, "square", SMALL)


def test_rates_are_those_of_tc():
    assert [cli.bits_per_second(text) for text in ("1gbit", "2.5mbit", "100kbit", "8bit", "")] == [1e9, 2.5e6, 1e5, 8, 0]
    for wrong in ("fast", "1gb", "-1gbit"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{wrong} is no rate, such as 1gbit"):
            cli.rate(wrong)


def test_what_is_planned_is_what_the_others_have():
    assert cli.planned_bytes((8, 6, 5), 2, cli.OURS) == 8 * 5 * (4 + 3), "the root receives rows of B and C"
    assert cli.planned_bytes((8, 6, 5), 2, cli.OURS_STAYS) == 8 * 5 * 3
    assert cli.planned_bytes((40, 40, 40), 4, cli.OURS_2D) == 8 * (20 * 20 + 20 * 20), (
        "in a grid of 2x2 half of A's rows and B's columns"
    )
    assert cli.planned_bytes((8, 6, 5), 1, cli.OURS) == 0


def test_where_there_can_be_no_namespaces_that_is_said(monkeypatch, capsys):
    monkeypatch.setattr(cli, "why_not", lambda: "needs root")
    assert cli.main([]) == 1
    assert "namespaces cannot stand for nodes here: needs root" in capsys.readouterr().err


@pytest.mark.launcher
@pytest.mark.parametrize("nodes", exhaustive([2], [2, 4]))
def test_programs_run_on_all_nodes_and_receive_what_is_planned(tmp_path, capsys, nodes):
    if reason := why_not():
        pytest.skip(reason)
    path = str(tmp_path / "nodes.jsonl")
    assert cli.main(["--nodes", str(nodes), "--rate", "", "--pairs", "1", "--json", path]) == 0
    printed = capsys.readouterr().out
    assert cli.main(["--from", path]) == 0
    assert capsys.readouterr().out == printed
    ours = cli.OURS, cli.OURS_STAYS, cli.OURS_2D
    planned = {program: cli.planned_bytes(SMALL, nodes, program) for program in ours}
    for _ in range(MOST_RUNS):
        lines = {line["program"]: line for line in jsonl.read(path) if line["part"] == "nodes"}
        assert {*ours, cli.ALLGATHER, cli.ALLGATHER_STAYS} <= set(lines)
        assert planned == {program: lines[program]["planned"] for program in ours}
        received = {program: lines[program]["received"] for program in ours}
        # Interfaces also count the packets' heads, what starts the ranks, and the check.
        too_many = [program for program in ours if received[program] >= 1.06 * planned[program] + 400_000]
        if not too_many:
            break
        Path(path).unlink()  # TCP has sent packets again, on a busy machine
        assert cli.main(["--nodes", str(nodes), "--rate", "", "--pairs", "1", "--json", path]) == 0
    assert not too_many, (received, planned)
    assert all(planned[program] < received[program] for program in ours)


ON_NODES = exhaustive([("2x2", {}), ("2x2", {"STAGED": "1"})], [*product(("rows", "2x2", "1x2x2", "4x1"), ({}, {"STAGED": "1"}))])


@pytest.mark.launcher
@pytest.mark.parametrize(("grid", "more"), ON_NODES)
def test_every_node_receives_the_bytes_of_the_plan_and_hardly_more(grid, more):
    """Of three products less those of one, so without the start of the ranks; the rest are heads of packets.

    On a busy machine TCP takes packets for lost that are late, and sends them again: now and then hundreds in a run, which only
    adds. So the fewest bytes of some runs are those that the programs send.
    """
    if reason := why_not():
        pytest.skip(reason)
    settings = [f"HYBRID_{name}={value}" for name, value in more.items()]
    command = ["env", *settings, *module("hybrid.matmul"), *map(str, SMALL), "--device", "cpu", "--threads", "1", "--grid", grid]
    problem, nodes = Problem(*SMALL), Topology.of_equal_nodes(4, 1)
    placement = PlanRequest(problem, nodes).placement
    planned = [problem.bytes(1, received(parse(grid, 4), node, problem, nodes, placement)) for node in range(4)]
    fewest = {"1": [sys.maxsize] * 4, "3": [sys.maxsize] * 4}  # by repeats, of each node
    with Network(4, "") as network:
        for _ in range(MOST_RUNS):
            for repeat in fewest:
                before = network.bytes_received()
                network.run([*command, "--check", "off", "--repeat", repeat], 60)
                after = network.bytes_received()
                counted = [after[name] - before[name] for name in network.names]
                fewest[repeat] = [min(pair) for pair in zip(fewest[repeat], counted, strict=True)]
            of_a_product = [(three - one) / 2 for one, three in zip(fewest["1"], fewest["3"], strict=True)]
            # The start does not always take as many.
            as_planned = [0.99 <= one / plan <= 1.03 for one, plan in zip(of_a_product, planned, strict=True)]
            if all(as_planned):
                break
    assert all(as_planned), (of_a_product, planned)


def cut_when(holds, network, node):
    """Cut a node's link as soon as this holds. A list that gets the time of that."""
    cut_at = []

    def wait_and_cut():
        while not holds():
            time.sleep(0.01)
        network.cut(node)
        cut_at.append(time.monotonic())

    threading.Thread(target=wait_and_cut, daemon=True).start()
    return cut_at


@pytest.mark.launcher
@pytest.mark.parametrize(("grid", "after"), exhaustive([("1x3", 100e6)], [("1x3", 100e6), ("rows", 5e6)]))
def test_a_cut_link_ends_the_job_and_the_node_is_named(grid, after):
    """It is cut when the node has received so many bytes: some products', or a part of the first one's operands."""
    if reason := why_not():
        pytest.skip(reason)
    command = [*module("hybrid.matmul"), "1500", "1500", "1500", "--device", "cpu", "--threads", "1", "--grid", grid]
    with Network(3, "1gbit") as network:
        cut_off = network.names[1]
        cut_at = cut_when(lambda: network.bytes_received()[cut_off] >= after, network, cut_off)
        with pytest.raises(HybridError, match=rf"has heard nothing of rank \d+ on {network.names[0][:-1]}\d") as said:
            network.run([*command, "--repeat", "10000", "--stall", "3"], 60)
        assert time.monotonic() - cut_at[0] < 13
        # The node itself hears nothing of the next one, and may say so first.
        assert re.search(rf"rank \d+ on {cut_off}\b", str(said.value))


IN_PHASES = exhaustive(
    [("1x3", "meet"), ("rows", "lost"), ("rows", "gather")],
    [*product(("1x3", "rows"), ("meet", "lost", "agree", "prepare", "scatter", "multiply", "gather", "check", "report"))],
)


@pytest.mark.launcher
@pytest.mark.parametrize(("grid", "phase"), IN_PHASES)
def test_a_link_that_is_cut_in_any_phase_ends_the_job_and_the_node_is_named(tmp_path, grid, phase):
    if reason := why_not():
        pytest.skip(reason)
    made = tmp_path / "made"
    with Network(3, "1gbit") as network:
        cut_off = network.names[1]
        cut_at = cut_when(made.exists, network, cut_off)
        command = [sys.executable, str(CUT_IN), cut_off, phase, str(made), "300", "300", "300", "--device", "cpu"]
        with pytest.raises(HybridError, match=rf"has heard nothing of rank \d+ on {network.names[0][:-1]}\d") as said:
            network.run([*command, "--threads", "1", "--grid", grid, "--stall", "3"], 60)
        assert time.monotonic() - cut_at[0] < 13
        assert re.search(rf"rank \d+ on {cut_off}\b", str(said.value))


@pytest.mark.launcher
def test_before_mpi_has_started_a_cut_link_ends_the_job_too(tmp_path):
    """Nobody can say yet whose it is."""
    if reason := why_not():
        pytest.skip(reason)
    made = tmp_path / "made"
    with Network(2, "") as network:
        cut_when(made.exists, network, network.names[1])
        command = [sys.executable, str(CUT_IN), network.names[1], "start", str(made), "300", "300", "300", "--stall", "3"]
        with pytest.raises(HybridError, match=r"rank 0 on \S+, start: showed no progress for 3 s and was ended"):
            network.run(command, 60)


def multiplying(network):
    """A job that multiplies on all nodes, for long."""
    words, environment = network.launch()
    command = [
        "-m",
        "hybrid.matmul",
        "600",
        "600",
        "600",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--repeat",
        "1000000",
        "--stall",
        "3",
    ]
    job = Job(command, network.ranks, environment, {}, launch=words)
    deadline = time.monotonic() + 60
    while "C (600×600)" not in job.printed() and time.monotonic() < deadline:
        time.sleep(0.05)
    return job


@pytest.mark.launcher
def test_where_mpirun_s_node_is_cut_off_all_ranks_of_the_others_end_too():
    """One of them notices. The next one has heard that this one has ended, and no launcher ends it."""
    if reason := why_not():
        pytest.skip(reason)
    with Network(4, "") as network:
        job = multiplying(network)
        try:
            network.cut(network.names[0])
            assert job.ended(60)
            assert job.remains() == []
            (line,) = own_lines(job.said()[1])
            assert "rank 0 on" in line
            assert "has heard nothing of rank 3" in line
        finally:
            job.end()


@pytest.mark.launcher
def test_a_launcher_that_stands_still_is_ended_after_its_job():
    """As Hydra does, which waits for the rest of a message from a node whose link was cut: it passes on no line any more."""
    if reason := why_not():
        pytest.skip(reason)
    with Network(2, "") as network:
        job = multiplying(network)
        try:
            _, worker = job.rank_processes()[0]
            job.send(signal.SIGSTOP, [job.launcher])
            job.send(signal.SIGKILL, [worker])
            assert job.ended(40)
            assert job.remains() == []
            assert job.exit_code == -signal.SIGKILL
            lines = own_lines(job.said()[1])
            if family_of(mpirun(1)[0]) == "MPICH":
                (line,) = lines
                assert re.search(r"rank 0 on \S+-0, .*: was killed by SIGKILL", line)
        finally:
            job.end()


@pytest.mark.launcher
def test_a_launcher_that_is_alone_is_known_also_on_other_nodes():
    """There a shell has started its daemon."""
    if reason := why_not():
        pytest.skip(reason)
    with Network(2, "") as network:
        job = multiplying(network)
        try:
            assert not job.only_launcher_runs()
            job.send(signal.SIGSTOP, [job.launcher])
            job.send(signal.SIGKILL, [process for pair in job.rank_processes().values() for process in pair])
            deadline = time.monotonic() + 20
            while not job.only_launcher_runs() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert job.only_launcher_runs()
        finally:
            job.end()


@pytest.mark.launcher
def test_the_doctor_names_a_slow_link_and_measures_the_network_for_the_plan(tmp_path):
    if reason := why_not():
        pytest.skip(reason)
    path = str(tmp_path / "doctor.jsonl")
    with Network(3, "200mbit") as network:
        network.slow_down(network.names[1], "20mbit")
        with pytest.raises(HybridError, match=r"hybrid\.doctor .* failed"):
            network.run([*module("hybrid.doctor"), "--threads", "1", "--json", path], 100)
        slow = f"{network.names[0]} to {network.names[1]}"
    (line,) = jsonl.read(path)
    (finding,) = [finding for finding in line["findings"] if finding["subject"] == "node links"]
    assert finding["verdict"] == "wrong"
    assert re.fullmatch(rf"{slow}: slow, 2\.\d+ MB/s; the median has 2\d\.\d+ MB/s", finding["text"])
    assert 2e6 < MachineModel.read(path).network_bytes_per_second < 3e6, "the others wait for the slowest"
    asked = (9000, 9000, 9000, "--explain", "--device", "cpu", "--ranks", 3, "--nodes", 3)
    assert "s of its link (chosen)" in start(module("hybrid.matmul"), *asked, HYBRID_MACHINE=path).stdout


@pytest.mark.launcher
def test_a_program_that_fails_is_named():
    if reason := why_not():
        pytest.skip(reason)
    with Network(1, "") as network, pytest.raises(HybridError, match="false failed"):
        network.run(["false"], 20)
