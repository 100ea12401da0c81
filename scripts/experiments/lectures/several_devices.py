"""Several devices at one product: from one process, one device set after the other, and from as many ranks of the runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.common.cuda_runtime import CudaRuntime, EmulatedRuntime, GpuRuntime
from experiments.common.product_check import refuse_wrong
from experiments.common.programs import matmul
from experiments.common.records import Line, seconds_of
from experiments.common.timing import kernel_of
from hybrid.core.spans import block
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.host.memory import available_host_bytes

PRETENDED = 2  # devices that a CPU stands for


def runtimes_like(runtime: CudaRuntime) -> list[CudaRuntime]:
    """All GPUs of this machine, or where there is none some that the CPU stands for."""
    if runtime.device == "cuda":
        return [GpuRuntime(gpu) for gpu in usable_gpus()]
    return [EmulatedRuntime(available_host_bytes()) for _ in range(PRETENDED)]


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})


def by_one_process(runtimes: Sequence[CudaRuntime], kernel: str, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Seconds from the first launch until every device is done. Each has B and its share of A's rows, and makes those of C."""
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
    spans = [block(len(a), len(runtimes), index).slice for index in range(len(runtimes))]
    try:
        operands: list[tuple[Any, Any, Any]] = []
        for runtime, rows in zip(runtimes, spans, strict=True):
            shapes = (a[rows].shape, b.shape, c[rows].shape)
            on_a, on_b, on_c = (runtime.allocate(height, width, a.dtype.name) for height, width in shapes)
            runtime.copy(on_a, a[rows])
            runtime.copy(on_b, b)
            runtime.poison(on_c)
            operands.append((on_a, on_b, on_c))

        def multiply() -> None:
            for runtime, (on_a, on_b, on_c) in zip(runtimes, operands, strict=True):
                runtime.launch(kernel_of(kernel), on_a, on_b, on_c)
            for runtime in runtimes:
                runtime.synchronize()

        first = seconds_of(multiply)
        for runtime, rows, (_, _, on_c) in zip(runtimes, spans, operands, strict=True):
            runtime.copy(c[rows], on_c)
        refuse_wrong(f"{kernel} on {len(runtimes)} devices", a, b, c)
        return [seconds_of(multiply) for _ in range(repeat)] if runtimes[0].device == "cuda" else [first]
    finally:
        for runtime in runtimes:
            runtime.release()


def by_ranks(ranks: int, device: str, kernel: str, n: int, repeat: int) -> Line:
    """The runner's own line of n×n float64 matrices on so many ranks, a device each."""
    return matmul(ranks, n, "--device", device, "--kernel", kernel, "--fill", "uniform", "--repeat", str(repeat))
