# SPDX-License-Identifier: MIT
"""The parts that call hybrid.multiply, each beside what it is compared with, and the copies that none of them can do without.

library   ordinary private arrays of rank 0: wall time at rank 0, from the second call on. With its check, which is the default,
          of the same arrays and of new ones each time, and without it, with and without `out`
resident  row blocks that lie on the ranks' GPUs, C's rows staying there: no byte through the host or rank 0
small     small host arrays on one GPU, in turns with the same copies and cuBLAS by CuPy; without a GPU NumPy
wires     A and B from the host to the GPUs and C back, all at the same time, and nothing is multiplied: no product is faster
          whose matrices take this way. Every rank copies its rows of the memory that its node's ranks share, over its own
          GPU's link; what GPUs exchange is not counted. Then all three are read once by threads, which make the check's
          checksums of them; then both at once: no checked product is faster
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import hybrid
from experiments.common.product_check import refuse_wrong
from experiments.common.records import seconds_of
from experiments.hosts.programs.common import DTYPE, cuda_device, parse, record, seconds_of_all, uniform
from hybrid.core.spans import Span, block
from hybrid.devices.cpu import CpuDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.row_sums import checksum_weights, row_checksums
from hybrid.host.threads import Calls, rows_of_about, usable_cores
from hybrid.ranks.mpi import unname_files

_READ_BYTES = 16 << 20  # of a thread's call, as the check makes them
_BUSY_THREADS = 2  # of a rank, beside those that read

Times = tuple[str, float | None, list[float]]  # a part, the seconds it took once, before the clock, and those of each product


def library(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Times]:
    checked, new, *unchecked = parts = ("library, checked", "library, new arrays", "library", "library, new C")
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    c = np.full((n, n), np.nan) if comm.rank == 0 else None
    product: Any = None

    def multiply(part: str, *operands: Any) -> None:
        nonlocal product
        out = c if part in (checked, "library") else None
        product = hybrid.multiply(*operands, comm=comm, out=out, check=part in (checked, new), device=options.device)

    def seconds(part: str, *, compare: bool = False) -> float:
        """`compare`: the product is compared after the clock has stopped."""
        nonlocal product
        product = None  # its memory goes before a new one is needed
        if compare and c is not None:
            c.fill(np.nan)  # so that elements nobody writes are found
        operands = (a.copy(), b.copy()) if part == new and a is not None and b is not None else (a, b)
        taken = seconds_of_all(comm, partial(multiply, part, *operands))
        if compare and a is not None and b is not None:
            refuse_wrong("the product", a, b, product)
        return taken

    setup = {part: seconds(part) for part in parts}
    times: dict[str, list[float]] = {part: [] for part in parts}
    for in_turns in ([checked], [new], unchecked):
        for part in in_turns:  # neither the check nor what another part has changed is in what follows
            seconds(part, compare=True)
        for repeat in range(options.repeat):
            for part in in_turns if repeat % 2 == 0 else in_turns[::-1]:
                times[part].append(seconds(part, compare=repeat == options.repeat - 1))
    yield from ((part, setup[part], times[part]) for part in parts)


def resident(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Times]:
    random, finish = _on_device(comm, options.device)
    a, b = (hybrid.RowBlock(random((n // comm.size, n))) for _ in range(2))
    product = partial(hybrid.multiply, a, b, comm=comm, device=options.device)
    setup = seconds_of_all(comm, partial(product, check=True), finish)
    times = [seconds_of_all(comm, partial(product, check=False), finish) for _ in range(options.repeat + 1)]
    yield "resident", setup, times[1:]  # after the check, the first one warms up again


def _on_device(comm: Any, device: str) -> tuple[Callable[[tuple[int, int]], Any], Callable[[], Any]]:
    """What makes random rows where this rank multiplies, and what waits for all work there."""
    if device != "cuda":
        return np.random.default_rng().random, lambda: None
    gpu = cuda_device(comm.rank)
    import cupy

    return cupy.random.default_rng().random, gpu.synchronize


def small(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Times]:
    def by_cublas(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        import cupy

        return cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b))

    products: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "small": partial(hybrid.multiply, check=False, device=options.device),
        "small, plain": by_cublas if options.device == "cuda" else np.matmul,
    }
    a, b = uniform(n), uniform(n)
    setup = {part: seconds_of(product, a, b) for part, product in products.items()}
    for product in products.values():
        refuse_wrong("the product", a, b, product(a, b))
    times: dict[str, list[float]] = {part: [] for part in products}
    for repeat in range(options.repeat + 1):  # the first one warms up
        for part in list(products) if repeat % 2 else list(products)[::-1]:
            times[part].append(seconds_of(products[part], a, b))
    yield from ((part, setup[part], times[part][1:]) for part in products)


def wires(comm: Any, n: int, options: argparse.Namespace) -> Iterator[Times]:
    device, rows = _device_for(comm, options.device), block(n, comm.size, comm.rank)
    whole = [hybrid.empty((n, n), DTYPE, comm=comm) for _ in "ABC"]
    on_host = [matrix[rows.slice] for matrix in whole if matrix is not None]
    assert len(on_host) == len(whole), "all ranks are on one node"
    size = n * n * np.dtype(DTYPE).itemsize  # of its rows with their padding, and more
    memory = [device.reserve(size, shared=False) for _ in on_host]
    on_device = [device.matrix(part, 0, len(rows), n, DTYPE) for part in memory]
    for matrix in on_host:
        matrix.fill(comm.rank)
        device.pin(matrix)
    weights, checksums = checksum_weights(n, 8), np.empty(len(rows), np.uint64)

    def copy() -> None:
        for into, source in zip(on_device[:2], on_host[:2], strict=True):
            device.copy_in(into, source, [])
        device.copy_out(on_host[2], on_device[2], [])

    def read() -> Calls:
        calls = Calls(max(1, len(usable_cores()) // comm.size - _BUSY_THREADS))
        for matrix in on_host:
            for part in rows_of_about(_READ_BYTES, Span(0, len(matrix)), matrix[:1].nbytes):
                calls.soon(partial(row_checksums, matrix[part.slice], weights, checksums[part.slice]))
        return calls

    def both() -> None:
        calls = read()
        copy()
        device.finish()
        calls.wait()

    works: dict[str, Callable[[], Any]] = {"wires": copy, "read": lambda: read().wait(), "wires, read": both}
    times: dict[str, list[float]] = {part: [] for part in works}
    for repeat in range(options.repeat + 1):  # the first one warms up
        for part in list(works) if repeat % 2 else list(works)[::-1]:
            times[part].append(seconds_of_all(comm, works[part], device.finish))
    yield from ((part, None, times[part][1:]) for part in works)


def _device_for(comm: Any, name: str) -> Any:
    if name != "cuda":
        return CpuDevice(staged=True)
    from hybrid.devices.cuda_device import CudaDevice

    gpus = usable_gpus()
    return CudaDevice(gpus[comm.rank % len(gpus)])


def main() -> None:
    parts = {part.__name__: part for part in (library, resident, small, wires)}
    options = parse(__doc__, list(parts))
    comm = None
    if options.part != "small":  # which one process runs, without MPI
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        if comm.size == 1:
            unname_files()  # nobody else opens them, and a failure would leave them
    for n in options.sizes:
        for part, setup, times in parts[options.part](comm, n, options):
            if comm is None or comm.rank == 0:
                record(options.json, part, comm.size if comm else 1, n, times, setup=setup)


if __name__ == "__main__":
    main()
