# SPDX-License-Identifier: MIT
"""From matrices in host memory to their product at rank 0, beside a program written by hand."""

import argparse
import ctypes
import secrets
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

import hybrid
from experiments.common import frame
from experiments.common.cuda import ProductCheck, refuse_wrong
from hybrid.core.problem import Span, block
from hybrid.devices.base import Device
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError, UsageError
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl
from hybrid.runs.operands import fill_rows

SIZES = (4000, 8000, 16000)
PARTS = ("handwritten", "ours", "wires", "library", "shapes", "cublasxt")
_LIMIT = 90.0  # seconds that a program may take
YARDSTICK = "handwritten"
_TIMES = "float64, operands in host memory to C at rank 0, in ms (and how many times as fast as written by hand)"
_SETUP = "Once, before the clock, in ms (the command: what it prepares; else the first product with all that it needs)"
NAMES = {  # of the table's rows, in their order
    "handwritten": "written by hand",
    "ours": "ours, the command",
    "wires": "the copies alone, nothing multiplied",
    "library, new arrays": "ours, `multiply(a, b)`, new arrays each time",
    "library, checked": "ours, `multiply(a, b, out=c)`, the same arrays",
    "library": "ours, `multiply(a, b, out=c, check=False)`",
    "shapes, in turn": "64 shapes up to n×n×n, in turn, new arrays",
    "cublasxt, page-locked": "cuBLASXt, page-locked operands",
    "cublasxt, registered": "cuBLASXt, operands registered in the call",
    "cublasxt, pageable": "cuBLASXt, pageable operands",
}


class Hosts(frame.MachineExperiment):
    """From matrices in host memory to their product at rank 0: how fast, compared with a program written by hand?

    For each number of GPUs and size these are started with `mpirun -n P`, round by round in changing order:
      handwritten  Scatter, Bcast, CuPy, Gather; every buffer allocated before
      ours         python -m hybrid.matmul, its matrices in memory shared by the ranks
      wires        the same matrices copied to the GPUs and back, all at once and nothing multiplied: the links' limit
      library      hybrid.multiply with rank 0's private arrays: checked, the same and new ones; unchecked
      shapes       hybrid.multiply of new arrays of 64 shapes up to n×n×n, in turn: the sum of all
      cublasxt     cuBLASXt's own call of one process, in the best of several block sizes; only on GPUs

    A program that fails is named and left out of later rounds; the others go on, and the exit code is 1. `--device cpu` or
    `emulate` runs the same anywhere with small matrices, as a test.
    """

    command, again = "bench_hosts", "python scripts/bench.py hosts"
    options = (
        frame.option("--gpus", nargs="+", type=frame.positive, default=[1], metavar="P", help="one rank for each (1)"),
        frame.option("--sizes", nargs="+", type=frame.positive, default=SIZES, metavar="N",
                     help=f"multiples of all P ({' '.join(map(str, SIZES))})"),
        frame.option("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)} (all)"),
        frame.option("--rounds", type=frame.positive, default=3, help="starts of each program (3)"),
        frame.option("--repeat", type=frame.positive, default=3, help="products timed in each start (3)"),
        frame.option("--total", type=float, default=0.0, metavar="S", help="start nothing after S seconds (0: no limit)"),
        frame.option("--device", choices=("cuda", "cpu", "emulate"), default="cuda", help="of all programs (cuda)"),
    )  # fmt: skip

    @classmethod
    def work(cls, options: argparse.Namespace) -> int:
        options.left_out = set()
        return super().work(options) or int(bool(options.left_out))

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        """The lines of all programs; adds to `options.left_out` those that fail."""
        if uneven := [(n, gpus) for n in options.sizes for gpus in options.gpus if n % gpus]:
            raise UsageError("{} rows cannot be scattered evenly to {} ranks".format(*uneven[0]))
        there = usable_gpus() if options.device == "cuda" else []
        if there and max(options.gpus) > len(there):
            raise UsageError(f"{max(options.gpus)} GPUs are asked for, this machine has {len(there)}")
        until = time.monotonic() + (options.total or float("inf"))
        about = {"device": options.device, "gpu": there[0].name if there else None, "gpus_there": len(there), "dtype": "float64"}
        parts = [part for part in PARTS if part in options.only and (there or part != "cublasxt")]
        starts = [
            (gpus, number, n, parts[(number + place) % len(parts)])
            for gpus, number, n, place in product(options.gpus, range(options.rounds), options.sizes, range(len(parts)))
        ]
        for gpus, number, n, part in frame.shown(starts, "programs"):
            if (name := f"{part} on {gpus} at {n}") in options.left_out:
                continue
            left = until - time.monotonic()
            lines, reason = (
                frame.ran(_command(part, gpus, n, options), min(_LIMIT, left)) if left > 0 else ([], "no time was left")
            )
            for line in lines:
                of_start = {"gpus": gpus, "n": n, "round": number, "mpi": line["versions"].get("mpi", "")}
                yield {**about, **of_start, **(_of_command(line, options.device) if part == "ours" else line["timed"])}
            if reason:
                options.left_out.add(name)
                yield {**about, "seconds": None, "left_out": f"{name}: {reason}"}

    @staticmethod
    def machine_of(line: frame.Line) -> str:
        if line["gpu"]:
            return f"{line['gpus_there']} × {line['gpu']}"
        return f"{line['machine']['processor']}, {line['machine']['cores']} cores: no GPU, device {line['device']}"

    def machine(self) -> str:
        versions = self.lines[-1]["versions"]
        cupy = [f"{key} {versions[key]}" for key in ("cupy-cuda13x", "cupy-cuda12x") if key in versions]
        libraries = [line[key].split(",")[0] for key in ("mpi", "library") for line in self.lines if line.get(key)]
        return ", ".join([self.machine_of(self.lines[-1]), *dict.fromkeys(cupy + libraries)])

    def blocks(self) -> Iterator[frame.Table]:
        if not self.of_gpu:
            yield frame.remarks(["Not of a GPU: this shows only that the programs run."])
        starts: dict[tuple[str, int, int], list[frame.Line]] = defaultdict(list)
        for line in self.lines:
            if line["seconds"] and line["part"] in NAMES:
                starts[line["part"], line["gpus"], line["n"]].append(line)
        medians = {key: statistics.median(line["seconds"]["median"] for line in lines) for key, lines in starts.items()}
        times, setups = {}, {}
        for (part, gpus, n), seconds in medians.items():
            by_hand = medians.get((YARDSTICK, gpus, n)) if part not in (YARDSTICK, "wires") else None
            times[part, gpus, n] = frame.number(1e3 * seconds) + (f" ({frame.number(by_hand / seconds)} ×)" if by_hand else "")
            # The least: rounds after the first find files and kernels in caches.
            of_starts = [line["setup"] for line in starts[part, gpus, n] if line.get("setup") is not None]
            setups[part, gpus, n] = frame.number(1e3 * min(of_starts)) if of_starts else "–"
        counts, sizes = sorted({count for _, count, _ in medians}), sorted({n for _, _, n in medians})
        heads = [f"{count} {'GPU' if self.of_gpu else 'rank'}{'s' if count > 1 else ''}" for count in counts]
        for title, texts in ((_TIMES, times), (_SETUP, setups)):
            rows = [
                [str(n), name, *(texts.get((part, count, n), "–") for count in counts)]
                for n in sizes
                for part, name in NAMES.items()
            ]
            if rows := [row for row in rows if set(row[2:]) != {"–"}]:
                yield frame.Table(["n", "", *heads], "rl" + "r" * len(counts), rows, title)
        left_out = [line["left_out"] for line in self.lines if line["run"] == self.lines[-1]["run"] and line.get("left_out")]
        if left_out:
            yield frame.remarks([f"Left out: {each}" for each in left_out])


def _command(part: str, gpus: int, n: int, options: argparse.Namespace) -> list[str]:
    python, device, repeat = [sys.executable, "-m"], options.device, str(options.repeat)
    if part == "ours":
        how = ["--fill", "uniform", "--device", device, "--repeat", repeat, "--warmup", "1"]
        return [*mpirun(gpus), *python, "hybrid.matmul", *[str(n)] * 3, *how]
    program = ["experiments.bench.hosts", part, device, repeat, str(gpus), str(n)]
    if part == "cublasxt":  # one process for all GPUs
        return [*python, *program]
    return [*mpirun(gpus), *python, "mpi4py", "-m", *program]  # mpi4py ends all ranks when one fails


def _of_command(line: frame.Line, device: str) -> frame.Line:
    """What is recorded of a line of hybrid.matmul."""
    if line["device"] != device:
        raise HybridError(f"the command ran on {line['device']}")
    prepared = line["seconds"].get("prepare")
    return {"part": "ours", "seconds": line["total"], "repeat": line["repeat"], "setup": prepared and prepared["median"]}


DTYPE = "float64"
_THREADS = 16  # for random numbers
_BLOCKS = (2048, 4096, 8192)  # block sizes of cuBLASXt

Timed = tuple[str, list[float], dict[str, Any]]  # a part, the seconds of its products, other keys of its line


def uniform(n: int) -> np.ndarray:
    """A pageable n×n array of random numbers, first touched by this thread."""
    matrix = np.empty((n, n), DTYPE)
    matrix.fill(0)
    fill_rows(matrix, Span(0, n), fill="uniform", seed=secrets.randbits(63), matrix="A", threads=_THREADS)
    return matrix


def handwritten(comm: Any, n: int, device: str, repeat: int) -> Iterator[Timed]:
    """A program written by hand with mpi4py and CuPy: Scatter A, Bcast B, H2D, A @ B, D2H, Gather C. Every buffer is allocated
    and touched before the clock runs. Without a GPU, NumPy replaces CuPy."""
    copy_in, copy_out = np.copy, lambda c, into: np.copyto(into, c)
    if device == "cuda":
        cupy = import_module("cupy")
        cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
        copy_in, copy_out = cupy.asarray, lambda c, into: cupy.asnumpy(c, out=into)
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    comm.Barrier()
    began = time.perf_counter()
    # Filled, to touch all memory; `whole` is C at rank 0, B elsewhere.
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

    setup += frame.seconds_of_all(comm, multiply)
    if c is not None:
        c.fill(np.nan)
    times = [frame.seconds_of_all(comm, multiply) for _ in range(repeat)]
    if a is not None:
        yield "handwritten", times, {"setup": setup, "error": refuse_wrong("the product", a, b, c)}


def library(comm: Any, n: int, device: str, repeat: int) -> Iterator[Timed]:
    """hybrid.multiply of rank 0's private arrays: checked, with the same ones and with new ones each time; unchecked. The second
    and the last product of each are compared."""
    a, b = (uniform(n) if comm.rank == 0 else None for _ in "AB")
    c = np.full((n, n), np.nan) if comm.rank == 0 else None

    def seconds(part: str, *, compare: bool) -> float:
        new, made = part == "library, new arrays", list[Any]()
        operands = [each.copy() if new and each is not None else each for each in (a, b)]
        how: dict[str, Any] = {"out": None if new else c, "check": part != "library", "device": device}
        if c is not None:
            c.fill(np.nan)
        taken = frame.seconds_of_all(comm, lambda: made.append(hybrid.multiply(*operands, comm=comm, **how)))
        if compare and a is not None:
            refuse_wrong("the product", a, b, made[0])
        return taken

    for part in ("library, checked", "library, new arrays", "library"):
        times = [seconds(part, compare=number in (1, repeat + 1)) for number in range(repeat + 2)]
        yield part, times[2:], {"setup": times[0]}


def shapes(comm: Any, n: int, device: str, repeat: int) -> Iterator[Timed]:
    """hybrid.multiply of new arrays at rank 0 with random sides up to n, in turn."""
    rng, whole = np.random.default_rng(1), uniform(n)
    least, most = np.log(min(64, n)), np.log(n)
    sides = np.exp(rng.uniform(least, most, (64, 3))).astype(int)

    def seconds(height: int, inner: int, width: int) -> float:
        parts = whole[:height, :inner], whole[:inner, :width]
        a, b = (each.copy() if comm.rank == 0 else None for each in parts)
        return frame.seconds_of_all(comm, lambda: hybrid.multiply(a, b, comm=comm, device=device))

    sums = [sum(seconds(*each) for each in sides) for _ in range(repeat + 1)]
    yield "shapes, in turn", sums[1:], {"setup": sums[0]}


def wires(comm: Any, n: int, device: str, repeat: int) -> Iterator[Timed]:
    """Copies A and B to the GPUs and C back, all at the same time, without a product: a lower bound for products with these
    copies. Every rank copies its rows of node-shared memory over its own GPU's link."""
    on: Any = Device(staged=True)
    if device == "cuda":
        gpus = usable_gpus()
        on = CudaDevice(gpus[comm.rank % len(gpus)])
    rows = block(n, comm.size, comm.rank)
    whole = [hybrid.empty((n, n), DTYPE, comm=comm) for _ in "ABC"]
    on_host = [matrix[rows.slice] for matrix in whole if matrix is not None]
    assert len(on_host) == len(whole), "all ranks are on one node"
    memory = [on.reserve(n * n * np.dtype(DTYPE).itemsize, shared=False) for _ in on_host]  # more than the padded rows need
    on_device = [on.matrix(part, 0, len(rows), n, DTYPE) for part in memory]
    for matrix in on_host:
        matrix.fill(comm.rank)
        on.pin(matrix)

    def copy() -> None:
        for into, source in zip(on_device[:2], on_host[:2], strict=True):
            on.copy_in(into, source, [])
        on.copy_out(on_host[2], on_device[2], [])

    times = [frame.seconds_of_all(comm, copy, on.finish) for _ in range(repeat + 1)]
    yield "wires", times[1:], {"setup": None}


def cublasxt(gpus: int, n: int, device: str, repeat: int) -> Iterator[Timed]:
    """cuBLASXt: one call of a process multiplies matrices in host memory on several GPUs: page-locked operands, allocated before
    the clock runs; pageable ones that the call registers and unregisters; and pageable ones."""
    import cupy
    import cupyx
    from cupy_backends.cuda.libs import cublas

    version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    libcublas, handle = ctypes.CDLL(f"libcublas.so.{version // 10000}"), ctypes.c_void_p()  # CuPy has loaded it

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
    for kind, (matrices, registers) in kinds.items():
        call("SetPinningMemMode", handle, registers)  # whether a call registers pageable memory
        a, b, c = (ctypes.c_void_p(matrix.ctypes.data) for matrix in matrices)
        # cuBLAS is column-major: our row-major C = A·B is its Cᵀ = Bᵀ·Aᵀ, with exchanged operands and no transposition.
        arguments = (handle, 0, 0, size, size, size, one, b, size, a, size, zero, c, size)
        by_block: list[Timed] = []
        for side in _BLOCKS:
            call("SetBlockDim", handle, side)
            setup = frame.seconds_of(call, "Dgemm", *arguments)
            matrices[2].fill(np.nan)
            times = [frame.seconds_of(call, "Dgemm", *arguments) for _ in range(repeat)]
            error = check.refuse_wrong(f"the product of {kind} operands in blocks of {side}", matrices[2])
            by_block.append((f"cublasxt, {kind}", times, {**about, "setup": setup, "error": error, "block": side}))
        yield min(by_block, key=lambda timed: statistics.median(timed[1]))


PROGRAMS = {"handwritten": handwritten, "library": library, "shapes": shapes, "wires": wires, "cublasxt": cublasxt}


def _program() -> None:
    """`python -m experiments.bench.hosts PART DEVICE REPEAT GPUS N --json FILE`, on all ranks. Products are compared with float64
    after the clock has stopped; elements that nobody writes are NaN; the first product warms up."""
    part, device, repeat, gpus, n, _, path = sys.argv[1:]
    comm = None if part == "cublasxt" else import_module("mpi4py.MPI").COMM_WORLD
    for name, times, more in PROGRAMS[part](comm or int(gpus), int(n), device, int(repeat)):
        if comm is None or comm.rank == 0:
            jsonl.write({"timed": {"part": name, "seconds": frame.spread(times), "repeat": len(times), **more}}, path)


if __name__ == "__main__":
    _program()
