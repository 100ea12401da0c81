# SPDX-License-Identifier: MIT
"""Where A and B of a real product come from: arrays of the root, or memory that a node's ranks share. Commands have sources of
their own (hybrid.runs.operands)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from hybrid.arrays.gemm import ProductType, real_view, write_real_rows
from hybrid.arrays.interop import on_gpu
from hybrid.core.spans import Span
from hybrid.host.memory import copy_rows
from hybrid.kernels.catalogue import elements_of, numbers_of, storage

Progress = Callable[[int], None]  # gets the number of rows done so far, in the thread that asked for them


def untold(done: int) -> None:
    """Tell nobody of the progress."""


class MatrixSource(ABC):
    """Where A or B of a real product comes from. Every rank has the same kind of source."""

    shape: tuple[int, int]
    at_root = False  # the root has all rows; otherwise any rank can write any row

    @abstractmethod
    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        """Write these rows into `into`, converted to its type."""

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        """The array itself, for bfloat16 as its bits, if it is multiplied without being converted or copied; else None.
        `transposed`: so is the transpose of a matrix in row-major order, in host memory."""
        return None


class SharedMatrix(MatrixSource):
    """A matrix in memory that all ranks share, on their only node."""

    def __init__(self, array: np.ndarray, dtype: str, *, as_it_lies: bool) -> None:
        """`dtype`: the type in which it is multiplied. `as_it_lies`: also where it is transposed."""
        self.array = array
        self.shape: tuple[int, int] = array.shape
        # It is multiplied as it lies. Else each rank converts some rows of it.
        self.at_root = array.dtype == storage(dtype) and (as_it_lies or array.flags.c_contiguous)

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        copy_rows(into, numbers_of(self.array[rows.slice]), threads)
        progress(len(rows))

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        return self.array if self.at_root else None


class RootMatrix(MatrixSource):
    """A or B of a real product, an array at the root in host memory or on a GPU. The other ranks know its shape only."""

    at_root = True

    def __init__(self, shape: tuple[int, int], array: Any = None) -> None:
        self.shape, self.array = shape, array

    @classmethod
    def of(cls, key: str, matrix: np.ndarray, types: ProductType, prime: int, threads: int) -> RootMatrix:
        """A or B (`key`) of the real product modulo this prime, from a matrix in host memory: itself where possible."""
        heights, widths = types.parts_of(key)
        if not prime and widths == 1:
            return cls(matrix.shape, matrix)
        shape = matrix.shape[0] * heights, matrix.shape[1] * widths
        as_it_is = not prime and heights == 1 and not (key == "B" and types.gemm.conjugate_b)
        if as_it_is and cls(matrix.shape, matrix).in_place(types.promoted) is not None:
            return cls(shape, real_view(matrix))
        return MadeMatrix(shape, key, matrix, types, prime, threads)

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        part = self.array[rows.slice]
        copy_rows(into, elements_of(part) if into.dtype == storage("bfloat16") else part, threads)
        progress(len(rows))

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        array = self.array
        if array is None or array.dtype.name != dtype or not array.dtype.isnative:
            return None
        if on_gpu(array):
            return elements_of(array) if array.flags.c_contiguous else None
        by_rows = array.flags.c_contiguous
        if not array.flags.aligned or not (by_rows or (transposed and array.flags.f_contiguous)):
            return None
        return elements_of(array) if by_rows else elements_of(array.T).T


class MadeMatrix(RootMatrix):
    """A or B of a real product that the root makes of its array, rows at a time, where they are needed. Only a root that sends
    rows to other nodes keeps a copy."""

    def __init__(
        self, shape: tuple[int, int], key: str, matrix: np.ndarray, types: ProductType, prime: int, threads: int
    ) -> None:
        """`threads`: those that make the copy that is kept."""
        self.shape = shape
        self._key, self._matrix, self._types, self._prime, self._threads = key, matrix, types, prime, threads

    @cached_property
    def array(self) -> np.ndarray:  # type: ignore[override]
        made = np.empty(self.shape, self._types.computed)
        self.rows(Span(0, self.shape[0]), made, self._threads, untold)
        return made

    def rows(self, rows: Span, into: np.ndarray, threads: int, progress: Progress) -> None:
        write_real_rows(self._key, self._matrix, rows, into, threads, self._types, self._prime)
        progress(len(rows))

    def in_place(self, dtype: str, *, transposed: bool = False) -> np.ndarray | None:
        return None
