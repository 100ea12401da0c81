# SPDX-License-Identifier: MIT
"""The check's operations on a device: launches of kernels/check.cu, or the same by NumPy if a CPU stands in for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from typing import Any

import numpy as np

from hybrid.core.problem import is_aligned
from hybrid.devices.base import Device, KernelCall, place_of
from hybrid.devices.row_sums import (
    MOST_IN_TOTAL,
    NOT_INTEGRAL,
    Allowed,
    Sample,
    column_peaks,
    column_weights,
    mixed_total,
    row_checksums,
    sizes_of,
    sums_and_squares,
)
from hybrid.kernels.catalogue import ELEMENTS, MOST_BLOCKS_Y, OPERAND_SIZES, Launch, c_type, numbers_of
from hybrid.planning.schedule import ROWS_TOGETHER

SOURCE = "check.cu"
_WARPS = 4  # of a block with one row per warp
_SPAN, _ROWS_ADDED, _TILE = 1024, 32, 64  # as in check.cu
_BY_ROWS, _BY_COLUMNS, _BY_TILES, _BY_PIECES = (32, _WARPS), (32, 1), (128, 1), (512, 1)  # thread blocks
_BLOCKS_OF_PIECE = 8  # that add up the row checksums of a piece
# subtract_product divides each sum along k (split-k), at least _LEAST_DEPTH terms per block, for three reasons. Few tiles do not
# fill a large GPU, whose SMs hold three blocks, or two of float64. Products from remainders have such small errors that its own
# would look like faults: a block first adds up _ROUND terms at a time, and its error is least if the number of these partial sums
# is about that of blocks. And other kernels wait less for short blocks.
_MULTIPROCESSORS, _LEAST_DEPTH, _ROUND = 132, 256, 64


def compile_check(device: Device, dtype: str, operand_dtype: str, group: int) -> None:
    """Compile all kernels for C and operands of these types; nothing if a CPU stands in for a GPU. `group`: columns in a sum."""
    if device.name != "cuda":
        return
    shared = shared_bytes(device.capability, OPERAND_SIZES[operand_dtype])
    launches = []
    for expression, block in blocks_of(dtype, operand_dtype, group).items():
        subtracts = expression.startswith("subtract_product")
        launches.append(Launch(SOURCE, expression, (1, 1), block, shared * subtracts, prefers_shared=subtracts))
    device.compile_ahead(launches)


def check_matrices(device: Device, shapes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """New contiguous matrices of the device, uninitialized, by name: uint64 if the name begins with "checksum", "sample" or
    "weights", else float64."""
    types = {name: "uint64" if name.startswith(("checksum", "sample", "weights")) else "float64" for name in shapes}
    return {name: device.empty(shape, types[name]) for name, shape in shapes.items()}


def check_kernel(device: Device, name: str, *matrices: Any, group: int = 0) -> KernelCall:
    """A launch of a kernel of check.cu; see there for its arguments: matrices of `check_matrices`, and parts of A, B and C.
    `group`: columns in a sum; 0: `row_sums` adds only squares."""
    if device.name == "cuda":
        launch = launch_of_check(name, matrices, group, device.capability)
        return device.kernel(launch, matrices) if launch else lambda stream: None

    def call(stream: None) -> None:
        with np.errstate(all="ignore"):
            by_numpy(name, *matrices, group=group)

    return call


def blocks_of(dtype: str, operand_dtype: str, group: int) -> dict[str, tuple[int, int]]:
    """The kernels that check products of these types in groups of `group` columns, with their thread blocks."""
    of_c, element = ELEMENTS[dtype], ELEMENTS[operand_dtype]
    return {
        f"row_sums<{of_c}, {group}>": _BY_ROWS,
        f"row_sums<{element}, {group}>": _BY_ROWS,
        f"row_sums<{element}, 0>": _BY_ROWS,
        f"row_sums<{of_c}, 0>": _BY_ROWS,  # checksums of a caller's C in device memory
        f"weigh_columns<{element}, {group}>": (group, 1),
        "column_totals": _BY_COLUMNS,
        f"subtract_product<{element}, true>": _BY_TILES,
        f"subtract_product<{element}, false>": _BY_TILES,
        "compare_sums": _BY_ROWS,
        "total_pieces": _BY_PIECES,
    }


def launch_of_check(name: str, matrices: Sequence[Any], group: int, capability: int) -> Launch | None:
    """The launch of a kernel of check.cu on these matrices; None if there is nothing to do."""
    rows, columns = matrices[0].shape
    if name == "compare_sums":
        return Launch(SOURCE, name, (-(-rows // _WARPS), 1), _BY_ROWS, 0) if rows else None
    if name == "total_pieces":
        count = len(matrices[2])
        return Launch(SOURCE, name, (count, _BLOCKS_OF_PIECE), _BY_PIECES, 0) if count else None
    if not matrices[0].size:
        return None
    if name == "column_totals":
        return Launch(SOURCE, name, grid_of_totals(rows, columns), _BY_COLUMNS, 0)
    if name == "row_sums":
        return Launch(SOURCE, f"row_sums<{c_type(matrices[0])}, {group}>", grid_of_row_sums(rows, columns), _BY_ROWS, 0)
    if name == "weigh_columns":
        return Launch(SOURCE, f"weigh_columns<{c_type(matrices[0])}, {group}>", (-(-columns // group), 1), (group, 1), 0)
    assert name == "subtract_product", name
    if not matrices[1].size:
        return None
    item = matrices[0].itemsize
    grid = grid_of_subtraction(rows, matrices[1].shape[1], columns, item)
    return Launch(SOURCE, subtraction(*matrices[:2]), grid, _BY_TILES, shared_bytes(capability, item), prefers_shared=True)


def shared_bytes(capability: int, item_size: int) -> int:
    """Shared memory of a block of subtract_product, for operands of `item_size` bytes."""
    deep, padding = 32 if capability >= 80 else 16, 8 if item_size == 2 else 4
    return 2 * (8 * deep * (_TILE + 4) + item_size * _TILE * (deep + padding))


def subtraction(a: Any, y: Any) -> str:
    """The instance of subtract_product for these operands: vector loads if both are aligned."""
    aligned = is_aligned(*place_of(a), *place_of(y))
    return f"subtract_product<{c_type(a)}, {str(aligned).lower()}>"


def grid_of_row_sums(rows: int, columns: int) -> tuple[int, int, int]:
    """Of row_sums: y and z count the spans of a row, which may be more than CUDA allows blocks along y."""
    spans = -(-columns // _SPAN)
    return -(-rows // _WARPS), min(spans, MOST_BLOCKS_Y), -(-spans // MOST_BLOCKS_Y)


def grid_of_totals(rows: int, columns: int) -> tuple[int, int]:
    """Of column_totals. There may be more rows than CUDA allows blocks along y."""
    return -(-rows // _ROWS_ADDED), -(-columns // 32)


def grid_of_subtraction(rows: int, columns: int, depth: int, item_size: int) -> tuple[int, int]:
    """Of subtract_product, for operands of `item_size` bytes: x counts its tiles, row by row; y counts the blocks that divide
    each sum of `depth` terms."""
    tiles, enough = -(-rows // _TILE) * -(-columns // _TILE), _MULTIPROCESSORS * (2 if item_size == 8 else 3)
    to_fill, to_round_less = enough // max(1, tiles), 1 + isqrt(depth // (2 * _ROUND))
    return tiles, max(1, min(MOST_BLOCKS_Y, depth // _LEAST_DEPTH, max(to_fill, to_round_less)))


def by_numpy(name: str, *matrices: np.ndarray, group: int = 0) -> None:
    """Compute what a kernel of check.cu computes."""
    kernels: dict[str, Callable[..., None]] = {
        "row_sums": _row_sums,
        "weigh_columns": _weigh_columns,
        "column_totals": _column_totals,
        "subtract_product": _subtract_product,
        "compare_sums": _compare_sums,
        "total_pieces": _total_pieces,
    }
    kernels[name](*matrices, **({"group": group} if name in ("row_sums", "weigh_columns") else {}))


def _row_sums(
    matrix: np.ndarray,
    x: np.ndarray,
    weights: np.ndarray,
    sums: np.ndarray,
    squares: np.ndarray,
    largest: np.ndarray,
    checksums: np.ndarray,
    sample: np.ndarray,
    group: int,
) -> None:
    with np.errstate(all="ignore"):
        values = numbers_of(matrix).astype(np.float64, copy=False)
        if group:
            largest[:, 0] = _largest(values)
            sums[...], squares[...] = sums_and_squares(values, x[0], group)
        else:
            _add_squares(values, squares[:, 0], largest[:, 0])
    lines, first = sample[0].tolist()
    row_checksums(matrix, weights[0], checksums[:, 0], Sample(32 // lines.bit_count(), first))


def _weigh_columns(sample: np.ndarray, x: np.ndarray, numbers: np.ndarray, weighted: np.ndarray, group: int) -> None:
    weighted[...] = np.ldexp(x, column_weights(*column_peaks(sample, numbers[0, -1]), group)[0])


def _column_totals(matrix: np.ndarray, totals: np.ndarray) -> None:
    totals[0] += matrix.sum(axis=0)


def _subtract_product(a: np.ndarray, y: np.ndarray, difference: np.ndarray, row_squares: np.ndarray, largest: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        values = numbers_of(a).astype(np.float64, copy=False)
        difference[...] -= values @ y
        if len(row_squares):
            _add_squares(values, row_squares[:, 0], largest[:, 0])


def _compare_sums(
    differences: np.ndarray,
    subtracted: np.ndarray,
    squares: np.ndarray,
    row_squares: np.ndarray,
    column_squares: np.ndarray,
    numbers: np.ndarray,
    found: np.ndarray,
    summary: np.ndarray,
) -> None:
    variance, per_term, flushed, largest_square = numbers[0, :4].tolist()
    limits = np.array([flushed]), flushed, np.array([largest_square**0.5])
    allowed = Allowed(np.sqrt(column_squares), variance**0.5, per_term, *limits)
    sizes = sizes_of(differences + subtracted, squares, np.sqrt(row_squares), allowed)
    open_ = (sizes < 0).sum(axis=1)
    differences[...] = sizes = np.maximum(sizes, 0.0)
    results = np.minimum(sizes, MOST_IN_TOTAL).sum(axis=1), (sizes > 0).sum(axis=1), sizes.max(axis=1, initial=0.0)
    where = sizes.argmax(axis=1) if sizes.shape[1] else np.zeros(len(sizes))
    found[...] = np.stack([*results, where, open_], axis=1)
    summary[...] = summary_of(found)


def _total_pieces(checksums: np.ndarray, largest: np.ndarray, pieces: np.ndarray, totals: np.ndarray) -> None:
    for (first, count, number), of_piece in zip(pieces.tolist(), totals, strict=True):
        rows = slice(first, first + count)
        of_piece[0] = mixed_total(checksums[rows, 0], number)
        of_piece[1] = largest[rows].max(initial=0.0).view(np.uint64)


def _add_squares(values: np.ndarray, squares: np.ndarray, largest: np.ndarray) -> None:
    largest[:] = _largest(values)
    squares += np.einsum("ij,ij->i", values, values)


def _largest(values: np.ndarray) -> np.ndarray:
    """The largest magnitude of each row, or NOT_INTEGRAL."""
    if not values.size:
        return np.zeros(len(values))
    integral = (np.rint(values) == values).all(axis=1)
    return np.where(integral, np.abs(values).max(axis=1), NOT_INTEGRAL)


def summary_of(found: np.ndarray) -> np.ndarray:
    """The summary that `compare_sums` makes of each ROWS_TOGETHER rows, from its results by row."""
    if not len(found):
        return np.zeros((0, 4))
    starts = np.arange(0, len(found), ROWS_TOGETHER)
    columns = zip((np.add, np.add, np.maximum, np.add), (0, 1, 2, 4), strict=True)
    return np.stack([add.reduceat(found[:, column], starts) for add, column in columns], axis=1)
