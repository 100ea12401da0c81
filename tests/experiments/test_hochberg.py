# SPDX-License-Identifier: MIT
"""The module's two programs, to the letter; what is said of recorded times; the published factors as points."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import numpy as np
import pytest
from support.recorded_lines import hochberg_lines, text_of, written_run

from experiments.common.cuda import CallFailed, EmulatedRuntime, GpuRuntime
from experiments.common.timing import matrices
from experiments.lectures import hochberg
from experiments.lectures.hochberg_programs import run_program
from experiments.start import SCRIPTS
from hybrid.errors import DoesNotFit
from hybrid.reporting import jsonl

SCRIPT = SCRIPTS / "lecture_hochberg.py"
CALLS = {
    "multNoShare": [
        "CUDA malloc A",
        "Copy A to device",
        "CUDA malloc B",
        "Copy B to device",
        "CUDA malloc C",
        "Run kernel",
        "Copy C off of device",
    ],
    "multShare": ["CUDA malloc A", "CUDA malloc B", "CUDA malloc C", "Run kernel", "Copy C off of device"],
}


def printed(program, runtime, sizes, **options):
    out = io.StringIO()
    run_program(program, runtime, sizes, out=out, **options)
    return out.getvalue()


# --- the programs


@pytest.mark.parametrize("program", CALLS)
@pytest.mark.needs("compiler")
def test_what_a_program_prints(program):
    text = printed(program, EmulatedRuntime(1 << 20), (12, 15, 3), seed=5)
    calls = CALLS[program]
    lines = text.split("\n")
    assert lines[: len(calls)] == [f"{call}: no error" for call in calls]
    a, b = matrices("lecture", "float32", 12, 15, 3, 5)
    assert a.max() == 2
    assert b.max() == 1
    corners = "".join(
        "".join("".join(f"{number:f} " for number in row[:10]) + "\n" for row in matrix[:10]) + "\n" for matrix in (a, b, a @ b)
    )
    assert "\n".join(lines[len(calls) :]) == corners
    assert re.fullmatch(r"(\d+\.000000 ){10}", corners.split("\n")[0])


@pytest.mark.needs("compiler")
def test_other_matrices_each_time_unless_seeded():
    runtime = EmulatedRuntime(1 << 20)
    assert printed("multShare", runtime, (9, 9, 9)) != printed("multShare", runtime, (9, 9, 9))
    assert printed("multShare", runtime, (9, 9, 9), seed=1) == printed("multShare", runtime, (9, 9, 9), seed=1)


@pytest.mark.parametrize("program", CALLS)
def test_a_call_that_fails_is_the_last_one(program):
    out = io.StringIO()
    with pytest.raises(CallFailed, match=r"^CUDA malloc C: out of memory$"):
        run_program(program, EmulatedRuntime(2 * 400), (10, 10, 10), out=out)
    said = out.getvalue().splitlines()
    assert said == [f"{call}: no error" for call in CALLS[program][: len(said) - 1]] + ["CUDA malloc C: out of memory"]


def test_a_copy_that_multshare_does_not_print_is_said_when_it_fails(monkeypatch):
    def fails(self, into, source):
        raise CallFailed("an illegal memory access was encountered")

    monkeypatch.setattr(EmulatedRuntime, "copy", fails)
    out = io.StringIO()
    with pytest.raises(CallFailed):
        run_program("multShare", EmulatedRuntime(1 << 20), (3, 3, 3), out=out)
    assert out.getvalue().endswith("Copy A to device: an illegal memory access was encountered\n")


def test_matrices_that_the_host_cannot_hold(monkeypatch):
    monkeypatch.setattr("hybrid.host.memory.available_host_bytes", lambda: 1000)
    with pytest.raises(DoesNotFit, match=r"A, B and C take 1\.2 KiB of the host's memory, which has 1000 B"):
        run_program("multShare", EmulatedRuntime(1 << 20), (10, 10, 10))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["multNoShare", "3", "4", "5", "--device", "emulate"], 0, ""),
        (["multShare", "30", "40", "20", "--device", "emulate", "--gpu-memory", "5k"], 1, "CUDA malloc B: out of memory"),
        (["multShare", "3", "4"], 2, "the programs are multNoShare and multShare, each with three sizes"),
        (["multshare", "3", "4", "5"], 2, "the programs are multNoShare and multShare"),
        (["multShare", "3", "0", "5"], 2, "the programs are"),
        (["multShare", "3", "3", "3", "--picture", "x.svg"], 2, "one of the programs records and draws nothing"),
        (["multShare", "3", "3", "3", "--gpu-memory", "much"], 2, "'much' is not a number of bytes"),
    ],
)
@pytest.mark.needs("compiler")
def test_the_command_lines(arguments, code, said):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout.startswith("CUDA malloc A: no error\n") or code == 2


# --- times and factors


def test_the_published_factors():
    assert [(one.gpu, one.size, one.factor) for one in hochberg.PUBLISHED] == [
        ("GT 9600M", 1000, 7),
        ("GT 330M", 1000, 2),
        ("C1060", 1000, 1.1),
        ("C1060", 8000, 6.5),
        ("M2070", 1000, 1.7),
        ("M2070", 8000, 2.6),
    ]


def test_the_table(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_hochberg", hochberg_lines())
    assert hochberg.main(["--from", path]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert ["100", "300", "/", "100", "3.00", "–", "–"] in rows
    assert ["1000", "3,000", "/", "1,000", "3.00", "5", "/", "3", "1.67"] in rows
    assert ["C1060", "1.3", "240", "cores", "8000", "more", "than", "6.5"] in rows


def test_without_a_gpu_nothing_is_compared(tmp_path, capsys):
    path = written_run(tmp_path / "l.jsonl", "lecture_hochberg", hochberg_lines(), gpu=None)
    assert hochberg.main(["--from", path]) == 0
    out = capsys.readouterr().out
    assert "both kernels are right at 100, 1000, 8000" in out
    assert "3.00" not in out
    assert "not a GPU's times" in out
    results = hochberg.Results(list(jsonl.read(path))[:-1])
    assert results.ratio("kernel", 1000) is None


@pytest.mark.needs("compiler")
def test_measured_without_a_gpu():
    found = list(hochberg.measured(EmulatedRuntime(1 << 20), [20, 33], []))
    assert [(line["program"], line["size"]) for line in found] == [
        (program, size) for size in (20, 33) for program in ("multNoShare", "multShare")
    ]


@pytest.mark.parametrize("gpu", ["NVIDIA H200", None])
def test_the_picture(tmp_path, gpu):
    pytest.importorskip("matplotlib")
    path = written_run(tmp_path / "l.jsonl", "lecture_hochberg", hochberg_lines(), gpu=gpu)
    picture = tmp_path / "p.svg"
    assert hochberg.main(["--from", path, "--picture", str(picture)]) == 0
    text = text_of(picture)
    assert all(f"{one.gpu}: {one.wording}" in text for one in hochberg.PUBLISHED)
    assert ("kernels by CUDA events" in text) is (gpu is not None)
    assert ("multShare, wall" in text) is (gpu is not None)
    assert text.count("rows and columns of each matrix") == (2 if gpu else 1), "without a GPU no panel is empty"


@pytest.mark.gpu
def test_measured_on_a_gpu(tmp_path):
    path = str(tmp_path / "l.jsonl")
    assert hochberg.main(["--sizes", "100", "130", "--device", "cuda", "--json", path]) == 0
    results = hochberg.Results(list(jsonl.read(path))[:-1])
    assert all(results.ratio(part, size) > 0 for part in ("kernel", "wall") for size in (100, 130))


@pytest.mark.gpu
@pytest.mark.parametrize("program", CALLS)
def test_the_programs_on_a_gpu(program, real_gpus):
    runtime = GpuRuntime(real_gpus[0])
    on_gpu = printed(program, runtime, (33, 20, 17), seed=7)
    assert on_gpu == printed(program, EmulatedRuntime(1 << 20), (33, 20, 17), seed=7)
    capped = GpuRuntime(real_gpus[0], cap=1000)
    with pytest.raises(CallFailed, match="out of memory"):
        printed(program, capped, (33, 20, 17))
    assert np.isfinite(capped.memory())
