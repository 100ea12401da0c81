# SPDX-License-Identifier: MIT
"""The check's operations on a CUDA GPU: kernels/check.cu, on two streams of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np

from hybrid.core.problem import is_aligned
from hybrid.devices.base import Event, KernelCall, Operation, place_of
from hybrid.devices.cpu import word_type
from hybrid.devices.cuda_gpus import GpuContext
from hybrid.devices.cuda_kernels import (
    PreparedLaunch,
    Together,
    allow_shared_memory,
    compiled_functions,
    matrix_argument,
    prefer_shared_memory,
)
from hybrid.kernels.catalogue import ELEMENTS, MOST_BLOCKS_Y, c_type

SOURCE = "check.cu"
_WARPS = 4  # of a block whose warps take one row each
_SPAN, _ROWS_ADDED, _TILE, _THREADS = 1024, 32, 64, 128  # as in check.cu
_OF_PIECES = 512, 8  # threads of a block, and blocks, that add up what was found of a piece's rows
# subtract_product divides each sum among several blocks, of at least _LEAST_DEPTH terms, where it takes fewer blocks than fill a
# large GPU, whose SMs have room for three, or two of float64. It also does to round less, since products from remainders err so
# little that its own errors would look like faults: a block adds up the sums of _ROUND terms each, and then to what others have
# found. It adds least to large sums where it has about as many of these as there are blocks. And other kernels need not wait long
# for blocks of few terms.
_MULTIPROCESSORS, _LEAST_DEPTH, _ROUND = 132, 256, 64


def blocks_of(dtype: str, operand_dtype: str, group: int) -> dict[str, tuple[int, int]]:
    """The kernels that check a product of this type, whose columns are summed in groups of so many, and their thread blocks."""
    of_c, element = ELEMENTS[dtype], ELEMENTS[operand_dtype]
    return {
        f"row_sums<{of_c}, {group}>": (32, _WARPS),
        f"row_sums<{element}, {group}>": (32, _WARPS),
        f"row_sums<{element}, 0>": (32, _WARPS),
        f"row_sums<{of_c}, 0>": (32, _WARPS),  # of a C in device memory to which it is copied
        f"weigh_columns<{element}, {group}>": (group, 1),
        "column_totals": (32, 1),
        f"subtract_product<{element}, true>": (_THREADS, 1),
        f"subtract_product<{element}, false>": (_THREADS, 1),
        "compare_sums": (32, _WARPS),
        "total_pieces": (_OF_PIECES[0], 1),
    }


def shared_bytes(capability: int, item_size: int) -> int:
    """Of a block of subtract_product, for operands whose elements have so many bytes."""
    deep, padding = 32 if capability >= 80 else 16, 8 if item_size == 2 else 4
    return 2 * (8 * deep * (_TILE + 4) + item_size * _TILE * (deep + padding))


def subtraction(a: Any, y: Any) -> str:
    """The instance of subtract_product for these operands, by where they lie."""
    aligned = is_aligned(*place_of(a), *place_of(y))
    return f"subtract_product<{c_type(a)}, {str(aligned).lower()}>"


def grid_of_row_sums(rows: int, columns: int) -> tuple[int, int, int]:
    """Of row_sums: along y and z the spans of a row, of which there may be more than blocks along y."""
    spans = -(-columns // _SPAN)
    return -(-rows // _WARPS), min(spans, MOST_BLOCKS_Y), -(-spans // MOST_BLOCKS_Y)


def grid_of_totals(rows: int, columns: int) -> tuple[int, int]:
    """Of column_totals. There may be more rows than CUDA allows blocks along y."""
    return -(-rows // _ROWS_ADDED), -(-columns // 32)


def grid_of_subtraction(rows: int, columns: int, depth: int, item_size: int) -> tuple[int, int]:
    """Of subtract_product, for operands whose elements have so many bytes: along x its tiles, row by row; along y the blocks that
    divide each sum of `depth` terms."""
    tiles, enough = -(-rows // _TILE) * -(-columns // _TILE), _MULTIPROCESSORS * (2 if item_size == 8 else 3)
    to_fill, to_round_less = enough // max(1, tiles), 1 + isqrt(depth // (2 * _ROUND))
    return tiles, max(1, min(MOST_BLOCKS_Y, depth // _LEAST_DEPTH, max(to_fill, to_round_less)))


Enqueue = Callable[[Sequence[Event], KernelCall, str], Event]  # behind these events, on the streams of this name


class _CudaOperation:
    """An Operation: enqueues, behind some events, what `launch(stream)` launches."""

    __slots__ = ("_enqueue", "_streams", "launch")

    def __init__(self, enqueue: Enqueue, launch: KernelCall, streams: str = "check") -> None:
        self._enqueue, self.launch, self._streams = enqueue, launch, streams

    def __call__(self, after: Sequence[Event]) -> Event:
        return self._enqueue(after, self.launch, self._streams)


class CudaCheckOperations:
    """The check's operations. The arguments of each launch are prepared once, since a product is checked by dozens of them."""

    def __init__(self, cupy: Any, context: GpuContext, capability: int, enqueue: Enqueue) -> None:
        """`enqueue(after, launch, streams)`: has `launch(stream)` enqueue work behind these events, on a stream of this name."""
        self._cupy, self._context, self._capability, self._enqueue = cupy, context, capability, enqueue
        self._functions: dict[str, tuple[Any, tuple[int, int]]] = {}  # by expression, with their thread blocks

    def compile_ahead(self, dtype: str, operand_dtype: str, group: int) -> None:
        wanted = blocks_of(dtype, operand_dtype, group)
        if not wanted.keys() <= self._functions.keys():
            with self._context:
                functions = compiled_functions(SOURCE, tuple(wanted))
            self._functions |= {expression: (function, wanted[expression]) for expression, function in functions.items()}

    def make(self, shapes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
        with self._context:
            return {name: self._cupy.empty(shape, word_type(name)) for name, shape in shapes.items()}

    def write(self, into: Any, values: np.ndarray) -> None:
        with self._context:
            into.set(values)

    def read(self, matrix: Any) -> np.ndarray:
        with self._context:
            return self._cupy.asnumpy(matrix)

    def clear(self, matrix: Any) -> Operation:
        def launch(stream: Any) -> None:
            self._cupy.cuda.runtime.memsetAsync(matrix.data.ptr, 0, matrix.nbytes, stream.ptr)

        return _CudaOperation(self._enqueue, launch)

    def row_sums(
        self, matrix: Any, x: Any, weights: Any, group: int, sums: Any, squares: Any, largest: Any, checksums: Any
    ) -> Operation:
        arguments = (matrix, x, weights, sums, squares, largest, checksums)
        expression = f"row_sums<{c_type(matrix)}, {group}>"
        rows, columns = matrix.shape
        return self._operation(expression, grid_of_row_sums(rows, columns), arguments, matrix.size)

    def weigh_columns(self, sample: Any, x: Any, numbers: Any, group: int, weighted: Any) -> Operation:
        expression, blocks = f"weigh_columns<{c_type(sample)}, {group}>", -(-sample.shape[1] // group)
        return self._operation(expression, (blocks, 1), (sample, x, numbers, weighted), sample.size)

    def column_totals(self, matrix: Any, totals: Any) -> Operation:
        rows, columns = matrix.shape
        return self._operation("column_totals", grid_of_totals(rows, columns), (matrix, totals), matrix.size)

    def subtract_product(self, a: Any, y: Any, difference: Any, row_squares: Any, largest: Any) -> Operation:
        (rows, columns), depth = difference.shape, a.shape[1]
        grid = grid_of_subtraction(rows, columns, depth, a.itemsize)
        matrices, shared = (a, y, difference, row_squares, largest), shared_bytes(self._capability, a.itemsize)
        return self._operation(subtraction(a, y), grid, matrices, difference.size and depth, shared)

    def compare(
        self,
        differences: Any,
        subtracted: Any,
        squares: Any,
        row_squares: Any,
        column_squares: Any,
        numbers: Any,
        found: Any,
        summary: Any,
    ) -> Operation:
        arguments = (differences, subtracted, squares, row_squares, column_squares, numbers, found, summary)
        rows = len(differences)
        return self._operation("compare_sums", (-(-rows // _WARPS), 1), arguments, rows)

    def total_pieces(self, checksums: Any, largest: Any, pieces: Any, totals: Any) -> Operation:
        return self._operation("total_pieces", (len(pieces), _OF_PIECES[1]), (checksums, largest, pieces, totals), len(pieces))

    def told(self, matrix: Any) -> tuple[np.ndarray, Operation]:
        # Pinned, so that the copy is one of the stream's operations and nobody waits for it in particular.
        pinned = self._cupy.cuda.alloc_pinned_memory(max(1, matrix.nbytes))
        there = np.frombuffer(pinned, matrix.dtype, matrix.size).reshape(matrix.shape)

        def launch(stream: Any) -> None:
            if matrix.size:
                runtime = self._cupy.cuda.runtime
                runtime.memcpyAsync(there.ctypes.data, matrix.data.ptr, matrix.nbytes, runtime.memcpyDeviceToHost, stream.ptr)

        return there, _CudaOperation(self._enqueue, launch)

    def together(self, operations: Sequence[Operation], *, beside: bool) -> Operation:
        launches = [operation.launch for operation in operations if isinstance(operation, _CudaOperation)]
        assert len(launches) == len(operations), "these operations are another device's"
        return _CudaOperation(self._enqueue, Together(launches), "check beside" if beside else "check")

    def _operation(
        self, expression: str, grid: tuple[int, ...], matrices: Sequence[Any], work: int, shared: int = 0
    ) -> Operation:
        """A launch of this kernel; where there is no `work`, an operation that launches nothing. `shared`: bytes of a block's
        dynamic shared memory."""
        function, block = self._functions[expression]
        with self._context:
            if shared:
                prefer_shared_memory(function)  # as the kernels of products do, beside which it runs
                allow_shared_memory(function, shared)
            prepared = PreparedLaunch(function, grid, block, [*map(matrix_argument, matrices)], shared)

        def launch(stream: Any) -> None:
            if work:
                prepared(stream.ptr)

        return _CudaOperation(self._enqueue, launch)
