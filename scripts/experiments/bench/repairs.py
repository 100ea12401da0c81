# SPDX-License-Identifier: MIT
"""What `on_fault="repair"` makes of faults that are put into products while they are computed: part of scripts/detection.py.

Faults of the kernel: a bit of an element of C is flipped, or two to four; a tile of 8×8 to 64×64 elements gets noise; the same
bit of 32 neighbours in a row, as a warp computes them, is flipped; in 128×128 elements, as a thread block computes them, a bit of
every 32nd column is stuck. And a bit is flipped in what is copied to the device, of A or B, or home from there, of C.
"""

import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import hybrid
from experiments.common import cli, records
from hybrid.core.spans import Span, pieces
from hybrid.devices.cpu import CpuDevice
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.remainders import ModularProduct
from hybrid.errors import CheckFailed
from hybrid.host.threads import usable_cores

WARP, BLOCK = 32, 128  # threads of a warp; rows and columns that a thread block computes
SMALLEST_TILE, LARGEST_TILE = 8, 64
_CORNER = 512  # rows and columns on a GPU, which are copied to the host and back: all would take longer than a product
_ROWS_COMPARED = 64  # at a time
RIGHT = 3.0  # largest rounding errors of the right product by which elements of a product that counts as right differ from it
BOUNDS = (3.0, 20.0)
NAMES = ("below 3", "3 to 20", "above 20")
OUTCOMES = ("repaired", "unseen", "refused", "wrong")  # unseen: nobody said anything; wrong: though it is said to be repaired
_WORDS = {4: np.uint32, 8: np.uint64}

Spoil = Callable[[np.ndarray, np.random.Generator, float], tuple[Any, Any]]  # where, and what is there instead


def bits_flipped(least: int, most: int) -> Spoil:
    def spoil(c: np.ndarray, random: np.random.Generator, rounding: float) -> tuple[Any, Any]:
        where = tuple(random.integers(c.shape).tolist())
        return where, (c[where].view(_WORDS[c.itemsize]) ^ _mask(c, random, least, most)).view(c.dtype)

    return spoil


def tile_spoiled(c: np.ndarray, random: np.random.Generator, rounding: float) -> tuple[Any, Any]:
    """By noise whose largest element is between a tenth and 10,000 rounding errors; of integers, by integers."""
    side = int(random.integers(SMALLEST_TILE, LARGEST_TILE + 1))
    where = tuple(slice(first, first + side) for first in random.integers(np.array(c.shape) - side + 1).tolist())
    noise = random.standard_normal((side, side))
    noise *= rounding * 10 ** random.uniform(-1, 4) / np.abs(noise).max()
    return where, (c[where] + (np.rint(noise) if rounding == 1.0 else noise)).astype(c.dtype)


def warp_spoiled(c: np.ndarray, random: np.random.Generator, rounding: float) -> tuple[Any, Any]:
    row, first = int(random.integers(len(c))), WARP * int(random.integers(c.shape[1] // WARP))
    where = (row, slice(first, first + WARP))
    return where, (np.ascontiguousarray(c[where]).view(_WORDS[c.itemsize]) ^ _mask(c, random, 1, 1)).view(c.dtype)


def lane_stuck(c: np.ndarray, random: np.random.Generator, rounding: float) -> tuple[Any, Any]:
    rows, columns = (BLOCK * int(random.integers(max(1, size // BLOCK))) for size in c.shape)
    where = slice(rows, rows + BLOCK), slice(columns + int(random.integers(WARP)), columns + BLOCK, WARP)
    return where, (np.ascontiguousarray(c[where]).view(_WORDS[c.itemsize]) | _mask(c, random, 1, 1)).view(c.dtype)


def _mask(c: np.ndarray, random: np.random.Generator, least: int, most: int) -> Any:
    word = _WORDS[c.itemsize](0)
    for bit in random.choice(8 * c.itemsize, random.integers(least, most + 1), replace=False).tolist():
        word |= word.dtype.type(1 << bit)
    return word


# Of each kind, the device's method that is spoiled, the operand that it writes, and how.
KINDS: dict[str, tuple[str, str, Spoil]] = {
    "one bit": ("multiply", "C", bits_flipped(1, 1)),
    "2 to 4 bits": ("multiply", "C", bits_flipped(2, 4)),
    "a tile": ("multiply", "C", tile_spoiled),
    "a warp": ("multiply", "C", warp_spoiled),
    "a stuck lane": ("multiply", "C", lane_stuck),
    "A copied": ("copy_in", "A", bits_flipped(1, 1)),
    "B copied": ("copy_in", "B", bits_flipped(1, 1)),
    "C copied": ("copy_out", "C", bits_flipped(1, 1)),
}


class Injection:
    """A fault in the next product of `matrices` (A, B, C), and its size: the largest change of an element of C. `harmless`:
    everything but the fault, to see how long a right product takes then."""

    def __init__(
        self,
        kind: str,
        matrices: dict[str, np.ndarray],
        rounding: float,
        random: np.random.Generator,
        *,
        harmless: bool = False,
    ) -> None:
        self._method, self._operand, self._spoil = KINDS[kind]
        self._harmless = harmless
        self._matrices, self._rounding, self._random = matrices, rounding, random
        self.size = 0.0

    @contextmanager
    def planted(self, device: type[CpuDevice] | type[CudaDevice]) -> Iterator[None]:
        """RuntimeError if the product ends without a fault."""
        native, from_remainders = getattr(device, self._method), ModularProduct.multiply

        def spoiling(device: Any, *arguments: Any, **more: Any) -> Any:
            event = native(device, *arguments, **more)
            into = arguments[2] if self._method == "multiply" else arguments[0]
            in_memory = arguments[1] if self._method == "copy_in" else into
            if self._method == "multiply" or np.may_share_memory(in_memory, self._matrices[self._operand]):
                self._put_once(into, in_memory, device, event)
            return event

        def spoiling_remainders(product: Any, tile: Any, a: Any, b: Any, c: Any, after: Any) -> Any:
            event = from_remainders(product, tile, a, b, c, after)
            if self._method == "multiply":
                self._put_once(c, c, product._device, event)
            return event

        with (
            mock.patch.object(device, self._method, spoiling),
            mock.patch.object(ModularProduct, "multiply", spoiling_remainders),
        ):
            yield
        if not self.size:
            raise RuntimeError(f"no {self._method} of this product could be spoiled")

    def _put_once(self, into: Any, in_memory: Any, device: Any, event: Any) -> None:
        if not self.size:
            device.wait(event)
            self._put_into(into, in_memory)

    def _put_into(self, into: Any, in_memory: Any) -> None:
        """`into`: an array in host memory, or on a GPU, of which a corner gets the fault."""
        on_host = isinstance(into, np.ndarray)
        if not on_host:
            into = into[:_CORNER, :_CORNER]
        values = into if on_host else into.get()
        while not self.size:  # a zero whose sign is turned, or a bit that is set already, is no fault
            where, new = self._spoil(values, self._random, self._rounding)
            with np.errstate(all="ignore"):
                change = np.abs(np.asarray(new, np.longdouble) - values[where]).max()
                change = np.longdouble(np.inf) if np.isnan(change) else change
                self.size = float(change * self._weight(where, in_memory) / self._rounding)
        if not self._harmless:
            values[where] = new
        if not on_host:
            import cupy

            with into.device:
                into[...] = cupy.asarray(values)
                into.device.synchronize()

    def _weight(self, where: Any, in_memory: np.ndarray) -> float:
        """By how much an element of C changes with the element that is spoiled."""
        if self._operand == "C":
            return 1.0
        whole = self._matrices[self._operand]
        first = (in_memory.ctypes.data - whole.ctypes.data) // whole.itemsize
        if self._operand == "A":
            return float(np.abs(self._matrices["B"][first % whole.shape[1] + where[1]]).max())
        return float(np.abs(self._matrices["A"][:, first // whole.shape[1] + where[0]]).max())


def multiplied(a: np.ndarray, b: np.ndarray, c: np.ndarray, device: str) -> tuple[str, float]:
    """ "repaired", "refused" or "" for neither, and the seconds."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        began = time.perf_counter()
        try:
            hybrid.multiply(a, b, out=c, device=device, check="full", on_fault="repair")
        except CheckFailed:
            return "refused", time.perf_counter() - began
        seconds = time.perf_counter() - began
    return "repaired" if any(str(each.message).startswith("repaired: ") for each in told) else "unseen", seconds


def is_right(c: np.ndarray, right: np.ndarray, most: float) -> bool:
    """Whether no element differs by more."""

    def of_rows(rows: Span) -> bool:
        with np.errstate(all="ignore"):
            return bool(np.abs(c[rows.slice] - right[rows.slice]).max() <= most)  # which a NaN is not

    with ThreadPoolExecutor(len(usable_cores())) as threads:
        return all(threads.map(of_rows, pieces(Span(0, len(c)), _ROWS_COMPARED)))


def measured(
    made: Any, n: int, data: str, device: str, faults: int, random: np.random.Generator, kinds: Sequence[str]
) -> Iterator[records.Line]:
    """A line for each of these kinds of faults. `made`: A, B, their right product and its largest rounding error, and that of a
    CPU's, which computes again what is wrong."""
    a, b, c = made.a, made.b, np.zeros_like(made.c)
    spoiled = CudaDevice if device == "cuda" else CpuDevice
    most = 0.0 if data == "integers" else RIGHT * max(made.rounding, made.of_a_cpu)

    def with_fault(kind: str, *, harmless: bool = False) -> tuple[str, float, float]:
        injection = Injection(kind, {"A": a, "B": b, "C": c}, made.rounding, random, harmless=harmless)
        with injection.planted(spoiled):
            return *multiplied(a, b, c, device), injection.size

    for kind in kinds:
        counts, times = [[0] * len(OUTCOMES) for _ in NAMES], []
        with mock.patch.dict(os.environ, {"HYBRID_STAGED": str(int(KINDS[kind][0] != "multiply"))}):
            multiplied(a, b, c, device)
            for _ in cli.shown(range(faults), f"{n} {data} {kind}"):
                _, right, _ = with_fault(kind, harmless=True)
                found, seconds, size = with_fault(kind)
                while found == "unseen" and np.array_equal(c, made.c):  # what was added to C later has rounded the fault away
                    found, seconds, size = with_fault(kind)
                if found == "repaired":
                    times.append((right, seconds))
                    found = found if is_right(c, made.c, most) else "wrong"
                counts[sum(size >= bound for bound in BOUNDS)][OUTCOMES.index(found)] += 1
        about = {"n": n, "data": data, "device": device, "kind": kind, "sizes": list(NAMES), "counts": counts}
        ratio = statistics.median(repaired / right for right, repaired in times) if times else None
        yield {**about, "part": "repairs", "times_as_long": ratio}
