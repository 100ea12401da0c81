# SPDX-License-Identifier: MIT
"""Exact models, in integers, of what the kernels for products from remainders compute, and of how their bytes are packed."""

from collections.abc import Sequence
from fractions import Fraction
from math import prod

import numpy as np

from hybrid.planning.arithmetic import MODULI, UNIT

PIECE = 16  # bytes that the swizzle moves together
TOGETHER = 64  # lines of B that are interleaved


def integers(matrix: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Each element times its scale, rounded to the nearest integer, ties to even. They must fit 64 bits."""
    wide = np.broadcast_to(scales, matrix.shape)
    pairs = zip(matrix.ravel().tolist(), wide.ravel().tolist(), strict=True)
    return np.array([round(Fraction(x) * Fraction(scale)) for x, scale in pairs], np.int64).reshape(matrix.shape)


def remainders(numbers: np.ndarray, count: int) -> np.ndarray:
    """A plane of bytes for each of the first `count` moduli."""
    return np.stack([numbers % p for p in MODULI[:count]]).astype(np.uint8)


def products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of planes of remainders: the sums of products modulo each modulus."""
    sums = [x.astype(np.int64) @ y.astype(np.int64) % p for x, y, p in zip(a, b, MODULI, strict=False)]
    return np.stack(sums).astype(np.uint8)


def weight(i: int, count: int) -> int:
    """1 modulo the i-th of so many moduli, 0 modulo the others."""
    others = prod(MODULI[:count]) // MODULI[i]
    return others * pow(others, -1, MODULI[i])


def unpacked(plane: np.ndarray, units: int, *, interleaved: bool) -> np.ndarray:
    """The lines of a packed plane, each of units · UNIT bytes along k, as kernels/packed.cuh describes them."""
    pieces = plane.reshape(-1, units, UNIT, UNIT // PIECE, PIECE).swapaxes(1, 2).reshape(-1, units, UNIT // PIECE, PIECE)
    lines = np.arange(len(pieces))
    swizzle = np.arange(UNIT // PIECE)[None, :] ^ lines[:, None] % 8
    in_order = np.take_along_axis(pieces, swizzle[:, None, :, None], axis=2).reshape(len(lines), units * UNIT)
    if not interleaved:
        return in_order
    # Of every 64 lines, lane t of a matrix instruction gets lines 8j + 2t and 8j + 2t + 1: columns 16t + 2j and 16t + 2j + 1.
    of_columns = np.arange(TOGETHER).reshape(8, 4, 2).swapaxes(0, 1).ravel()
    return in_order.reshape(-1, TOGETHER, units * UNIT)[:, of_columns].reshape(in_order.shape)


def packed(lines: np.ndarray, *, interleaved: bool, filler: int = 0xAA) -> np.ndarray:
    """A plane that holds these lines of bytes; `filler` where there is no line, zeros beyond the lines' ends."""
    units, groups = -(-lines.shape[1] // UNIT), -(-len(lines) // UNIT)
    plane = np.full(groups * units * UNIT * UNIT, filler, np.uint8)
    places = unpacked(np.arange(plane.size), units, interleaved=interleaved)[: len(lines)]
    plane[places] = 0
    plane[places[:, : lines.shape[1]]] = lines
    return plane


def scaled_well(numbers: np.ndarray, limit: float, bits: int) -> np.ndarray:
    """Of each line (norm, largest magnitude, scale, inverse, ...): is its scale the largest power of two that it may have?"""
    return np.array([_scaled_well(list(map(Fraction, line[:4])), Fraction(limit), bits) for line in numbers.T.tolist()])


def _scaled_well(line: Sequence[Fraction], limit: Fraction, bits: int) -> bool:
    norm, most, scale, inverse, *_ = line
    if not most or not limit:
        return scale == inverse == 1

    def fits(scale: Fraction) -> bool:
        return norm * scale < limit and most * scale < 2 ** (bits - 1)

    power = scale.numerator & (scale.numerator - 1) == 0 and scale.denominator & (scale.denominator - 1) == 0
    return power and scale * inverse == 1 and fits(scale) and not fits(2 * scale)


def fingerprint(lines: np.ndarray) -> int:
    """As norms.cu has it of a matrix with these lines."""
    bits, of_line = lines.astype(np.float64).view(np.uint64), _weights(lines.shape[1])
    with np.errstate(over="ignore"):
        of_high = (of_line * np.uint32(0xC2B2AE3D)).astype(np.uint64)
        sums = ((bits & np.uint64(0xFFFFFFFF)) * of_line + (bits >> np.uint64(32)) * of_high).sum(axis=1, dtype=np.uint64)
        return int((sums * (np.uint64(2) * _weights(len(lines)).astype(np.uint64) + np.uint64(1))).sum(dtype=np.uint64))


def _weights(count: int) -> np.ndarray:
    """Of the places of a line, or of the lines."""
    with np.errstate(over="ignore"):
        mixed = (np.arange(count, dtype=np.uint32) + np.uint32(1)) * np.uint32(0x9E3779B1)
        mixed = (mixed ^ mixed >> np.uint32(15)) * np.uint32(0x85EBCA77)
    return mixed ^ mixed >> np.uint32(13)


def sampled(inner: int, every: int) -> np.ndarray:
    """Which elements along k the guard looks at, if it does at one of so many units."""
    there = -(-inner // UNIT)
    units = [min(unit * every + (unit * 5 + 3) % every, there - 1) for unit in range(-(-there // every))]
    return np.isin(np.arange(inner) // UNIT, units)


def least_ratio(a: np.ndarray, b: np.ndarray, seen: np.ndarray | None = None) -> float:
    """The least Σ|a·b| / (|row|·|column|), of rows and columns that are not zero. `seen`: the sums are over this part of k."""
    wide_a, wide_b = (np.abs(matrix).astype(np.longdouble) for matrix in (a, b))
    rows, columns = (np.sqrt((matrix**2).sum(axis=axis)) for matrix, axis in ((wide_a, 1), (wide_b, 0)))
    there = np.outer(rows > 0, columns > 0)
    part = slice(None) if seen is None else seen
    ratios = (wide_a[:, part] @ wide_b[part])[there] / np.outer(rows, columns)[there]
    return float(ratios.min())
