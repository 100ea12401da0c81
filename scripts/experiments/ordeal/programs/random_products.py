# SPDX-License-Identifier: MIT
"""Random products on the ranks' GPUs, whatever memory holds the arrays: python random_products.py PRODUCTS SECONDS LARGEST SEED

`scripts/ordeal.py --products` starts it, with a rank for each GPU. Arrays are new, used before, views, read-only, in mappings and
files, shared by the ranks, or on the GPU. Earlier ones are freed while a product runs, and a thread writes next to the result, in
the same pages. Matrices hold small whole numbers, so that all sums are exact: the product times a random matrix must equal the
operands' exactly. Layouts, types and other options: tests/support/on_gpus.py.

Prints one line of JSON at rank 0: products, wrong and failed ones, ranges of memory still pinned without an array, and the
process's memory over time. Ends with 1 for any fault.
"""

import gc
import json
import mmap
import random
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from mpi4py import MPI

import hybrid
from hybrid.devices import cuda_gpus
from hybrid.devices.cuda_gpus import PinnedMemory, pinned_memory

TYPES = {"float64": 10, "float32": 6, "complex128": 2}
HOLDERS = ("GPU", "new", "used", "view", "mapping", "buffer", "file", "shared")
POOL = 34 << 20  # bytes of half the array of all views: smaller ones are never pinned
EXTENTS = (0, 2 * POOL), (POOL // 2, 2 * POOL), (0, POOL + POOL // 2)  # of arrays on the same buffer
MOST_BYTES = 30 << 20  # of a matrix that is such a view
ROUNDS = 6  # after each, all arrays are freed, and memory is measured
LEVEL = 1.1, 64 << 20  # memory may grow by this factor and these bytes from the first to the last rounds
LARGEST_VALUE = 4

comm = MPI.COMM_WORLD


class Arrays:
    """Makes this rank's arrays. Operands and results do not overlap: each has its half of a pool."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        noise = np.random.default_rng(1).integers(-LARGEST_VALUE, LARGEST_VALUE + 1, largest * largest + 997, np.int8)
        self._noise = noise
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._file.truncate(2 * POOL)
        self.used: dict[Any, np.ndarray] = {}
        self.renew()

    def renew(self) -> None:
        """Drop all arrays, and make new pools."""
        self.used.clear()
        self.memory = np.empty(2 * POOL, np.uint8)
        # For NumPy arrays on the same buffer are independent.
        buffers: dict[str, Any] = {"mapping": mmap.mmap(-1, 2 * POOL), "buffer": bytearray(2 * POOL)}
        self.on_buffers = {
            name: [np.ndarray((hi - lo,), np.uint8, each, lo) for lo, hi in EXTENTS] for name, each in buffers.items()
        }

    def make(self, dice: random.Random, holder: str, shape: tuple[int, int], dtype: str, *, result: bool) -> np.ndarray:
        """An uninitialised matrix."""
        rows, columns = shape
        item, more = np.dtype(dtype).itemsize, dice.choice((0, 1, 5))
        if holder == "used":
            key = shape, dtype, result, dice.randrange(2)
            return self.used.setdefault(key, np.empty(shape, dtype))
        width = columns + (more if holder == "view" else 0)
        size = rows * width
        if holder == "new" or size * item > MOST_BYTES:
            return np.empty(shape, dtype)
        last = min(POOL, 16 * self.largest**2) - size * item  # so that small matrices overlap, too
        start = item * dice.randrange(max(1, last // item)) + result * POOL
        if holder in self.on_buffers:
            possible = [number for number, (lo, hi) in enumerate(EXTENTS) if lo <= start and start + size * item <= hi]
            number = dice.choice(possible)
            start -= EXTENTS[number][0]
            return self.on_buffers[holder][number][start : start + size * item].view(dtype).reshape(shape)
        if holder == "file":
            mode = "r+" if result else dice.choice(("r", "r+", "c"))
            return np.memmap(self._file, dtype, mode, start, shape)
        return self.memory[start : start + size * item].view(dtype).reshape(rows, width)[:, :columns]

    def fill(self, dice: random.Random, array: np.ndarray) -> None:
        first = dice.randrange(997)
        values = self._noise[first : first + array.size].reshape(array.shape)
        if not array.flags.writeable:  # a file's: write through another mapping
            array = np.memmap(self._file, array.dtype, "r+", array.offset, array.shape)
        array[...] = values
        if array.dtype.kind == "c":
            array *= 1 - 1j


def free(arrays: list[Any]) -> None:
    """Free the arrays in another thread, at a random time during the next product."""
    time.sleep(0.003 * random.random())  # noqa: S311
    while arrays:
        arrays.pop()


@contextmanager
def written_beside(guards: list[np.ndarray]) -> Iterator[list[int]]:
    """A context in which a thread writes numbers to the guards; yields the last number, and afterwards how many guards lack
    it."""
    last, over = [1, 0], threading.Event()

    def write() -> None:
        while not over.is_set():
            last[0] = last[0] % 100 + 1
            for each in guards:
                each[...] = last[0]
            time.sleep(1e-4)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield last
    finally:
        over.set()
        thread.join()
        last[1] = sum(not (each == last[0]).all() for each in guards)


def guards_of(arrays: Arrays, out: np.ndarray | None, holder: str) -> list[np.ndarray]:
    """The bytes before and after a result that is a view."""
    pools = {"view": arrays.memory, "mapping": arrays.on_buffers["mapping"][0]}
    if out is None or holder not in pools:
        return []
    pool = pools[holder]
    lo, hi = (int(each) - pool.ctypes.data for each in np.lib.array_utils.byte_bounds(out))
    if not POOL <= lo <= hi <= 2 * POOL:
        return []  # too large for a view, so a new array
    return [pool[max(POOL, lo - 64) : lo], pool[hi : hi + 64]]


class Product:
    """A random product, the same on all ranks."""

    def __init__(self, seed: int, largest: int) -> None:
        self.dice = dice = random.Random(seed)  # noqa: S311
        self.dtype = dice.choices(list(TYPES), list(TYPES.values()))[0]
        favourites = random.Random(seed // 50)  # noqa: S311
        alike = [[_size(favourites, largest) for _ in range(3)] for _ in range(3)]
        self.n, self.l, self.m = dice.choice(alike) if dice.random() < 0.6 else [_size(dice, largest) for _ in range(3)]
        self.holders = [dice.choice(HOLDERS), dice.choice(HOLDERS), dice.choice((None, None, *HOLDERS))]

    def __str__(self) -> str:
        return f"{self.n}×{self.l}×{self.m} {self.dtype}: {self.holders}"

    def faults(self, arrays: Arrays, dying: ThreadPoolExecutor, device: str) -> str:
        """Multiply, and return what is wrong on this rank."""
        dice, here, given = self.dice, comm.rank == 0, []
        for place, (holder, shape) in enumerate(
            zip(self.holders, [(self.n, self.l), (self.l, self.m), (self.n, self.m)], strict=True)
        ):
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
        guards = guards_of(arrays, out, self.holders[2])
        with written_beside(guards) as beside:
            c = hybrid.multiply(a, b, comm=comm, out=out, device=device)
        fault = ""
        if here:
            wrong = (_seen(c.get() if hasattr(c, "get") else c) != wanted).any(axis=1)
            fault = f" {wrong.sum()} rows of {len(wrong)} are wrong" if wrong.any() else ""
            if out is not None and c is not out:
                fault += " the result is not in out"
            if beside[1]:
                fault += " what was written beside the result is lost"
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


def resident_bytes() -> int:
    with open("/proc/self/smaps_rollup") as file:
        said = dict(line.split(":", 1) for line in file.read().splitlines()[1:])
    return int(said["Rss"].split()[0]) << 10


def main(products: int, seconds: float, largest: int, seed: int, device: str = "cuda") -> int:
    cuda_gpus.LEAST_PART = 0  # pools are pinned, too
    watched, arrays = Watched(), Arrays(largest)
    seen: Counter[str] = Counter()
    wrong = failed = done = left = 0
    memory, began = [], time.monotonic()
    while done < products and comm.bcast(time.monotonic() - began) < seconds:
        dying = ThreadPoolExecutor(1)
        for _ in range(-(-products // ROUNDS)):
            again = done % 3 == 2  # the same views again: memory is pinned at its second use
            product = Product(seed * products + done - again, largest)
            try:
                fault = product.faults(arrays, dying, device)
            except Exception as error:
                fault, failed = f" {type(error).__name__}: {error}", failed + (comm.rank == 0)
            else:
                wrong += bool(fault)
            if fault and wrong + failed <= 5:
                print(f"product {done}, {product}:{fault}", file=sys.stderr, flush=True)
            watched.most = max(watched.most, len(pinned_memory._registered))
            seen.update(str(each) for each in product.holders)
            done += 1
            if done == products or comm.bcast(time.monotonic() - began) > seconds:
                break
        dying.shutdown()
        arrays.renew()
        gc.collect()
        left += watched.pinned_without_array()
        memory.append(resident_bytes())
    kept = sorted(memory[-2:])[0], max(memory[: len(memory) // 3 + 1])
    level = kept[0] <= LEVEL[0] * kept[1] + LEVEL[1]
    wrong, failed, left = (comm.allreduce(each) for each in (wrong, failed, left))
    level = comm.allreduce(level, MPI.LAND)
    good = not (wrong or failed or left) and level
    if comm.rank == 0:
        line = {
            "products": done, "ranks": comm.size, "seed": seed, "largest": largest, "wrong": wrong, "failed": failed,
            "pinned_without_array": left, "pinned_at_once": watched.most,
            "memory_is_level": level, "memory_mb": [each >> 20 for each in memory],
            "seconds": round(time.monotonic() - began, 1), "arrays": dict(seen), "good": good,
        }  # fmt: skip
        print(json.dumps(line), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:]))
