# SPDX-License-Identifier: MIT
"""Is C = A·B? The one check of all experiments, on the host and on a GPU. And kernels of the catalogue on a GPU, or on the CPU's
CUDA runtime, with what they take; every product is checked."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from experiments.common.frame import Line, seconds_of
from hybrid.core.problem import Span, copy_width
from hybrid.devices.base import EmulatedDevice, KernelCall, compiled_loops, place_of
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.emulation.build import compiler
from hybrid.errors import CheckFailed, DeviceUnavailable
from hybrid.host.threads import limited_threads
from hybrid.kernels.catalogue import Form, Kernel, launch_of, named
from hybrid.planning.decision import Gpu
from hybrid.runs.operands import fill_rows

TIMED = 0.03  # seconds of launches between two events: the clock of a GPU at rest is slow
MOST_LAUNCHES = 2000
_FILL_THREADS = 4


def kernel_of(name: str) -> Kernel:
    kernel = named(name)
    assert kernel is not None, name
    return kernel


def with_block(name: str, side: int) -> Kernel:
    """The kernel in blocks of side×side threads, each an element of C."""
    kernel = kernel_of(name)
    forms: dict[str, tuple[Form, ...]] = {dtype: (Form((side, side), (side, side)),) for dtype in kernel.forms}
    return replace(kernel, name=f"{name} {side}×{side}", function=name, forms=forms)


def matrices(fill: str, dtype: str, n: int, l: int, m: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A and B as the runner's --fill makes them."""
    made = []
    for matrix, rows, columns in (("A", n, l), ("B", l, m)):
        array = np.empty((rows, columns), dtype)
        fill_rows(array, Span(0, rows), fill=fill, seed=seed, matrix=matrix, threads=_FILL_THREADS)
        made.append(array)
    return made[0], made[1]


def loops_seconds(name: str, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Of the sequential loops on one core. DeviceUnavailable without a C compiler."""
    multiply = compiled_loops(name, a.dtype.name)
    times, check = [], ProductCheck(a, b)
    for _ in range(repeat):
        c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
        times.append(seconds_of(multiply, a, b, c))
        check.refuse_wrong(name, c)
    return times


class Runtime:
    """The first GPU, or for "emulate" the CPU's CUDA runtime; "auto" says on stderr why it takes no GPU."""

    def __init__(self, device: str) -> None:
        self.gpu: Gpu | None = None
        try:
            self.gpu = usable_gpus()[0] if device != "emulate" else None
        except DeviceUnavailable as missing:
            if device == "cuda":
                raise
            print(f"{missing}: the kernels run on the CPU's CUDA runtime, and their times say nothing of a GPU", file=sys.stderr)
        if self.gpu is None:
            compiler()
        self.device: Any = CudaDevice(self.gpu) if self.gpu else EmulatedDevice(kernel_of("naive"), "float32")
        self.capability: int = self.device.capability

    @property
    def about(self) -> Line:
        """What each line of a measurement here says."""
        return {"device": self.device.name, "gpu": self.gpu.name if self.gpu else None}

    def seconds(self, enqueue: Callable[[], object]) -> float:
        """Of the operations that are enqueued on the device: on a GPU by events."""
        enqueue()
        return sum(end - begin for _, begin, end in self.device.finish())

    def kernel_seconds(self, kernel: Kernel, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
        """Of one launch, the mean of several in a row on a GPU; the first one's on the CPU, where it only is to be right."""
        on_device = self._placed(a, b)
        self.device.write(on_device[2], np.full(on_device[2].shape, np.nan, a.dtype))
        call = self._call(kernel, on_device)
        first = self._seconds_of(call)
        refuse_wrong(f"kernel {kernel.name}", a, b, self.device.read(on_device[2]))
        if self.gpu is None:
            return [first]
        # As one graph: a small kernel takes less time than the host takes to launch it. It is made at the second call.
        launches = min(MOST_LAUNCHES, math.ceil(TIMED / self._seconds_of(call)))
        together = self.device.together([call] * launches)
        return [self._seconds_of(together) / launches for _ in range(repeat + 2)][2:]

    def whole_seconds(self, kernel: Kernel, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
        """Allocation, copies in, kernel and copy out. A GPU does it once more before."""
        times, check = [], ProductCheck(a, b)
        for _ in range(repeat + bool(self.gpu)):
            c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
            began = time.perf_counter()
            on_device = self._placed(a, b)
            done = self.device.launch([self._call(kernel, on_device)], [], "products")
            self.device.copy_out(c, on_device[2], [done])
            self.device.finish()
            times.append(time.perf_counter() - began)
            check.refuse_wrong(f"kernel {kernel.name}", c)
        return times[-repeat:]

    def _placed(self, a: np.ndarray, b: np.ndarray) -> list[Any]:
        """A, B and an undefined C on the device."""
        made = [self._matrix(shape, a.dtype.name) for shape in (a.shape, b.shape, (len(a), b.shape[1]))]
        for into, matrix in zip(made, (a, b), strict=False):
            self.device.write(into, matrix)
        return made

    def _matrix(self, shape: tuple[int, int], dtype: str) -> Any:
        """In memory that CUDA allocates for it alone."""
        size = math.prod(shape)
        whole = size + -size % 16  # whole rows of the device, so that it is one piece
        memory = self.device.reserve(whole * np.dtype(dtype).itemsize, shared=True)
        return self.device.matrix(memory, 0, 1, whole, dtype).reshape(-1)[:size].reshape(shape)

    def _call(self, kernel: Kernel, on_device: list[Any]) -> KernelCall:
        """A launch, whose kernel is compiled now."""
        a, c = on_device[0], on_device[2]
        width = copy_width(a.itemsize, [number for matrix in on_device for number in place_of(matrix)])
        call: KernelCall = self.device.kernel(
            launch_of(kernel, a.dtype.name, len(c), c.shape[1], self.capability, width), on_device
        )
        return call

    def _seconds_of(self, call: KernelCall) -> float:
        return self.seconds(lambda: self.device.launch([call], [], "products"))


# --- the check

WHOLE = 2_000_000_000  # multiply-adds up to which every element is compared
SAMPLED = 32  # rows and columns that are compared of larger products, beside the last ones
_WIDE = {"f": np.float64, "c": np.complex128, "i": np.int64}


class ProductCheck:
    """What A·B is in float64, and how far a product in the operands' type may be from it: NumPy's arrays or CuPy's. Products of
    integers are exact, modulo 2⁶⁴.

    Every element of a small product is compared, of a large one some rows and columns; and each row times a random vector.
    `roundings`: how many rounding errors of an element may add up; by default as many as there can be, in whatever order the sum
    is made.
    """

    def __init__(self, a: Any, b: Any, roundings: int = 0) -> None:
        (n, l), m = a.shape, b.shape[1]
        self._xp = xp = np if isinstance(a, np.ndarray) else import_module("cupy")
        self._what = f"{a.dtype.name} {n}×{l} · {l}×{m}"
        every, random = slice(None), np.random.default_rng()
        whole, exact = n * l * m <= WHOLE, a.dtype.kind == "i"
        with limited_threads(1):  # more would look for work for a while after it, on the cores of what is timed next
            # By Cauchy and Schwarz an element's terms add up to no more than its row's norm times its column's. Each part of a
            # complex term has twice as many roundings.
            of_rows, of_columns, allowed, in_float64 = xp.zeros(n), xp.zeros(m), 0.0, 0.0
            if not exact:
                of_rows, of_columns = (
                    xp.sqrt((matrix * matrix.conj()).real.sum(axis=axis, dtype=np.float64)) for matrix, axis in ((a, 1), (b, 0))
                )
                allowed = (roundings or (l + 2) * (1 if a.dtype.kind == "f" else 4)) * float(np.finfo(a.dtype).eps)
                in_float64 = (l + 2 * m) * float(np.finfo(np.float64).eps)
            # Without the last row and column an error at the edge would seldom show.
            rows, columns = (xp.asarray(np.append(random.integers(0, length, SAMPLED), length - 1)) for length in (n, m))
            self._parts = [
                (some, others, _wide(a[some]) @ _wide(b[:, others]), allowed * of_rows[some][:, None] * of_columns[others])
                for some, others in ([(every, every)] if whole else [(rows, every), (every, columns)])
            ]
            self._x = x = xp.asarray(random.integers(1, 2**31, m) if exact else random.random(m))
            self._image = _wide(a) @ (_wide(b) @ x), (allowed + in_float64) * of_rows * (of_columns @ x)

    def refuse_wrong(self, what: str, c: Any) -> float:
        """The largest error, relative to the largest element. CheckFailed where rounding does not explain it. C of operands in
        host memory may lie on a GPU."""
        if self._xp is np and not isinstance(c, np.ndarray):
            c = import_module("cupy").asnumpy(c)
        error = largest = 0.0
        for rows, columns, exact, allowed in self._parts:
            off = abs(_wide(c[rows][:, columns]) - exact)
            self._refuse(what, off, allowed)
            error, largest = max(error, float(off.max())), max(largest, float(abs(exact).max()))
        with limited_threads(1):
            self._refuse(what, abs(_wide(c) @ self._x - self._image[0]), self._image[1])
        return error / largest if largest else error

    def _refuse(self, what: str, off: Any, allowed: Any) -> None:
        if wrong := int((~(off <= allowed)).sum()):  # as NaN is
            raise CheckFailed(f"{what} is wrong for {self._what}: {wrong} {'rows' if off.ndim == 1 else 'elements'}")


def refuse_wrong(what: str, a: Any, b: Any, c: Any) -> float:
    """For one product of these operands."""
    return ProductCheck(a, b).refuse_wrong(what, c)


def _wide(part: Any) -> Any:
    return part.astype(_WIDE[part.dtype.kind], copy=False)
