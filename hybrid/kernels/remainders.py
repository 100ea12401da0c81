# SPDX-License-Identifier: MIT
"""The launches of the kernels for products from remainders (Ozaki scheme II): instances, grids and thread blocks."""

from __future__ import annotations

from typing import Protocol

from hybrid.kernels.catalogue import Launch

LEAST_FOR_BYTES = 75  # compute capability, times ten, that has mma.sync for bytes
MOST_TERMS = 65535 * 128  # of a sum: its units along k are thread blocks in y, whose number CUDA limits
_HOPPER = 90
# Compute capabilities with float64 tensor cores, or half as many units for it as for float32. Others have a 32nd or a 64th.
_MUCH_FLOAT64 = (60, 70, 80, 90, 100)
_THREADS, _WARPS = 256, 8
_CHUNK, _COLUMNS = 512, 32  # norms.cu: rows and columns of B that a block adds up; packed.cuh: columns that a block packs
_MMA, _STAGE, _STAGES, _STAGES_OF_75 = 128, (128 + 128) * 128, 3, 2  # products_mma.cu: tile, bytes of a stage, stages
_WGMMA = (256, 4 * 3 * 128 * 128)  # products.cu: a cluster's tile, bytes of a block's stages
_GUARD = (64, 2 * (64 + 64) * 128)


class Gpu(Protocol):
    """What a launch depends on: a GPU's compute capability, times ten, and its number of SMs."""

    capability: int
    multiprocessors: int


def row_measuring(element: str, rows: int, inner: int) -> Launch:
    return _launch("norms.cu", f"measure_rows<{element}>", (rows, 1))


def column_measuring(element: str, inner: int, columns: int) -> Launch:
    return _launch("norms.cu", f"measure_columns<{element}>", (_pieces(columns, _COLUMNS), _pieces(inner, _CHUNK)))


def line_kernel(name: str, lines: int) -> Launch:
    """`summarize` or `scale_lines`."""
    return _launch("norms.cu", name, (_pieces(lines, _THREADS), 1))


def telling() -> Launch:
    return Launch("norms.cu", "tell", (1, 1), (32, 1), 0, prefers_shared=True)


def magnitude_packing(operand: str, element: str, lines: int, units: int) -> Launch:
    return _packing("guard.cu", "magnitudes", operand, element, lines, units)


def remainder_packing(
    operand: str, element: str, moduli: int, lines: int, units: int, *, is_complex: bool = False, conjugates: bool = False
) -> Launch:
    arguments = f"{element}, {moduli}" + ", 2" * is_complex + ", true" * conjugates
    return _packing("remainders.cu", "remainders", operand, arguments, lines, units)


def guarding(gpu: Gpu, rows: int, columns: int) -> Launch:
    if gpu.capability == _HOPPER:
        return _of_clusters(gpu, "least_ratio", rows, columns, 1)
    tile, shared = _GUARD
    tiles = _pieces(rows, tile) * _pieces(columns, tile)
    return Launch("guard.cu", "least_ratio", (tiles, 1), (128, 1), shared, prefers_shared=True)


def products_of(gpu: Gpu, element: str, rows: int, columns: int, moduli: int) -> Launch:
    """The products modulo each of the moduli; or, with an element type (of C), one product of signed bytes."""
    expression = f"byte_products<{element}>" if element else "products"
    if gpu.capability == _HOPPER:
        return _of_clusters(gpu, expression, rows, columns, moduli)
    blocks, stages = moduli * _pieces(rows, _MMA) * _pieces(columns, _MMA), _STAGES if gpu.capability >= 80 else _STAGES_OF_75
    return Launch("products_mma.cu", expression, (blocks, 1), (128, 1), stages * _STAGE, prefers_shared=True)


def _of_clusters(gpu: Gpu, expression: str, rows: int, columns: int, moduli: int) -> Launch:
    tile, shared = _WGMMA
    clusters = min(gpu.multiprocessors // 2, moduli * _pieces(rows, tile) * _pieces(columns, tile))
    return Launch("products.cu", expression, (2 * clusters, 1), (288, 1), shared, "sm_90a", 2, prefers_shared=True)


def lacks_float64(capability: int) -> bool:
    """Whether float64 is so slow that C is put together by integers."""
    return capability not in _MUCH_FLOAT64


def reconstruction(element: str, moduli: int, rows: int, columns: int, *, by_integers: bool, is_complex: bool = False) -> Launch:
    """`columns`: of numbers, complex ones where C `is_complex`."""
    name, parts = "reconstruct_by_integers" if by_integers else "reconstruct", ", 2" * is_complex
    return _launch("reconstruct.cu", f"{name}<{element}, {moduli}{parts}>", (rows, _pieces(columns, 4 * _THREADS)))


def usual_launches(gpu: Gpu, element: str, moduli: int, *, by_integers: bool, is_complex: bool = False) -> list[Launch]:
    """A launch of each kernel of usual products with this number of moduli, to load them together."""
    packings = [magnitude_packing(side, element, 1, 1) for side in "AB"]
    packings += [remainder_packing(side, element, 1, 1, 1) for side in "AB"]
    packings += [remainder_packing(side, element, moduli, 1, 1, is_complex=is_complex) for side in "AB"]
    products = [products_of(gpu, "", 1, 1, moduli), products_of(gpu, element, 1, 1, 1)]
    lines = [line_kernel(name, 1) for name in ("summarize", "scale_lines")]
    measuring = [row_measuring(element, 1, 1), column_measuring(element, 1, 1)]
    back = reconstruction(element, moduli, 1, 1, by_integers=by_integers, is_complex=is_complex)
    return [*measuring, *lines, telling(), guarding(gpu, 1, 1), *packings, *products, back]


def _packing(source: str, what: str, operand: str, arguments: str, lines: int, units: int) -> Launch:
    side, at_once = ("rows", _WARPS) if operand == "A" else ("columns", _COLUMNS)
    return _launch(source, f"{what}_of_{side}<{arguments}>", (_pieces(lines, at_once), units))


def _launch(source: str, expression: str, grid: tuple[int, int]) -> Launch:
    return Launch(source, expression, grid, (_THREADS, 1), 0, prefers_shared=True)


def _pieces(whole: int, piece: int) -> int:
    return -(-whole // piece)
