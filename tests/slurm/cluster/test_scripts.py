# SPDX-License-Identifier: MIT
"""Every script of slurm/, submitted as it is: job state, output, JSON lines, and the check of the products."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from cluster import ROOT
from jobs import STARTS, submit

GREETING = re.compile(r"Greetings from CPU thread \d+/(\d+) of process (\d+)/(\d+)!")
FROM_GPU = re.compile(r"Hello from block \d+, thread \d+ of the GPU, called by process (\d+)")
CHECKED = re.compile(r"^total .* check ok \(exact.*\)$", re.MULTILINE)


def greetings(output, ranks, threads):
    """Demand every line of a hello run: of each rank its threads and 12 of its GPU, and the time once."""
    assert Counter(GREETING.findall(output)) == {(str(threads), str(rank), str(ranks)): threads for rank in range(ranks)}
    assert Counter(FROM_GPU.findall(output)) == {str(rank): 12 for rank in range(ranks)}
    assert len(re.findall(r"^Time: \d+\.\d+", output, re.MULTILINE)) == 1


def products(job, ranks, nodes=1):
    """(size, kernel) of every JSON line, all of them right."""
    results = job.results()
    assert all(result["check"]["ok"] for result in results)
    assert {(result["ranks"], result["nodes"]) for result in results} == {(ranks, nodes)}
    return [(result["n"], result["kernel"]) for result in results]


@pytest.mark.parametrize(("options", "nodes"), [("", 1), ("-N 2", 2)])
def test_beowulf_on_one_node_and_on_two(cluster, options, nodes):
    job = submit(cluster, "beowulf.sbatch", options=options, HYBRID_SIZE="48")
    output = job.succeed()
    greetings(output, ranks=2, threads=4)
    with_loops = "== seq: three loops" in output
    assert products(job, 2, nodes) == [(48, "naive"), (48, "tiled"), *([(6, "loops")] if with_loops else [])]
    assert len(CHECKED.findall(output)) == 2 + with_loops
    assert "4 threads (SLURM_CPUS_PER_TASK)" in output


def test_bridges(cluster):
    output = submit(cluster, "bridges.sbatch").succeed()
    greetings(output, ranks=2, threads=16)
    assert "+ mpirun -np 2 python -m hybrid.hello --threads 16\n" in output


def test_bridges2(cluster):
    job = submit(cluster, "bridges2.sbatch", HYBRID_SIZE="40")
    output = job.succeed()
    greetings(output, ranks=2, threads=5)
    assert re.findall(r"^Process (\d)/2 is on (\w+),", output, re.MULTILINE) == [("0", "v100"), ("1", "v100")]
    assert [size for size, _ in products(job, 2)] == [40, 40, 40]
    assert len(CHECKED.findall(output)) == 3


def test_matmul_takes_its_sizes_from_the_environment(cluster):
    job = submit(cluster, "matmul.sbatch", HYBRID_SIZE="64", HYBRID_DEVICE="cpu")
    assert CHECKED.search(job.succeed())
    assert products(job, 2) == [(64, "blas")]


def test_matmul_takes_arguments_and_sbatchs_options(cluster):
    options = "-p GPU-small --ntasks-per-node=3 --cpus-per-task=2 --gres=gpu:p100:2"
    job = submit(cluster, "matmul.sbatch", 50, 40, 30, "--kernel", "tiled", "--dtype", "float32", options=options)
    assert "2 threads (SLURM_CPUS_PER_TASK)" in job.succeed()
    (result,) = job.results()
    assert (result["n"], result["l"], result["m"], result["dtype"], result["ranks"]) == (50, 40, 30, "float32", 3)


@pytest.fixture
def slow_way_to_p100b(cluster):
    """A tenth as fast as those of the two other nodes."""
    devices = {"to-p100a": "200mbit", "to-p100b": "20mbit", "to-v100": "200mbit"}
    for device, rate in devices.items():
        cluster.run("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms")
    yield
    for device in devices:
        cluster.run("tc", "qdisc", "del", "dev", device, "root")


def test_acceptance_names_a_slow_link(cluster, slow_way_to_p100b):
    options = "-N 3 -w p100a,p100b,v100 --ntasks-per-node=1"
    job = submit(cluster, "accept.sbatch", "--level", 1, options=options, HYBRID_DEVICE="cpu")
    assert job.wait() == ["FAILED"], job.output()
    assert job.exit_codes() == ["1:0"]
    wrong = re.findall(r"^WRONG +node links +(.+) →", job.output(), re.MULTILINE)  # ranks that share two cores may be slow, too
    assert len(wrong) == 1, job.output()
    assert re.fullmatch(r"p100a to p100b: slow, 2\.\d+ MB/s; the median has 2\d\.\d+ MB/s", wrong[0]), wrong
    (result,) = job.results()
    assert [(link["source"], link["target"]) for link in result["node_links"]] == [
        ("p100a", "p100b"), ("p100b", "v100"), ("v100", "p100a"),
    ]  # fmt: skip
    assert (cluster.shared / f"accept-{job.number}.html").stat().st_size


def test_scaling_takes_more_and_more_nodes(cluster):
    options = "-N 4 -w p100a,p100b,k40a,k40b"
    job = submit(cluster, "scaling.sbatch", "--fill", "uniform", options=options, HYBRID_SIZE="64", HYBRID_DEVICE="cpu")
    output = job.succeed()
    results = job.results()
    assert all(result["check"]["ok"] for result in results)
    assert [(result["nodes"], result["n"]) for result in results] == [(1, 64), (2, 64), (4, 64), (2, 81), (4, 102)]
    table = re.findall(r"^(strong|weak) +(\d) +(\d+) ", output, re.MULTILINE)
    assert table == [
        ("strong", "1", "64"), ("strong", "2", "64"), ("strong", "4", "64"),
        ("weak", "1", "64"), ("weak", "2", "81"), ("weak", "4", "102"),
    ]  # fmt: skip


@pytest.mark.parametrize("start", STARTS, ids=["srun", "mpirun"])
@pytest.mark.parametrize(
    ("distribution", "nodes"),
    [("", "aabb"), ("--distribution=cyclic", "abab"), ("--distribution=plane=2", "aabb"), ("--distribution=plane=1", "abab")],
)
def test_ranks_are_dealt_to_many_nodes_as_asked(cluster, distribution, nodes, start):
    options = f"-N 2 -w p100a,p100b {distribution}"
    job = submit(cluster, "nodes.sbatch", 90, 80, 70, "--fill", "uniform", options=options, HYBRID_DEVICE="cpu", **start)
    output = job.succeed()
    assert re.findall(r"^  rank (\d)  p100(\w)  ", output, re.MULTILINE) == [*zip("0123", nodes, strict=True)]
    rows = dict(re.findall(r"^  rank (\d)  .*  rows (\d+):", output, re.MULTILINE))
    first = [rank for rank, node in zip("0123", nodes, strict=True) if node == "a"]
    assert sorted(rows, key=lambda rank: int(rows[rank]))[:2] == first, "a node's rows follow each other"
    (result,) = job.results()
    assert (result["check"]["ok"], result["nodes"], result["ranks"]) == (True, 2, 4)


def test_a_grid_is_compared_with_rows(cluster):
    job = submit(cluster, "grid.sbatch", 90, 80, 70, options="-N 4 -w p100a,p100b,k40a,k40b", HYBRID_DEVICE="cpu")
    output = job.succeed()
    assert re.search(r"^grid 2x2: a node receives .* KiB", output, re.MULTILINE)
    assert [(result["check"]["ok"], result["grid"], result["nodes"]) for result in job.results()] == [
        (True, None, 4), (True, "2x2", 4),
    ]  # fmt: skip


def test_a_grid_of_nodes_is_asked_for(cluster):
    options = "-N 4 --ntasks-per-node=1 -w p100a,p100b,k40a,k40b"
    job = submit(cluster, "matmul.sbatch", 90, 80, 70, "--grid", "2x2", options=options, HYBRID_DEVICE="cpu")
    assert "grid 2x2 of nodes" in job.succeed()
    (result,) = job.results()
    assert (result["check"]["ok"], result["grid"], result["nodes"]) == (True, "2x2", 4)


def test_sweep_runs_sizes_and_kernels(cluster):
    job = submit(cluster, "sweep.sbatch", options="--array=0,1,6,7%2", HYBRID_SIZE="32", HYBRID_KERNELS="naive tiled")
    output = job.succeed()
    assert products(job, 2) == [(4, "naive"), (4, "tiled"), (32, "naive"), (32, "tiled")]
    assert len(CHECKED.findall(output)) == 4
    assert len(list(cluster.shared.glob(f"sweep-{job.number}_*.out"))) == 4


def test_a_task_past_the_end_of_the_sweep_fails_and_says_what_to_do(cluster):
    job = submit(cluster, "sweep.sbatch", options="--array=12", HYBRID_SIZE="32")
    assert job.wait() == ["FAILED"]
    assert job.exit_codes() == ["2:0"]
    assert "there are 12 runs only: sbatch --array=0-11" in job.output()


def test_tests_run_inside_a_job(cluster):
    chosen = ("tests/api/test_multiply_mpi.py", "-k", "product_is_numpys and 37x23x41 and not two")
    job = submit(cluster, "test.sbatch", *chosen, options="-N 2 --ntasks-per-node=1")
    output = job.succeed()
    assert re.search(r"\d+ passed", output), output
    assert not list(cluster.shared.glob("test-*.*/")), "the temporary folder of the tests was left"


WRONG = [
    (["8", "8"], {}, "three sizes", "2:0"),
    ([], {"HYBRID_SIZE": "8; touch hacked"}, "is no size", "2:0"),
    ([], {"HYBRID_SITE": "../job"}, "has no such file", "2:0"),
    (["8", "8", "8", "--device", "cuda"], {}, "no usable GPU", "1:0"),
]


@pytest.mark.parametrize(("arguments", "environment", "said", "code"), WRONG)
def test_what_fails_is_a_failed_job(cluster, arguments, environment, said, code):
    job = submit(cluster, "matmul.sbatch", *arguments, **environment)
    assert job.wait() == ["FAILED"]
    assert said in job.output()
    assert job.exit_codes() == [code]
    assert not list(cluster.shared.glob("hacked"))


def test_every_script_is_submitted_here():
    with open(__file__) as own:
        tested = set(re.findall(r'"(\w+\.sbatch)"', own.read()))
    assert tested == {path.name for path in (ROOT / "slurm").glob("*.sbatch")}
