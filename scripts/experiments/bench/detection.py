# SPDX-License-Identifier: MIT
"""Which faults does the check find? python scripts/bench.py detection [--sizes 512 2000] [--faults 1000]

Faults are put into products of n×n matrices while they are computed: a bit of an element is flipped, or two to four; its sign is
turned, or it is set to zero; or a tile of 8×8 to 64×64 elements gets noise. The size of a fault is its largest change of an
element, in units of the largest rounding error of any element of the right product; of integers, whose products have none, it is
the change itself. As many right products are checked.
--repair: it is counted what on_fault="repair" makes of them, also of faults of warps, lanes and copies.
"""

import argparse
import bisect
import os
import secrets
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
from experiments.common import frame
from hybrid.core.problem import Span, pieces
from hybrid.devices.base import Device
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.remainders import ModularProduct
from hybrid.errors import CheckFailed, UsageError
from hybrid.host.threads import usable_cores

WARP, BLOCK = 32, 128  # threads of a warp; rows and columns that a thread block computes
SMALLEST_TILE, LARGEST_TILE = 8, 64
_CORNER = 512  # rows and columns on a GPU, which are copied to the host and back: all would take longer than a product
_ROWS_COMPARED = 64  # at a time
RIGHT = 3.0  # largest rounding errors of the right product by which elements of a product that counts as right differ from it
REPAIR_BOUNDS, REPAIR_SIZES = (3.0, 20.0), ("below 3", "3 to 20", "above 20")
BOUNDS = (1.0, 3.0, 10.0, 20.0, 100.0)  # sizes between which faults are counted together
NAMES = ("below 1", "1 to 3", "3 to 10", "10 to 20", "20 to 100", "above 100")
DATA = ("float32", "float64", "integers")
OPERANDS_KEPT = 100  # faults after which other matrices are multiplied
_ROWS_LOOKED_AT, _TERMS_LOOKED_AT = 256, 2 << 30  # at most, for the largest rounding error
OUTCOMES = ("repaired", "unseen", "refused", "wrong")  # unseen: nobody said anything; wrong: though it is said to be repaired
_WORDS = {4: np.uint32, 8: np.uint64}

Where = Callable[[tuple[int, ...], np.random.Generator], Any]  # in a matrix of this shape
Spoil = Callable[[np.ndarray, np.random.Generator, float], Any]  # what is there instead of these values


def element(shape: tuple[int, ...], random: np.random.Generator) -> Any:
    return tuple(random.integers(shape).tolist())


def tile(shape: tuple[int, ...], random: np.random.Generator) -> Any:
    side = int(random.integers(SMALLEST_TILE, LARGEST_TILE + 1))
    return tuple(slice(first, first + side) for first in random.integers(np.array(shape) - side + 1).tolist())


def warp(shape: tuple[int, ...], random: np.random.Generator) -> Any:
    row, first = int(random.integers(shape[0])), WARP * int(random.integers(shape[1] // WARP))
    return row, slice(first, first + WARP)


def lane(shape: tuple[int, ...], random: np.random.Generator) -> Any:
    rows, columns = (BLOCK * int(random.integers(max(1, size // BLOCK))) for size in shape)
    return slice(rows, rows + BLOCK), slice(columns + int(random.integers(WARP)), columns + BLOCK, WARP)


def bits(least: int, most: int, change: Any = np.bitwise_xor) -> Spoil:
    """So many bits, the same of each value, are flipped."""

    def spoil(old: np.ndarray, random: np.random.Generator, rounding: float) -> Any:
        word: Any = _WORDS[old.itemsize](0)
        for bit in random.choice(8 * old.itemsize, random.integers(least, most + 1), replace=False).tolist():
            word |= word.dtype.type(1 << bit)
        return change(old.view(word.dtype), word).view(old.dtype)

    return spoil


def noise(old: np.ndarray, random: np.random.Generator, rounding: float) -> Any:
    """Its largest element is between a tenth and 10,000 rounding errors; of integers, it is of integers."""
    more = random.standard_normal(old.shape)
    more *= rounding * 10 ** random.uniform(-1, 4) / np.abs(more).max()
    return (old + (np.rint(more) if rounding == 1.0 else more)).astype(old.dtype)


# Of each kind, the device's method that is spoiled, the operand that it writes, where, and how.
KINDS: dict[str, tuple[str, str, Where, Spoil]] = {
    "one bit": ("multiply", "C", element, bits(1, 1)),
    "2 to 4 bits": ("multiply", "C", element, bits(2, 4)),
    "a tile": ("multiply", "C", tile, noise),
    "a sign": ("multiply", "C", element, lambda old, random, rounding: -old),
    "a zero": ("multiply", "C", element, lambda old, random, rounding: np.zeros_like(old)),
    "a warp": ("multiply", "C", warp, bits(1, 1)),
    "a stuck lane": ("multiply", "C", lane, bits(1, 1, np.bitwise_or)),
    "A copied": ("copy_in", "A", element, bits(1, 1)),
    "B copied": ("copy_in", "B", element, bits(1, 1)),
    "C copied": ("copy_out", "C", element, bits(1, 1)),
}
CHECKED = ("one bit", "2 to 4 bits", "a tile", "a sign", "a zero")
REPAIRED = tuple(kind for kind in KINDS if kind not in ("a sign", "a zero"))


class Injection:
    """A fault in the next product of `matrices` (A, B, C), and its size: the largest change of an element of C. `harmless`:
    everything but the fault, to see how long a right product takes then."""

    def __init__(
        self, kind: str, matrices: dict[str, np.ndarray], rounding: float, random: np.random.Generator, *, harmless: bool = False
    ) -> None:
        self._method, self._operand, self._where, self._spoil = KINDS[kind]
        self._harmless = harmless
        self._matrices, self._rounding, self._random = matrices, rounding, random
        self.size = 0.0

    @contextmanager
    def planted(self, device: type[Device] | type[CudaDevice]) -> Iterator[None]:
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
            where = self._where(values.shape, self._random)
            new = self._spoil(np.array(values[where]), self._random, self._rounding)
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


def multiplied(a: np.ndarray, b: np.ndarray, c: np.ndarray, device: str, on_fault: Any) -> tuple[str, float]:
    """ "repaired", "refused" or "unseen", and the seconds."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        began = time.perf_counter()
        try:
            hybrid.multiply(a, b, out=c, device=device, check="full" if on_fault == "repair" else "host", on_fault=on_fault)
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


class Product:
    """A right product, as `multiply` makes it, and the largest rounding error of its elements."""

    def __init__(self, data: str, n: int, random: np.random.Generator, device: str) -> None:
        dtype = "float64" if data == "integers" else data
        self.device, self.random, self.exact = device, random, data == "integers"
        if self.exact:
            self.a, self.b = (random.integers(-99, 100, (n, n)).astype(dtype) for _ in "AB")
        else:
            self.a, self.b = (random.standard_normal((n, n)).astype(dtype) for _ in "AB")
        self.right = hybrid.multiply(self.a, self.b, device=device)
        self.c = np.zeros_like(self.right)
        wide = np.float64 if dtype == "float32" else np.longdouble
        rows = random.choice(n, min(n, _ROWS_LOOKED_AT, max(1, _TERMS_LOOKED_AT // n**2)), replace=False)
        self.rounding = self.of_a_cpu = 1.0  # and that of a CPU's product: one from remainders errs less
        if not self.exact:
            exact = self.a[rows].astype(wide) @ self.b.astype(wide)
            self.rounding = float(np.abs(self.right[rows] - exact).max())
            self.of_a_cpu = float(np.abs(self.a[rows] @ self.b - exact).max())

    def with_fault(self, kind: str, on_fault: str, *, harmless: bool = False) -> tuple[str, float, float]:
        """What became of it, the seconds, and its size."""
        matrices = {"A": self.a, "B": self.b, "C": self.c}
        injection = Injection(kind, matrices, self.rounding, self.random, harmless=harmless)
        with injection.planted(CudaDevice if self.device == "cuda" else Device):
            return *multiplied(self.a, self.b, self.c, self.device, on_fault), injection.size

    def is_repaired(self) -> bool:
        """Whether C is as right as a CPU makes it."""
        return is_right(self.c, self.right, 0.0 if self.exact else RIGHT * max(self.rounding, self.of_a_cpu))


def repaired(product: Product, about: frame.Line, faults: int, kinds: Sequence[str]) -> Iterator[frame.Line]:
    """A line for each of these kinds of faults."""
    for kind in kinds:
        counts, times = [[0] * len(OUTCOMES) for _ in REPAIR_SIZES], []
        with mock.patch.dict(os.environ, {"HYBRID_STAGED": str(int(KINDS[kind][0] != "multiply"))}):
            multiplied(product.a, product.b, product.c, product.device, "repair")
            for _ in frame.shown(range(faults), f"{about['n']} {about['data']} {kind}"):
                _, right, _ = product.with_fault(kind, "repair", harmless=True)
                found, seconds, size = product.with_fault(kind, "repair")
                # What was added to C later may have rounded the fault away.
                while found == "unseen" and np.array_equal(product.c, product.right):
                    found, seconds, size = product.with_fault(kind, "repair")
                if found == "repaired":
                    times.append(seconds / right)
                    found = found if product.is_repaired() else "wrong"
                counts[sum(size >= bound for bound in REPAIR_BOUNDS)][OUTCOMES.index(found)] += 1
        ratio = statistics.median(times) if times else None
        yield {**about, "part": "repairs", "kind": kind, "sizes": REPAIR_SIZES, "counts": counts, "times_as_long": ratio}


def checked(about: frame.Line, faults: int, random: np.random.Generator) -> Iterator[frame.Line]:
    """A line for each kind of fault, and one for right products."""
    n, data, alarms = about["n"], about["data"], 0
    counts = {kind: [[0, 0] for _ in NAMES] for kind in CHECKED}
    for number in frame.shown(range(faults), f"{n} {data}"):
        if number % OPERANDS_KEPT == 0:
            product = Product(data, n, random, "cpu")
        alarms += multiplied(product.a, product.b, product.c, "cpu", "raise")[0] != "unseen"
        for kind, of_kind in counts.items():
            found, _, size = product.with_fault(kind, "raise")
            of_size = of_kind[bisect.bisect_right(BOUNDS, size)]
            of_size[0] += 1
            of_size[1] += found == "refused"
    yield {**about, "part": "right", "products": faults, "alarms": alarms}
    for kind in CHECKED:
        yield {**about, "part": "faults", "kind": kind, "sizes": NAMES, "counts": counts[kind]}


class Results(frame.Results):
    command, again = "detection", "python scripts/bench.py detection"

    def blocks(self) -> Iterator[frame.Block]:
        yield from self._of_repairs() if self.lines[0]["part"] == "repairs" else self._of_checks()

    def _of_repairs(self) -> Iterator[frame.Block]:
        rows, total = [], np.zeros(len(OUTCOMES), int)
        for n, kind in dict.fromkeys((line["n"], line["kind"]) for line in self.lines):
            of_kind = [line for line in self.lines if (line["n"], line["kind"]) == (n, kind)]
            counts = np.sum([line["counts"] for line in of_kind], axis=0)
            ratios = [line["times_as_long"] for line in of_kind if line["times_as_long"]]
            rows.append([str(n), kind, *map(_outcomes, counts), f"{np.mean(ratios):.2f}" if ratios else "–"])
            total += counts.sum(axis=0)
        title = "What became of faults whose size in rounding errors is; and how long a repaired product took, a right one 1"
        yield frame.Table(["n", "fault", *REPAIR_SIZES, "time"], "rl" + "r" * (len(REPAIR_SIZES) + 1), rows, title)
        counted = ", ".join(f"{number:,} {name}" for name, number in zip(OUTCOMES, total, strict=True))
        yield frame.Remarks([f"{total.sum():,} faults: {counted}."])

    def _of_checks(self) -> Iterator[frame.Block]:
        right = [line for line in self.lines if line["part"] == "right"]
        rows = [
            [str(line["n"]), line["data"], line["kind"], *(_share(*each) for each in line["counts"])]
            for line in self.lines
            if line["part"] == "faults"
        ]
        title = "Found, of faults whose size in rounding errors is"
        yield frame.Table(["n", "elements", "fault", *NAMES], "rll" + "r" * len(NAMES), rows, title)
        products, alarms = (sum(line[key] for line in right) for key in ("products", "alarms"))
        yield frame.Remarks([f"{alarms} of {products:,} right products were refused."])

    def exit_code(self) -> int:
        """1 if a right product was refused, a fault above 20 rounding errors, or any of integers, not found, or a repair wrong"""
        first = NAMES.index("20 to 100")
        missed = (
            of - found
            for line in self.lines
            if line["part"] == "faults"
            for of, found in line["counts"][0 if line["data"] == "integers" else first :]
        )
        wrong = OUTCOMES.index("wrong")
        of_repairs = (of_size[wrong] for line in self.lines if line["part"] == "repairs" for of_size in line["counts"])
        return int(any(line.get("alarms") for line in self.lines) or any(missed) or any(of_repairs))


def _outcomes(counts: Sequence[int]) -> str:
    said = [f"{number} {name}" for name, number in zip(OUTCOMES, counts, strict=True) if number]
    return ", ".join(said) or "–"


def _share(injected: int, found: int) -> str:
    return f"{found} of {injected}" if injected else "–"


def _measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    random = np.random.default_rng(options.seed)
    if len(options.faults) not in (1, len(options.sizes)):
        raise UsageError("--faults takes one number, or one for each of --sizes")
    if options.device != "cpu" and not options.repair:
        raise UsageError("--device is for --repair: without it, right products are spoiled afterwards, on the host")
    if options.device == "cuda":
        usable_gpus()
    least = BLOCK if options.repair else LARGEST_TILE
    if min(options.sizes) < least:
        raise UsageError(f"--sizes must be {least} or more: that is the largest tile")
    each = options.faults * len(options.sizes) if len(options.faults) == 1 else options.faults
    for n, faults in zip(options.sizes, each, strict=True):
        for data in DATA:
            about = {"n": n, "data": data, "device": options.device}
            if options.repair:
                yield from repaired(Product(data, n, random, options.device), about, faults, options.kinds)
            else:
                yield from checked(about, faults, random)


main = frame.experiment(
    __doc__, Results, _measured,
    frame.option("--sizes", nargs="+", type=frame.positive, default=[512, 2000], metavar="N", help="from 64 up (512 2000)"),
    frame.option("--faults", nargs="+", type=frame.positive, default=[1000], metavar="K",
                 help="of each kind, type and size, or one number a size"),
    frame.option("--seed", type=int, default=secrets.randbits(32), help="of matrices and faults"),
    frame.option("--repair", action="store_true", help="count what is repaired, and how long that takes"),
    frame.option("--device", choices=("cpu", "cuda"), default="cpu", help="with --repair: what multiplies (cpu)"),
    frame.option("--kinds", nargs="+", choices=REPAIRED, default=REPAIRED, help="with --repair: of faults (all)"),
)  # fmt: skip
