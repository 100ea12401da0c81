# SPDX-License-Identifier: MIT
"""The parts that scripts/bench.py hosts compares: python -m experiments.bench.hosts_program PART --sizes N... --json FILE

Each product is compared with float64 after the clock has stopped, elements that nobody writes are NaN, and the first warms up.
"""

import argparse
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

import hybrid
from experiments.common import frame
from experiments.common.product_check import ProductCheck, refuse_wrong
from hybrid.core.problem import block
from hybrid.devices.base import Device
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.reporting import jsonl

DTYPE = "float64"
_THREADS = 16  # that make random numbers
_BLOCKS = (2048, 4096, 8192)  # rows and columns of cuBLASXt's blocks that are tried

Line = tuple[str, list[float], dict[str, Any]]  # a part, the seconds of its products, what else its line has


def uniform(n: int) -> np.ndarray:
    """An ordinary n×n array of random numbers, its memory first touched by this thread."""
    matrix = np.empty((n, n), DTYPE)
    matrix.fill(0)
    threads = min(_THREADS, os.cpu_count() or 1)
    parts = [part for part in np.array_split(matrix, threads) if part.size]
    generators = np.random.default_rng().spawn(len(parts))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda generator, part: generator.random(out=part), generators, parts))
    return matrix


def seconds_of_all(comm: Any, work: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> float:
    """From the moment when all ranks have come to the work until all have done it; `finish` waits for a rank's device."""
    comm.Barrier()
    began = time.perf_counter()
    work()
    finish()
    comm.Barrier()
    return time.perf_counter() - began


def handwritten(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """The program one writes by hand with mpi4py and CuPy: Scatter A, Bcast B, to the GPU, A @ B, from the GPU, Gather C. Every
    buffer is made and touched before the clock runs. Without a GPU NumPy stands for CuPy."""
    copy_in, copy_out = np.copy, lambda c, into: np.copyto(into, c)
    if options.device == "cuda":
        cupy = import_module("cupy")
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
        copy_in, copy_out = cupy.asarray, lambda c, into: cupy.asnumpy(c, out=into)
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    comm.Barrier()
    began = time.perf_counter()
    # Filled, so that all memory is touched; the whole one is C at rank 0, B elsewhere.
    whole, a_rows, c_rows = (np.full((rows, n), np.nan) for rows in (n, n // comm.size, n // comm.size))
    comm.Barrier()
    setup = time.perf_counter() - began
    b, c = (whole, None) if b is None else (b, whole)

    def multiply() -> None:
        comm.Scatter(a, a_rows)
        comm.Bcast(b)
        on_device = copy_in(a_rows), copy_in(b)
        copy_out(on_device[0] @ on_device[1], c_rows)
        comm.Gather(c_rows, c)

    setup += seconds_of_all(comm, multiply)
    if c is not None:
        c.fill(np.nan)
    times = [seconds_of_all(comm, multiply) for _ in range(options.repeat)]
    if a is not None:
        yield "handwritten", times, {"setup": setup, "error": refuse_wrong("the product", a, b, c)}


# By part: whether it is checked, and whether C is given.
_LIBRARY = {"library, checked": (True, True), "library, new arrays": (True, False), "library": (False, True),
            "library, new C": (False, False)}  # fmt: skip


def library(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """hybrid.multiply of rank 0's private arrays: with its check of the same arrays and of new ones each time, and without it,
    with and without `out`. The first and the last product of each are compared."""
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    c = np.full((n, n), np.nan) if comm.rank == 0 else None

    def seconds(part: str, *, compare: bool) -> float:
        check, given = _LIBRARY[part]
        operands = [each.copy() if part == "library, new arrays" and each is not None else each for each in (a, b)]
        how: dict[str, Any] = {"out": c if given else None, "check": check, "device": options.device}
        made: list[Any] = []
        if c is not None:
            c.fill(np.nan)
        taken = seconds_of_all(comm, lambda: made.append(hybrid.multiply(*operands, comm=comm, **how)))
        if compare and a is not None:
            refuse_wrong("the product", a, b, made[0])
        return taken

    for part in _LIBRARY:
        times = [seconds(part, compare=number in (1, options.repeat + 1)) for number in range(options.repeat + 2)]
        yield part, times[2:], {"setup": times[0]}


def wires(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """A and B from the host to the GPUs and C back, all at the same time, and nothing is multiplied: no product is faster whose
    matrices take this way. Every rank copies its rows of the memory that its node's ranks share, over its own GPU's link."""
    device: Any = Device(staged=True)
    if options.device == "cuda":
        from hybrid.devices.cuda_device import CudaDevice

        gpus = usable_gpus()
        device = CudaDevice(gpus[comm.rank % len(gpus)])
    rows = block(n, comm.size, comm.rank)
    whole = [hybrid.empty((n, n), DTYPE, comm=comm) for _ in "ABC"]
    on_host = [matrix[rows.slice] for matrix in whole if matrix is not None]
    assert len(on_host) == len(whole), "all ranks are on one node"
    memory = [device.reserve(n * n * np.dtype(DTYPE).itemsize, shared=False) for _ in on_host]  # rows with padding, and more
    on_device = [device.matrix(part, 0, len(rows), n, DTYPE) for part in memory]
    for matrix in on_host:
        matrix.fill(comm.rank)
        device.pin(matrix)

    def copy() -> None:
        for into, source in zip(on_device[:2], on_host[:2], strict=True):
            device.copy_in(into, source, [])
        device.copy_out(on_host[2], on_device[2], [])

    times = [seconds_of_all(comm, copy, device.finish) for _ in range(options.repeat + 1)]
    yield "wires", times[1:], {"setup": None}


def cublasxt(gpus: int, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """cuBLASXt: one call multiplies matrices in host memory, its blocks spread over the GPUs of a process: operands in memory
    that CUDA allocated before the clock; ordinary arrays, which the call page-locks and releases again; and ordinary arrays."""
    import cupy
    import cupyx
    from cupy_backends.cuda.libs import cublas

    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    libcublas, handle = ctypes.CDLL(f"libcublas.so.{version // 10000}"), ctypes.c_void_p()  # what CuPy has loaded is found

    def call(name: str, *arguments: Any) -> None:
        if status := getattr(libcublas, f"cublasXt{name}")(*arguments):
            raise RuntimeError(f"cublasXt{name} ended with cuBLAS status {status}")

    call("Create", ctypes.byref(handle))
    call("DeviceSelect", handle, gpus, (ctypes.c_int * gpus)(*range(gpus)))
    about = {"library": f"cuBLASXt {version // 10000}.{version // 100 % 100}.{version % 100}"}
    ordinary = uniform(n), uniform(n), np.full((n, n), np.nan)
    check, size = ProductCheck(*ordinary[:2]), ctypes.c_size_t(n)
    locked = tuple(cupyx.empty_pinned((n, n), DTYPE) for _ in ordinary)
    for into, matrix in zip(locked, ordinary, strict=True):
        np.copyto(into, matrix)
    one, zero = (ctypes.byref(ctypes.c_double(value)) for value in (1.0, 0.0))
    kinds = {"page-locked": (locked, 0), "registered": (ordinary, 1), "pageable": (ordinary, 0)}
    for (kind, (matrices, registers)), side in product(kinds.items(), _BLOCKS):
        call("SetBlockDim", handle, side)
        call("SetPinningMemMode", handle, registers)  # whether a call page-locks what is not
        a, b, c = (ctypes.c_void_p(matrix.ctypes.data) for matrix in matrices)
        # cuBLAS is column-major: our row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, with the operands exchanged and none transposed.
        arguments = (handle, 0, 0, size, size, size, one, b, size, a, size, zero, c, size)
        setup = frame.seconds_of(call, "Dgemm", *arguments)
        matrices[2].fill(np.nan)
        times = [frame.seconds_of(call, "Dgemm", *arguments) for _ in range(options.repeat)]
        error = check.refuse_wrong(f"the product of {kind} operands in blocks of {side}", matrices[2])
        yield f"cublasxt, {kind}", times, {**about, "setup": setup, "error": error, "block": side}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("handwritten", "library", "wires", "cublasxt"))
    parser.add_argument("--sizes", nargs="+", type=int, required=True, metavar="N", help="square matrices, one after the other")
    parser.add_argument("--gpus", type=int, default=1, metavar="P", help="how many cuBLASXt uses (1)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "emulate"))
    parser.add_argument("--repeat", type=int, default=3, help="products timed (3)")
    parser.add_argument("--json", required=True, metavar="FILE", help="append a line for each result")
    options = parser.parse_args()
    comm = None
    if options.part != "cublasxt":
        from mpi4py import MPI

        from hybrid.ranks.mpi import unname_files

        comm = MPI.COMM_WORLD
        if comm.size == 1:
            unname_files()  # nobody else opens them, and a failure would leave them
    for n in options.sizes:
        lines = globals()[options.part](comm, n, options) if comm else cublasxt(options.gpus, n, options)
        for part, times, more in lines:
            if comm is None or comm.rank == 0:
                where = {"part": part, "gpus": comm.size if comm else options.gpus, "n": n}
                jsonl.write({**where, "seconds": frame.spread(times), "repeat": len(times), **more}, options.json)


if __name__ == "__main__":
    main()
