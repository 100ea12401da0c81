# SPDX-License-Identifier: MIT
"""Random products on the ranks' GPUs, whatever memory holds the arrays: python random_products.py PRODUCTS SECONDS LARGEST SEED

`scripts/ordeal.py --products` starts it, with a rank for each GPU. Arrays are new, used before, views, in mappings and files,
read-only, shared by the ranks, or on the GPU; earlier ones are freed while a product runs. Matrices hold small whole numbers, so
that all sums are exact: the product times a random matrix must equal the operands' exactly. Layouts, types and other options:
tests/support/on_gpus.py.

Prints one line of JSON at rank 0: products, wrong and failed ones, ranges of memory still pinned without an array, and the
process's memory over time. Ends with 1 for any fault.
"""

import gc
import json
import mmap
import random
import sys
import tempfile
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import hybrid
from hybrid.devices import cuda_gpus
from hybrid.devices.cuda_gpus import PinnedMemory, pinned_memory

TYPES = {"float64": 10, "float32": 6, "complex128": 2}
HOLDERS = ("GPU", "new", "used", "view", "mapping", "file", "shared")
POOL = 34 << 20  # bytes of the operands' half of an array of all views, and of the results'
MOST_BYTES = 30 << 20  # of a matrix that is such a view
ROUNDS = 6  # after each, all arrays are freed, and memory is measured
LEVEL = 1.1, 64 << 20  # memory may grow by this factor and these bytes from the first to the last rounds

comm = MPI.COMM_WORLD


class Arrays:
    """Makes this rank's arrays. Operands and results do not overlap: each has its half of a pool."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._noise = np.random.default_rng(1).integers(-4, 5, largest * largest + 997, np.int8)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(2 * POOL)
        self._used: dict[Any, np.ndarray] = {}
        self.renew()

    def renew(self) -> None:
        """Drop all arrays, and make new pools."""
        self._used.clear()
        mapping = mmap.mmap(-1, 2 * POOL)  # two NumPy arrays on it do not know of each other
        on_mapping = [np.ndarray(2 * POOL, np.uint8, mapping) for _ in range(2)]
        self._pools = {"view": [np.empty(2 * POOL, np.uint8)], "mapping": on_mapping}

    def make(self, dice: random.Random, holder: str, shape: tuple[int, int], dtype: str, *, result: bool) -> np.ndarray:
        """An uninitialised matrix."""
        rows, columns = shape
        if holder == "used":
            return self._used.setdefault((shape, dtype, result, dice.randrange(2)), np.empty(shape, dtype))
        item, width = np.dtype(dtype).itemsize, columns + (dice.choice((0, 1, 5)) if holder == "view" else 0)
        if holder in ("new", "GPU") or rows * width * item > MOST_BYTES:
            return np.empty(shape, dtype)
        last = min(POOL, 16 * self._largest**2) - rows * width * item  # so that small matrices overlap, too
        start = item * dice.randrange(max(1, last // item)) + result * POOL
        if holder == "file":
            return np.memmap(self._file, dtype, "r+" if result else dice.choice(("r", "r+", "c")), start, shape)
        pool = dice.choice(self._pools[holder])
        return pool[start : start + rows * width * item].view(dtype).reshape(rows, width)[:, :columns]

    def fill(self, dice: random.Random, array: np.ndarray) -> None:
        first = dice.randrange(997)
        if not array.flags.writeable:  # a file's: write through another mapping
            array = np.memmap(self._file, array.dtype, "r+", array.offset, array.shape)
        array[...] = self._noise[first : first + array.size].reshape(array.shape)
        if array.dtype.kind == "c":
            array *= 1 - 1j


def free(arrays: list[Any]) -> None:
    """Free the arrays in another thread, at a random time during the next product."""
    time.sleep(0.003 * random.random())  # noqa: S311
    while arrays:
        arrays.pop()


class Product:
    """A random product, the same on all ranks."""

    def __init__(self, seed: int, largest: int) -> None:
        self.dice = dice = random.Random(seed)  # noqa: S311
        self.dtype = dice.choices(list(TYPES), list(TYPES.values()))[0]
        shapes = random.Random(seed // 50) if dice.random() < 0.6 else dice  # noqa: S311 (shapes that come again)
        self.n, self.l, self.m = dice.choice([[_size(shapes, largest) for _ in range(3)] for _ in range(3)])
        self.holders = [dice.choice(HOLDERS), dice.choice(HOLDERS), dice.choice((None, None, *HOLDERS))]

    def __str__(self) -> str:
        return f"{self.n}×{self.l}×{self.m} {self.dtype}: {self.holders}"

    def faults(self, arrays: Arrays, dying: ThreadPoolExecutor) -> str:
        """Multiply, and return what is wrong on this rank."""
        dice, here, given = self.dice, comm.rank == 0, []
        shapes = (self.n, self.l), (self.l, self.m), (self.n, self.m)
        for place, (holder, shape) in enumerate(zip(self.holders, shapes, strict=True)):
            if holder == "shared":
                given.append(hybrid.empty(shape, self.dtype, comm=comm))
            else:
                given.append(arrays.make(dice, holder, shape, self.dtype, result=place == 2) if here and holder else None)
        a, b, out = given if here else (None, None, None)
        wanted: Any = None
        if here:
            for each in (a, b):
                arrays.fill(dice, each)
            if out is not None:
                out.fill(np.nan)
            wanted = _seen(a, b)
            for each in (a, b):
                each.flags.writeable = each.flags.writeable and dice.random() < 0.7
            to_gpu = import_module("cupy").asarray if "GPU" in self.holders else None
            a, b, out = (to_gpu(each) if of == "GPU" else each for each, of in zip((a, b, out), self.holders, strict=True))
        c = hybrid.multiply(a, b, comm=comm, out=out, device="cuda")
        fault = ""
        if here:
            wrong = (_seen(c.get() if hasattr(c, "get") else c) != wanted).any(axis=1)
            fault = f" {wrong.sum()} rows of {len(wrong)} are wrong" if wrong.any() else ""
            if out is not None and c is not out:
                fault += " the result is not in out"
            for each in given[:2]:
                if each.base is None or each.flags.owndata:
                    each.flags.writeable = True
        given += [a, b, c, out]
        dying.submit(free, given)
        return fault


def _size(dice: random.Random, largest: int) -> int:
    kind = dice.random()
    return dice.randint(1, 40) if kind < 0.2 else int(largest ** dice.uniform(0.5, 1)) if kind < 0.8 else dice.randint(1, largest)


def _seen(*factors: np.ndarray) -> np.ndarray:
    """The factors' product times two random columns, exact in float64."""
    by = np.random.default_rng(factors[-1].shape[1]).integers(-99, 100, (factors[-1].shape[1], 2)).astype(float)
    for factor in factors[::-1]:
        by = factor.astype("complex128" if factor.dtype.kind == "c" else "float64") @ by
    return by


class Watched:
    """Records the arrays whose memory this process has pinned."""

    def __init__(self) -> None:
        self._owners: dict[int, Any] = {}
        self.most = 0  # ranges pinned at once
        watch = PinnedMemory._watch

        def watched(memory: PinnedMemory, owner: np.ndarray) -> None:
            self._owners[id(owner)] = weakref.ref(owner)
            watch(memory, owner)

        PinnedMemory._watch = watched  # type: ignore[method-assign]

    def pinned_without_array(self) -> int:
        """The number of pinned ranges without a live array."""
        there: dict[tuple[int, int], bool] = {}
        for key, (lo, hi) in dict(pinned_memory._registered).items():
            owner = self._owners[key]() if key in self._owners else None
            first, last = (0, 0) if owner is None else np.lib.array_utils.byte_bounds(owner)
            there[lo, hi] = there.get((lo, hi), False) or (first < hi and lo < last)
        return list(there.values()).count(False)


def main(products: int, seconds: float, largest: int, seed: int) -> int:
    cuda_gpus.LEAST_PART = 0  # pools are pinned, too
    watched, arrays = Watched(), Arrays(largest)
    wrong = failed = done = left = 0
    memory, began = [], time.monotonic()
    while done < products and comm.bcast(time.monotonic() - began) < seconds:
        dying = ThreadPoolExecutor(1)
        for _ in range(min(-(-products // ROUNDS), products - done)):
            again = done % 3 == 2  # the same views again: memory is pinned at its second use
            product = Product(seed * products + done - again, largest)
            try:
                fault = product.faults(arrays, dying)
            except Exception as error:
                fault, failed = f" {type(error).__name__}: {error}", failed + (comm.rank == 0)
            else:
                wrong += bool(fault)
            if fault and wrong + failed <= 5:
                print(f"product {done}, {product}:{fault}", file=sys.stderr, flush=True)
            watched.most = max(watched.most, len(pinned_memory._registered))
            done += 1
            if comm.bcast(time.monotonic() - began) > seconds:
                break
        dying.shutdown()
        arrays.renew()
        gc.collect()
        left += watched.pinned_without_array()
        memory.append(int(Path("/proc/self/smaps_rollup").read_text().partition("Rss:")[2].split()[0]) << 10)
    kept = sorted(memory[-2:])[0], max(memory[: len(memory) // 3 + 1])
    level = comm.allreduce(kept[0] <= LEVEL[0] * kept[1] + LEVEL[1], MPI.LAND)
    wrong, failed, left = (comm.allreduce(each) for each in (wrong, failed, left))
    good = not (wrong or failed or left) and level
    if comm.rank == 0:
        line = {
            "products": done, "ranks": comm.size, "seed": seed, "wrong": wrong, "failed": failed, "pinned_without_array": left,
            "pinned_at_once": watched.most, "memory_is_level": level, "memory_mb": [each >> 20 for each in memory],
            "seconds": round(time.monotonic() - began, 1), "good": good,
        }  # fmt: skip
        print(json.dumps(line), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
