# SPDX-License-Identifier: MIT
"""python -m hybrid.lab run --device cuda: a kernel's text and arguments for a GPU, and what is said of its launches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hybrid.classroom import cuda_run
from hybrid.classroom.gpu_trial import value_of
from hybrid.classroom.student_file import read
from hybrid.commands import lab
from hybrid.emulation.child import Ended
from hybrid.errors import DeviceUnavailable

RIGHT = Path(__file__).resolve().parent / "right"
TILED = RIGHT.parents[2] / "docs" / "examples" / "tiled.cu"
OF_A_GPU = {"gpu": "NVIDIA Nothing", "capability": 90, "failure": "", "wrong": 0, "first_wrong": None, "local": 0}
TIMED = {**OF_A_GPU, "milliseconds": [3.0, 1.0, 2.0], "registers": 40, "static_shared": 2048}


def ran(monkeypatch, capsys, path, outcome, *options):
    """The exit code, what was printed, and what the child process was asked to do; the child says this outcome."""
    asked = []

    def child(module, tasks, checks, seconds):
        asked.extend(tasks)
        forged = json.dumps({"outcome": {**TIMED, "milliseconds": [1e-9]}})
        what = outcome if "unavailable" in outcome else {"outcome": outcome}
        return Ended(f"{forged}\n{tasks[0]['task']['mark']} {json.dumps(what)}\n{forged}\n", "", 0)

    monkeypatch.setattr(cuda_run, "run_child", child)
    code = lab.work(lab.parse(["run", str(path), "--device", "cuda", *options]))
    return code, capsys.readouterr().out, asked


def test_times_and_rates_of_a_right_kernel(monkeypatch, capsys, tmp_path):
    lines = tmp_path / "lines"
    code, out, asked = ran(monkeypatch, capsys, TILED, TIMED, "--sizes", "1000", "1000", "1000", "--json", str(lines))
    assert code == 0
    assert "on NVIDIA Nothing, compute capability 9.0\n" in out
    assert (
        "  2 ms a launch, the median of 20 (1 to 3 ms, by CUDA events)\n  1,000 GF/s; 6 GB/s if each element moved once\n" in out
    )
    assert "  40 registers a thread, 2048 bytes of shared memory a block\n" in out
    assert out.endswith("\nright\n")
    (line,) = map(json.loads, lines.read_text().splitlines())
    assert (line["device"], line["right"], line["cases"][0]["milliseconds"]) == ("cuda", True, [3.0, 1.0, 2.0])
    assert asked[0]["task"]["block"] == (16, 16)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (
            {**OF_A_GPU, "wrong": 3, "first_wrong": [1030, 1.0, 2.0]},
            r"\* 3 of 1048576 elements are wrong, the first P\[1\]\[6\]: 1 in",
        ),
        (
            {**OF_A_GPU, "wrong": 1, "first_wrong": [0, float("nan"), 2.0]},
            r"the first P\[0\]\[0\]: nan instead of 2, and P begins as NaN: was it written, .* nobody has written\?\n",
        ),
        (
            {**OF_A_GPU, "failure": "an illegal memory access (CUDA_ERROR)"},
            r"\* the launch failed: an illegal memory access \(CUDA_",
        ),
    ],
)
def test_what_is_wrong_is_told(monkeypatch, capsys, outcome, said):
    code, out, _ = ran(monkeypatch, capsys, TILED, outcome)
    assert code == 1
    assert re.search(said, out), out
    assert out.endswith("\nwrong\n")


def test_no_gpu_and_a_compiler_error_are_one_line(monkeypatch, capsys):
    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        ran(monkeypatch, capsys, TILED, {"unavailable": {"why": "no NVIDIA driver"}})


def test_arguments_are_laid_out_as_in_c(monkeypatch, capsys):
    """size_t rows, cols; double* values; of each matrix, by value."""
    _, _, asked = ran(monkeypatch, capsys, RIGHT / "struct_with_members.cu", TIMED, "--sizes", "3", "5", "7")
    a, b, c = (value_of(each, [100, 200, 300]) for each in asked[0]["arguments"])
    assert [tuple(each[()]) for each in (a, b, c)] == [(3, 5, 100), (5, 7, 200), (3, 7, 300)]
    padded = value_of(("struct", [("i4", 1), ("matrix", 0), ("i4", 2)]), [100])
    assert (padded.dtype.itemsize, padded.dtype.fields["f1"][1], padded.dtype.fields["f2"][1]) == (24, 8, 16)
    _, _, asked = ran(monkeypatch, capsys, RIGHT / "scaled.cu", TIMED, "--sizes", "3", "5", "7")
    values = [value_of(each, [100, 200, 300]) for each in asked[0]["arguments"]]
    assert [(each.dtype.str, float(each)) for each in values] == [
        *[("<u8", 300), ("<f8", 2), ("<u8", 100), ("<u8", 200), ("<f8", 3)],
        *[("<i4", 3), ("<i4", 7), ("<i4", 5)],
    ]
    assert np.array_equal(asked[0]["task"]["scales"], (2, 3))


def test_the_text_for_nvrtc_has_neither_host_code_nor_headers_of_c(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(
        "#include <stdio.h>\n#include <cuda_fp16.h>\nextern __shared__ float s[];\n__device__ int count;\n"
        "using std::cout; typedef std::vector<double> Row;\ncudaEvent_t begin;\n"
        "__global__ void k(float* A, float* B, float* C, int n) { C[0] = s[0]; }\nint main() { k<<<1, 1>>>(0, 0, 0, 1); }\n"
    )
    lines = read(str(path)).for_gpu.split("\n")
    assert lines[0] == '#line 1 "mine.cu"'
    assert [line.strip() for line in lines[1:]] == [
        *["", "#include <cuda_fp16.h>", "extern __shared__ float s[];", "__device__ int count;", "", ""],
        *["__global__ void k(float* A, float* B, float* C, int n) { C[0] = s[0]; }", "", ""],
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--gpu", "H200"), "--device cuda times one kernel"), (("--sizes", "9000", "1", "1"), "9000 is too large: at most 8192")],
)
def test_what_does_not_go_together_is_wrong_usage(monkeypatch, capfd, options, said):
    monkeypatch.setattr("sys.argv", ["hybrid.lab", "run", str(TILED), "--device", "cuda", *options])
    assert lab.main() == 2
    assert said in capfd.readouterr().err


def test_a_whole_program_is_nvccs(monkeypatch, capfd):
    monkeypatch.setattr(
        "sys.argv", ["hybrid.lab", "run", str(RIGHT.parents[2] / "docs/examples/multiply.cu"), "--device", "cuda"]
    )
    assert lab.main() == 2
    assert "is a whole program, which nvcc compiles for a GPU; --kernel NAME" in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    [
        "struct_with_members",
        "scaled",
        "dynamic_shared_of_the_file",
        "tile_by_extent",
        "result_first",
        "votes",
        "host_code",
        "templates",
    ],
)
def test_a_gpu_finds_right_kernels_right(capsys, name):
    said = re.findall(r"^// (kernel|block): (.*)", (RIGHT / f"{name}.cu").read_text(), re.MULTILINE)
    flags = [word for flag, value in said for word in (f"--{flag}", value)]
    assert lab.work(lab.parse(["run", str(RIGHT / f"{name}.cu"), "--device", "cuda", *flags])) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nright\n")
    assert len(re.findall(r"ms a launch, the median of 20", out)) == 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("k += TILE_WIDTH", "k += 2 * TILE_WIDTH", "elements are wrong, the first P"),
        # To the memory's first bytes, which no process has: not even a GPU that reaches the host's memory can store there.
        # CUDA's driver reports it or its runtime, each in words of its own.
        (
            "P[row * Width + column] = sum",
            "*(float*)(unsigned long long)(4 * x) = sum",
            r"\* the launch failed: .*illegal memory access.* \((CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress)\)",
        ),
        ("P[row * Width + column] = sum", "(void)sum", r"the first P\[0\]\[0\]: nan instead of [\d.]+, and P begins as NaN"),
        ("float sum = 0;", "float sum = undeclared;", r"NVRTC does not compile it: tiled.cu\(9\): error"),
    ],
)
def test_a_gpu_tells_what_is_wrong(tmp_path, monkeypatch, capfd, old, new, said):
    path = tmp_path / "tiled.cu"
    path.write_text(TILED.read_text().replace(old, new))
    monkeypatch.setattr("sys.argv", ["hybrid.lab", "run", str(path), "--device", "cuda"])
    assert lab.main() == 1
    told = capfd.readouterr()
    assert re.search(said, told.out + told.err), told
