"""Matrix multiplication in three programs: python scripts/lecture_siegel.py [--picture FILE.svg]

The CUDA lecture's seq (three loops on one core), matmul1 (one thread per element) and matmul2 (tiles in shared memory) at
8000×8000 in float64, beside its 13.8 s and 4.8 s on a K40c. seq takes more than an hour there; here its time is extrapolated
from smaller sizes, in both orders of the loops, and so too short where larger matrices leave the caches. Then how often each
element is read from global memory, counted; and several devices, from one process that sets one after the other, and from as
many ranks.

Kernels are timed by CUDA events, with allocation and copies beside them. Without a GPU they run on the CPU's CUDA runtime at
200×200, and two devices are pretended: products are checked, and nothing is said of their speed. --quick takes smaller sizes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from experiments.common.cli import at_least_1, command, parser_for, present, refuse_too_large, shown
from experiments.common.cuda_runtime import CudaRuntime, on, runtime_for
from experiments.common.records import Line, spread
from experiments.common.timing import kernel_of, kernel_seconds, loops_seconds, matrices, whole_seconds
from experiments.ladder.loads import count_loads
from experiments.lectures.several_devices import by_one_process, by_ranks, counts_up_to, runtimes_like
from experiments.lectures.siegel_results import COUNTED, DTYPE, ORDERS, PROGRAMS, N, Results
from hybrid.errors import DeviceUnavailable

SEQ_SIZES, SEQ_QUICK = (250, 500, 1000), (100, 200)
SIZES, QUICK = {"cuda": N, "emulate": 200}, {"cuda": 1000, "emulate": 72}
REPEAT, LOOPS_REPEAT, WHOLE_REPEAT = 5, 3, 3


def measured(runtime: CudaRuntime, n: int, seq_sizes: Sequence[int]) -> Iterator[Line]:
    yield from _seq(seq_sizes)
    a, b = matrices("uniform", DTYPE, n, n, n)
    for program, kernel in shown(list(PROGRAMS.items()), "kernels"):
        seconds = spread(kernel_seconds(runtime, kernel_of(kernel), a, b, REPEAT))
        repeat = WHOLE_REPEAT if runtime.device == "cuda" else 1
        whole = spread(whole_seconds(runtime, kernel_of(kernel), a, b, repeat))
        yield {"part": "kernel", "program": program, "n": n, "seconds": seconds, "whole": whole}
    yield from loads()
    kernel, runtimes = PROGRAMS["matmul2"], runtimes_like(runtime)
    for count in shown(counts_up_to(len(runtimes)), "one process"):
        seconds = spread(by_one_process(runtimes[:count], kernel, a, b, REPEAT))
        yield {"part": "several", "way": "one process", "devices": count, "n": n, "seconds": seconds}
    for count in shown(counts_up_to(len(runtimes)), "ranks"):
        run = by_ranks(count, runtime.device, kernel, n, REPEAT if runtime.device == "cuda" else 1)
        seconds, total = run["seconds"]["multiply"], run["total"]
        yield {"part": "several", "way": "ranks", "devices": count, "n": n, "seconds": seconds, "total": total}


def _seq(sizes: Sequence[int]) -> Iterator[Line]:
    jobs = [(size, kernel) for size in sizes for kernel in ORDERS]
    for size, kernel in shown(jobs, "seq"):
        a, b = matrices("uniform", DTYPE, size, size, size)
        try:
            seconds = spread(loops_seconds(kernel, a, b, LOOPS_REPEAT))
        except DeviceUnavailable as missing:
            print(f"seq is left out: {missing}", file=sys.stderr)
            return
        yield {"part": "seq", "kernel": kernel, "n": size, "seconds": seconds}


def loads() -> Iterator[Line]:
    """How often each element is read, counted on the emulated GPU."""
    for program, kernel in PROGRAMS.items():
        try:
            counted = count_loads(kernel_of(kernel), DTYPE, COUNTED)
        except DeviceUnavailable as missing:
            print(f"loads are not counted: {missing}", file=sys.stderr)
            return
        yield {"part": "loads", "program": program, "shape": COUNTED, "a": counted.a, "b": counted.b}


def _measured(options: argparse.Namespace) -> Iterator[Line]:
    runtime = runtime_for(options.device)
    n = options.size or (QUICK if options.quick else SIZES)[runtime.device]
    refuse_too_large(n, n, n, 8)
    yield from on(runtime, measured(runtime, n, SEQ_QUICK if options.quick else SEQ_SIZES))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_for(__doc__)
    parser.add_argument("--size", type=at_least_1, metavar="N", help="of matmul1 and matmul2")
    return command(parser, partial(present, results=Results, measured=_measured), arguments)
