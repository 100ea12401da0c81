# SPDX-License-Identifier: MIT
"""python -m hybrid.lectures: the lectures' scripts and programs from any folder, from a checkout and as an installed package has
them; and the documents' programs, complete and corrected."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from support.commands import ROOT, module, successful
from support.forked import quickly
from support.lab import judged, lab
from support.selection import exhaustive

LECTURES = module("hybrid.lectures")
start = partial(quickly, limit=280)  # for compilations on a busy machine, too
PROGRAMS = ROOT / "docs/programs"
NAMES = ["pmpp", "2d", "hochberg", "siegel", "largest", "pascal", "ladder", "bugs"]


def test_the_list_names_every_lecture_and_program():
    listed = successful(start(LECTURES)).stdout
    first, programs, folders = (re.findall(r"^  (\S+)", part, re.MULTILINE) for part in listed.split("\n\n"))
    assert (first, folders) == (NAMES, ["programs", "notebooks"])
    assert programs[-len(list((ROOT / "docs/examples").glob("*.cu"))) :] == sorted(
        path.name for path in (ROOT / "docs/examples").glob("*.cu")
    )
    page = (ROOT / "docs/learn.md").read_text(encoding="utf-8")
    assert {name for name in NAMES if f"hybrid.lectures {name}" not in page} <= {"ladder"}


def test_programs_are_printed_and_written_as_they_stand(tmp_path):
    """Once: a folder that is there is left as it is."""
    assert successful(start(LECTURES, "tiled.cu")).stdout == (ROOT / "docs/examples/tiled.cu").read_text(encoding="utf-8")
    successful(start(LECTURES, "programs", cwd=tmp_path))
    files = {path.name: path.read_bytes() for path in PROGRAMS.iterdir() if path.is_file()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "programs").iterdir()} == files
    (tmp_path / "programs" / "Makefile").write_text("mine")
    again = start(LECTURES, "programs", cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n"), again.stderr.endswith("[file-exists]\n")) == (2, 1, True)
    assert (tmp_path / "programs" / "Makefile").read_text() == "mine"
    assert start(LECTURES, "programs", "one", "two", cwd=tmp_path).returncode == 2
    successful(start(LECTURES, "programs", "others", cwd=tmp_path))
    assert (tmp_path / "others" / "Makefile").read_bytes() == files["Makefile"]


HELPS = """
import sys
from hybrid.commands.lectures import main
for name in sys.argv[1:]:
    sys.argv = ["hybrid.lectures", name, "--help"]
    try:
        main()
    except SystemExit:
        pass
"""


def test_an_installed_package_has_them_too_and_says_what_is_missing(tmp_path):
    """As a wheel puts it: scripts and programs are parts of the package, and no checkout lies around it."""
    site, ignore = (
        tmp_path / "site",
        shutil.ignore_patterns("__pycache__", "bench", "checks", "ordeal", "*.sh"),
    )
    parts = {"hybrid": "", "kernels": "kernels/cuda", "scripts/experiments": "scripts/experiments",
             "docs/examples": "classroom/examples", "docs/programs": "classroom/programs",
             "docs/course": "classroom/course"}  # fmt: skip
    for source, part in parts.items():
        shutil.copytree(ROOT / source, site / "hybrid" / part, ignore=ignore)

    def run(*words, command=LECTURES):
        environment = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment, check=False
        )

    done = run("pmpp", "--launch", "150", "300", "16", "32")
    assert (done.returncode, done.stderr, "19×5" in done.stdout) == (0, "", True)
    helps = run(*NAMES, command=[sys.executable, "-c", HELPS])
    assert helps.stdout.count("usage: ") == len(NAMES), helps.stderr
    assert run("tiled.cu").stdout == (ROOT / "docs/examples/tiled.cu").read_text(encoding="utf-8")
    assert run("notebooks", "books").returncode == 0
    assert len(list((tmp_path / "books").glob("*.ipynb"))) == 5
    shutil.rmtree(site / "hybrid" / "scripts")
    done = run("pmpp")
    assert (done.returncode, done.stderr.endswith("[installation]\n")) == (1, True)


# --- the documents' programs

# What they are given, and what they print.
RUNS = {
    "multNoShare": (
        ["9", "10", "8"],
        r"(CUDA malloc [ABC]: no error\n|Copy [AB] to device: no error\n){5}Run kernel: no error\nCopy C",
    ),
    "multShare": (
        ["37", "18", "21"],
        r"(CUDA malloc [ABC]: no error\n|Copy [AB] to device: no error\n){5}Run kernel: no error\nCopy C",
    ),
    "matmul1": (["21", "35", "18"], r"c \(21×18\) = a \(21×35\) · b \(35×18\): \d+\.\d ms, right\n"),
    "matmul2": (["21", "35", "18"], r"c \(21×18\) = a \(21×35\) · b \(35×18\): \d+\.\d ms, right\n"),
    "mm2d": (["37"], r"cpu +Time to generate: .* ms\nglobal +Time to generate: .* ms\nshared +Time to generate: .* ms\n"),
}


@pytest.mark.needs("compiler", "addr2line")
@pytest.mark.parametrize("name", exhaustive(["matmul2"], RUNS))
def test_a_document_s_program_runs_without_an_error_on_sizes_that_are_no_multiples(name):
    words, printed = RUNS[name]
    verdict = judged("run", PROGRAMS / f"{name}.cu", "--", *words)
    assert (verdict.code, verdict.record["right"], verdict.findings) == (0, True, set())
    assert re.match(printed, verdict.said), verdict.said
    assert verdict.record["launches"] == (2 if name == "mm2d" else 1)


@pytest.mark.exhaustive
@pytest.mark.needs("compiler", "addr2line")
@pytest.mark.launcher
def test_every_process_and_thread_of_the_hybrid_program_greets():
    verdict = judged("run", PROGRAMS / "hybrid.cu", "--ranks", 2, OMP_NUM_THREADS="3")
    assert (verdict.code, verdict.record["launches"]) == (0, 2), verdict.said
    said = verdict.said.splitlines()
    for rank in range(2):
        assert {f"Greetings from CPU thread {thread}/3 of process {rank}/2!" for thread in range(3)} < set(said)
        assert {f"Hello from block {i // 4}, thread {i % 4} of the GPU, called by process {rank}" for i in range(12)} < set(said)
    assert len([line for line in said if re.fullmatch(r"Time: \d+\.\d{6}", line)]) == 1


@pytest.mark.exhaustive
@pytest.mark.needs("compiler", "addr2line")
def test_the_example_in_constant_memory_is_right_and_wrong_usage_of_a_program_is_said():
    assert "0 of 70 elements are wrong\n" in judged("run", ROOT / "docs/examples/constant.cu", "--", 70).said
    done = lab("run", PROGRAMS / "multShare.cu", "--", 0, 1, 1)
    assert (done.returncode, "whole number" in done.stdout + done.stderr) == (1, True)


def test_the_makefile_runs_each_program():
    text, names = (PROGRAMS / "Makefile").read_text(), {path.stem for path in PROGRAMS.glob("*.cu")}
    assert set(re.findall(r"lab run (\w+)\.cu", text)) == names
    assert set(re.findall(r"^\t(?:.*)\./(\w+)", text, re.MULTILINE)) == names


@pytest.mark.skipif(not (shutil.which("nvcc") and shutil.which("make")), reason="compiles with nvcc and make")
@pytest.mark.exhaustive
def test_nvcc_compiles_them_without_a_warning(tmp_path):
    mpicxx = Path(sys.executable).with_name("mpicxx")
    folder = shutil.copytree(PROGRAMS, tmp_path / "programs")
    command = ["make", "-C", str(folder), "all", f"MPICXX={mpicxx}", f"PYTHON={sys.executable}", "NVCCFLAGS=-Werror all-warnings"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
