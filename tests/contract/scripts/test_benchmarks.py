# SPDX-License-Identifier: MIT
"""Each benchmark runs small without a GPU, checks what it times, and gives its tables again from the lines it has recorded.

docs/benchmarks.md names a command beside every number; these are those commands with small arguments.
"""

import json
import sys

import pytest
from support.commands import ROOT, module, successful
from support.forked import quickly

SMALL = {
    "accuracy": "--device emulate --sizes 8x64x8 --kinds normal",
    "check": "--device cpu --sizes 96 --rounds 1",
    "cpu": "100 --pairs 1",
    "hosts": "--device cpu --gpus 1 --sizes 96 --rounds 1 --repeat 1 --only handwritten ours wires library shapes",
    "nodes": "--nodes 2 --rate 1gbit --shapes square --pairs 1",
    "precision": "--device emulate --sizes 16 --rounds 1 --dtypes float64",
    "types": "--device cpu --sizes 64 --rounds 1",
    "detection": "--sizes 96 --faults 2 --seed 5",
    "largest": "--device emulate --quick --gpu-memory 60k",
}
WITHOUT_LINES = {"cpu"}  # prints what it measures and records nothing
NEEDS = {"accuracy": "compiler", "cpu": "mpirun", "hosts": "mpirun", "nodes": "namespaces mpirun",
         "precision": "compiler", "largest": "compiler"}  # fmt: skip
LONG = {"cpu", "nodes"}
CASES = [
    pytest.param(name, marks=[pytest.mark.needs(*NEEDS.get(name, "").split()), *[pytest.mark.exhaustive] * (name in LONG)])
    for name in SMALL
]


def script(name):
    if name == "largest":
        return [*module("hybrid.lectures"), name]
    return [sys.executable, ROOT / "scripts" / "bench.py", name]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_a_small_run_records_lines_that_give_its_table_again(tmp_path, name):
    path = tmp_path / "lines.jsonl"
    recording = [] if name in WITHOUT_LINES else ["--json", path]
    ran = successful(quickly(script(name), *SMALL[name].split(), *recording, limit=300))
    assert ran.stdout.strip()
    if name in WITHOUT_LINES:
        return
    lines = lines_of(path)
    assert {line["command"].removeprefix("bench_") for line in lines} == {name}
    assert all(line["schema"] == 1 and line["date"] and line["arguments"] for line in lines)
    again = successful(quickly(script(name), "--from", path, limit=120))
    assert set(again.stdout.splitlines()) <= {*ran.stdout.splitlines(), ""}
    assert len(again.stdout.splitlines()) >= 4


@pytest.mark.needs("compiler")
def test_products_from_remainders_err_no_more_than_native_ones(tmp_path):
    """docs/remainders.md: `auto` takes remainders only where errors are smaller than natively, and the proved bound holds."""
    path = tmp_path / "lines.jsonl"
    successful(quickly(script("accuracy"), "--sizes", "8x64x8", "--device", "emulate", "--json", path, limit=300))
    lines = [line for line in lines_of(path) if line["part"] == "errors"]
    units = {"float64": 2.0**-53, "float32": 2.0**-24}
    assert len(lines) == 2 * 15
    for line in lines:
        mean, largest = line["errors"]["auto"]
        assert mean <= line["errors"]["native"][0], line["kind"]
        if "moduli" in line["chosen"]["auto"]:
            assert largest * units[line["dtype"]] <= line["certified"]["auto"], line["kind"]
    assert {line["chosen"]["auto"] for line in lines if line["kind"] == "graded k"} == {"native"}


WRONG = {
    "check": "--device cpu --sizes 300 --dtypes float64 --rounds 1",
    "types": "--device cpu --sizes 64 --dtypes complex128 --rounds 1",
    "largest": "--device emulate --quick --gpu-memory 60k",
}


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_product_is_never_timed(tmp_path, name):
    path = tmp_path / "lines.jsonl"
    plant = [sys.executable, "-m", "hybrid.testing", "--plant", "multiply how=element times=None"]
    ran = quickly([*plant, *script(name)[1:]], *WRONG[name].split(), "--json", path, limit=120)
    assert ran.returncode == 3, ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert not path.exists() or not any(line.get("seconds") for line in lines_of(path))


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("rungs", ["--dtype float64 --kernels naive tiled", pytest.param("", marks=pytest.mark.exhaustive)])
def test_ladder_counts_the_loads_of_every_kernel_without_a_gpu(rungs):
    """An element of A is read by n·m threads' blocks: with tiles of 16 columns at 90 columns, 6 times."""
    table = successful(
        quickly([*module("hybrid.lectures"), "ladder"], "--loads", *rungs.split(), "--shape", 100, 60, 90, limit=300)
    ).stdout.splitlines()
    (tiled,) = [line.split() for line in table if line.split()[:2] == ["tiled", "float64"]]
    (naive,) = [line.split() for line in table if line.split()[:2] == ["naive", "float64"]]
    assert tiled[2:4] == ["6", "6"]
    assert naive[2:4] == ["90", "90"]


def test_scaling_compares_recorded_runs(tmp_path):
    path = tmp_path / "runs.jsonl"
    runs = ((1, 1000, 2.0), (2, 1000, 1.25), (2, 1260, 2.0))
    lines = [
        {"schema": 1, "command": "matmul", "nodes": nodes, "n": n, "total": {"median": seconds}, "rate": 2 * n**3 / seconds}
        for nodes, n, seconds in runs
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    table = [line.split() for line in successful(quickly(script("scaling"), path)).stdout.splitlines()[1:]]
    efficiency = [("strong", "1", "1.00"), ("strong", "2", "0.80"), ("weak", "1", "1.00"), ("weak", "2", "1.00")]
    assert [(row[0], row[1], row[-1]) for row in table] == efficiency
