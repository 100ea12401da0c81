# SPDX-License-Identifier: MIT
"""How large may matrices be, by memory and by what a type holds exactly?"""

import argparse
import math
import secrets
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np

import hybrid
import hybrid.testing
from experiments.common import cuda, frame
from hybrid.core.problem import ITEM_SIZES, Span, pieces
from hybrid.core.settings import Settings
from hybrid.core.text import aligned, readable
from hybrid.devices.cuda_gpus import free_bytes
from hybrid.errors import CheckFailed, DoesNotFit, UsageError
from hybrid.host.memory import available_host_bytes
from hybrid.kernels.catalogue import BOTH, Kernel, fastest
from hybrid.runs.operands import fill_rows

PIECE_BYTES = 256 << 20  # of a matrix, on the host
_THREADS = 16  # for random numbers
_OF_FREE_HOST_MEMORY = 7 / 8  # free memory may shrink between the search and the product
PRETENDED_MEMORY, QUICK_MEMORY = 1 << 20, 256 << 10
TIMES = 4  # how many times as large matrices may be out of core, at most
MOST_EMULATED = 1024  # rows and columns: seconds on the CPU's CUDA runtime; ten times as many take hours
PARTS = {  # of lines, and their names
    "theoretical": "by the memory alone",
    "in core": "three allocations, as in the module",
    "out of core": "runner, out of core",
}


def theoretical(memory: int, dtype: str) -> int:
    """The largest N whose three N×N matrices take at most `memory` bytes."""
    return math.isqrt(memory // (3 * ITEM_SIZES[dtype]))


def seconds_in_core(runtime: cuda.Runtime, kernel: Kernel, dtype: str, n: int) -> float | None:
    """The seconds of the kernel on three N×N matrices on the device, generated and checked piece by piece; None if memory is too
    short. The check is exact: all numbers are integers. CheckFailed for a wrong product."""
    device, seed, x = runtime.device, secrets.randbits(63), np.random.default_rng().integers(1, 8, n).astype(np.float64)
    spans = list(pieces(Span(0, n), max(1, PIECE_BYTES // (n * ITEM_SIZES[dtype]))))
    try:
        on_a, on_b, on_c = (device.empty((n, n), dtype) for _ in range(3))
    except MemoryError:
        return None

    def load(matrix: str, target: Any, vector: np.ndarray) -> np.ndarray:
        """Fill A or B on the device; returns its product with the vector."""
        product = np.empty(n)
        for span in frame.shown(spans, f"N = {n}, {matrix}"):
            part = np.empty((len(span), n), dtype)
            fill_rows(part, span, fill="lecture", seed=seed, matrix=matrix, threads=_THREADS)
            device.write(target[span.slice], part)
            product[span.slice] = part.astype(np.float64, copy=False) @ vector
        return product

    expected = load("A", on_a, load("B", on_b, x))
    runtime.seconds(lambda: device.launch([device.clearing(on_c, 0xFF)], [], "products"))  # NaN
    device.use_kernel(kernel, dtype)
    seconds = runtime.seconds(lambda: device.multiply(on_a, on_b, on_c, []))
    for span in frame.shown(spans, f"N = {n}, C"):
        if not np.array_equal(device.read(on_c[span.slice]).astype(np.float64) @ x, expected[span.slice]):
            raise CheckFailed(f"kernel {kernel.name} is wrong for {dtype} {n}×{n}, in rows {span}")
    return seconds


def largest_in_core(runtime: cuda.Runtime, kernel: Kernel, dtype: str, most: int) -> tuple[int, float]:
    """The largest N up to `most` that the kernel multiplies in core, to a thousandth, and its seconds. DoesNotFit without any."""
    seconds_in_core(runtime, kernel, dtype, 1)  # loads the kernel's code, which takes memory
    for n in range(most, 0, -(most // 1000 + 1)):
        if (seconds := seconds_in_core(runtime, kernel, dtype, n)) is not None:
            return n, seconds
    raise DoesNotFit(f"no three matrices of {dtype} fit beside kernel {kernel.name}")


class Largest(frame.Experiment):
    """How large may N×N matrices be? python -m hybrid.lectures largest [--gpu-memory BYTES]

    Question 2 of the matrix multiplication module: N by memory alone, floor(sqrt(bytes / (3·bytes an element))), beside the
    largest N that really runs with three matrices on the GPU: searched from above, multiplied and checked exactly. Then the
    runner multiplies four times as large matrices out of core, or as large as the host's free memory allows.

    On a GPU its free memory counts, or --gpu-memory (HYBRID_GPU_MEMORY) of it; a search in all of a large GPU takes minutes.
    Without one, 1 MiB of the CPU's memory replaces a GPU's (--quick: 256 KiB).
    """

    command, again = "largest", "python -m hybrid.lectures largest"
    options = (
        *frame.LECTURE,
        frame.option("--dtype", choices=BOTH, help="only this one (both; --quick: float32)"),
        "gpu_memory",
    )

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        runtime = cuda.Runtime(options.device)
        memory = Settings.gather({"gpu_memory": options.gpu_memory}).gpu_memory
        if runtime.gpu:
            memory = min(memory or free_bytes(runtime.gpu), free_bytes(runtime.gpu))
        memory = memory or (QUICK_MEMORY if options.quick else PRETENDED_MEMORY)
        dtypes = [options.dtype] if options.dtype else ["float32"] if options.quick else list(BOTH)
        if not theoretical(memory, "float64"):
            raise DoesNotFit(f"{memory} bytes hold no three numbers: a larger --gpu-memory")
        if not runtime.gpu and theoretical(memory, dtypes[0]) > MOST_EMULATED:
            remedy = f"--gpu-memory up to {readable(3 * ITEM_SIZES[dtypes[0]] * MOST_EMULATED**2)} without a GPU"
            raise UsageError(f"{readable(memory)} hold more than the CPU's CUDA runtime multiplies in a short time: {remedy}")
        for dtype in dtypes:
            about, most = {**runtime.about, "dtype": dtype, "memory": memory}, theoretical(memory, dtype)
            yield {**about, "part": "theoretical", "n": most}
            # With and without shared memory; on a GPU only the fastest kernel, since the others take minutes.
            fast = [fastest("cuda", dtype, most, runtime.capability)] if runtime.gpu else []
            for kernel in fast or map(cuda.kernel_of, ("naive", "tiled")):
                n, seconds = largest_in_core(runtime, kernel, dtype, most)
                yield {**about, "part": "in core", "n": n, "kernel": kernel.name, "seconds": seconds}
            of_host = theoretical(int(_OF_FREE_HOST_MEMORY * available_host_bytes()), dtype)
            if (n := min(TIMES * most, of_host)) > most:
                a, b = cuda.matrices("lecture", dtype, n, n, n)
                through = partial(hybrid.multiply, a, b, check="full", device="cuda" if runtime.gpu else "cpu")
                with hybrid.testing.pretend(gpu_memory=memory, staged=True):
                    seconds = frame.seconds_of(through)
                yield {**about, "part": "out of core", "n": n, "seconds": seconds}

    def blocks(self) -> Iterator[frame.Table]:
        whose = "of the GPU" if self.of_gpu else "of the CPU, in place of a GPU's"
        for dtype in dict.fromkeys(line["dtype"] for line in self.lines):
            lines = [line for line in self.lines if line["dtype"] == dtype and line["part"] in PARTS]
            most = next(line["n"] for line in lines if line["part"] == "theoretical")
            rows = [[PARTS[line["part"]], str(line["n"]), _about(line, most)] for line in lines]
            yield frame.Table(["way", "largest N", "how"], "lrl", rows, f"{dtype}, {readable(lines[-1]['memory'])} {whose}")


def _about(line: frame.Line, most: int) -> str:
    if line["part"] == "theoretical":
        return f"floor(sqrt({line['memory']:,} / (3 · {ITEM_SIZES[line['dtype']]})))"
    seconds = f" in {frame.duration(line['seconds'])}" if line["device"] == "cuda" else ""
    far = f"{line['n'] / most:.3g} × {most}" if line["part"] == "out of core" else f"{most - line['n']} short"
    return f"{line.get('kernel', 'the runner')}: multiplied{seconds} and right, {far}"


LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1, "float32": 2**24, "float64": 2**53}  # of integers held without a gap
MOST_SHOWN = 20  # rows and columns


def multiplied(size: int, dtype: str, options: argparse.Namespace) -> list[np.ndarray]:
    """L and R, each entry rounded once, and L·R."""
    whole = np.array([[math.comb(row, column) for column in range(size)] for row in range(size)], object)
    signs = (-1) ** np.add.outer(range(size), range(size))
    left, right = whole.astype(dtype), (whole * signs).astype(dtype)
    return [left, right, hybrid.multiply(left, right, device=options.device, kernel=options.kernel)]


def first_wrong(product: np.ndarray) -> tuple[int, int, str] | None:
    """Row and column of the first element that differs from the identity, and a text about it; None if all are right."""
    wrong = np.argwhere(product != np.eye(len(product), dtype=product.dtype))
    if not len(wrong):
        return None
    row, column = map(int, wrong[0])
    said = f"N = {len(product)}: [{row}][{column}] is {float(product[row, column]):.12g}, not {int(row == column)}"
    return row, column, said


def magnitude(row: int, column: int) -> int:
    """Σ|terms| of an element of the product: Σ C(i, k)·C(k, j) = C(i, j)·2^(i-j)."""
    return math.comb(row, column) << (row - column) if row >= column else 0


def holds(dtype: str, number: int) -> bool:
    """Whether the type holds this number exactly; floating point also holds large numbers that end in enough zero bits."""
    if dtype.startswith("float") and number:
        number >>= (number & -number).bit_length() - 1
    return number <= LIMITS[dtype]


def assess(dtype: str, options: argparse.Namespace) -> frame.Line:
    """All three sizes, and the first wrong element."""
    fit = next(size for size in count(1) if not all(holds(dtype, math.comb(size, each)) for each in range(size + 1)))
    exact = next(size for size in count(1) if max(magnitude(size, each) for each in range(size + 1)) > LIMITS[dtype])
    right, wrong, again = fit, None, []
    for size in frame.shown(range(1, fit + 1), dtype):
        found = first_wrong(multiplied(size, dtype, options)[2])
        if wrong is None and found is not None:
            right, wrong = size - 1, found
            if options.quick:
                break
        elif wrong is not None and found is None:
            again.append(str(size))
    why = "all that fit: the runner adds integers up exactly, and sums that wrap around would be the identity for every N"
    if wrong:
        why = f"{wrong[2]}; its terms add up to 2^{math.log2(magnitude(*wrong[:2])):.1f}"
    if again:
        why += f"; right again at {', '.join(again)}"
    return {"part": "all sizes", "dtype": dtype, "fit": fit, "exact": exact, "right": right, "why": why}


class Pascal(frame.Experiment):
    """Question 4 of the matrix multiplication lecture: how large may Pascal's triangle be? python -m hybrid.lectures pascal

    L[i][j] = C(i, j) and R[i][j] = (-1)^(i+j)·C(i, j) multiply to the identity. For each element type, the largest N of N×N with
      (a) fit     every entry held exactly by the type,
      (b) exact   every sum exact in whatever order it is added up: Σ|terms| stays within the integers that the type holds,
      (c) right   the identity in fact: all sizes up to N multiplied by the runner, with the kernel of choice.

    (a) and (b) are computed, (c) is measured; --quick stops at the first size that is wrong.
    """

    command, again = "pascal", "python -m hybrid.lectures pascal"
    options = (
        frame.option("--dtype", nargs="+", choices=LIMITS, default=list(LIMITS), metavar="TYPE", help="only these (all)"),
        "device",
        "kernel",
        frame.option("--show", type=frame.positive, metavar="N", help=f"only print L, R and L·R of size N, to {MOST_SHOWN}"),
        frame.option("--quick", action="store_true", help="stop at the first size that is wrong"),
    )

    @classmethod
    def work(cls, options: argparse.Namespace) -> int:
        if not options.show:
            return super().work(options)
        if options.show > MOST_SHOWN or options.json or options.source:
            raise UsageError(
                f"--show takes one size to {MOST_SHOWN} and measures nothing: --dtype, --device and --kernel go with it"
            )
        made = multiplied(options.show, options.dtype[-1], options)
        # Whole numbers in aligned columns, zeros as dots: the triangles can be seen.
        for name, matrix in zip(("L", "R", f"L·R, {options.dtype[-1]}"), made, strict=True):
            cells = [[f"{value:.12g}" if value else "·" for value in row] for row in matrix]
            print(name, *(f"  {line}" for line in aligned(cells)), "", sep="\n")
        found = first_wrong(made[2])
        print(found[2] if found else "the identity")
        return int(found is not None)

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        return ({"device": options.device, **assess(dtype, options)} for dtype in options.dtype)

    def blocks(self) -> Iterator[frame.Table]:
        rows = [[line["dtype"], *(str(line[key]) for key in ("fit", "exact", "right")), line["why"]] for line in self.lines]
        yield frame.Table(["type", "(a) fit", "(b) exact", "(c) right", ""], "lrrrl", rows)
