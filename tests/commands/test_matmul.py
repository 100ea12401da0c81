# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul as users start it: output, files, exit codes."""

from __future__ import annotations

import importlib.util
import itertools
import json
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import ROOT, module, start, successful, under_a_launcher
from support.selection import exhaustive

from hybrid.kernels.catalogue import CATALOGUE
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

COMMAND = module("hybrid.matmul")
LAST_LINE = re.compile(r"total \d+\.\d{4} s  rate \d+\.\d\d [MGT]F/s  check (ok|FAILED|off|impossible).*")

launcher = pytest.mark.launcher


def run(*arguments, **options):
    return start(COMMAND, *arguments, **options)


def good(*arguments, **options):
    return successful(run(*arguments, **options))


def test_a_product_prints_ranks_phases_and_a_last_line():
    lines = good(60, 50, 40).stdout.splitlines()
    assert lines[0].startswith("C (60×40) = A (60×50) · B (50×40)  float64  1 rank on 1 node  cpu")
    assert re.match(r"  rank 0  \S+  cores [\d,-]+  \d+ threads? \(.+\)  rows 0:60$", lines[1])
    rows = [line.split()[0] for line in lines[3:-2] if line.startswith("  ")]
    phases = [row for row in rows if row != "between"]  # which a slow machine may need
    assert phases == ["fill", "scatter", "multiply", "gather", "check"]
    assert re.fullmatch(r"wall \d+\.\d\d s: start \d+\.\d\d, imports \d+\.\d\d.*", lines[-2])
    assert LAST_LINE.fullmatch(lines[-1])
    assert "check ok (exact" in lines[-1]


# What only other products need than those of real numbers on one node, on a device that checks them itself.
OF_OTHER_PRODUCTS = (
    *("arrays.complex_matrices", "arrays.integers", "arrays.exact_result", "arrays.combine"),
    *("devices.modular", "emulation.confined"),
    *("execution.grid_run", "execution.host_check", "execution.product_file"),
    *("transport.device_gather", "transport.nccl", "transport.panel_gather", "transport.panel_stream", "transport.peers"),
    *("transport.root_push", "transport.row_exchange"),
    *("verification.freivalds", "verification.wrong_sums", "verification.expected_sums"),
)


def test_a_product_loads_nothing_that_only_others_need():
    """Each module that is loaded makes every command start later."""
    assert all(importlib.util.find_spec(f"hybrid.{name}") for name in OF_OTHER_PRODUCTS)  # else a new name would hide it
    command = [sys.executable, "-X", "importtime", *COMMAND[1:]]
    done = start(command, 60, 50, 40, "--device", "cpu", HYBRID_GUARD="0", HYBRID_STAGED="1")
    assert not done.returncode, done.stderr
    loaded = set(re.findall(r"^import time:.*\| +hybrid\.(\S+)$", done.stderr, re.MULTILINE))
    assert {"execution.rank_run", "verification.device_check"} < loaded
    assert not loaded.intersection(OF_OTHER_PRODUCTS)


@launcher
@pytest.mark.parametrize("ranks", exhaustive([2], [1, 2, 3]))
def test_output_comes_from_rank_0_alone(ranks):
    lines = good(60, 50, 40, ranks=ranks).stdout.splitlines()
    assert sum(line.startswith("total") for line in lines) == 1
    assert [re.search(r"rows (\S+)$", line).group(1) for line in lines if line.startswith("  rank")] == [
        f"{60 * rank // ranks}:{60 * (rank + 1) // ranks}" for rank in range(ranks)
    ]


@launcher
@pytest.mark.parametrize("fill", exhaustive(["uniform"], ["lecture", "uniform", "normal", "index"]))
def test_the_same_product_for_any_number_of_ranks_and_nodes(tmp_path, fill):
    ways = [(0, {}), (1, {}), (3, {}), (4, {"HYBRID_RANKS_PER_NODE": "2"}), (2, {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "7"})]
    products = []
    for index, (ranks, environment) in enumerate(ways):
        path = tmp_path / f"{index}.npy"
        good(37, 23, 41, "--fill", fill, "--seed", 5, "--out", path, ranks=ranks, **environment)
        products.append(np.load(path))
    for product in products[1:]:
        np.testing.assert_allclose(product, products[0], rtol=1e-13)


@launcher
@pytest.mark.parametrize("ranks", [0, 2])
def test_files_in_and_out(tmp_path, ranks):
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((30, 20)), rng.standard_normal((20, 10)).astype(np.float32)
    np.save(tmp_path / "a.npy", np.asfortranarray(a))
    np.save(tmp_path / "b.npy", b)
    good("--a", "a.npy", "--b", "b.npy", "--out", "c.npy", ranks=ranks, cwd=tmp_path)
    c = np.load(tmp_path / "c.npy")
    assert c.dtype == np.float64
    np.testing.assert_allclose(c, a @ b)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy"]


def test_one_file_and_one_made_matrix(tmp_path):
    a = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "a.npy", a)
    good(3, 4, 5, "--a", "a.npy", "--fill", "index", "--out", "c.npy", cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ np.arange(20.0).reshape(4, 5))


def test_an_existing_file_is_replaced_whole(tmp_path):
    target = tmp_path / "c.npy"
    target.write_bytes(b"old")
    good(5, 5, 5, "--out", target)
    assert np.load(target).shape == (5, 5)


@pytest.mark.parametrize("ranks", [0, pytest.param(2, marks=launcher)])
def test_print_is_the_lectures_format(ranks):
    done = good(3, 2, 2, "--fill", "index", "--print", 2, ranks=ranks)
    operand = "0.000000 1.000000 \n2.000000 3.000000 \n\n"
    shown = f"A (3×2), its top left 2×2\n{operand}B (2×2)\n{operand}C (3×2), its top left 2×2\n2.000000 3.000000 \n6.000000 11"
    assert shown in done.stdout


@launcher
@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="only Linux can free the memory of a file that is mapped")
def test_ranks_give_shared_memory_back_when_all_is_reported(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom hybrid.commands import matmul, matmul_report, matmul_run\n"
        "original, end = matmul_run.give_back, matmul_report.Speaker.end\n"
        "def told(*given):\n    end(*given)\n    print('reported', flush=True)\n"
        "matmul_report.Speaker.end = told\n"
        "matmul_run.give_back = lambda: print(f'{len(original())} given back\\n', end='', flush=True)\n"
        "sys.exit(matmul.main())\n"
    )
    done = successful(start([sys.executable, str(program)], 300, 200, 100, ranks=2))
    said = [line for line in done.stdout.splitlines() if line == "reported" or line.endswith("given back")]
    assert said == ["reported", "reported", "3 given back", "3 given back"]


def test_print_shows_ten_by_default():
    matrices = good(20, 20, 20, "--fill", "uniform", "--print").stdout.split("\n\n")
    assert [len(line.split()) for line in matrices[1].splitlines()[1:]] == [10] * 10


def test_json_is_appended_and_read_back(tmp_path):
    path = tmp_path / "runs.jsonl"
    for seed in (1, 2):
        good(30, 20, 10, "--fill", "uniform", "--seed", seed, "--repeat", 3, "--json", path)
    first, second = jsonl.read(str(path))
    assert (first["seed"], second["seed"]) == (1, 2)
    assert {name: second[name] for name in ("n", "l", "m", "dtype", "ranks", "nodes", "device", "kernel", "fill", "repeat")} == {
        "n": 30, "l": 20, "m": 10, "dtype": "float64", "ranks": 1, "nodes": 1, "device": "cpu", "kernel": "blas",
        "fill": "uniform", "repeat": 3,
    }  # fmt: skip
    assert set(second["seconds"]) == {"fill", "scatter", "multiply", "gather", "check"}
    assert second["seconds"]["multiply"]["min"] <= second["seconds"]["multiply"]["median"] <= second["seconds"]["multiply"]["max"]
    parts = {name: seconds for name, seconds in second["wall"].items() if name != "total"}
    assert list(parts) == [
        "start", "imports", "MPI start", "agree", "GPU start", "allocate", "fill", "prepare", "product", "check", "write", "end",
    ]  # fmt: skip
    assert sum(parts.values()) == pytest.approx(second["wall"]["total"])
    assert parts["product"] >= 3 * second["total"]["min"]
    assert second["rate"] == pytest.approx(2 * 30 * 20 * 10 / second["total"]["median"])
    assert second["check"]["kind"] == "freivalds"
    assert second["check"]["ok"] is True
    assert second["check"]["error"] <= second["check"]["tolerance"]
    assert {"settings", "versions", "machine", "date", "schema"} <= set(second)


def test_json_on_standard_output_is_all_there_is():
    done = good(8, 8, 8, "--json", "-")
    assert json.loads(done.stdout)["n"] == 8
    assert LAST_LINE.fullmatch(done.stderr.splitlines()[-1])


@launcher
def test_trace_has_a_process_for_each_rank(tmp_path):
    path = tmp_path / "trace.json"
    good(40, 30, 20, "--repeat", 2, "--trace", path, ranks=2, HYBRID_STAGED="1")
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    timed = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in timed} >= {"fill", "copy in", "multiply", "copy out", "check"}
    assert {event["args"]["repeat"] for event in timed if event["name"] == "multiply"} == {0, 1}
    assert all(event["dur"] >= 0 for event in timed)


def test_no_check_says_so():
    assert good(8, 8, 8, "--no-check").stdout.splitlines()[-1].endswith("check off")


@launcher
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_wrong_product_exits_with_3_and_writes_no_file(tmp_path, ranks):
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys, numpy, hybrid.devices.cpu, hybrid.commands.matmul\n"
        "def wrong(a, b, c):\n"
        "    numpy.matmul(a, b, out=c)\n"
        "    c[0, 0] += 1\n"
        "hybrid.devices.cpu.blas = wrong\n"
        "sys.exit(hybrid.commands.matmul.main())\n"
    )
    done = subprocess.run(
        [*mpirun(ranks), sys.executable, program, "20", "20", "20", "--out", tmp_path / "c.npy"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "check FAILED (exact" in done.stdout
    # The first row of each rank is wrong by as much.
    assert re.match(r"wrong: row (0|10) of C, columns 0: wrong by 1\.00e\+00", done.stdout.splitlines()[-2])
    assert [path.name for path in tmp_path.iterdir()] == ["wrong.py"]


@launcher
@pytest.mark.parametrize(
    ("ranks", "check", "row", "call", "product"),
    [
        (1, "host", 5, 1, "warm-up product 1 of 1"),
        (1, "on", 5, 4, "product 3 of 5"),
        (2, "on", 5, 4, "product 3 of 5"),
        (2, "host", 25, 4, "product 3 of 5"),
    ],
)
def test_a_fault_in_one_of_several_products_names_it_the_rank_and_the_device(tmp_path, ranks, check, row, call, product):
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys, numpy, hybrid.devices.cpu, hybrid.commands.matmul\n"
        "from hybrid.ranks.launcher import rank_by_launcher\n"
        f"calls, victim, which = [], {row // 20}, {call}\n"
        "def wrong(a, b, c):\n"
        "    numpy.matmul(a, b, out=c)\n"
        "    calls.append(c.shape)\n"
        "    if len(calls) == which and rank_by_launcher() == victim:\n"
        "        c[5, 7] += 100\n"
        "hybrid.devices.cpu.blas = wrong\n"
        "sys.exit(hybrid.commands.matmul.main())\n"
    )
    options = ["--fill", "normal", "--warmup", "1", "--repeat", "5", "--check", check, "--json", tmp_path / "lines.jsonl"]
    sizes = [20 * ranks, 20, 20]
    done = subprocess.run(
        [*mpirun(ranks), sys.executable, program, *map(str, sizes), *options],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    who = rf"multiplied by rank {row // 20} on {re.escape(os.uname().nodename)}, device cpu, kernel blas"
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("wrong: ")]
    assert re.fullmatch(rf"wrong: {product}: row {row} of C, columns 7: wrong by 1.00e\+02, {who}", line), line
    (record,) = jsonl.read(str(tmp_path / "lines.jsonl"))
    assert [f"wrong: {fault}" for fault in record["check"]["faults"]] == [line]


WRONG = [
    (["8", "8"], "three sizes n l m are needed, 2 given"),
    (["8", "8", "8", "8"], "three sizes n l m are needed, 4 given"),
    (["8", "x", "8"], "'x' is not a whole number"),
    (["8", "-8", "8"], "unknown option|too small"),
    (["8", "8", "8", "--fil", "uniform"], "unknown option --fil: did you mean --fill?"),
    (["8", "8", "8", "--road", "nccl"], "unknown option --road: did you mean --transport?"),
    (["8", "8", "8", "--foo"], "unknown option --foo: one of --help, --version, --dtype, --fill,"),
    (["8", "8", "8", "--versoin"], "unknown option --versoin: did you mean --version?"),
    (["8", "8", "8", "-n", "4"], "unknown option -n: the launcher takes the number of ranks, as in mpirun -n 4 python -m hybrid"),
    (["8", "8", "8", "-np4"], "unknown option -np4: the launcher takes"),
    (["8", "8", "8", "--check", "maybe"], "unknown choice 'maybe': one of on, host, off"),
    (["8", "8", "8", "--check", "hots"], "unknown choice 'hots': did you mean 'host'?"),
    (["8", "8", "8", "--stall", "soon"], "'soon' is not a number of seconds"),
    (["8", "8", "8", "--out", ""], "argument --out: the name of a file is missing"),
    (["8", "8", "8", "--a="], "argument --a: the name of a file is missing"),
    (["8", "8", "8", "--fill", "unifrom"], "unknown fill 'unifrom': did you mean 'uniform'?"),
    (["8", "8", "8", "--dtype", "float46"], "did you mean 'float64'?"),
    (["8", "8", "8", "--kernel", "blass"], "did you mean 'blas'?"),
    (["8", "8", "8", "--kernel", "foo"], "unknown kernel 'foo': one of blas, "),
    (["8", "8", "8", "--seed", "x"], "argument --seed: 'x' is not a whole number"),
    (["8", "8", "8", "--device", "gpu"], "unknown device 'gpu': did you mean 'cuda'?"),
    (["8", "8", "8", "--device", "xyz"], "unknown device 'xyz': one of auto, cpu, cuda, emulate"),
    (["8", "8", "8", "--device", "cpu", "--kernel", "cublas"], "kernel cublas runs on cuda"),
    (["8", "8", "8", "--repeat", "0"], "too small"),
    (["8", "8", "8", "--threads", "-1"], "-1 is too small: at least 0"),
    (["8", "8", "8", "--ranks", "4"], "only with --explain"),
    (["8", "8", "8", "--nodes", "4"], "only with --explain"),
    (["8", "8", "8", "--explain", "--json", "-", "--out", "c.npy"], "there is nothing for --out, --json"),
    (["8", "8", "8", "--explain", "--network", "fast"], "'fast' is no rate (such as 25GB/s or 100Gbit/s)"),
    (["8", "8", "8", "--explain", "--ranks", "9", "--nodes", "2", "--gpus-per-node", "4"], "too few for 9 ranks"),
    (["8", "8", "8", "--grid", "2y2"], "grid must be auto, rows, RxC or RxCxL"),
    (["8", "8", "8", "--grid", "2x2"], "a grid 2x2 has 4 nodes, and this job 1"),
    (["8", "8", "8", "--a", "missing.npy"], "missing.npy cannot be read"),
    (["--a", "missing.npy"], "with only one of --a and --b the sizes n l m are needed"),
    (["8", "8", "8", "--out", "c.csv"], "c.csv: matrices are written as .npy, .h5, .zarr or .mtx, and not as .csv"),
    (["8", "8", "8", "--a", "https://example.org/a.npy"], "https://example.org/a.npy is a URL"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_usage_is_one_line_and_exit_2(arguments, said):
    done = run(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("hybrid.matmul: ")
    assert re.search(said.replace("?", r"\?").replace("(", r"\(").replace(")", r"\)"), line), line


@launcher
@pytest.mark.parametrize(
    ("arguments", "ranks"),
    exhaustive(
        [(["8", "8"], 3), (["8", "8", "8", "--fill", "unifrom"], 2), (["8", "8", "8", "--a", "missing.npy"], 3)],
        itertools.product([["8", "8"], ["8", "8", "8", "--fill", "unifrom"], ["8", "8", "8", "--a", "missing.npy"]], [2, 3]),
    ),
)
def test_wrong_usage_under_mpirun_is_said_once(arguments, ranks):
    done = run(*arguments, ranks=ranks)
    assert done.returncode == 2
    assert len([line for line in done.stderr.splitlines() if line.startswith("hybrid")]) == 1


@launcher
@pytest.mark.parametrize("second", [["9", "8", "8"], ["8", "8"], ["8", "8", "8", "--seed", "1"]])
def test_ranks_started_differently_are_named(second):
    with_different = [*mpirun(1), *COMMAND, "8", "8", "8", ":", "-n", "1", *COMMAND, *second]
    done = subprocess.run(with_different, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hybrid")]
    assert "rank 1" in line


def test_files_that_are_no_matrices(tmp_path):
    np.save(tmp_path / "line.npy", np.ones(3))
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("hello")
    for name, said in [
        ("line", "shape is (3,)"),
        ("objects", "holds Python objects"),
        ("text", "is no .npy file"),
        (os.fsdecode(b"\xff"), r"\udcff.npy cannot be read: No such file"),
    ]:
        done = run("--a", f"{name}.npy", "--b", f"{name}.npy", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_sizes_must_match_the_files(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    np.save(tmp_path / "b.npy", np.ones((4, 2)))
    done = run("--a", "a.npy", "--b", "b.npy", cwd=tmp_path)
    assert done.returncode == 2
    assert "b.npy is 4×2, but B must be 3×2" in done.stderr


@pytest.mark.parametrize("option", ["--out", "--json", "--trace"])
def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path, option):
    done = run(8, 8, 8, option, tmp_path / "nowhere" / "file")
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
    assert "total" not in done.stdout


def test_too_little_memory_is_refused_with_the_missing_amount():
    done = run(100000, 100000, 100000, "--host-memory", "1G")
    assert done.returncode == 1
    assert re.search(r"needs 223\.9 GiB of memory on \S+, which has 1\.0 GiB: 222\.9 GiB are missing", done.stderr)


def test_cuda_without_a_gpu_says_why():
    done = run(8, 8, 8, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "no usable GPU" in done.stderr
    assert "choose device cpu" in done.stderr


def test_auto_without_a_gpu_says_why():
    assert re.search(r"  cpu \(.*(driver|GPU|CuPy).*\)  kernel blas", good(8, 8, 8, CUDA_VISIBLE_DEVICES="").stdout)


def test_explain_needs_no_mpi_and_runs_nothing(tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no MPI here')")
    done = good(
        1000, 2000, 3000, "--explain", "--ranks", 8, "--gpus-per-node", 4, "--gpu-memory", "141G",
        PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    )  # fmt: skip
    assert "rank 7: rows 875:1000" in done.stdout
    assert "node 1: ranks 4–7" in done.stdout
    assert done.stdout.endswith("it fits\n")


def test_explain_of_many_nodes_tells_what_their_links_carry():
    done = run(20000, 20000, 20000, "--explain", "--device", "cpu", "--ranks", 32, "--nodes", 16, "--network", "1Gbit/s")
    assert done.returncode == 0, done.stderr
    (chosen,) = re.findall(r"^grid (\S+): a node receives .* ([\d.]+) s of its link \(chosen\)$", done.stdout, re.M)
    (rows,) = re.findall(r"^grid rows: .* ([\d.]+) s of its link$", done.stdout, re.M)
    assert chosen[0] != "rows"
    assert float(chosen[1]) < float(rows)
    assert "node 15: ranks 30–31" in done.stdout


def test_explain_refuses_what_does_not_fit():
    done = run(100000, 100000, 100000, "--explain", "--ranks", 8, "--gpus-per-node", 8, "--gpu-memory", "1M")
    assert done.returncode == 1
    assert "are missing" in done.stderr


def test_kernel_list():
    assert [line.split()[0] for line in good("--kernel", "list").stdout.splitlines()] == [kernel.name for kernel in CATALOGUE]


@launcher
def test_help_and_lists_come_once_under_mpirun():
    for arguments in (["--help"], ["--kernel", "list"], ["8", "8", "8", "--explain"]):
        alone, together = good(*arguments).stdout, good(*arguments, ranks=3).stdout
        assert len(together.splitlines()) <= len(alone.splitlines()) + 2


@launcher
def test_threads_are_set_and_shown():
    assert "3 threads (--threads)" in good(8, 8, 8, "--threads", 3).stdout
    assert "2 threads (SLURM_CPUS_PER_TASK)" in good(8, 8, 8, ranks=2, SLURM_CPUS_PER_TASK="2").stdout
    assert "5 threads (OMP_NUM_THREADS)" in good(8, 8, 8, OMP_NUM_THREADS="5").stdout


def test_settings_come_from_the_environment_and_flags_win():
    done = good(8, 8, 8, "--threads", 1, "--json", "-", HYBRID_THREADS="2", HYBRID_PANEL_ROWS="3")
    settings = json.loads(done.stdout)["settings"]
    assert (settings["threads"], settings["panel_rows"]) == (1, 3)


RANK_OF_SIZE = {"OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK", "PMI_SIZE": "PMI_RANK", "SLURM_STEP_NUM_TASKS": "SLURM_PROCID"}


@launcher
@pytest.mark.parametrize("size", RANK_OF_SIZE)
def test_a_launcher_of_another_mpi_is_refused(size, tmp_path):
    """Every process would take itself for rank 0 of 1 and do all the work again."""
    done = start([*under_a_launcher(tmp_path), *COMMAND], 8, 8, 8, **{size: "2", RANK_OF_SIZE[size]: "0"})
    assert done.returncode != 0
    assert "total" not in done.stdout
    assert "started 2 processes" in done.stderr


@launcher
@pytest.mark.needs("no launcher above")
@pytest.mark.parametrize(("size", "rank"), exhaustive([("PMI_SIZE", "0")], itertools.product(RANK_OF_SIZE, ["0", "1"])))
def test_variables_of_a_launcher_that_is_not_there_are_named(size, rank):
    done = run(8, 8, 8, **{size: "2", RANK_OF_SIZE[size]: rank})
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hybrid.matmul: {RANK_OF_SIZE[size]}={rank} and {size}=2 say that ")
    assert "unset them" in line
    assert (done.returncode, done.stdout) == (1, "")


@launcher
@pytest.mark.parametrize("rank", ["0", "1"])
def test_variables_of_a_launcher_that_has_ended_are_named(rank):
    """With those that make MPICH look for a connection, which are not told from the living by a missing one of MPI's ranks."""
    done = run(8, 8, 8, PMI_SIZE="2", PMI_RANK=rank, PMI_FD="9", PMI_HOSTNAME="here", MPI_LOCALNRANKS="2")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hybrid.matmul: PMI_RANK={rank} and PMI_SIZE=2 say that ")
    assert "unset them" in line
    assert (done.returncode, done.stdout) == (1, "")


def test_runs_from_any_directory_and_from_the_checkout(tmp_path):
    good(8, 8, 8, cwd=tmp_path)
    good(8, 8, 8, cwd=ROOT)


@pytest.mark.needs("commands")
def test_the_entry_point_is_the_command():
    entry = Path(sys.executable).with_name("hybrid-matmul")
    done = subprocess.run([entry, "8", "8", "8"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert LAST_LINE.fullmatch(done.stdout.splitlines()[-1])


@launcher
def test_a_program_started_by_a_launcher_of_another_mpi_is_refused_too(tmp_path):
    # Open MPI leaves a file of a process alone, which `start_mpi` removes.
    program = "import hybrid; import hybrid.ranks.world as w; hybrid.multiply([[1.0]], [[1.0]], comm=w.start_mpi().COMM_WORLD)"
    environment = {**os.environ, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
    done = subprocess.run(
        [*under_a_launcher(tmp_path, "srun"), sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.returncode != 0
    assert "StartError: srun started 2 processes" in done.stderr


@launcher
def test_what_explain_refuses_is_said_once_and_ends_all_ranks():
    for arguments in (["--a", "missing.npy", "--b", "missing.npy"], [1000, 1000, 1000, "--host-memory", "1k"]):
        done = run(*arguments, "--explain", ranks=2)
        assert done.returncode in (1, 2)
        assert "Traceback" not in done.stderr
        assert len([line for line in done.stderr.splitlines() if line.startswith("hybrid")]) == 1


@pytest.mark.parametrize("size", exhaustive([10**9], [10**6, 10**9, 10**18]))
def test_sizes_beyond_any_machine_are_refused_at_once(size):
    done = run(size, size, size)
    assert done.returncode == 1
    assert "are missing" in done.stderr
    assert run(size, size, size, "--explain", "--ranks", 1000).returncode == 0


def test_a_size_without_an_index_and_a_misspelt_variable_are_wrong_usage():
    done = run(1 << 63, 10, 10)
    assert (done.returncode, done.stderr) == (2, f"hybrid.matmul: n must be less than 2⁶³, not {1 << 63}\n")
    done = run(4, 4, 4, HYBRID_KERNAL="naive")
    assert done.returncode == 2
    assert done.stderr == "hybrid.matmul: the environment variable HYBRID_KERNAL is unknown: did you mean HYBRID_KERNEL?\n"
    done = run(4, 4, 4, HYBRID_SEARCH="of another program")
    assert done.returncode == 0
    assert done.stderr == "hybrid.matmul: no setting, and ignored: HYBRID_SEARCH in the environment\n"


@launcher
def test_a_variable_of_another_program_is_named_once():
    done = good(4, 4, 4, ranks=2, HYBRID_SEARCH="of another program")
    assert done.stderr.count("HYBRID_SEARCH") == 1


@pytest.mark.parametrize("transport", ["nccl", "peers"])
def test_a_transport_between_gpus_is_refused_on_a_cpu(transport):
    done = run(8, 8, 8, "--device", "cpu", "--transport", transport)
    assert done.returncode == 1
    assert done.stderr == f"hybrid.matmul: the transport {transport} cannot be used: a CPU multiplies, and no GPU\n"
    assert good(8, 8, 8, "--device", "cpu", "--transport", "host")


def test_no_file_is_written_over_another(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 3)))
    before = (tmp_path / "a.npy").read_bytes()
    for options in (["--trace", "a.npy"], ["--json", "a.npy"], ["--out", "x", "--json", "x"], ["--json", "x", "--trace", "./x"]):
        done = run(3, 3, 3, "--a", "a.npy", *options, cwd=tmp_path)
        assert done.returncode == 2, options
        assert "name the same file" in done.stderr
    assert (tmp_path / "a.npy").read_bytes() == before


def test_links_stay_and_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "link.npy").symlink_to("target.npy")
    good(3, 3, 3, "--out", "link.npy", cwd=tmp_path)
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "target.npy").shape == (3, 3)
    os.mkfifo(tmp_path / "pipe")
    for option in ("--out", "--trace", "--a"):
        done = run(3, 3, 3, option, "pipe", cwd=tmp_path)
        assert done.returncode == 2
        assert "not a regular file" in done.stderr


def test_a_line_that_cannot_be_written_whole_is_not_begun(tmp_path):
    import resource

    path = tmp_path / "runs.jsonl"
    good(3, 3, 3, "--json", path)
    whole = path.read_bytes()

    def small_files():
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100,) * 2)

    done = subprocess.run(
        [*COMMAND, "3", "3", "3", "--json", path],
        capture_output=True, text=True, timeout=60, preexec_fn=small_files, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", ["<U5", "datetime64[s]", "V3"])
def test_files_of_other_types_are_refused_with_any_dtype(tmp_path, kind):
    np.save(tmp_path / "x.npy", np.zeros((2, 2), kind))
    done = run("--a", "x.npy", "--b", "x.npy", "--dtype", "float64", cwd=tmp_path)
    assert done.returncode == 2
    assert "only numbers" in done.stderr


def test_values_too_large_for_the_type_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.full((2, 2), 1e300))
    done = run("--a", "x.npy", "--b", "x.npy", "--dtype", "float32", cwd=tmp_path)
    assert done.returncode != 0
    assert "too large for float32" in done.stderr


def test_any_locale_and_closed_streams():
    assert LAST_LINE.fullmatch(good(8, 8, 8, PYTHONIOENCODING="ascii").stdout.splitlines()[-1])
    for closing in (">&-", "2>&-", "</dev/null >/dev/null"):
        done = subprocess.run(["bash", "-c", f'"$@" {closing}', "bash", *COMMAND, "8", "8", "8"], timeout=60, check=False)
        assert done.returncode == 0, closing
