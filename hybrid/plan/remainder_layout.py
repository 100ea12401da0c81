# SPDX-License-Identifier: MIT
"""Where the remainders of a rank's panels and of its part of C lie in a block of device memory, and the numbers that are kept of
each row of A and column of B."""

from __future__ import annotations

from hybrid.core.record import record
from hybrid.plan.arithmetic import UNIT, sampling

PAIR = 2 * UNIT  # lines that a cluster of thread blocks computes together, and columns of a tile
CHUNK_ROWS = 512  # rows of B of which a thread block of kernels/norms.cu adds up the norms
_ALIGNMENT = 256  # bytes; as CUDA's own allocations
MEASURES, MEASURE_BYTES = 5, 48  # the numbers that kernels/norms.cu finds for a line, and the bytes that they take
SUMMARY_WORDS = 6  # words of 64 bits in a summary; one is not used
GUARDS = 16  # tiles for which the guard may be asked before the first one is multiplied
_MOST_BYTES_OF_PRODUCTS = 512 << 20  # that C's remainders take at a time: more columns at once are no faster


@record
class OperandRemainders:
    """What is kept for all rows in a device's buffer of A, or all columns in its buffer of B, which are called lines here.

    Offsets are in bytes. Each of the regions has one entry for a line, or a row of them.
    """

    lines: int  # in all slots of the buffer
    inner: int
    in_chunks: bool  # k is added up in chunks
    slot_lines: int  # in a slot, padded
    planes: int  # offset of the packed remainders, a plane for each modulus
    plane_bytes: int
    magnitudes: int
    magnitude_bytes: int
    measures: int  # MEASURE_BYTES for each line and chunk of k
    numbers: int  # five rows: norm, largest magnitude, power of two, its inverse, and what brings the mean magnitude to 8
    steps: int  # of each line's magnitudes, relative to its norm: float32
    end: int

    @classmethod
    def starting_at(
        cls, offset: int, length: int, slots: int, inner: int, dtype: str, moduli: int, *, in_chunks: bool
    ) -> OperandRemainders:
        """The regions from byte `offset` on. `length`: lines in a slot; `inner`: the elements of a line."""
        slot_lines = -(-length // PAIR) * PAIR
        lines, units = slots * slot_lines, -(-inner // UNIT)
        plane_bytes, magnitude_bytes = lines * units * UNIT, lines * -(-units // sampling(inner, dtype)) * UNIT
        chunks = -(-inner // CHUNK_ROWS) if in_chunks else 1
        # A cluster reads two units of lines, so from an odd one at the end one more.
        sizes = (
            moduli * plane_bytes + UNIT * units * UNIT,
            magnitude_bytes + UNIT * -(-units // sampling(inner, dtype)) * UNIT,
            MEASURE_BYTES * lines * chunks,
            40 * lines,
            4 * lines,
        )
        offsets = [offset]
        for size in sizes:
            offsets.append(offsets[-1] + aligned(size))
        planes, magnitudes, measures, numbers, steps, end = offsets
        return cls(
            lines, inner, in_chunks, slot_lines, planes, plane_bytes, magnitudes, magnitude_bytes, measures, numbers, steps, end
        )


@record
class RemainderLayout:
    """The regions of both operands and of the products of remainders. `chunk`: columns of C whose remainders exist at a time."""

    moduli: int
    a: OperandRemainders
    b: OperandRemainders
    summaries: int  # SUMMARY_WORDS for each unit of lines, with which a panel may begin: A's, then B's
    least: int  # what the guard finds: least ratios, each of them 16 bytes behind the one before
    products: int
    chunk: int
    end: int


def remainder_layout(offset: int, rows: int, inner: int, width: int, slots: int, dtype: str, moduli: int) -> RemainderLayout:
    """The layout from byte `offset` on. `width`: the columns in a slot of B."""
    a = OperandRemainders.starting_at(offset, rows, 1, inner, dtype, moduli, in_chunks=False)
    b = OperandRemainders.starting_at(a.end, width, slots, inner, dtype, moduli, in_chunks=True)
    summaries = b.end
    least = summaries + 8 * SUMMARY_WORDS * ((a.lines + b.lines) // UNIT)
    products = aligned(least + 16 * GUARDS)
    most = max(PAIR, _MOST_BYTES_OF_PRODUCTS // (moduli * max(1, rows)) // PAIR * PAIR)
    chunk = min(-(-width // PAIR) * PAIR, most)
    return RemainderLayout(moduli, a, b, summaries, least, products, chunk, products + moduli * rows * chunk)


def aligned(size: int) -> int:
    """The size, rounded up so that what follows in a block of device memory is aligned as CUDA's own allocations are."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
