# SPDX-License-Identifier: MIT
"""Matrix multiplication in three programs: python -m hybrid.lectures siegel [--picture FILE.svg]

The CUDA lecture's seq (three loops on one core), matmul1 (one thread per element) and matmul2 (tiles in shared memory) at
8000×8000 in float64, beside its 13.8 s and 4.8 s on a K40c. seq takes more than an hour there; here it is timed at smaller
sizes, in both orders of the loops. Where one is large enough to tell of 8000, the time there is extrapolated, and too short if
larger matrices leave the caches. Then how often each element is read from global memory, counted; and several devices, from one
process that sets one after the other, and from as many ranks.

Kernels are timed by CUDA events, with allocation and copies beside them. Without a GPU they run on the CPU's CUDA runtime at
200×200, and two devices are pretended: products are checked, and nothing is said of their speed. --quick takes smaller sizes.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.common import cli, cuda, product_check, programs, records, timing
from experiments.lectures.loads import count_loads
from experiments.lectures.siegel_results import COUNTED, DTYPE, ORDERS, PROGRAMS, N, Results
from hybrid.core.spans import block
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import DeviceUnavailable
from hybrid.host.memory import available_host_bytes

PRETENDED = 2  # devices that a CPU stands for
SEQ_SIZES, SEQ_QUICK = (250, 500, 1000), (100, 200)
SIZES, QUICK = {"cuda": N, "emulate": 200}, {"cuda": 1000, "emulate": 72}
REPEAT, LOOPS_REPEAT, WHOLE_REPEAT = 5, 3, 3


def measured(runtime: cuda.CudaRuntime, n: int, seq_sizes: Sequence[int]) -> Iterator[records.Line]:
    yield from _seq(seq_sizes)
    a, b = timing.matrices("uniform", DTYPE, n, n, n)
    for program, kernel in cli.shown(list(PROGRAMS.items()), "kernels"):
        seconds = records.spread(timing.kernel_seconds(runtime, timing.kernel_of(kernel), a, b, REPEAT))
        repeat = WHOLE_REPEAT if runtime.device == "cuda" else 1
        whole = records.spread(timing.whole_seconds(runtime, timing.kernel_of(kernel), a, b, repeat))
        yield {"part": "kernel", "program": program, "n": n, "seconds": seconds, "whole": whole}
    yield from loads()
    kernel, runtimes = PROGRAMS["matmul2"], runtimes_like(runtime)
    for count in cli.shown(counts_up_to(len(runtimes)), "one process"):
        seconds = records.spread(by_one_process(runtimes[:count], kernel, a, b, REPEAT))
        yield {"part": "several", "way": "one process", "devices": count, "n": n, "seconds": seconds}
    for count in cli.shown(counts_up_to(len(runtimes)), "ranks"):
        run = by_ranks(count, runtime.device, kernel, n, REPEAT if runtime.device == "cuda" else 1)
        seconds, total = run["seconds"]["multiply"], run["total"]
        yield {"part": "several", "way": "ranks", "devices": count, "n": n, "seconds": seconds, "total": total}


def _seq(sizes: Sequence[int]) -> Iterator[records.Line]:
    jobs = [(size, kernel) for size in sizes for kernel in ORDERS]
    for size, kernel in cli.shown(jobs, "seq"):
        a, b = timing.matrices("uniform", DTYPE, size, size, size)
        try:
            seconds = records.spread(timing.loops_seconds(kernel, a, b, LOOPS_REPEAT))
        except DeviceUnavailable as missing:
            print(f"seq is left out: {missing}", file=sys.stderr)
            return
        yield {"part": "seq", "kernel": kernel, "n": size, "seconds": seconds}


def loads() -> Iterator[records.Line]:
    """How often each element is read, counted on the emulated GPU."""
    for program, kernel in PROGRAMS.items():
        try:
            counted = count_loads(timing.kernel_of(kernel), DTYPE, COUNTED)
        except DeviceUnavailable as missing:
            print(f"loads are not counted: {missing}", file=sys.stderr)
            return
        yield {"part": "loads", "program": program, "shape": COUNTED, "a": counted.a, "b": counted.b}


def runtimes_like(runtime: cuda.CudaRuntime) -> list[cuda.CudaRuntime]:
    """All GPUs of this machine, or where there is none some that the CPU stands for."""
    if runtime.device == "cuda":
        return [cuda.GpuRuntime(gpu) for gpu in usable_gpus()]
    return [cuda.EmulatedRuntime(available_host_bytes()) for _ in range(PRETENDED)]


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})


def by_one_process(runtimes: Sequence[cuda.CudaRuntime], kernel: str, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Seconds from the first launch until every device is done. Each has B and its share of A's rows, and makes those of C."""
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
    spans = [block(len(a), len(runtimes), index).slice for index in range(len(runtimes))]
    try:
        operands: list[tuple[Any, Any, Any]] = []
        for runtime, rows in zip(runtimes, spans, strict=True):
            on_a, on_b, on_c = (runtime.allocate(*matrix.shape, a.dtype.name) for matrix in (a[rows], b, c[rows]))
            runtime.copy(on_a, a[rows])
            runtime.copy(on_b, b)
            runtime.poison(on_c)
            operands.append((on_a, on_b, on_c))

        def multiply() -> None:
            for runtime, (on_a, on_b, on_c) in zip(runtimes, operands, strict=True):
                runtime.launch(timing.kernel_of(kernel), on_a, on_b, on_c)
            for runtime in runtimes:
                runtime.synchronize()

        first = records.seconds_of(multiply)
        for runtime, rows, (_, _, on_c) in zip(runtimes, spans, operands, strict=True):
            runtime.copy(c[rows], on_c)
        product_check.refuse_wrong(f"{kernel} on {len(runtimes)} devices", a, b, c)
        return [records.seconds_of(multiply) for _ in range(repeat)] if runtimes[0].device == "cuda" else [first]
    finally:
        for runtime in runtimes:
            runtime.release()


def by_ranks(ranks: int, device: str, kernel: str, n: int, repeat: int) -> records.Line:
    """The runner's own line of n×n float64 matrices on so many ranks, a device each."""
    return programs.matmul(ranks, n, "--device", device, "--kernel", kernel, "--fill", "uniform", "--repeat", str(repeat))


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    runtime = cuda.runtime_for(options.device)
    n = options.size or (QUICK if options.quick else SIZES)[runtime.device]
    cli.refuse_too_large(n, n, n, 8)
    yield from cuda.on(runtime, measured(runtime, n, SEQ_QUICK if options.quick else SEQ_SIZES))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.parser_for(__doc__)
    parser.add_argument("--size", type=cli.at_least_1, metavar="N", help="of matmul1 and matmul2")
    return cli.command(parser, partial(cli.present, results=Results, measured=_measured), arguments)
