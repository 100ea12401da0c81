# SPDX-License-Identifier: MIT
"""docs/programs: the lectures' programs, complete and corrected, run on the CPU and compiled for a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commands import ROOT

from hybrid.commands import lab
from hybrid.ranks.launcher import mpirun

FOLDER = ROOT / "docs" / "programs"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.cu"))
CALLS = ("CUDA malloc A", "Copy A to device", "CUDA malloc B", "Copy B to device", "CUDA malloc C", "Run kernel")

on_cpu = pytest.mark.needs("compiler", "addr2line")


def ran(capfd, name, *words, folder=FOLDER):
    """What was printed by a program that has no error."""
    code = lab.work(lab.parse(["run", str(folder / name), *words]))
    out = capfd.readouterr().out
    assert code == 0, out
    assert out.endswith("\nno error found\n")
    return out


def matrices(out):
    """Those that are printed, with six digits and an empty line after each."""
    found = re.findall(r"((?:(?:-?\d+\.\d{6} )+\n)+)\n", out)
    return [np.array([line.split() for line in each.splitlines()], float) for each in found]


@on_cpu
@pytest.mark.parametrize("name", ["multNoShare.cu", "multShare.cu"])
def test_hochbergs_programs_print_what_he_shows(capfd, name):
    out = ran(capfd, name, "--", "9", "10", "8")
    assert out.startswith("".join(f"{call}: no error\n" for call in (*CALLS, "Copy C off of device")))
    a, b, c = matrices(out)
    assert (a.shape, b.shape, set(a.flat) <= {0, 1, 2}, set(b.flat) <= {0, 1}) == ((9, 10), (10, 8), True, True)
    assert np.array_equal(c, a @ b)


@on_cpu
def test_only_ten_rows_and_columns_are_printed_and_the_edges_are_computed(capfd):
    a, b, c = matrices(ran(capfd, "multShare.cu", "--", "37", "18", "21"))
    assert a.shape == b.shape == c.shape == (10, 10)


@on_cpu
@pytest.mark.parametrize("name", ["matmul1.cu", "matmul2.cu"])
def test_siegels_programs_are_right_on_ragged_edges(capfd, name):
    assert re.match(r"c \(21×18\) = a \(21×35\) · b \(35×18\): \d+\.\d ms, right\n", ran(capfd, name, "--", "21", "35", "18"))


@on_cpu
def test_the_program_in_two_dimensions_takes_widths_that_are_no_multiples_of_its_tiles(capfd):
    out = ran(capfd, "mm2d.cu", "--", "37")
    assert re.match(r"cpu +Time to generate:  .* ms\nglobal +Time to generate:  .* ms\nshared +Time to generate:  .* ms\n", out)
    assert "2 kernel launches" in out
    assert re.match(r"shared +Time.*\nmm2d.cu: exit status 0, 1 kernel launch\n", ran(capfd, "mm2d.cu", "--", "5", "shared"))


@on_cpu
@pytest.mark.launcher
def test_every_process_and_thread_greets(capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    out = ran(capfd, "hybrid.cu", "--ranks", "3")
    said = out.splitlines()
    for rank in range(3):
        assert {f"Greetings from CPU thread {thread}/3 of process {rank}/3!" for thread in range(3)} < set(said)
        hello = [f"Hello from block {i // 4}, thread {i % 4} of the GPU, called by process {rank}" for i in range(12)]
        assert set(hello) < set(said)
    assert len([line for line in said if re.fullmatch(r"Time: \d+\.\d{6}", line)]) == 1
    assert "hybrid.cu: exit status 0, 3 kernel launches\n" in out


@on_cpu
@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("multNoShare.cu", "row >= C.height || column >= C.width", "row > C.height || column > C.width", "out of bounds"),
        ("multShare.cu", "t * BLOCK_SIZE < A.width", "t < A.width / BLOCK_SIZE", "C is not A·B"),
        ("matmul2.cu", "__syncthreads();  // both have been used", "", "data race"),
        ("matmul2.cu", "k < min(BLOCK_SIZE, l - s)", "k < BLOCK_SIZE", "WRONG"),
        ("mm2d.cu", "row < width && x < width ? N[", "row < width && x < width ? M[", "WRONG"),
    ],
)
def test_the_documents_errors_are_found_in_them(tmp_path, capfd, name, old, new, said):
    folder = shutil.copytree(FOLDER, tmp_path / "programs")
    text = (folder / name).read_text()
    assert text.count(old) == 1
    (folder / name).write_text(text.replace(old, new))
    sizes = ("37",) if name == "mm2d.cu" else ("20", "35", "18")
    code = lab.work(lab.parse(["run", str(folder / name), "--", *sizes]))
    printed = "".join(capfd.readouterr())
    assert (code, said in printed) == (1, True), printed


@pytest.mark.parametrize(("name", "sizes"), [("multShare.cu", ["0", "1", "1"]), ("matmul1.cu", ["1"]), ("mm2d.cu", ["8", "gpu"])])
@on_cpu
def test_wrong_usage_is_said(capfd, name, sizes):
    assert lab.work(lab.parse(["run", str(FOLDER / name), "--", *sizes])) == 1
    assert re.search(r"is no size: a whole number from 1 on|^usage: ", capfd.readouterr().out, re.MULTILINE)


def test_the_makefile_runs_each_program():
    text = (FOLDER / "Makefile").read_text()
    assert {f"{name}.cu" for name in re.findall(r"lab run (\w+)\.cu", text)} == set(PROGRAMS)
    assert {f"{name}.cu" for name in re.findall(r"^\t(?:.*)\./(\w+)", text, re.MULTILINE)} == set(PROGRAMS)


@pytest.mark.skipif(not (shutil.which("nvcc") and shutil.which("make")), reason="compiles with nvcc and make")
@pytest.mark.exhaustive
def test_nvcc_compiles_them_without_a_warning(tmp_path):
    mpicxx = Path(mpirun(1)[0]).with_name("mpicxx")
    folder = shutil.copytree(FOLDER, tmp_path / "programs")
    command = ["make", "-C", str(folder), "all", f"MPICXX={mpicxx}", f"PYTHON={sys.executable}", "NVCCFLAGS=-Werror all-warnings"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all((folder / Path(name).stem).exists() for name in PROGRAMS)
