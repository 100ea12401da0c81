# SPDX-License-Identifier: MIT
"""How large may N×N matrices be? python -m hybrid.lectures largest [--gpu-memory BYTES]

Question 2 of the matrix multiplication module: N by the memory alone, floor(sqrt(bytes / (3·bytes an element))), beside the
largest N that really runs in core, where the three matrices are allocated as multShare and multNoShare do: searched from above,
multiplied and checked, of integers, so that the check is exact. Then the runner multiplies --times as large ones out of core, or
as large as seven eighths of the host's free memory hold: it streams parts through the memory.

On a GPU its free memory counts, or --gpu-memory (HYBRID_GPU_MEMORY) of it; a search in all of a large GPU takes minutes.
Without one 1 MiB of the CPU's memory stands for a GPU's (--quick: 256 KiB): the module's kernels run on the CPU's CUDA runtime,
and the runner copies into buffers of that size as into a GPU's.
"""

import argparse
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isqrt
from typing import Any
from unittest import mock

import numpy as np

import hybrid
from experiments.common import cuda, frame
from hybrid.core.problem import ITEM_SIZES, Span, pieces
from hybrid.core.settings import Settings, parse_bytes
from hybrid.core.text import readable
from hybrid.errors import CheckFailed, DoesNotFit, UsageError
from hybrid.host.memory import available_host_bytes
from hybrid.kernels.catalogue import BOTH, Kernel, fastest, refusal
from hybrid.planning.decision import kernel_asked_for
from hybrid.runs.operands import fill_rows

PIECE_BYTES = 256 << 20  # of a matrix that the host holds beside the device's
_THREADS = 16  # that make numbers
_OF_FREE_HOST_MEMORY = 7 / 8  # what is free changes between the search and the product


def theoretical(memory: int, dtype: str) -> int:
    """The largest N of which three N×N matrices are no more than `memory` bytes."""
    return isqrt(memory // (3 * ITEM_SIZES[dtype]))


def last_that(works: Callable[[int], bool], most: int) -> int:
    """The largest size up to `most` that works, where all smaller ones do: from above in growing steps, then by halves. Or 0."""
    good, bad, step = most, most + 1, 1
    while good > 0 and not works(good):
        good, bad, step = max(0, good - step), good, 2 * step
    while bad - good > 1:
        middle = (good + bad) // 2
        if works(middle):
            good = middle
        else:
            bad = middle
    return good


def allocates(runtime: cuda.CudaRuntime, dtype: str, n: int) -> bool:
    """Whether the device gives memory for three N×N matrices."""
    try:
        for _ in range(3):
            runtime.allocate((n, n), dtype)
    except cuda.CallFailed:
        return False
    finally:
        runtime.release()
    return True


def run_in_core(runtime: cuda.CudaRuntime, kernel: Kernel, n: int, dtype: str) -> float:
    """Seconds of the kernel on three N×N matrices of the device, made and checked piece by piece.

    CallFailed where the memory ends, CheckFailed for a wrong product. The check is exact: all numbers are integers.
    """
    rows = max(1, PIECE_BYTES // (n * ITEM_SIZES[dtype]))
    seed, x = secrets.randbits(63), np.random.default_rng().integers(1, 8, n).astype(np.float64)
    spans = list(pieces(Span(0, n), rows))

    def load(matrix: str, target: Any, vector: np.ndarray) -> np.ndarray:
        """Fill A or B on the device; its product with the vector."""
        product = np.empty(n)
        for span in frame.shown(spans, f"N = {n}, {matrix}"):
            part = np.empty((len(span), n), dtype)
            fill_rows(part, span, fill="lecture", seed=seed, matrix=matrix, threads=_THREADS)
            runtime.copy(target[span.slice], part)
            product[span.slice] = part.astype(np.float64, copy=False) @ vector
        return product

    try:
        on_a, on_b, on_c = (runtime.allocate((n, n), dtype) for _ in range(3))
        expected = load("A", on_a, load("B", on_b, x))
        runtime.poison(on_c)
        begin = runtime.event()
        runtime.launch(kernel, on_a, on_b, on_c)
        seconds = runtime.seconds(begin, runtime.event())
        for span in frame.shown(spans, f"N = {n}, C"):
            part = np.empty((len(span), n), dtype)
            runtime.copy(part, on_c[span.slice])
            if not np.array_equal(part.astype(np.float64, copy=False) @ x, expected[span.slice]):
                raise CheckFailed(f"kernel {kernel.name} is wrong for {dtype} {n}×{n}, in rows {span}")
        return seconds
    finally:
        runtime.release()


def largest_in_core(runtime: cuda.CudaRuntime, kernel: Kernel, dtype: str, most: int) -> tuple[int, float]:
    """The largest N up to `most` that the kernel multiplies in core, and its seconds. DoesNotFit where there is none."""
    run_in_core(runtime, kernel, 1, dtype)  # its code takes memory, too
    seconds: dict[int, float] = {}

    def multiplies(n: int) -> bool:
        try:
            seconds[n] = run_in_core(runtime, kernel, n, dtype)
        except cuda.CallFailed:
            return False
        return True

    n = last_that(multiplies, last_that(partial(allocates, runtime, dtype), most))
    if not n:
        raise DoesNotFit(f"no three matrices of {dtype} fit beside kernel {kernel.name}")
    return n, seconds[n]


def run_out_of_core(device: str, memory: int, n: int, dtype: str) -> float:
    """Seconds of the runner's product through so much of the device's memory. CheckFailed for a wrong one."""
    a, b = cuda.matrices("lecture", dtype, n, n, n)
    settings = {"HYBRID_GPU_MEMORY": str(memory), "HYBRID_STAGED": "1"}
    with mock.patch.dict(os.environ, settings):
        return frame.seconds_of(partial(hybrid.multiply, a, b, check="full", device="cuda" if device == "cuda" else "cpu"))


PRETENDED_MEMORY, QUICK_MEMORY = 1 << 20, 256 << 10
MOST_EMULATED = 1024  # rows and columns: the CPU's CUDA runtime takes seconds for them, and hours for ten times as many
TIMES = 4.0
PARTS = {  # of lines: what they are called
    "theoretical": "by the memory alone",
    "in core": "three allocations, as in the module",
    "out of core": "runner, out of core",
}


class Results(frame.Results):
    """For each type the largest N of each part."""

    command, again = "largest", "python -m hybrid.lectures largest"

    def __init__(self, lines: Sequence[frame.Line]) -> None:
        super().__init__(lines)
        self.by_dtype: dict[str, list[frame.Line]] = {}
        for line in (line for line in lines if line["part"] in PARTS):
            self.by_dtype.setdefault(line["dtype"], []).append(line)

    def blocks(self) -> Iterator[frame.Table]:
        whose = "of the GPU" if self.of_gpu else "of the CPU, in place of a GPU's"
        for dtype, lines in self.by_dtype.items():
            most = next(line["n"] for line in lines if line["part"] == "theoretical")
            rows = [[PARTS[line["part"]], str(line["n"]), _about(line, most)] for line in lines]
            yield frame.Table(["way", "largest N", "how"], "lrl", rows, f"{dtype}, {readable(lines[-1]['memory'])} {whose}")


def _about(line: frame.Line, most: int) -> str:
    if line["part"] == "theoretical":
        return f"floor(sqrt({line['memory']:,} / (3 · {ITEM_SIZES[line['dtype']]})))"
    seconds = f" in {frame.duration(line['seconds'])}" if line["device"] == "cuda" else ""
    far = f"{line['n'] / most:.3g} × {most}" if line["part"] == "out of core" else f"{most - line['n']} short"
    return f"{line.get('kernel', 'the runner')}: multiplied{seconds} and right, {far}"


def measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    asked_for = parse_bytes(options.gpu_memory) if options.gpu_memory else Settings.gather({}).gpu_memory
    runtime = cuda.runtime_for(options.device, asked_for)
    if runtime.device == "emulate" and not asked_for:
        runtime = cuda.runtime_for("emulate", QUICK_MEMORY if options.quick else PRETENDED_MEMORY)
    memory = runtime.memory()
    dtypes = [options.dtype] if options.dtype else ["float32"] if options.quick else list(BOTH)
    if not theoretical(memory, "float64"):
        raise DoesNotFit(f"{memory} bytes hold no three numbers: a larger --gpu-memory")
    if runtime.device == "emulate" and theoretical(memory, dtypes[0]) > MOST_EMULATED:
        raise UsageError(
            f"{readable(memory)} hold more than the CPU's CUDA runtime multiplies in a short time: "
            f"--gpu-memory up to {readable(3 * ITEM_SIZES[dtypes[0]] * MOST_EMULATED**2)} without a GPU"
        )
    for name in options.kernels or ():
        kernel_asked_for(Settings(device=runtime.device, kernel=name))
        for dtype in dtypes:
            if refused := refusal(cuda.kernel_of(name), dtype, columns=2, capability=runtime.capability):
                raise UsageError(refused)
    for dtype in dtypes:
        about = {**runtime.about, "dtype": dtype, "memory": memory}
        most = theoretical(memory, dtype)
        yield {**about, "part": "theoretical", "n": most}
        # With and without shared memory; on a GPU the fastest alone: the others take minutes there.
        on_gpu = runtime.device == "cuda" and [fastest("cuda", dtype, most, runtime.capability).name]
        for name in options.kernels or on_gpu or ("naive", "tiled"):
            n, seconds = largest_in_core(runtime, cuda.kernel_of(name), dtype, most)
            yield {**about, "part": "in core", "n": n, "kernel": name, "seconds": seconds}
        of_host = theoretical(int(_OF_FREE_HOST_MEMORY * available_host_bytes()), dtype)
        if (n := min(int(options.times * most), of_host)) > most:
            yield {**about, "part": "out of core", "n": n, "seconds": run_out_of_core(runtime.device, memory, n, dtype)}


main = frame.experiment(
    __doc__, Results, measured, frame.DEVICE, frame.QUICK,
    frame.option("--dtype", choices=BOTH, help="only this one (both; --quick: float32)"),
    frame.option("--gpu-memory", metavar="BYTES", help="of the GPU, or of the CPU in its place (free; 1 MiB)"),
    frame.option("--kernels", nargs="+", metavar="NAME", help="for in core (the fastest; without a GPU naive and tiled)"),
    frame.option("--times", type=float, default=TIMES, metavar="T", help="out of core, up to T times as large (4)"),
)  # fmt: skip
