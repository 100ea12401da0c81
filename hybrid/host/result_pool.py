"""Memory of results that nothing refers to any more, for the next result.

Fresh memory is handed out by the system page by page, at the speed of a slow disk, and a GPU's link would have to lock it
again: for a large product both take longer than the product. One block is kept, the last that became free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.host.pages import empty_matrix

LEAST_BYTES = 1 << 20  # below, fresh memory costs nothing


class Block:
    """Memory that an array shows; it goes back when the last array that shows it has gone."""

    def __init__(self, memory: np.ndarray, back_to: ResultPool, array: dict[str, Any]) -> None:
        self.memory = memory
        self._back_to = back_to
        self.__array_interface__ = array

    def __del__(self) -> None:
        self._back_to.take_back(self.memory)


class ResultPool:
    """Results of which the memory is used again."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def empty(self, rows: int, columns: int, dtype: str) -> np.ndarray:
        """An array of undefined contents."""
        size = rows * columns * np.dtype(dtype).itemsize
        if size < LEAST_BYTES:
            return np.empty((rows, columns), dtype)
        memory = self._take(size)
        if memory is None:
            memory = empty_matrix(1, size, "uint8")
        shown = {
            "data": (memory.ctypes.data, False),
            "shape": (rows, columns),
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }
        return np.asarray(Block(memory, self, shown))

    def make_room(self, size: int) -> int:
        """Give up what does not suit a result of `size` bytes; the bytes that are kept for it."""
        memory = self._take(size)
        if memory is None:
            return 0
        self.take_back(memory)
        return memory.nbytes

    def _take(self, size: int) -> np.ndarray | None:
        """In single steps: between any two, another thread or the collection of garbage may bring memory of any size."""
        while True:
            try:
                memory = self._free.pop()
            except IndexError:
                return None
            if size <= memory.nbytes <= 2 * size:
                return memory

    def take_back(self, memory: np.ndarray) -> None:
        self._free[:] = [memory]


result_pool = ResultPool()  # of this process
