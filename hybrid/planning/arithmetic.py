# SPDX-License-Identifier: MIT
"""The arithmetic of a product: native, or from remainders (Ozaki scheme II on INT8 tensor cores); how much faster the second is,
and its device memory.

A's rows and B's columns are scaled by powers of two and rounded to integers. Their remainders modulo N pairwise coprime numbers
are bytes. By the Chinese remainder theorem N products of these bytes determine the product of the integers, if that lies within
±P/2, where P is the product of the moduli. So N INT8 products replace one in float64 or float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from hybrid.core.problem import Problem, record
from hybrid.planning.machine_model import H200, MachineModel

MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)  # as in kernels/moduli.cuh
UNIT = 128  # lines, and bytes along k, of a packed unit: kernels/packed.cuh
# For each type (units, n): from `units` units along k on, the guard reads every n-th only, which proves enough of usual numbers.
_SAMPLED = {"float64": (17, 8), "float32": (17, 3)}

INTEGER_BITS = {"float64": 63, "float32": 31}  # of the integers to which scaled elements are rounded
_EXACT_BITS = {"float64": 53, "float32": 24}  # every integer with up to this number of bits is a number of the type
_FOR_INTEGERS = (3, 5, 7)  # numbers of moduli for which there are kernels; 7 are enough for 53 bits
# Numbers of moduli, each with the least ratio Σ|a·b| / (|row|·|column|) that must be proved before it is as accurate as native
# arithmetic. With these bounds none of thousands of random matrices had a larger error
# (tests/contract/scripts/test_benchmarks.py).
_PROVED = {"float64": ((15, 2.0**-6),), "float32": ((7, 2.0**-3), (8, 2.0**-6))}
MOST_MODULI = {dtype: proved[-1][0] for dtype, proved in _PROVED.items()}  # and so planes of remainders, that a product may need
_FAST = {"float64": (14, 2.0**-2)}  # a number that is about as accurate, where the ratio is estimated to be at least this
_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24}  # the relative error of an element of C that is rounded once
_NO_OVERFLOW = {"float64": 2.0**1023, "float32": 2.0**127}
_UNDERFLOW = {"float64": 2.0**-1074, "float32": 2.0**-150}  # a subnormal element is rounded by no more
RECONSTRUCTION = 2.0**-68  # the largest error of kernels/reconstruct.cu before it rounds, relative to P


@record
class Arithmetic:
    """How the elements of C are computed."""

    moduli: int  # their number; 0: native arithmetic
    # Rows and columns are scaled and rounded. Else the elements are integers, and the result is exact; one modulus then means a
    # product of signed bytes themselves.
    scaled: bool = True

    @property
    def name(self) -> str:
        if not self.moduli:
            return "native"
        if self.scaled:
            return f"{self.moduli} moduli"
        return f"{self.moduli} moduli, exact" if self.moduli > 1 else "bytes, exact"

    def limit(self, inner: int) -> float:
        """The largest norm of a scaled line of `inner` elements before it is rounded; 0 where none is scaled.

        With norms of at most R = √((P-1)/2) a dot product stays within ±P/2 (Cauchy-Schwarz). Rounding adds at most √inner / 2 to
        a norm. The reconstruction may fail near ±P/2: it chooses the multiple of P that it subtracts by the high parts of the
        weights alone, which errs by less than 5e-8·P.
        """
        if not self.scaled:
            return 0.0
        return (math.sqrt((math.prod(MODULI[: self.moduli]) - 1) // 2) - math.sqrt(inner) / 2) * (1 - 1e-7)

    def error_bound(self, inner: int, dtype: str, ratio: float, least: float = math.inf) -> float:
        """The proved bound of an element's error relative to (|A|·|B|)ᵢⱼ, for scaled lines and an element that does not overflow.

        `ratio`: the least (|A|·|B|)ᵢⱼ / (norm of the row × norm of the column). `least`: the least product of these norms.

        Rounding moves each scaled element by at most a half, so a dot product by √inner/2 times the sum of both norms, plus
        inner/4 (Cauchy-Schwarz). A scaled norm is at least half of the limit, unless the elements have all the bits that they
        may. The reconstruction errs by a part of P, and rounds once to float64, and for float32 once more.
        """
        norm = min(self.limit(inner) / 2, 2.0 ** (INTEGER_BITS[dtype] - 2))
        moved = math.sqrt(inner) * norm + inner / 4 + math.prod(MODULI[: self.moduli]) * RECONSTRUCTION
        before = moved / norm**2 / ratio
        rounding = _ROUNDING["float64"] if dtype == "float64" else _ROUNDING["float32"] + 2 * _ROUNDING["float64"]
        return before + rounding * (1 + before) + _UNDERFLOW[dtype] / ratio / least


NATIVE, BYTES = Arithmetic(0, scaled=False), Arithmetic(1, scaled=False)

# For each arithmetic the number of elements of C, and the bound of their error relative to (|A|·|B|)ᵢⱼ; None: nothing is proved.
Computed = dict[Arithmetic, tuple[int, float | None]]


def joined(parts: Iterable[Computed]) -> Computed:
    """Several parts of C as one: for each arithmetic the sum of elements and the largest bound, None where any is None."""
    whole: Computed = {}
    for part in parts:
        for arithmetic, (elements, error) in part.items():
            before, worst = whole.get(arithmetic, (0, error))
            whole[arithmetic] = before + elements, None if error is None or worst is None else max(error, worst)
    return whole


@record
class Summary:
    """What is known of some rows of A, or columns of B."""

    largest: float  # magnitude
    integral: bool  # all elements are integers
    in_range: bool  # no NaN, no infinity, and float64 holds the squares
    least: float = math.inf  # norm of a row or column that is not 0; infinite where all are 0

    def joined(self, other: Summary) -> Summary:
        """What is known of the lines of both together."""
        integral, in_range = self.integral and other.integral, self.in_range and other.in_range
        return Summary(max(self.largest, other.largest), integral, in_range, min(self.least, other.least))


def sampling(inner: int, dtype: str) -> int:
    """n, where the guard reads every n-th unit along k."""
    units, every = _SAMPLED[dtype]
    return every if inner >= units * UNIT else 1


def expected(dtype: str, *, fast: bool) -> Arithmetic:
    """The arithmetic that is chosen for most matrices whose elements are not integers."""
    return Arithmetic(_FAST[dtype][0] if fast and dtype in _FAST else _PROVED[dtype][0][0])


def choose(
    a: Summary, b: Summary, inner: int, dtype: str, least_ratio: Callable[[], float], *, fast: bool
) -> tuple[Arithmetic, float | None]:
    """The arithmetic with the least work that is exact, or as accurate as native arithmetic; else native. And the bound of an
    element's error relative to (|A|·|B|)ᵢⱼ; None where nothing is proved: native arithmetic, and products that may overflow.

    `least_ratio`: computes a lower bound of the least Σ|a·b| / (|row|·|column|), by the units along k that the guard reads. It is
    called only where the choice depends on it.
    """
    if not (a.in_range and b.in_range):
        return NATIVE, None
    if a.integral and b.integral:
        bound = inner * int(a.largest) * int(b.largest)
        exact = bound < 1 << _EXACT_BITS[dtype]
        if max(a.largest, b.largest) < 128 and bound < 1 << 31:
            return BYTES, 0.0 if exact else _ROUNDING[dtype]
        if exact:  # the fewest moduli whose product has room for ±bound, and a bit more
            needed = 2 * bound + (bound >> 20)
            return Arithmetic(next(each for each in _FOR_INTEGERS if math.prod(MODULI[:each]) > needed), scaled=False), 0.0
    ratio = least_ratio()
    taken = next((Arithmetic(moduli) for moduli, least in _by_ratio(inner, dtype, fast=fast) if ratio >= least), NATIVE)
    if not taken.moduli or inner * a.largest * b.largest > _NO_OVERFLOW[dtype]:
        return taken, None
    return taken, taken.error_bound(inner, dtype, ratio, a.least * b.least)


def largest_error_bound(inner: int, dtype: str, *, fast: bool) -> float:
    """The largest error bound of any arithmetic but native that `choose` may take, whatever A and B are."""
    return max(Arithmetic(moduli).error_bound(inner, dtype, least) for moduli, least in _by_ratio(inner, dtype, fast=fast))


def _by_ratio(inner: int, dtype: str, *, fast: bool) -> Iterator[tuple[int, float]]:
    """Numbers of moduli, the fewest first, each with the least ratio from which on it is taken."""
    if fast and dtype in _FAST:
        moduli, estimated = _FAST[dtype]
        yield moduli, estimated / sampling(inner, dtype)
    yield from _PROVED[dtype]


class _Rates(NamedTuple):
    """A GPU's rates, a second."""

    bytes_multiplied: float  # operations of our kernels for bytes
    float64: float  # operations of native kernels
    float32: float
    memory: float  # bytes of its memory that are read or written


# Of the peak in INT8: 9.0 measured on an H200, where the kernel of the others reaches 0.4. With little float64: published are
# 17.9 (RTX 4090 mobile) and 20.7 (RTX 5080) times native speed, which with 15 moduli is 0.52 and 0.6 of the peak.
PART_OF_PEAK = {75: 0.4, 80: 0.4, 86: 0.55, 89: 0.55, 90: 0.7, 100: 0.4, 120: 0.55}
# By compute capability. 9.0 was measured on an H200; the others are from the data sheets of a T4, A100, A10, L4 and RTX 5090.
_RATES = {
    75: _Rates(PART_OF_PEAK[75] * 1.3e14, 2.5e11, 8.1e12, 2.6e11),
    80: _Rates(PART_OF_PEAK[80] * 6.24e14, 1.8e13, 1.8e13, 1.3e12),
    90: _Rates(1.39e15, 5.6e13, 5.2e13, 3.5e12),
    86: _Rates(PART_OF_PEAK[86] * 2.5e14, 4.9e11, 3.1e13, 5e11),
    89: _Rates(PART_OF_PEAK[89] * 2.42e14, 4.7e11, 3.0e13, 2.5e11),
    120: _Rates(PART_OF_PEAK[120] * 8.38e14, 1.6e12, 1.05e14, 1.4e12),
}
_OVERHEAD = 3e-4  # seconds: launches, and the host's waits for what the guard found


def native_speed(capability: int, model: MachineModel, dtype: str) -> float | None:
    """The speed of native kernels on GPUs of this compute capability, relative to those of the machine model; None: not known.

    It is 1 where the model was measured on these GPUs. Where it is the default, an H200's, the table of rates tells.
    """
    if model != H200:
        return 1.0
    return getattr(_RATES[capability], dtype) / getattr(_RATES[90], dtype) if capability in _RATES else None


def gain_of_remainders(capability: int, model: MachineModel, problem: Problem, rows: int, *, fast: bool) -> float | None:
    """The time of native kernels divided by that of remainders, for a row block of `rows` rows, by the doctor's rates or those of
    this compute capability; None where neither is known."""
    if model.byte_multiply_adds_per_byte == H200.byte_multiply_adds_per_byte:
        if capability not in _RATES:
            return None
        rates = _RATES[capability]
    else:
        operations = 2 * model.link_bytes_per_second
        rates = _Rates(
            operations * model.byte_multiply_adds_per_byte,
            operations * model.float64_multiply_adds_per_byte,
            operations * model.float32_multiply_adds_per_byte,
            model.link_bytes_per_second * model.memory_bytes_per_byte,
        )
    n, l, m, item, moduli = rows, problem.l, problem.m, problem.item_size, expected(problem.dtype, fast=fast).moduli
    if not n:
        return 0.0
    native = 2 * n * l * m / getattr(rates, problem.dtype)
    parts = 1 + problem.is_complex
    planes = moduli * (3 if problem.is_complex else 1)
    in_pairs = 2.0  # of tiles: kernels compute whole ones
    for length in (n, l // parts, m // parts):
        in_pairs *= -(-length // PAIR) * PAIR
    moved = 2 * item * (n * l + l * m) + planes * (n * l + l * m // parts) // parts + (item + 2 * planes // parts) * n * m
    return native / (_OVERHEAD + planes * in_pairs / rates.bytes_multiplied + moved / rates.memory)


# The memory that remainders take on a device.
PAIR = 2 * UNIT  # lines that a cluster of thread blocks computes together, and columns of a tile
CHUNK_ROWS = 512  # rows of B whose norms a thread block of kernels/norms.cu adds up
_ALIGNMENT = 256  # bytes; as CUDA's own allocations
MEASURES, MEASURE_BYTES = 5, 48  # the numbers that kernels/norms.cu finds for a line, and the bytes that they take
SUMMARY_WORDS = 6  # words of 64 bits in a summary; one is not used
GUARDS = 16  # tiles for which the guard may be asked before the first one is multiplied
_MOST_BYTES_OF_PRODUCTS = 512 << 20  # that C's remainders take at a time: more columns at once are no faster


@record
class OperandRemainders:
    """The regions for the lines of a device's buffer: all rows of A, or all columns of B. Offsets are in bytes."""

    lines: int  # in all slots of the buffer
    inner: int  # elements of a line
    in_chunks: bool  # k is added up in chunks
    slot_lines: int  # in a slot, padded
    planes: int  # offset of the packed remainders, a plane for each modulus, of complex numbers three
    magnitudes: int
    measures: int  # MEASURE_BYTES for each line and chunk of k
    numbers: int  # five rows: norm, largest magnitude, power of two, its inverse, and what brings the mean magnitude to 8
    steps: int  # of each line's magnitudes, relative to its norm: float32
    end: int


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


def remainder_layout(offset: int, problem: Problem, rows: int, width: int, slots: int, moduli: int) -> RemainderLayout:
    """The layout from byte `offset` on, of `rows` rows of A. `width`: the columns in a slot of B."""
    inner, dtype, parts = problem.l, problem.dtype, 1 + problem.is_complex
    planes_of_all = 3 * moduli if problem.is_complex else moduli

    def of_operand(offset: int, length: int, slots: int, *, in_chunks: bool) -> OperandRemainders:
        slot_lines, units = -(-length // PAIR) * PAIR, -(-inner // UNIT)
        lines, sampled = slots * slot_lines, -(-units // sampling(inner, dtype))
        packed_units, packed_lines = -(-inner // parts // UNIT), lines // parts if in_chunks else lines
        # A cluster reads two units of lines, so from an odd one at the end one more.
        planes = max(lines * units, planes_of_all * packed_lines * packed_units) * UNIT + UNIT * units * UNIT
        magnitudes = (lines + UNIT) * sampled * UNIT
        measures = MEASURE_BYTES * lines * (-(-inner // CHUNK_ROWS) if in_chunks else 1)
        regions = accumulate(map(aligned, (planes, magnitudes, measures, 40 * lines, 4 * lines)), initial=offset)
        return OperandRemainders(lines, inner, in_chunks, slot_lines, *regions)

    a = of_operand(offset, rows, 1, in_chunks=False)
    b = of_operand(a.end, width, slots, in_chunks=True)
    least = b.end + 8 * SUMMARY_WORDS * ((a.lines + b.lines) // UNIT)
    products = aligned(least + 16 * GUARDS)
    pair, bytes_of_column = PAIR * parts, planes_of_all * rows / parts
    most = max(pair, int(_MOST_BYTES_OF_PRODUCTS / max(1, bytes_of_column)) // pair * pair)
    chunk = min(-(-width // pair) * pair, most)
    return RemainderLayout(moduli, a, b, b.end, least, products, chunk, products + int(bytes_of_column * chunk))


def aligned(size: int) -> int:
    """The size, rounded up so that what follows in a block of device memory is aligned as CUDA's own allocations are."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
