# SPDX-License-Identifier: MIT
"""Host memory for matrices: in pages of its own, since memory is pinned by whole pages, and used again for later results.

The system hands out fresh memory page by page, at the speed of a slow disk, and a GPU's driver would have to pin it anew:
for a large product both take longer than the product.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from hybrid.core.text import readable
from hybrid.errors import DoesNotFit

LEAST_BYTES = 1 << 20  # smaller arrays are ordinary ones: copying them costs less than pinning, and fresh memory nothing


def empty_matrix(rows: int, columns: int, dtype: str | np.dtype) -> np.ndarray:
    """A matrix of undefined contents that shares no page with another array. DoesNotFit if the system refuses the memory."""
    size = rows * columns * np.dtype(dtype).itemsize
    if size < LEAST_BYTES or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty((rows, columns), dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DoesNotFit(f"no room for {readable(size)} of host memory ({error.strerror})") from None
    with suppress(OSError, AttributeError):  # huge pages are fewer, hence allocated and pinned faster
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray((rows, columns), dtype, buffer=pages)


class Block:
    """The memory of a result, with NumPy's array interface. When the last array on it has gone, the memory goes back to the
    pool."""

    def __init__(self, memory: np.ndarray, pool: ResultPool, interface: dict[str, Any]) -> None:
        self.memory = memory
        self._pool = pool
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self._pool.take_back(self.memory)


class ResultPool:
    """Arrays for results. Of their memory one block is kept for the next result: the last one that became free."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def empty(self, rows: int, columns: int, dtype: str) -> np.ndarray:
        """An array of undefined contents. DoesNotFit as for `empty_matrix`."""
        size = rows * columns * np.dtype(dtype).itemsize
        if size < LEAST_BYTES:
            return np.empty((rows, columns), dtype)
        memory = self._take(size)
        if memory is None:
            memory = empty_matrix(1, size, "uint8")
        interface = {
            "data": (memory.ctypes.data, False),
            "shape": (rows, columns),
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }
        return np.asarray(Block(memory, self, interface))

    def make_room(self, size: int) -> int:
        """Free the kept memory, unless a result of `size` bytes can use it. Returns the bytes that are still kept."""
        memory = self._take(size)
        if memory is None:
            return 0
        self.take_back(memory)
        return memory.nbytes

    def _take(self, size: int) -> np.ndarray | None:
        """The kept memory, if it has `size` to 2 * `size` bytes; memory of other sizes is given up.

        Each step is atomic: between any two of them another thread, or the garbage collector, may bring back memory of any size.
        """
        while True:
            try:
                memory = self._free.pop()
            except IndexError:
                return None
            if size <= memory.nbytes <= 2 * size:
                return memory

    def take_back(self, memory: np.ndarray) -> None:
        """Keep this memory, in place of any other."""
        self._free[:] = [memory]


result_pool = ResultPool()  # the one of this process
