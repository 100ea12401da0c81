# SPDX-License-Identifier: MIT
"""Times the catalogue's kernels on a GPU, in turns with cuBLAS."""

import math
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.cli import shown
from experiments.common.product_check import IntegerCheck, ProductCheck
from experiments.common.records import Line, spread
from experiments.common.timing import kernel_of
from experiments.lectures.ladder_results import YARDSTICK, label
from experiments.lectures.loads import Shape, form_of
from hybrid.classroom.own_kernel import resources
from hybrid.core.problem import copy_width
from hybrid.devices.cuda_gpus import Gpu, free_bytes
from hybrid.devices.cuda_kernels import CompiledKernel, Multiply, multiplication
from hybrid.emulation.checked import not_a_number, spread_of, stored
from hybrid.errors import DoesNotFit
from hybrid.kernels.catalogue import (
    BYTES,
    HALVES,
    OPERAND_SIZES,
    Kernel,
    launch_of,
    numbers_of,
    refusal,
    sums_type,
)

# cuBLAS as it is without being asked to round to less. It reads these when it is loaded.
EXACT_CUBLAS = {"NVIDIA_TF32_OVERRIDE": "0", "CUBLAS_EMULATE_DOUBLE_PRECISION": "0", "CUBLAS_EMULATE_SINGLE_PRECISION": "0"}
TIMED, WARM_UP = 0.08, 0.02  # seconds of one timing, and of launches just before it: the GPU's clock depends on the load
NO_WARM_UP = 0.25  # seconds of a launch that is long enough by itself
MUCH_SLOWER = 3.0  # than cuBLAS: such a rung lets the GPU cool
PROBE = 64  # a part of l, to learn whether a launch takes seconds or minutes
PROBE_UNIT = 16  # of which that part is a multiple: cuBLAS multiplies bytes by fours
# On random numbers rounding errors walk at random: they are about a fifth of eps·|row|·|column|, at most one or two of it
# among millions. TF32's would be thousands of it, over √l.
ROUNDINGS = 16
ROUNDINGS_OF_HALVES = 64  # matrix units do not round to nearest when they add


@dataclass
class Timed:
    """A kernel on one type and shape. `seconds`: of a launch, one for each round; none: it takes too long."""

    kernel: Kernel
    multiply: Multiply
    launch_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)

    @property
    def launches(self) -> int:
        return max(1, math.ceil(TIMED / self.launch_seconds))

    @property
    def warm_up(self) -> int:
        return math.ceil(WARM_UP / self.launch_seconds) if self.launch_seconds < NO_WARM_UP else 0


def in_turn(timed: Sequence[Timed], round_number: int) -> list[Timed]:
    """The slow ones first, for after them the GPU is cool; the others take turns to follow, and to follow each other."""
    limit = MUCH_SLOWER * next(one.launch_seconds for one in timed if one.kernel.name == YARDSTICK)
    slow = [one for one in timed if one.launch_seconds > limit]
    fast = [one for one in timed if one.launch_seconds <= limit]
    start = round_number // 2 % len(fast)
    turned = fast[start:] + fast[:start]
    return slow + (turned[::-1] if round_number % 2 else turned)


class Bench:
    """A GPU and fresh random matrices of one type and shape on it. C is full of NaN, or of what no product is."""

    def __init__(self, gpu: Gpu, dtype: str, shape: Shape) -> None:
        import cupy

        self._cupy, self._gpu, self._dtype = cupy, gpu, dtype
        n, l, m = shape
        of_sums = np.dtype(sums_type(dtype))
        item, of_c = OPERAND_SIZES[dtype], of_sums.itemsize
        cupy.get_default_memory_pool().free_all_blocks()
        needed, free = (item + of_c) * (n * l + l * m) + of_c * n * m + 2 * 8 * l * max(n, m), free_bytes(gpu)
        if needed > free:
            raise DoesNotFit(f"{dtype} {label(shape)} needs {needed / 2**30:.1f} GiB, the GPU has {free / 2**30:.1f} GiB free")
        random, of_random = cupy.random.default_rng(), np.float32 if dtype in (*HALVES, *BYTES) else of_sums
        a, b = (stored(spread_of(dtype) * random.standard_normal(size, dtype=of_random), dtype) for size in ((n, l), (l, m)))
        self._nothing = not_a_number(of_sums.name)
        self._operands = a, b, cupy.full((n, m), self._nothing, of_sums)
        self._of_yardstick = (a, cupy.asfortranarray(b), self._operands[2]) if dtype in BYTES else self._operands
        self._check = self._check_of(a, b)

    def _check_of(self, a: Any, b: Any) -> ProductCheck | IntegerCheck:
        if self._dtype in BYTES:
            return IntegerCheck(a, b)
        numbers = (numbers_of(operand).astype(sums_type(self._dtype), copy=False) for operand in (a, b))
        return ProductCheck(*numbers, ROUNDINGS_OF_HALVES if self._dtype in HALVES else ROUNDINGS)

    def _operands_of(self, one: Timed) -> tuple[Any, Any, Any]:
        """B is column-major where cuBLAS has fast kernels for nothing else; that it must be made so is not timed."""
        return self._of_yardstick if one.kernel.name == YARDSTICK else self._operands

    def _seconds(self, multiply: Multiply, operands: tuple[Any, Any, Any], launches: int, warm_up: int = 0) -> float:
        """Of one of these launches, on average."""
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        for _ in range(warm_up):
            multiply(*operands)
        begin.record()
        for _ in range(launches):
            multiply(*operands)
        end.record()
        end.synchronize()
        return self._cupy.cuda.get_elapsed_time(begin, end) / 1e3 / launches

    def prepare(self, one: Timed, longest: float) -> bool:
        """Learn what a launch takes, and check what it gives. False: it takes too long. CheckFailed for a wrong product."""
        a, b, c = self._operands_of(one)
        part = PROBE_UNIT * -(-a.shape[1] // (PROBE * PROBE_UNIT))
        short = a[:, :part], b[:part], c
        self._seconds(one.multiply, short, 1)  # may compile
        one.launch_seconds = self._seconds(one.multiply, short, 1) * a.shape[1] / part
        if one.launch_seconds > longest and one.kernel.name != YARDSTICK:
            return False
        c.fill(self._nothing)
        one.launch_seconds = self._seconds(one.multiply, (a, b, c), 1)
        self._check.refuse_wrong(f"kernel {one.kernel.name}", c)
        if one.launch_seconds < TIMED:  # of the first launch, loading the code was a part
            one.launch_seconds = self._seconds(one.multiply, (a, b, c), 1)
        return one.launch_seconds <= longest or one.kernel.name == YARDSTICK

    def time(self, one: Timed) -> float:
        return self._seconds(one.multiply, self._operands_of(one), one.launches, one.warm_up)

    def resources(self, one: Timed) -> Line:
        """What the kernel takes of the GPU; nothing is known of cuBLAS'."""
        if not isinstance(one.multiply, CompiledKernel):
            return dict.fromkeys(("expression", "tile", "registers", "shared", "spills"))
        a, b, c = self._operands
        capability, (rows, columns) = self._gpu.capability, c.shape
        width = copy_width(a.itemsize, [number for matrix in (a, b, c) for number in (matrix.data.ptr, matrix.strides[0])])
        launch = launch_of(one.kernel, self._dtype, rows, columns, capability, width)
        registers, shared, spills = resources(one.multiply.compiled(launch))  # of the one that was timed
        return {
            "expression": launch.expression,
            "tile": form_of(one.kernel, self._dtype, capability).tile,
            "registers": registers,
            "shared": shared + launch.shared_bytes,
            "spills": spills,
        }


def measure(
    gpu: Gpu, dtypes: Sequence[str], shapes: Sequence[Shape], kernels: Sequence[Kernel], rounds: int, longest: float
) -> Iterator[Line]:
    """A line for each kernel, type and shape that the GPU is capable of; all of one type and shape are timed in turns."""
    import cupy

    cupy.cuda.Device(gpu.index).use()
    about = {**_software(), "gpu": gpu.name, "capability": gpu.capability, "rounds": rounds}
    for dtype in dtypes:
        able = [kernel for kernel in (*kernels, kernel_of(YARDSTICK)) if not refusal(kernel, dtype, 2, gpu.capability)]
        multiplications = [(kernel, multiplication(kernel, dtype, gpu.capability)) for kernel in able]
        for shape in shapes:
            try:
                bench = Bench(gpu, dtype, shape)
            except DoesNotFit as refused:
                print(f"left out: {refused}", file=sys.stderr)
                continue
            every = [Timed(kernel, multiply) for kernel, multiply in multiplications]
            timed = [one for one in every if bench.prepare(one, longest)]
            turns = [one for number in range(rounds) for one in in_turn(timed, number)]
            for one in shown(turns, f"{dtype} {label(shape)}"):
                one.seconds.append(bench.time(one))
            n, l, m = shape
            for one in every:
                numbers = summary(one.seconds, timed[-1].seconds, n * l * m) | {"launch_seconds": one.launch_seconds}
                size = {"kernel": one.kernel.name, "dtype": dtype, "n": n, "l": l, "m": m}
                yield {**about, **size, **numbers, **bench.resources(one)}
            del bench  # its memory is wanted for the next


def summary(seconds: Sequence[float], yardstick: Sequence[float], products: int) -> Line:
    """Of the seconds of all rounds, for so many multiply-adds. Nothing where nothing was timed."""
    if not seconds:
        return {"seconds": None, "teraflops": None, "ratio": None}
    times = spread(seconds)
    ratio = statistics.median(theirs / ours for theirs, ours in zip(yardstick, seconds, strict=True))
    return {"seconds": times, "teraflops": 2 * products / times["median"] / 1e12, "ratio": ratio}


def _software() -> Line:
    import cupy
    from cupy_backends.cuda.libs import cublas

    try:
        found = re.search(r"Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        found = None  # not every container shows it
    cuda = cupy.cuda.runtime.driverGetVersion()
    driver = found[1] if found else f"for CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    library = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
    return {"driver": driver, "cupy": cupy.__version__, "cublas": library}
