# SPDX-License-Identifier: MIT
"""Every script of slurm/, submitted as it is to a real Slurm: the job's state, greetings and products, and where ranks run."""

import itertools
import json
import re
from collections import Counter

import pytest
from cluster import STARTS, Job, submit
from support.commands import ROOT
from support.selection import exhaustive

GREETING = re.compile(r"Greetings from CPU thread \d+/(\d+) of process (\d+)/(\d+)!")
FROM_GPU = re.compile(r"Hello from block \d+, thread \d+ of the GPU, called by process (\d+)")
CHECKED = re.compile(r"^total .* check ok \(exact.*\)$", re.MULTILINE)
ON_FOUR = "-N 4 -w p100a,p100b,k40a,k40b"


def products(job, ranks, nodes=1):
    """(size, kernel) of every JSON line, all of them right."""
    results = job.results()
    assert all(result["check"]["ok"] for result in results)
    assert {(result["ranks"], result["nodes"]) for result in results} == {(ranks, nodes)}
    return [(result["n"], result["kernel"]) for result in results]


# The script, sbatch's options, HYBRID_SIZE, the threads of each of the two ranks (0: no greetings), nodes, and kernels.
LECTURES = [
    ("beowulf.sbatch", "", 48, 4, 1, ["naive", "tiled", "loops"]),
    ("beowulf.sbatch", "-N 2", 48, 4, 2, ["naive", "tiled", "loops"]),
    ("bridges.sbatch", "", 40, 16, 1, []),
    ("bridges2.sbatch", "", 40, 5, 1, ["naive", "tiled", None]),
    ("matmul.sbatch", "", 40, 0, 1, [None]),
]


@pytest.mark.parametrize(("script", "options", "size", "threads", "nodes", "kernels"), exhaustive(LECTURES[1:], LECTURES))
def test_greetings_are_complete_and_products_right(cluster, script, options, size, threads, nodes, kernels):
    job = submit(cluster, script, options=options, HYBRID_SIZE=str(size))
    output = job.succeed()
    made = products(job, 2, nodes) if kernels else []
    assert [n for n, _ in made] == [size // 8 if kernel == "loops" else size for kernel in kernels]
    assert all(wanted in (None, kernel) for wanted, (_, kernel) in zip(kernels, made, strict=True))
    assert len(CHECKED.findall(output)) == len(kernels)
    if threads:
        assert Counter(GREETING.findall(output)) == {(str(threads), str(rank), "2"): threads for rank in range(2)}
        assert Counter(FROM_GPU.findall(output)) == {"0": 12, "1": 12}
        assert len(re.findall(r"^Time: \d+\.\d+", output, re.MULTILINE)) == 1


def test_sbatch_s_options_win_over_the_script_s(cluster):
    options = "-p GPU-small --ntasks-per-node=3 --cpus-per-task=2 --gres=gpu:p100:2"
    job = submit(cluster, "matmul.sbatch", 50, 40, 30, "--kernel", "tiled", "--dtype", "float32", options=options)
    assert "2 threads (SLURM_CPUS_PER_TASK)" in job.succeed()
    (result,) = job.results()
    assert (result["n"], result["l"], result["m"], result["dtype"], result["ranks"]) == (50, 40, 30, "float32", 3)


def test_sweep_runs_sizes_and_kernels(cluster):
    job = submit(cluster, "sweep.sbatch", options="--array=1,6%2", HYBRID_SIZE="32", HYBRID_KERNELS="naive tiled")
    job.succeed()
    assert products(job, 2) == [(4, "tiled"), (32, "naive")]
    assert len(list(cluster.shared.glob(f"sweep-{job.number}_*.out"))) == 2


def test_scaling_takes_more_and_more_nodes(cluster):
    job = submit(
        cluster, "scaling.sbatch", "--fill", "uniform", options="-N 2 -w p100a,p100b", HYBRID_SIZE="64", HYBRID_DEVICE="cpu"
    )
    table = re.findall(r"^(strong|weak) +(\d) +(\d+) ", job.succeed(), re.MULTILINE)
    results = job.results()
    assert all(result["check"]["ok"] for result in results)
    assert [(result["nodes"], result["n"]) for result in results] == [(1, 64), (2, 64), (2, 81)]
    sizes = {"strong": (64, 64), "weak": (64, 81)}
    assert table == [(kind, str(nodes), str(n)) for kind, row in sizes.items() for nodes, n in zip((1, 2), row, strict=True)]


@pytest.mark.parametrize(
    ("distribution", "nodes", "start"),
    exhaustive(
        [("--distribution=cyclic", "abab", "mpirun")],
        [
            ("", "aabb", "srun"),
            ("--distribution=cyclic", "abab", "srun"),
            ("--distribution=cyclic", "abab", "mpirun"),
            ("--distribution=plane=2", "aabb", "mpirun"),
        ],
    ),
)
def test_ranks_are_dealt_to_many_nodes_as_asked(cluster, distribution, nodes, start):
    options = f"-N 2 -w p100a,p100b {distribution}"
    job = submit(cluster, "nodes.sbatch", 90, 80, 70, "--fill", "uniform", options=options, HYBRID_DEVICE="cpu", **STARTS[start])
    output = job.succeed()
    assert re.findall(r"^  rank (\d)  p100(\w)  ", output, re.MULTILINE) == [*zip("0123", nodes, strict=True)]
    rows = dict(re.findall(r"^  rank (\d)  .*  rows (\d+):", output, re.MULTILINE))
    first = [rank for rank, node in zip("0123", nodes, strict=True) if node == "a"]
    assert sorted(rows, key=lambda rank: int(rows[rank]))[:2] == first, "a node's rows follow each other"
    assert len(products(job, 4, 2)) == 1


def test_a_grid_of_nodes_is_compared_with_rows(cluster):
    job = submit(cluster, "grid.sbatch", 90, 80, 70, options=ON_FOUR, HYBRID_DEVICE="cpu")
    assert re.search(r"^grid 2x2: a node receives .* KiB", job.succeed(), re.MULTILINE)
    assert [(result["check"]["ok"], result["grid"], result["nodes"]) for result in job.results()] == [
        (True, None, 4),
        (True, "2x2", 4),
    ]


@pytest.mark.parametrize("start", exhaustive(["srun"], STARTS))
def test_the_product_crosses_the_network_between_nodes(cluster, start):
    n, l, m = 500, 400, 300

    def sent_to(node):
        (link,) = json.loads(cluster.run("ip", "-json", "-statistics", "link", "show", f"to-{node}").stdout)
        return link["stats64"]["tx"]["bytes"]

    before = sent_to("p100a"), sent_to("p100b")
    job = submit(
        cluster, "matmul.sbatch", n, l, m, "--fill", "uniform",
        options="-N 2 --ntasks-per-node=2 -p GPU-small", HYBRID_DEVICE="cpu", **STARTS[start],
    )  # fmt: skip
    output = job.succeed()
    assert re.findall(r"^  rank (\d)  (\w+)  ", output, re.MULTILINE) == [
        *zip("0123", ["p100a"] * 2 + ["p100b"] * 2, strict=True)
    ]
    assert len(products(job, 4, 2)) == 1
    # Half of C at least goes to the root's node, and half of B each way.
    assert sent_to("p100a") - before[0] > 8 * (n * m + l * m) // 2
    assert sent_to("p100b") - before[1] > 8 * l * m // 2


# MPICH sends 4 KiB with an address, most of which lies in the memory behind it and so is what was there before: random bytes make
# the longest requests to the launcher, of which Slurm's pmi2 plugin would read a part only.
FULL_MEMORY = """
import os
kept = [os.urandom(size) for size in range(600, 6000, 4)]
del kept[::2]
from mpi4py import MPI
print(f"{MPI.COMM_WORLD.size} ranks")
"""


def test_ranks_on_two_nodes_start_whatever_is_in_their_memory(cluster):
    (cluster.shared / "start.py").write_text(FULL_MEMORY)
    script = cluster.shared / "start.sh"
    script.write_text('#!/bin/bash\nset -euo pipefail\nsource "$HYBRID_ROOT/slurm/job.sh"\nlaunch python start.py\n')
    options = ["--output=start-%j.out", "-p", "GPU-small", "-N2", "-n2"]
    assert Job(cluster, int(cluster.run("sbatch", "--parsable", *options, script).stdout)).succeed().count("2 ranks") == 2


def test_acceptance_names_a_slow_link(cluster):
    """A tenth as fast as those of the two other nodes."""
    for node, rate in {"p100a": "200mbit", "p100b": "20mbit", "v100": "200mbit"}.items():
        cluster.run(
            "tc", "qdisc", "replace", "dev", f"to-{node}", "root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms"
        )
    options = "-N 3 -w p100a,p100b,v100 --ntasks-per-node=1"
    job = submit(cluster, "accept.sbatch", "--level", 1, options=options, HYBRID_DEVICE="cpu")
    state = job.wait()
    for node in ("p100a", "p100b", "v100"):
        cluster.run("tc", "qdisc", "del", "dev", f"to-{node}", "root")
    assert (state, job.exit_codes()) == (["FAILED"], ["1:0"]), job.output()
    wrong = re.findall(r"^WRONG +node links +(.+?): ", job.output(), re.MULTILINE)  # ranks that share cores may be slow, too
    assert wrong == ["p100a to p100b"], job.output()
    (result,) = job.results()
    around = ["p100a", "p100b", "v100", "p100a"]
    assert [(link["source"], link["target"]) for link in result["node_links"]] == [*itertools.pairwise(around)]


def test_tests_run_inside_a_job(cluster):
    chosen = ("tests/contract/distributed/test_errors_on_all_ranks.py", "-k", "whatever_one_rank")
    job = submit(cluster, "test.sbatch", *chosen, options="-N 2 --ntasks-per-node=1")
    assert re.search(r"\d+ passed", job.succeed()), job.output()
    assert not list(cluster.shared.glob("test-*.*/")), "the temporary folder of the tests was left"


WRONG = [
    ("matmul.sbatch", ["8", "8"], {}, "[sizes]", "2:0"),
    ("matmul.sbatch", ["8", "8", "8", "--device", "cuda"], {}, "[no-gpu]", "1:0"),
    ("matmul.sbatch", [], {"HYBRID_SIZE": "8; touch hacked"}, "matmul: HYBRID_SIZE", "2:0"),
    ("matmul.sbatch", [], {"HYBRID_SITE": "../job"}, "matmul: HYBRID_SITE", "2:0"),
    ("sweep.sbatch", [], {"HYBRID_SIZE": "32", "options": "--array=12"}, "--array=0-11", "2:0"),
]


@pytest.mark.parametrize(("script", "arguments", "environment", "said", "code"), exhaustive(WRONG[1:3], WRONG))
def test_what_fails_is_a_failed_job(cluster, script, arguments, environment, said, code):
    job = submit(cluster, script, *arguments, **environment)
    assert job.wait() == ["FAILED"]
    assert said in job.output()
    assert job.exit_codes() == [code]
    assert not list(cluster.shared.glob("hacked"))


def test_every_script_is_submitted_here():
    with open(__file__) as own:
        tested = set(re.findall(r'"(\w+\.sbatch)"', own.read()))
    assert tested == {path.name for path in (ROOT / "slurm").glob("*.sbatch")}
