# SPDX-License-Identifier: MIT
"""Recorded lines of every experiment, as its script writes them, and what the tests of experiments need to use them."""

from __future__ import annotations

import re

from experiments.lectures import pmpp
from hybrid.kernels.catalogue import named
from hybrid.reporting import jsonl


def spread(seconds):
    return {"median": seconds, "min": seconds, "max": seconds}


def text_of(picture):
    """What an SVG says, in one string."""
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text()))


def written(path, lines):
    """Its path."""
    for line in lines:
        jsonl.write(line, str(path))
    return str(path)


def run_of(command, lines, *, gpu="NVIDIA H200", run="1", ended=True):
    """The lines of a run, by default on a GPU."""
    about = {"command": command, "arguments": ["--x"], "run": run, "device": "cuda" if gpu else "emulate", "gpu": gpu}
    return [{**about, **line} for line in [*lines, *([{"part": "end"}] if ended else [])]]


def written_run(path, command, lines, **more):
    return written(path, run_of(command, lines, **more))


# --- the lectures' scripts


def pmpp_lines():
    seconds = {"naive": 1e-3, "row_per_thread": 8e-3, "column_per_thread": 4e-3}
    for form, (n, l, m) in pmpp.shapes(1024).items():
        for kernel, time in seconds.items():
            yield {"part": "exercise 1", "kernel": kernel, "form": form, "n": n, "l": l, "m": m, "seconds": spread(time)}
    for kernel in ("matvec", "matvec_warp"):
        yield {"part": "exercise 2", "kernel": kernel, "n": 16384, "seconds": spread(1e-3)}


def lines_2d(width=1024):
    yield {"part": "programs", "program": "MM-CPU", "width": 1024, "runs": [4.0] * 5, "kernel_seconds": None}
    for part, at in (("programs", width), ("ragged", 1000)):
        for program, seconds in (("MM-GPU-GM", 0.002), ("MM-GPU-SM", 0.001)):
            times = [seconds] * 5
            yield {"part": part, "program": program, "width": at, "runs": times, "kernel_seconds": spread(seconds / 2)}
    yield {"part": "roof", "roof": "NVIDIA H200", "bytes_per_second": 4e12, "operations_per_second": 5e13, "multiplied_by": "x"}


def hochberg_lines():
    for size in (100, 1000, 8000):
        for program, seconds in (("multNoShare", 3e-3), ("multShare", 1e-3)):
            yield {"part": "kernel", "program": program, "size": size, "seconds": spread(seconds * size)}
            if size != 100:
                yield {"part": "wall", "program": program, "size": size, "seconds": spread(2 + seconds * size)}


def siegel_lines(n=8000):
    for size, seconds in ((500, 0.125), (1000, 1.0)):
        yield {"part": "seq", "kernel": "loops", "n": size, "seconds": spread(seconds)}
        yield {"part": "seq", "kernel": "loops_ikj", "n": size, "seconds": spread(seconds / 10)}
    for program, seconds in (("matmul1", 0.36), ("matmul2", 0.18)):
        yield {"part": "kernel", "program": program, "n": n, "seconds": spread(seconds), "whole": spread(seconds + 0.4)}
    yield {"part": "loads", "program": "matmul1", "shape": [100, 60, 90], "a": [90, 90, 90], "b": [100, 100, 100]}
    yield {"part": "loads", "program": "matmul2", "shape": [100, 60, 90], "a": [6, 6, 6], "b": [7, 7, 7]}
    for devices in (1, 2):
        several = {"part": "several", "devices": devices, "n": n}
        yield {**several, "way": "one process", "seconds": spread(0.18 / devices)}
        yield {**several, "way": "ranks", "seconds": spread(0.2 / devices), "total": spread(0.5 / devices)}


def largest_lines():
    for dtype, n in (("float32", 1000), ("float64", 707)):
        about = {"dtype": dtype, "memory": 12_000_000}
        yield {**about, "part": "theoretical", "n": n}
        yield {**about, "part": "in core", "n": n - 3, "kernel": "tiled", "seconds": 0.5}
        yield {**about, "part": "resident", "n": n - 5, "kernel": "tensor", "seconds": 0.5, "ended_by": ""}
        yield {**about, "part": "out of core", "n": 4 * n, "kernel": "tensor", "seconds": 2.0, "ended_by": "--times 4 ends it"}


LECTURES = {
    "lecture_pmpp": pmpp_lines,
    "lecture_2d": lines_2d,
    "lecture_hochberg": hochberg_lines,
    "lecture_siegel": siegel_lines,
    "largest": largest_lines,
}
REASONS = ["C(28, 12) is not among float32's numbers", "past 2^24", "N = 20: [19][9] is 4, not 0"]
PASCAL = {
    "command": "pascal", "arguments": ["--quick"], "part": "all sizes", "dtype": "float32", "fit": 28, "exact": 17, "right": 19,
    "kernel": "blas (cpu, the CPU's fastest)", "reasons": REASONS,
}  # fmt: skip
PATHS = {
    "command": "paths", "arguments": ["ten", "--length", "4"], "graph": "ten", "length": 4, "ranks": 2,
    "arithmetic": "every number stays below 2^53: exact in plain float64", "products": 2, "seconds": 0.5, "rows": ["A", "B"],
    "columns": ["A", "B"], "numbers": [["12", "14"], ["14", "30"]],
}  # fmt: skip


# --- the ladder

ROW_BLOCK = (1000, 8000, 8000)
SHAPES = [*((n, n, n) for n in (4096, 8000, 8192, 16384)), ROW_BLOCK]
SPEEDS = {
    "naive": 3.8,
    "tiled": 4.6,
    "tiled32": 4.8,
    "register_tiled": 30.0,
    "warp_tiled": 49.5,
    "tensor": 49.0,
    "tensor_half": 48.0,
    "tensor_int8": 47.0,
    "cublas": 50.0,
}
TILES = {"naive": [16, 16], "tiled": [16, 16], "tiled32": [32, 32], "warp_tiled": [128, 256], "column_per_thread": [0, 128]}


def ladder_line(kernel, dtype, shape, *, speed=None, ratio=None, **more):
    """Without a speed, one that was left out."""
    n, l, m = shape
    seconds = 2 * n * l * m / speed / 1e12 if speed else None
    own = kernel != "cublas"
    return {
        "command": "ladder",
        "arguments": ["--json", "lines.jsonl"],
        "date": "2026-11-21T10:00:00+00:00",
        "machine": {"processor": "A CPU", "cores": 8},
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "cupy": "14.2.0",
        "cublas": 130200,
        "kernel": kernel,
        "dtype": dtype,
        "n": n,
        "l": l,
        "m": m,
        "seconds": spread(seconds) if seconds else None,
        "teraflops": speed,
        "ratio": ratio if ratio is not None else speed and speed / SPEEDS["cublas"],
        "launch_seconds": seconds or 3.5,
        "tile": TILES.get(kernel, [128, 128]) if own else None,
        "registers": 40 if own else None,
        "shared": 2048 if own else None,
        "spills": 0 if own else None,
        **more,
    }


def ladder_lines():
    return [
        ladder_line(kernel, dtype, shape, speed=None if kernel == "naive" and shape[0] == 16384 else speed)
        for dtype in ("float32", "float64", "float16", "int8")
        for shape in SHAPES
        for kernel, speed in SPEEDS.items()
        if dtype in named(kernel).dtypes
    ]


# --- bench_hosts

MS = {  # at 8000, by GPUs
    "handwritten": {1: 281.0, 2: 371.0, 4: 544.0, 8: 798.0},
    "ours": {1: 23.8, 2: 13.1, 4: 8.7, 8: 7.9},
    "wires": {1: 20.0, 2: 11.0, 4: 8.0, 8: 7.0},
    "library, checked": {1: 25.2, 2: 15.2, 4: 10.2, 8: 8.7},
    "library": {1: 25.0, 2: 15.0, 4: 10.0, 8: 8.5},
    "library, new C": {1: 25.5, 2: 15.5, 4: 10.5, 8: 8.9},
    "cublasxt, page-locked": {1: 47.0, 2: 31.8},
    "cublasxt, registered": {1: 101.0, 2: 110.0},
    "cublasxt, pageable": {1: 310.0, 2: 182.0},
    "jax": {1: 200.0, 2: 150.0, 4: 120.0, 8: 110.0},
    "torch": {1: 210.0, 2: 160.0, 4: 130.0, 8: 120.0},
    "wall": {1: 1900.0, 8: 2800.0},
    "launcher": {1: 250.0},
    "larger": {1: 26.0},
    "resident": {8: 2.9},
}


BLOCKS = {2048: 1.1, 4096: 1.0, 8192: 1.5}  # of cuBLASXt; how many times as long as the best one its products take


def hosts_line(part, gpus, n, ms, *, number=0, repeat=3, run="run 1", device="cuda", **more):
    return {
        "command": "bench_hosts",
        "arguments": ["--gpus", "1", "2", "4", "8", "--json", "hosts.jsonl"],
        "run": run,
        "date": "2026-11-21T10:00:00+00:00",
        "device": device,
        "gpu": "NVIDIA H200" if device == "cuda" else None,
        "gpus_there": 8 if device == "cuda" else 0,
        "dtype": "float64",
        "part": part,
        "gpus": gpus,
        "n": n,
        "round": number,
        "repeat": repeat,
        "seconds": {"median": ms / 1e3, "min": ms / 1.1e3, "max": ms / 0.9e3},
        "setup": 0.1 * (number + 1),
        "mpi": "Open MPI v4.1.6, package",
        **more,
    }


def hosts_lines(device="cuda"):
    lines = [
        hosts_line(part, gpus, 8000, times * ms, number=number, device=device, **more)
        for part, of_part in MS.items()
        for gpus, ms in of_part.items()
        for number in range(3)
        for times, more in (
            [(times, {"block": block}) for block, times in BLOCKS.items()] if part.startswith("cublasxt") else [(1.0, {})]
        )
    ]
    both = (("handwritten", 3000.0), ("ours", 28.0))
    lines += [hosts_line(part, 8, 16000, ms, number=number, device=device) for part, ms in both for number in range(3)]
    pair = (("small", 0.9), ("small, plain", 0.2))
    return lines + [hosts_line(part, 1, 512, ms, repeat=45, device=device) for part, ms in pair]


# --- all of them


def all_lines(path, *, gpu="NVIDIA H200"):
    """Of every experiment, in one file; its path."""
    for command, lines in LECTURES.items():
        written_run(path, command, lines(), gpu=gpu)
    return written(path, (*ladder_lines(), *hosts_lines("cuda" if gpu else "cpu"), PASCAL, PATHS))
