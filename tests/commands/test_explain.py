# SPDX-License-Identifier: MIT
"""`--explain`: a decision in words and bytes, for a machine one has not."""

from __future__ import annotations

import re

import pytest

from hybrid.commands.explain import explain
from hybrid.commands.matmul import answer
from hybrid.commands.matmul_options import parse
from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.errors import DeviceUnavailable, DoesNotFit, UsageError
from hybrid.plan.plan import PROCESS_BYTES
from hybrid.selection.decision import ProductRequest, decide
from hybrid.selection.machine import assumed_machine

MiB, GiB = 1 << 20, 1 << 30
NATIVE = Settings(precision="native")


@pytest.fixture
def explained(capsys):
    def lines(problem, ranks, gpus_per_node=0, network=0.0, **settings):
        asked = Settings(**settings)
        explain(assumed_machine(asked, ranks, gpus_per_node), ProductRequest(problem), asked, network)
        return capsys.readouterr().out.splitlines()

    return lines


def test_a_large_machine_is_explained_in_its_bytes(explained):
    lines = explained(Problem(100_000, 100_000, 100_000), 8, gpus_per_node=8, check="off", precision="native")
    assert lines[0].startswith("C (100000×100000) = A (100000×100000) · B (100000×100000)  float64  2e+06 GF")
    assert lines[0].endswith("matrices 223.5 GiB")
    assert lines[1].startswith("kernel tensor on cuda: ")
    assert lines[2] == "precision native: asked for"
    assert "ranks 0–7, rows 0:100000 of A, all of B, rows 0:100000 of C: 223.5 GiB shared" in lines[3]
    assert f"{(240e9 + 8 * PROCESS_BYTES) / GiB:.1f} GiB with its processes" in lines[3]
    buffers = 8 * (12_500 * 100_000 + 100_000 * (100_000 + 12_500))  # a row block of A, all of B, and the row block of C
    assert lines[7].startswith("rank 3: rows 37500:50000 in 25 row panel(s), B in 16 k-slab(s), ")
    assert lines[7].endswith(f"tile(s) of C, {buffers / GiB:.1f} GiB in GPU 3")
    assert lines[12].startswith("transport peers, if these tests pass at the start: “every rank fetches data")
    assert lines[12].endswith("else nccl, if it works; else host") or lines[12].endswith("; else host")
    assert lines[13].startswith("order of arrival on rank 0: ")
    copied_in = (12_500 * 100_000 + 12_500 * 100_000) * 8 / 54.8e9  # its row block of A, and its part of B
    multiplied, copied_out = (float(words.split(" after ")[1].split(" s")[0]) for words in lines[14].split(", ")[-2:])
    assert lines[14].startswith("expected of rank 0, by a link of 54.8 GB/s and without the check: A and B copied after ")
    assert f"copied after {copied_in:.3g} s" in lines[14]
    assert 4.4 < multiplied < 4.7, "2.5e14 operations at 56 TF/s"
    assert multiplied <= copied_out < multiplied + 0.1
    assert lines[15].startswith("estimated of a product: ")
    assert lines[16] == "memory not checked: --host-memory and --gpu-memory give it"
    assert len(lines) == 17


def test_nothing_is_expected_of_a_kernel_of_unknown_speed(explained):
    assert not [line for line in explained(Problem(9, 9, 9), 1, gpus_per_node=1, kernel="naive") if "expected of" in line]
    assert [line for line in explained(Problem(9, 9, 9), 1, gpus_per_node=1) if "expected of" in line]


def test_energy_is_estimated_by_the_limits_of_the_gpus_that_are_used(explained, tmp_path):
    def estimated(ranks, gpus, **settings):
        lines = explained(Problem(16_000, 16_000, 16_000), ranks, gpus, ranks_per_node=ranks, precision="native", **settings)
        (expected,) = [line for line in lines if line.startswith("expected of rank 0, ")]
        (line,) = [line for line in lines if line.startswith("estimated of a product: ")]
        return float(expected.rsplit(" after ")[-1].split()[0]), line

    seconds, line = estimated(1, 1)
    assert line == f"estimated of a product: {700 * seconds:.3g} J at most, by 1 GPU at the limit of 700 W, hosts not counted"
    model = tmp_path / "machine.json"
    model.write_text('{"gpu_power_limit_watts": 300}')
    seconds, line = estimated(4, 2, machine=str(model), price="3600/GPU-h")  # two ranks a GPU
    joules = float(line.removeprefix("estimated of a product: ").split()[0])
    assert joules == pytest.approx(600 * seconds, rel=0.01)
    assert ", by 2 GPUs at the limit of 300 W, hosts not counted; cost: " in line
    cost = float(line.split("cost: ")[1].split()[0])
    assert cost == pytest.approx(2 * seconds, rel=0.01)
    assert line.endswith(" a product at 3600/GPU-h")


def test_no_cost_is_estimated_where_no_time_is_expected(explained):
    said = "cost: not estimated, because the time of a product is expected of GPUs of one node only"
    for how in ({}, {"gpus_per_node": 1}):
        lines = explained(Problem(400, 400, 400), 2, **how, price="2/node-h")
        assert said in lines
        assert not [line for line in lines if line.startswith("estimated")]


def test_remainders_are_explained_with_their_memory(explained):
    problem = Problem(16_000, 16_000, 16_000)
    lines = explained(problem, 1, gpus_per_node=1, check="off")
    assert lines[2].startswith("precision float64 or better, from remainders modulo 15 numbers at most, else native as the guard")
    assert "in 16 row panel(s), B in 6 column panel(s), 21 tile(s) of C" in lines[4]
    assert float(lines[4].split(" GiB in GPU 0")[0].rsplit(" ", 1)[1]) * GiB > (3 * 8 + 2 * 15) * 16_000**2
    lines = explained(problem, 1, gpus_per_node=1, check="off", gpu_memory=8 * GiB)
    assert lines[2] == "precision native: no room for remainders"
    assert "5.7 GiB in GPU 0" in lines[4]


def test_nodes_are_explained_with_what_goes_between_them(explained):
    text = "\n".join(explained(Problem(4000, 3000, 2000, "float32"), 4, ranks_per_node=2))
    assert "node 0: ranks 0–1, rows 0:2000 of A, all of B, rows 0:4000 of C" in text
    assert "node 1: ranks 2–3, rows 2000:4000 of A, all of B, rows 2000:4000 of C" in text
    assert "rank 2: rows 2000:3000 in 1 row panel(s), B in 1 column panel(s), 1 tile(s) of C, multiplied in place" in text
    assert f"B to 1 more, {2000 * 2000 * 4 / MiB:.1f} MiB of C back to node 0, in messages of at most 256.0 MiB" in text


def test_how_many_ranks_of_a_node_talk_is_told(explained):
    for ranks, gateways, told in ((4, 2, ", by 2 ranks of each"), (4, 1, ""), (3, 2, "")):
        text = "\n".join(explained(Problem(400, 300, 200), ranks, ranks_per_node=2, device="cpu", grid="rows", gateways=gateways))
        assert f"between nodes{told}: B to 1 more" in text


def test_grids_of_nodes_are_explained_with_what_each_receives(explained):
    lines = explained(Problem(4000, 4000, 4000), 8, ranks_per_node=2, device="cpu", grid="2x2")
    text = "\n".join(lines)
    assert "node 1: ranks 2–3, rows 1000:2000 of A, rows 1000:2000 of B, rows 0:0 of C" in text
    assert (
        "rank 5: rows 2500:3000 of A and 2500:3000 of B; it multiplies rows 3000:4000, columns 0:4000 of A by columns 0:2000 of B"
    ) in text
    assert "order of arrival" not in text
    # Of A half of what it needs, of B three quarters of a half; and C goes to the root.
    of_others, of_root = 4000**2 * 8 * (1 / 4 + 3 / 8), 4000**2 * 8 * (1 / 4 + 3 / 8 + 3 / 4)
    assert f"grid 2x2: a node receives {of_others / MiB:.1f} MiB, the busiest {of_root / MiB:.1f} MiB (chosen)" in text
    assert sum(line.startswith("grid rows: ") for line in lines) == 1
    least = 3 * (4000**3 / 4) ** (2 / 3) - 3 * 4000**2 / 4
    assert lines[-3].startswith(f"at least {8 * least / MiB:.1f} MiB must go to or from some node")
    assert lines[-3].endswith(f": {of_others / 8 / least:.2f} × that")
    assert lines[-2].startswith(f"words (elements): a node receives {of_others / 8:.3g}, {of_others / 16:.3g} a rank; ")


def test_on_gpus_every_node_gets_all_of_b_unless_a_grid_is_asked_for(explained):
    problem = Problem(4000, 4000, 4000)
    lines = explained(problem, 4, gpus_per_node=1)
    assert any(line.startswith("grid rows: ") and line.endswith("(chosen)") for line in lines)
    assert "devices with memory of their own multiply on a grid where --grid asks for one" in lines
    lines = explained(problem, 4, gpus_per_node=1, grid="2x2", precision="native")
    assert any(line.startswith("grid 2x2: ") and line.endswith("(chosen)") for line in lines)
    buffers = 8 * (2000 * 4000 + 4000 * 2000 + 2000 * 2000)  # half of A, half of B, a quarter of C
    (of_rank,) = [line for line in lines if line.startswith("rank 3: ")]
    assert of_rank.endswith(f"in 7 column panel(s); {buffers / MiB:.1f} MiB in GPU 0, for 1 of its own")
    assert any(line.startswith("transport host: the nodes form a grid, whose parts travel from host to host") for line in lines)
    with pytest.raises(DeviceUnavailable, match="nccl cannot be used: the nodes form a grid"):
        explained(problem, 4, gpus_per_node=1, grid="2x2", transport="nccl")


def test_of_nodes_of_gpus_a_timeline_is_told_where_their_network_is_known(explained):
    problem = Problem(100_000, 100_000, 100_000)
    asked = {"gpus_per_node": 8, "ranks_per_node": 8, "grid": "16x8", "network": 25e9}
    (line,) = [line for line in explained(problem, 1024, **asked) if line.startswith("expected of the last node")]
    found = re.fullmatch(
        r"expected of the last node, by a network of 25 GB/s a node and 8 GPU\(s\): "
        r"A there after (.*) s, B there after (.*) s, multiplied after (.*) s, C on node 0 after (.*) s",
        line,
    )
    moments = [float(moment) for moment in found.groups()]
    assert moments == sorted(moments)
    assert moments[-1] > 8 * problem.n * problem.m * 127 / 128 / 25e9, "all of C but the root's own reaches it over one link"
    text = "\n".join(explained(problem, 4, ranks_per_node=1, network=25e9, device="cpu"))
    assert "no timeline: how fast this machine's CPUs multiply is not known" in text
    assert "no timeline" not in "\n".join(explained(problem, 4, ranks_per_node=1, device="cpu")), "nor is the network"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--ranks", 10**26), f"{10**26} is too large: at most 100000"),
        (("--ranks", 4, "--nodes", 10**26), f"{10**26} is too large: at most 100000"),
        (("--ranks", 4, "--nodes", 9), "4 ranks are too few for 9 nodes"),
        (("--ranks", 4, "--nodes", 2, "--network", "0GB/s"), "'0GB/s' is no rate"),
        (("--gpus-per-node", 10**26), f"{10**26} is too large: at most 128"),
        (("--ranks", 2000), "2000 ranks are too many for a node: 1024 at most, --nodes gives the number of nodes"),
        (("--ranks", 100_000, "--nodes", 10), "10000 ranks are too many for a node"),
    ],
)
def test_machines_that_cannot_be_are_refused_in_a_line(asked, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        answer(*parse(["9", "9", "9", "--explain", *map(str, asked)]))


def test_of_many_ranks_the_first_are_shown(explained):
    text = "\n".join(explained(Problem(100, 100, 100), 20))
    assert "rank 15:" in text
    assert "rank 16:" not in text
    assert "… and 4 ranks more" in text


def test_gpus_of_a_node_are_dealt_to_its_ranks_in_turn(explained):
    lines = explained(Problem(100, 100, 100), 4, gpus_per_node=2, ranks_per_node=4)
    assert [line.rsplit(" ", 1)[1] for line in lines if line.startswith("rank ")] == ["0", "1", "0", "1"]


def test_with_nccl_nodes_hold_their_own_rows_of_b(explained):
    text = "\n".join(explained(Problem(4000, 3000, 2000), 4, gpus_per_node=2, transport="nccl"))
    of_node = (2000 * 3000 + 1500 * 2000) * 8 / MiB
    assert f"rows 2000:4000 of A, rows 1500:3000 of B, rows 0:0 of C: {of_node:.1f} MiB shared" in text
    assert "transport nccl, if these tests pass at the start: “NCCL brings every rank's data to every other”" in text
    assert (
        "between nodes: B from GPU to GPU, 30.5 MiB of C from GPU to GPU to node 0, where ranks 0–1 receive it "
        "in pieces of at most 32.0 MiB"
    ) in text
    assert "MPI" not in text
    buffers = 8 * (1000 * 3000 + 3000 * 2000 + 1000 * 2000)
    of_ranks = [float(line.split(" MiB in GPU")[0].rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("rank ")]
    assert all(of_rank == pytest.approx(buffers / MiB, abs=0.2) for of_rank in of_ranks[2:])
    assert all(buffers / MiB + 8 < of_rank <= buffers / MiB + 64.2 for of_rank in of_ranks[:2]), "with what they receive"
    assert "else the run is refused" in text


def test_the_stationary_operand_is_named_where_not_all_fits(explained):
    problem = Problem(8000, 8000, 8000)
    text = "\n".join(explained(problem, 1, gpus_per_node=1, gpu_memory=8 * 8000**2))
    assert "rank 0 cannot hold all: B is stationary, 1 of 2 column panels at a time, while A is streamed past, " in text
    assert "cannot hold all" not in "\n".join(explained(problem, 1, gpus_per_node=1))


def test_nccl_is_explained_where_it_would_be_tried_and_refused_where_it_cannot_be_used(explained):
    problem = Problem(4000, 3000, 2000)
    text = "\n".join(explained(problem, 4, gpus_per_node=1))
    assert "transport nccl, if these tests pass at the start" in text
    assert text.count("else host") == 1
    with pytest.raises(DeviceUnavailable, match="peers cannot be used: one rank a node"):
        explained(problem, 4, gpus_per_node=1, transport="peers")
    with pytest.raises(DeviceUnavailable, match="nccl cannot be used: ranks 0 and 2 share a GPU"):
        explained(problem, 4, gpus_per_node=2, ranks_per_node=4, transport="nccl")
    with pytest.raises(DeviceUnavailable, match="nccl cannot be used: NCCL joins GPUs only"):
        explained(Problem(40, 30, 20), 4, staged=True, transport="nccl")


def test_an_assumed_machine_refuses_what_it_cannot_hold(explained):
    problem = Problem(100_000, 100_000, 100_000)
    plan = decide(assumed_machine(NATIVE, 4, 4), ProductRequest(problem), NATIVE).plan
    assert explained(problem, 4, 4, precision="native", gpu_memory=plan.bytes_on_gpu(0) + GiB)[-1] == "it fits"
    assert "cannot hold all" not in "\n".join(explained(problem, 4, 4, precision="native", gpu_memory=plan.bytes_on_gpu(0) - GiB))
    assert "cannot hold all" in "\n".join(explained(problem, 4, 4, precision="native", gpu_memory=plan.bytes_of_buffers(0) - GiB))
    with pytest.raises(DoesNotFit, match=r"needs 2\d\d\.\d GiB of memory on node 0, which has 1\.0 GiB"):
        explained(problem, 4, 4, host_memory=GiB)
