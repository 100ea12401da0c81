# SPDX-License-Identifier: MIT
"""The parts that scripts/bench.py hosts compares: python -m experiments.bench.hosts_program PART --sizes N... --json FILE

Each product is compared with float64 after the clock has stopped, elements that nobody writes are NaN, and the first warms up.
"""

import argparse
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

import hybrid
from experiments.common import frame
from experiments.common.frame import seconds_of
from experiments.common.product_check import ProductCheck, refuse_wrong
from hybrid.core.problem import Span, block
from hybrid.devices.base import Device
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.row_sums import checksum_weights, row_checksums
from hybrid.host.threads import rows_of_about, usable_cores
from hybrid.reporting import jsonl

DTYPE = "float64"
STEPS = ("scatter and broadcast", "to the GPU", "multiply", "from the GPU", "gather")
_THREADS = 16  # that make random numbers
_READ_BYTES = 16 << 20  # of a thread's call, as the check makes them
_BUSY_THREADS = 2  # of a rank, beside those that read

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
    finish()
    comm.Barrier()
    began = time.perf_counter()
    work()
    finish()
    comm.Barrier()
    return time.perf_counter() - began


def in_turns(works: Mapping[str, Callable[[], float]], repeat: int) -> dict[str, list[float]]:
    """The seconds of each, which it returns itself; each round in the other order, and the first warms up."""
    times: dict[str, list[float]] = {part: [] for part in works}
    for number in range(repeat + 1):
        for part in list(works) if number % 2 else list(works)[::-1]:
            times[part].append(works[part]())
    return {part: each[1:] for part, each in times.items()}


def handwritten(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """The program one writes by hand with mpi4py and CuPy: Scatter A, Bcast B, to the GPU, A @ B, from the GPU, Gather C. Every
    buffer is made and touched before the clock runs; barriers stand between the steps. Without a GPU NumPy stands for CuPy."""
    copy_in, copy_out, finish = np.copy, lambda c, into: np.copyto(into, c), lambda: None
    if options.device == "cuda":
        cupy = import_module("cupy")
        gpu = cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount())
        gpu.use()
        finish = gpu.synchronize
        copy_in, copy_out = cupy.asarray, lambda c, into: cupy.asnumpy(c, out=into)
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    comm.Barrier()
    began = time.perf_counter()
    # Filled, so that all memory is touched; the whole one is C at rank 0, B elsewhere.
    whole, a_rows, c_rows = (np.full((rows, n), np.nan) for rows in (n, n // comm.size, n // comm.size))
    comm.Barrier()
    setup = time.perf_counter() - began
    b, c = (whole, None) if b is None else (b, whole)

    def moment() -> float:
        finish()
        comm.Barrier()
        return time.perf_counter()

    def steps() -> np.ndarray:
        moments = [moment()]
        comm.Scatter(a, a_rows)
        comm.Bcast(b)
        moments.append(moment())
        on_device = copy_in(a_rows), copy_in(b)
        moments.append(moment())
        of_c = on_device[0] @ on_device[1]
        moments.append(moment())
        copy_out(of_c, c_rows)
        moments.append(moment())
        comm.Gather(c_rows, c)
        moments.append(moment())
        return np.diff(moments)

    setup += float(steps().sum())
    if c is not None:
        c.fill(np.nan)
    times = [steps() for _ in range(options.repeat)]
    if a is not None:
        error = refuse_wrong("the product", a, b, c)
        phases = {step: frame.spread([float(each[index]) for each in times]) for index, step in enumerate(STEPS)}
        yield "handwritten", [float(each.sum()) for each in times], {"setup": setup, "phases": phases, "error": error}


def library(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """hybrid.multiply of rank 0's private arrays: with its check of the same arrays and of new ones each time, and without it,
    with and without `out`."""
    checked, new, *unchecked = parts = ("library, checked", "library, new arrays", "library", "library, new C")
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    c = np.full((n, n), np.nan) if comm.rank == 0 else None
    made: Any = None

    def multiply(part: str, *operands: Any) -> None:
        nonlocal made
        out = c if part in (checked, "library") else None
        made = hybrid.multiply(*operands, comm=comm, out=out, check=part in (checked, new), device=options.device)

    def seconds(part: str, *, compare: bool = False) -> float:
        nonlocal made
        made = None  # its memory goes before a new one is needed
        if compare and c is not None:
            c.fill(np.nan)
        operands = (a.copy(), b.copy()) if part == new and a is not None and b is not None else (a, b)
        taken = seconds_of_all(comm, partial(multiply, part, *operands))
        if compare and a is not None:
            refuse_wrong("the product", a, b, made)
        return taken

    setup = {part: seconds(part) for part in parts}
    times: dict[str, list[float]] = {part: [] for part in parts}
    for group in ([checked], [new], unchecked):
        for part in group:  # neither the check nor what another part has changed is in what follows
            seconds(part, compare=True)
        for number in range(options.repeat):
            for part in group if number % 2 == 0 else group[::-1]:
                times[part].append(seconds(part, compare=number == options.repeat - 1))
    yield from ((part, times[part], {"setup": setup[part]}) for part in parts)


def wires(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """A and B from the host to the GPUs and C back, all at the same time, and nothing is multiplied: no product is faster whose
    matrices take this way. Every rank copies its rows of the memory that its node's ranks share, over its own GPU's link. Then
    all three are read once by threads, which make the check's checksums of them; then both at once: no checked product is
    faster."""
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
    weights, checksums = checksum_weights(n, 8), np.empty(len(rows), np.uint64)

    def copy() -> None:
        for into, source in zip(on_device[:2], on_host[:2], strict=True):
            device.copy_in(into, source, [])
        device.copy_out(on_host[2], on_device[2], [])

    def read() -> list[Future[None]]:
        return [
            pool.submit(row_checksums, matrix[part.slice], weights, checksums[part.slice])
            for matrix in on_host
            for part in rows_of_about(_READ_BYTES, Span(0, len(matrix)), matrix[:1].nbytes)
        ]

    def wait(reading: list[Future[None]]) -> None:
        for part in reading:
            part.result()

    def both() -> None:
        reading = read()
        copy()
        device.finish()
        wait(reading)

    works: dict[str, Callable[[], Any]] = {"wires": copy, "read": lambda: wait(read()), "wires, read": both}
    with ThreadPoolExecutor(max(1, len(usable_cores()) // comm.size - _BUSY_THREADS)) as pool:
        of_all = {part: partial(seconds_of_all, comm, work, device.finish) for part, work in works.items()}
        times = in_turns(of_all, options.repeat)
    yield from ((part, each, {"setup": None}) for part, each in times.items())


# --- other libraries, in one process

_HANDLE, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SIGNATURES = {  # of cublasXt.h
    "cublasXtCreate": (_HANDLE,),
    "cublasXtDestroy": (_HANDLE,),
    "cublasXtDeviceSelect": (_HANDLE, _INT, ctypes.POINTER(_INT)),
    "cublasXtSetBlockDim": (_HANDLE, _INT),
    "cublasXtSetPinningMemMode": (_HANDLE, _INT),
    # handle, two transposes, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc
    "cublasXtDgemm": (_HANDLE, _INT, _INT, *[_SIZE] * 3, _HANDLE, *[_HANDLE, _SIZE] * 2, _HANDLE, _HANDLE, _SIZE),
}
_BLOCKS = (2048, 4096, 8192)
_NOT_TRANSPOSED = 0  # CUBLAS_OP_N


class CublasXt:
    """cuBLASXt on the first so many GPUs. RuntimeError, with the status, for each function that does not succeed."""

    def __init__(self, library: ctypes.CDLL, gpus: int) -> None:
        self._library, self._handle = library, ctypes.c_void_p()
        self.call("Create", ctypes.byref(self._handle))
        self.call("DeviceSelect", self._handle, gpus, (ctypes.c_int * gpus)(*range(gpus)))

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, f"cublasXt{name}")
        function.argtypes, function.restype = _SIGNATURES[f"cublasXt{name}"], ctypes.c_int
        if status := function(*arguments):
            raise RuntimeError(f"cublasXt{name} ended with cuBLAS status {status}")

    def set_up(self, block: int, registers: bool) -> None:
        """For the following products: the rows and columns of a block, and whether a call page-locks what is not."""
        self.call("SetBlockDim", self._handle, block)
        self.call("SetPinningMemMode", self._handle, int(registers))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        """c = a · b, contiguous float64 matrices on the host. It has been done when this returns."""
        assert all(matrix.dtype == DTYPE and matrix.flags.c_contiguous for matrix in (a, b, c))
        (rows, inner), columns = a.shape, b.shape[1]
        one, zero = (ctypes.byref(ctypes.c_double(value)) for value in (1.0, 0.0))
        # cuBLAS is column-major: our row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, with the operands exchanged and none transposed.
        sizes = (_NOT_TRANSPOSED, _NOT_TRANSPOSED, columns, rows, inner)
        operands = (one, b.ctypes.data, columns, a.ctypes.data, inner, zero, c.ctypes.data, columns)
        self.call("Dgemm", self._handle, *sizes, *operands)

    def close(self) -> None:
        self.call("Destroy", self._handle)


def cublasxt(gpus: int, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """One call multiplies matrices in host memory, its blocks spread over the GPUs of a process: operands in memory that CUDA
    allocated before the clock; ordinary arrays, which the call page-locks and releases again; and ordinary arrays."""
    import cupy
    import cupyx
    from cupy_backends.cuda.libs import cublas

    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    library = ctypes.CDLL(f"libcublas.so.{version // 10000}")  # what CuPy has loaded is found by this name
    about = {"library": f"cuBLASXt {version // 10000}.{version // 100 % 100}.{version % 100}"}
    ordinary = uniform(n), uniform(n), np.full((n, n), np.nan)
    check = ProductCheck(*ordinary[:2])
    locked = tuple(cupyx.empty_pinned((n, n), DTYPE) for _ in ordinary)
    for into, matrix in zip(locked, ordinary, strict=True):
        np.copyto(into, matrix)
    kinds = {"page-locked": (locked, False), "registered": (ordinary, True), "pageable": (ordinary, False)}
    with closing(CublasXt(library, gpus)) as xt:
        for (kind, (matrices, registers)), size in product(kinds.items(), _BLOCKS):
            xt.set_up(size, registers)
            multiply = partial(xt.multiply, *matrices)
            setup = seconds_of(multiply)
            matrices[2].fill(np.nan)
            times = [seconds_of(multiply) for _ in range(options.repeat)]
            error = check.refuse_wrong(f"the product of {kind} operands in blocks of {size}", matrices[2])
            yield f"cublasxt, {kind}", times, {**about, "setup": setup, "error": error, "block": size}


def by_torch(gpus: int, n: int, options: argparse.Namespace) -> Iterator[Line]:
    """A goes to the GPUs by rows; B to the first GPU, from there to the others: their links carry it only once. C is an array
    made before."""
    torch: Any = import_module("torch")
    on_gpus, c = options.device == "cuda", np.full((n, n), np.nan)
    if on_gpus and torch.cuda.device_count() < gpus:
        raise SystemExit(f"PyTorch finds {torch.cuda.device_count()} of {gpus} GPUs")
    devices = [torch.device("cuda", index) if on_gpus else torch.device("cpu") for index in range(gpus)]

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(a).chunk(gpus)
        of_a = [part.to(device, non_blocking=True) for part, device in zip(parts, devices, strict=True)]
        first = torch.from_numpy(b).to(devices[0], non_blocking=True)
        of_b = [first.to(device, non_blocking=True) for device in devices]
        products = [rows @ whole for rows, whole in zip(of_a, of_b, strict=True)]
        for into, part in zip(torch.from_numpy(c).chunk(gpus), products, strict=True):
            into.copy_(part, non_blocking=True)
        for device in devices if on_gpus else ():
            torch.cuda.synchronize(device)
        return c

    a, b = uniform(n), uniform(n)
    setup = seconds_of(multiply, a, b)
    times = [seconds_of(multiply, a, b) for _ in range(options.repeat)]
    c.fill(np.nan)
    error = refuse_wrong("the product", a, b, multiply(a, b))
    yield "torch", times, {"setup": setup, "error": error, "library": f"PyTorch {torch.__version__}"}


OF_RANKS = {part.__name__: part for part in (handwritten, library, wires)}
OF_ONE_PROCESS = {"cublasxt": cublasxt, "torch": by_torch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=(*OF_RANKS, *OF_ONE_PROCESS))
    parser.add_argument("--sizes", nargs="+", type=int, required=True, metavar="N", help="square matrices, one after the other")
    parser.add_argument("--gpus", nargs="+", type=int, default=[1], metavar="P", help="how many one process uses (1)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "emulate"))
    parser.add_argument("--repeat", type=int, default=3, help="products timed (3)")
    parser.add_argument("--json", required=True, metavar="FILE", help="append a line for each result")
    options = parser.parse_args()
    comm = None
    if options.part in OF_RANKS:
        from mpi4py import MPI

        from hybrid.ranks.mpi import unname_files

        comm = MPI.COMM_WORLD
        if comm.size == 1:
            unname_files()  # nobody else opens them, and a failure would leave them
    for n in options.sizes:
        for gpus in options.gpus:
            if comm is not None:
                lines = OF_RANKS[options.part](comm, n, options)
            else:
                lines = OF_ONE_PROCESS[options.part](gpus, n, options)
            for part, times, more in lines:
                if comm is None or comm.rank == 0:
                    where = {"part": part, "gpus": comm.size if comm else gpus, "n": n}
                    jsonl.write({**where, "seconds": frame.spread(times), "repeat": len(times), **more}, options.json)


if __name__ == "__main__":
    main()
