# SPDX-License-Identifier: MIT
"""The program one writes by hand with mpi4py and CuPy: Scatter A, Bcast B, to the GPU, A @ B, from the GPU, Gather C.

Every buffer is made and touched before the clock runs; barriers stand between the steps. Without a GPU NumPy stands for CuPy.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from experiments.common.product_check import refuse_wrong
from experiments.common.records import spread
from experiments.hosts.programs.common import cuda_device, parse, record, uniform

STEPS = ("scatter and broadcast", "to the GPU", "multiply", "from the GPU", "gather")

comm = MPI.COMM_WORLD


@dataclass(frozen=True)
class Device:
    """Where a rank multiplies."""

    copy_in: Callable[[np.ndarray], Any]
    copy_out: Callable[[Any, np.ndarray], Any]
    finish: Callable[[], Any]


def chosen_device(name: str) -> Device:
    if name != "cuda":
        return Device(np.copy, lambda c, into: np.copyto(into, c), lambda: None)
    gpu = cuda_device(comm.rank)
    import cupy

    return Device(cupy.asarray, lambda c, into: cupy.asnumpy(c, out=into), gpu.synchronize)


@dataclass
class Matrices:
    """Rank 0's whole A, B and C; every rank's rows of A and C, and its copy of B. `setup`: seconds to make what is no operand."""

    a: np.ndarray | None
    b: np.ndarray
    c: np.ndarray | None
    a_rows: np.ndarray
    c_rows: np.ndarray
    setup: float


def made(n: int) -> Matrices:
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    comm.Barrier()
    began = time.perf_counter()
    # Filled, so that all memory is touched; the whole one is C at rank 0, B elsewhere.
    whole, a_rows, c_rows = (np.full((rows, n), np.nan) for rows in (n, n // comm.size, n // comm.size))
    comm.Barrier()
    whole_b, c = (whole, None) if b is None else (b, whole)
    return Matrices(a, whole_b, c, a_rows, c_rows, time.perf_counter() - began)


def moment(device: Device) -> float:
    """When all ranks and their devices have done all that was asked of them."""
    device.finish()
    comm.Barrier()
    return time.perf_counter()


def multiply(matrices: Matrices, device: Device) -> np.ndarray:
    """One product; the seconds of each step."""
    moments = [moment(device)]
    comm.Scatter(matrices.a, matrices.a_rows)
    comm.Bcast(matrices.b)
    moments.append(moment(device))
    a, b = device.copy_in(matrices.a_rows), device.copy_in(matrices.b)
    moments.append(moment(device))
    c = a @ b
    moments.append(moment(device))
    device.copy_out(c, matrices.c_rows)
    moments.append(moment(device))
    comm.Gather(matrices.c_rows, matrices.c)
    moments.append(moment(device))
    return np.diff(moments)


def main() -> None:
    options = parse(__doc__)
    device = chosen_device(options.device)
    for n in options.sizes:
        matrices = made(n)
        setup = matrices.setup + float(multiply(matrices, device).sum())  # the first one warms up
        if matrices.c is not None:
            matrices.c.fill(np.nan)  # so that elements nobody writes are found
        steps = [multiply(matrices, device) for _ in range(options.repeat)]
        if matrices.a is not None and matrices.c is not None:
            error = refuse_wrong("the product", matrices.a, matrices.b, matrices.c)
            phases = {step: spread([float(times[index]) for times in steps]) for index, step in enumerate(STEPS)}
            totals = [float(times.sum()) for times in steps]
            record(options.json, "handwritten", comm.size, n, totals, setup=setup, phases=phases, error=error)


if __name__ == "__main__":
    main()
