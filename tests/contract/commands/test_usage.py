# SPDX-License-Identifier: MIT
"""Wrong usage ends with 2 and one line that names what is wrong, by code and word, from rank 0 alone, before anything is
computed."""

import os
import subprocess

import numpy as np
import pytest
from support.matmul import MATMUL, code_in, good, line_of_failure, names_in, run
from support.selection import exhaustive

from hybrid.testing import mpirun

launcher = pytest.mark.launcher

WRONG = [  # arguments, a word of the line, its code
    ("8 8", "2", "sizes"), ("8 8 8 8", "4", "sizes"), ("8 x 8", "'x'", "number"), ("8 -8 8", "-8", "number"),
    (f"{1 << 63} 10 10", f"{1 << 63}", "sizes"), ("8 8 8 --fil uniform", "--fill?", "option"),
    ("8 8 8 --foo", "--help, --version, --dtype", "option"),
    ("8 8 8 --versoin", "--version?", "option"), ("8 8 8 -n 4", "mpirun -n", "option"), ("8 8 8 -np4", "launcher", "option"),
    ("8 8 8 --json", "--json", "option"), ("8 8 8 --check maybe", "on, full, host, off", "setting"),
    ("8 8 8 --check hots", "'host'?", "setting"), ("8 8 8 --fill unifrom", "'uniform'?", "setting"),
    ("8 8 8 --dtype float46", "'float64'?", "setting"), ("8 8 8 --dtype double", "'float64'?", "setting"),
    ("8 8 8 --kernel blass", "'blas'?", "setting"), ("8 8 8 --kernel foo", "blas,", "setting"),
    ("8 8 8 --device gpu", "'cuda'?", "setting"), ("8 8 8 --device xyz", "auto, cpu, cuda, emulate", "setting"),
    ("8 8 8 --precision exact", "native", "setting"), ("8 8 8 --transport road", "peers", "setting"),
    ("8 8 8 --on-fault ignore", "repair", "setting"), ("8 8 8 --grid 2y2", "RxC", "grid"), ("8 8 8 --grid 2x2", "2x2", "grid"),
    ("8 8 8 --seed x", "--seed", "number"), ("8 8 8 --stall soon", "'soon'", "number"), ("8 8 8 --stall -1", "-1", "number"),
    ("8 8 8 --repeat 0", "0", "number"), ("8 8 8 --warmup -1", "-1", "number"),
    ("8 8 8 --threads -1", "-1", "number"), ("8 8 8 --print 0", "0", "number"), ("8 8 8 --host-memory 3X", "'3X'", "number"),
    ("8 8 8 --device cpu --kernel cublas", "cublas", "kernel-device"),
    ("8 8 8 --out=", "--out", "option"), ("8 8 8 --a=", "--a", "option"), ("--a missing.npy", "--b", "sizes"),
    ("8 8 8 --a missing.npy", "missing.npy", "file-missing"),
    ("8 8 8 --out c.csv", ".csv", "file-kind"), ("8 8 8 --out none/c.npy", "none", "file-missing"),
    ("8 8 8 --out .", ".", "file-unwritable"), ("8 8 8 --json none/r.jsonl", "none", "file-missing"),
    ("8 8 8 --json /proc/version", "/proc", "file-unwritable"),
    ("8 8 8 --trace none/t.json", "none", "file-missing"), ("8 8 8 --ranks 4", "--explain", "option-combination"),
    ("8 8 8 --nodes 4", "--explain", "option-combination"),
    ("8 8 8 --explain --json - --out c.npy", "--out", "option-combination"),
    ("8 8 8 --explain --network fast", "'fast'", "number"), ("8 8 8 --explain --network 0GB/s", "'0GB/s'", "number"),
    ("8 8 8 --explain --capability 9", "'9'", "number"),
    ("8 8 8 --explain --ranks 9 --nodes 2 --gpus-per-node 4", "9", "option-combination"),
    ("8 8 8 --explain --ranks 4 --nodes 9", "9", "option-combination"),
    ("8 8 8 --explain --ranks 100000000000000", "100000", "number"), ("8 8 8 --explain --gpus-per-node 1000", "128", "number"),
    ("8 8 8 --explain --ranks 2000", "--nodes", "number"), ("8 8 8 --explain --ranks 100000 --nodes 10", "10000", "number"),
    ("8 8 8 --dtype int8 --fill normal", "int8", "dtype"), ("30 30 8 --dtype int8 --fill index", "899", "dtype"),
    ("8 8 8 --resume", "--out", "option-combination"), ("8 8 8 --out c.npy --resume-rows 3", "--resume", "option-combination"),
    ("8 8 8 --out c.npy --resume --resume-rows 0", "0", "number"),
    ("8 8 8 --out c.npy --resume --repeat 2", "--repeat", "option-combination"),
    ("8 8 8 --out c.npy --resume --trace t.json", "--trace", "option-combination"),
    ("8 8 8 --out c.npy --resume --dtype int32", "int32", "dtype"),
    ("8 8 8 --out c.npy --resume --dtype float16 --fill normal", "float16", "dtype"),
    ("8 8 8 --out c.mtx --resume", "c.mtx", "file-kind"), ("8 8 8 --out none/c.npy --resume", "none", "file-missing"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "word", "code"), WRONG, ids=[arguments for arguments, *_ in WRONG])
def test_wrong_usage_is_one_line(tmp_path, arguments, word, code):
    done = run(*arguments.split(), cwd=tmp_path)
    line = line_of_failure(done, 2)
    assert done.stdout == ""
    assert line.startswith("hybrid.matmul: ")
    assert word in line
    assert names_in(tmp_path) == []
    assert code_in(line) == code


@launcher
@pytest.mark.parametrize(
    ("arguments", "way"),
    exhaustive(
        [("8 8 8 --a missing.npy", "2 nodes"), ("8 8 8 --explain --a x --b x", "2 ranks")],
        [("8 8", "2 nodes"), ("8 8 8 --fill unifrom", "2 ranks"), ("8 8 8 --a missing.npy", "2 nodes"),
         ("8 8 8 --explain --a x --b x", "2 ranks")],
    ),
)  # fmt: skip
def test_under_mpirun_it_is_said_once_and_ends_all_ranks(tmp_path, arguments, way):
    assert code_in(line_of_failure(run(*arguments.split(), way=way, cwd=tmp_path), 2))


@launcher
@pytest.mark.parametrize("second", exhaustive(["9 8 8", "8 8 8 --kernal"], ["9 8 8", "8 8", "8 8 8 --seed 1", "8 8 8 --kernal"]))
def test_ranks_that_are_started_differently_are_refused(second):
    both = [*mpirun(1), *MATMUL, "8", "8", "8", ":", "-n", "1", *MATMUL, *second.split()]
    done = subprocess.run(both, capture_output=True, text=True, timeout=120, check=False)
    line = line_of_failure(done, 2)
    assert "rank 1" in line or second in ("8 8", "8 8 8 --kernal")
    assert code_in(line) == {"8 8": "sizes", "8 8 8 --kernal": "option"}.get(second, "ranks-differ")


@pytest.mark.parametrize(
    "options", ["--trace a.npy", "--json a.npy", "--out x --json x", "--json x --trace ./x", "--out a.npy --resume"]
)
def test_no_file_is_written_over_another(tmp_path, options):
    np.save(tmp_path / "a.npy", np.ones((3, 3)))
    before = (tmp_path / "a.npy").read_bytes()
    line = line_of_failure(run(3, 3, 3, "--a", "a.npy", *options.split(), cwd=tmp_path), 2)
    assert code_in(line) == "same-file"
    assert names_in(tmp_path) == ["a.npy"]
    assert (tmp_path / "a.npy").read_bytes() == before


@pytest.mark.parametrize("option", ["--out", "--trace", "--a", "--json"])
def test_what_is_no_file_is_refused(tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    line = line_of_failure(run(3, 3, 3, option, "pipe", cwd=tmp_path), 2)
    assert "pipe" in line
    assert code_in(line) == ("file-unreadable" if option == "--a" else "file-unwritable")


@pytest.mark.parametrize("size", [10**9, pytest.param(10**18, marks=pytest.mark.exhaustive)])
def test_sizes_beyond_any_machine_are_refused_at_once(size):
    assert code_in(line_of_failure(run(size, size, size), 1)) in ("host-memory", "shared-memory")
    assert good(size, size, size, "--explain", "--ranks", 1000).stdout
