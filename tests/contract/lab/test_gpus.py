# SPDX-License-Identifier: MIT
"""docs/learn.md, What a multiprocessor holds: GPUs by name, and how a kernel would run on one; and the same kernels on a GPU that
is here."""

import re

import pytest
from support.commands import ROOT
from support.lab import DATA, changed, judged, lab
from support.selection import exhaustive

TILED = ROOT / "docs/examples/tiled.cu"
CORES = {  # that their makers state
    "8800GTX": 128, "GT9600M": 32, "GT330M": 48, "C1060": 240, "M2070": 448, "C2075": 448, "K40c": 2880, "P100": 3584,
    "V100": 5120, "A100": 6912, "RTX3090": 10496, "H200": 16896, "RTX5080": 10752,
}  # fmt: skip


def test_gpus_by_name_with_their_makers_numbers():
    lines = {words[0]: words for line in lab("gpus").stdout.splitlines() if (words := line.split())}
    assert {name: int(lines[name][3]) for name in CORES} == CORES
    assert lines["K40c"] == ["K40c", "3.5", "15", "2880", "12", "GB", "288", "4,290", "1,430", "2048", "16", "65536", "48"]
    assert lines["8800GTX"] == ["8800GTX", "1.0", "16", "128", "0.75", "GB", "86", "346", "–", "768", "8", "8192", "16"]


# Resident blocks of the tiled kernel with 256 threads and 2 kB, by what limits them (registers not counted): 768 threads are 3,
# 1024 threads 4, 2048 threads 8.
OCCUPANCY = {"8800GTX": (3, 24, 24), "GT330M": (4, 32, 32), "K40c": (8, 64, 64), "H200": (8, 64, 64)}


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("gpu", exhaustive(["8800GTX"], OCCUPANCY))
def test_occupancy_and_roofline_of_the_tiled_kernel(gpu):
    """Of each tile 16 columns are read from 16 rows: 2·16·16·16 operations for 2·16·16 elements, and once the 16·16 of P."""
    verdict = judged("run", TILED, "--sizes", 64, 64, 64, "--gpu", gpu.lower(), PATH="/usr/bin:/bin")
    gpus = {words[0]: words for line in lab("gpus").stdout.splitlines() if (words := line.split())}
    bandwidth, peak = (float(gpus[gpu][at].replace(",", "")) for at in (6, 7))
    line = verdict.record["on_gpu"]
    assert (line["intensity"], line["shared"]) == (2 * 64**3 / (4 * (2 * 64**3 / 16 + 64**2)), 2048)
    assert line["attainable_gflops"] == min(line["intensity"] * bandwidth, peak)
    blocks, warps, most = OCCUPANCY[gpu]
    assert f"{warps} of {most} warps: {blocks} blocks" in verdict.said
    assert "limited by threads" in verdict.said


@pytest.mark.exhaustive
@pytest.mark.needs("compiler")
def test_what_does_not_fit_is_said(tmp_path):
    """1024 threads are more than a block of a C1060 can have; float64 is what an 8800 GTX does not compute with."""
    (tmp_path / "mine.cu").write_text(changed(TILED.read_text(), [("TILE_WIDTH 16", "TILE_WIDTH 32")]))
    assert "no block is resident" in lab("run", tmp_path / "mine.cu", "--sizes", 32, 32, 32, "--gpu", "C1060").stdout
    doubles = lab("run", ROOT / "docs/programs/matmul1.cu", "--kernel", "multiply", "--sizes", 16, 16, 16, "--gpu", "8800GTX")
    assert "no float64" in doubles.stdout


def test_without_a_gpu_the_device_is_refused():
    """And a whole program in any case, which nvcc compiles."""
    done = lab("run", TILED, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert re.search(r"\[(no-gpu|package-missing)\]\n$", done.stderr), done.stderr
    done = lab("run", ROOT / "docs/examples/multiply.cu", "--device", "cuda")
    assert (done.returncode, "nvcc" in done.stderr.splitlines()[-1]) == (2, True)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["struct_with_members", "scaled", "dynamic_shared_of_the_file", "half_a_tile", "result_first", "votes", "host_code"],
)
def test_a_gpu_finds_right_kernels_right(name):
    verdict = judged("run", DATA / "kernels" / f"{name}.cu", "--device", "cuda")
    assert (verdict.code, verdict.record["device"], verdict.record["right"]) == (0, "cuda", True), verdict.said
    assert all(len(case["milliseconds"]) == 20 for case in verdict.record["cases"])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("k += TILE_WIDTH", "k += 2 * TILE_WIDTH", r"\[wrong-elements\]"),
        # To the memory's first bytes, which no process has. CUDA's driver reports it or its runtime, each by a name of its own.
        (
            "P[row * Width + column] = sum",
            "*(float*)(unsigned long long)(4 * x) = sum",
            r"CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress",
        ),
        ("P[row * Width + column] = sum", "(void)sum", r"\[wrong-elements\]"),
        ("float sum = 0;", "float sum = undeclared;", r"tiled.cu\(9\).*\[compile-failed\]"),
    ],
)
def test_a_gpu_tells_what_is_wrong(tmp_path, old, new, said):
    (tmp_path / "tiled.cu").write_text(changed(TILED.read_text(), [(old, new)]))
    done = lab("run", tmp_path / "tiled.cu", "--device", "cuda")
    assert done.returncode == 1
    assert re.search(said, done.stdout + done.stderr), done
