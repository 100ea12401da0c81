# SPDX-License-Identifier: MIT
"""The arithmetic of a product: native, or from remainders (Ozaki scheme II on INT8 tensor cores), with the expected speedup and
the device memory of the latter.

A's rows and B's columns are scaled by powers of two and rounded to integers. Their remainders modulo N pairwise coprime moduli
fit into bytes. By the Chinese remainder theorem, N products of these bytes determine the product of the integers, if it lies
within ±P/2, with P the product of the moduli. So N INT8 products replace one in float64 or float32.
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
# By dtype (units, n): from `units` units along k on, the guard reads only every n-th, which suffices for usual matrices.
_SAMPLED = {"float64": (17, 8), "float32": (17, 3)}

INTEGER_BITS = {"float64": 63, "float32": 31}  # of the integers to which scaled elements are rounded
EXACT_BITS = {"float32": 24, "float64": 53}  # integers up to 2 to this power are exact in the dtype
_FOR_INTEGERS = (3, 5, 7)  # numbers of moduli that have kernels; 7 suffice for 53 bits
# Numbers of moduli, each with the smallest proved ratio Σ|a·b| / (|row|·|column|) that makes it as accurate as native arithmetic.
# With these bounds none of thousands of random matrices had a larger error (tests/contract/scripts/test_benchmarks.py).
_PROVED = {"float64": ((15, 2.0**-6),), "float32": ((7, 2.0**-3), (8, 2.0**-6))}
MOST_MODULI = {dtype: proved[-1][0] for dtype, proved in _PROVED.items()}  # the most planes of remainders that a product may need
_FAST = {"float64": (14, 2.0**-2)}  # about as accurate, if the ratio is estimated to be at least this
_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24}  # relative error of one rounding
_NO_OVERFLOW = {"float64": 2.0**1023, "float32": 2.0**127}
_UNDERFLOW = {"float64": 2.0**-1074, "float32": 2.0**-150}  # largest rounding error of a subnormal element
RECONSTRUCTION = 2.0**-68  # largest error of kernels/reconstruct.cu before it rounds, relative to P


@record
class Arithmetic:
    """How the elements of C are computed."""

    moduli: int  # their number; 0: native arithmetic
    # Whether lines are scaled and rounded. Otherwise the elements are integers and the result is exact; one modulus then means a
    # direct product of signed bytes.
    scaled: bool = True

    @property
    def name(self) -> str:
        if not self.moduli:
            return "native"
        if self.scaled:
            return f"{self.moduli} moduli"
        return f"{self.moduli} moduli, exact" if self.moduli > 1 else "bytes, exact"

    def limit(self, inner: int) -> float:
        """The largest norm of a scaled line of `inner` elements before rounding; 0 without scaling.

        With norms up to R = √((P-1)/2) a dot product stays within ±P/2 (Cauchy-Schwarz). Rounding adds up to √inner / 2 to a
        norm. The reconstruction may fail near ±P/2: it chooses the multiple of P to subtract from the high parts of the weights
        alone, with an error below 5e-8·P.
        """
        if not self.scaled:
            return 0.0
        return (math.sqrt((math.prod(MODULI[: self.moduli]) - 1) // 2) - math.sqrt(inner) / 2) * (1 - 1e-7)

    def error_bound(self, inner: int, dtype: str, ratio: float, least: float = math.inf) -> float:
        """The proved error bound of an element relative to (|A|·|B|)ᵢⱼ, for scaled lines and an element that does not overflow.

        `ratio`: the smallest (|A|·|B|)ᵢⱼ / (norm of the row × norm of the column). `least`: the smallest product of these norms.

        Rounding changes each scaled element by at most a half, hence a dot product by √inner/2 times the sum of both norms, plus
        inner/4 (Cauchy-Schwarz). A scaled norm is at least half the limit, unless elements use all available bits. The
        reconstruction errs by a fraction of P, and rounds once to float64, and for float32 once more.
        """
        norm = min(self.limit(inner) / 2, 2.0 ** (INTEGER_BITS[dtype] - 2))
        moved = math.sqrt(inner) * norm + inner / 4 + math.prod(MODULI[: self.moduli]) * RECONSTRUCTION
        before = moved / norm**2 / ratio
        rounding = _ROUNDING["float64"] if dtype == "float64" else _ROUNDING["float32"] + 2 * _ROUNDING["float64"]
        return before + rounding * (1 + before) + _UNDERFLOW[dtype] / ratio / least


NATIVE, BYTES = Arithmetic(0, scaled=False), Arithmetic(1, scaled=False)

# For each arithmetic, the number of elements of C, and their error bound relative to (|A|·|B|)ᵢⱼ; None: not proved.
Computed = dict[Arithmetic, tuple[int, float | None]]


def joined(parts: Iterable[Computed]) -> Computed:
    """Several parts of C as one: for each arithmetic the sum of elements and the largest bound, None if any is None."""
    whole: Computed = {}
    for part in parts:
        for arithmetic, (elements, error) in part.items():
            before, worst = whole.get(arithmetic, (0, error))
            whole[arithmetic] = before + elements, None if error is None or worst is None else max(error, worst)
    return whole


@record
class Summary:
    """Properties of some rows of A, or columns of B."""

    largest: float  # magnitude
    integral: bool  # all elements are integers
    in_range: bool  # no NaN, no infinity, and float64 holds the squares
    least: float = math.inf  # smallest nonzero norm of a row or column; infinite if all are 0

    def joined(self, other: Summary) -> Summary:
        integral, in_range = self.integral and other.integral, self.in_range and other.in_range
        return Summary(max(self.largest, other.largest), integral, in_range, min(self.least, other.least))


def sampling(inner: int, dtype: str) -> int:
    """n, if the guard reads every n-th unit along k."""
    units, every = _SAMPLED[dtype]
    return every if inner >= units * UNIT else 1


def expected(dtype: str, *, fast: bool) -> Arithmetic:
    """The arithmetic chosen for most matrices of non-integers."""
    return Arithmetic(_FAST[dtype][0] if fast and dtype in _FAST else _PROVED[dtype][0][0])


def choose(
    a: Summary, b: Summary, inner: int, dtype: str, least_ratio: Callable[[], float], *, fast: bool
) -> tuple[Arithmetic, float | None]:
    """The cheapest arithmetic that is exact or as accurate as native arithmetic, else native; and an element's error bound
    relative to (|A|·|B|)ᵢⱼ, None if not proved: for native arithmetic, and for products that may overflow.

    `least_ratio`: computes a lower bound of the smallest Σ|a·b| / (|row|·|column|) from the units along k that the guard reads;
    called only if the choice depends on it.
    """
    if not (a.in_range and b.in_range):
        return NATIVE, None
    if a.integral and b.integral:
        bound = inner * int(a.largest) * int(b.largest)
        exact = bound < 1 << EXACT_BITS[dtype]
        if max(a.largest, b.largest) < 128 and bound < 1 << 31:
            return BYTES, 0.0 if exact else _ROUNDING[dtype]
        if exact:  # the fewest moduli whose product exceeds 2·bound by a small margin
            needed = 2 * bound + (bound >> 20)
            return Arithmetic(next(each for each in _FOR_INTEGERS if math.prod(MODULI[:each]) > needed), scaled=False), 0.0
    ratio = least_ratio()
    taken = next((Arithmetic(moduli) for moduli, least in _by_ratio(inner, dtype, fast=fast) if ratio >= least), NATIVE)
    if not taken.moduli or inner * a.largest * b.largest > _NO_OVERFLOW[dtype]:
        return taken, None
    return taken, taken.error_bound(inner, dtype, ratio, a.least * b.least)


def largest_error_bound(inner: int, dtype: str, *, fast: bool) -> float:
    """The largest error bound of any emulated arithmetic that `choose` may take, for any A and B."""
    return max(Arithmetic(moduli).error_bound(inner, dtype, least) for moduli, least in _by_ratio(inner, dtype, fast=fast))


def _by_ratio(inner: int, dtype: str, *, fast: bool) -> Iterator[tuple[int, float]]:
    """Numbers of moduli, fewest first, each with the smallest ratio for which it is taken."""
    if fast and dtype in _FAST:
        moduli, estimated = _FAST[dtype]
        yield moduli, estimated / sampling(inner, dtype)
    yield from _PROVED[dtype]


class _Rates(NamedTuple):
    """A GPU's rates, a second."""

    bytes_multiplied: float  # operations of our INT8 kernels
    float64: float  # operations of native kernels
    float32: float
    memory: float  # bytes read or written in device memory


# Fraction of the INT8 peak. 9.0: measured on an H200, where the kernel for other capabilities reaches 0.4. GPUs with little
# float64: published speedups over native of 17.9 (RTX 4090 mobile) and 20.7 (RTX 5080), which with 15 moduli mean 0.52 and 0.6 of
# the peak.
PART_OF_PEAK = {75: 0.4, 80: 0.4, 86: 0.55, 89: 0.55, 90: 0.7, 100: 0.4, 120: 0.55}
# By compute capability. 9.0: measured on an H200; others: data sheets of T4, A100, A10, L4 and RTX 5090.
_RATES = {
    75: _Rates(PART_OF_PEAK[75] * 1.3e14, 2.5e11, 8.1e12, 2.6e11),
    80: _Rates(PART_OF_PEAK[80] * 6.24e14, 1.8e13, 1.8e13, 1.3e12),
    90: _Rates(1.39e15, 5.6e13, 5.2e13, 3.5e12),
    86: _Rates(PART_OF_PEAK[86] * 2.5e14, 4.9e11, 3.1e13, 5e11),
    89: _Rates(PART_OF_PEAK[89] * 2.42e14, 4.7e11, 3.0e13, 2.5e11),
    120: _Rates(PART_OF_PEAK[120] * 8.38e14, 1.6e12, 1.05e14, 1.4e12),
}
_OVERHEAD = 3e-4  # seconds for launches and the host's waits for the guard


def native_speed(capability: int, model: MachineModel, dtype: str) -> float | None:
    """The speed of native kernels on GPUs of this compute capability, relative to the machine model's; None: unknown. 1 for a
    measured model; for the default, an H200's, from the table of rates."""
    if model != H200:
        return 1.0
    return getattr(_RATES[capability], dtype) / getattr(_RATES[90], dtype) if capability in _RATES else None


def gain_of_remainders(capability: int, model: MachineModel, problem: Problem, rows: int, *, fast: bool) -> float | None:
    """The speedup of remainders over native kernels for a row block of `rows` rows, from the doctor's rates or those of this
    compute capability; None if neither is known."""
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
    in_pairs = 2.0  # operations of whole tiles, which kernels compute
    for length in (n, l // parts, m // parts):
        in_pairs *= -(-length // PAIR) * PAIR
    moved = 2 * item * (n * l + l * m) + planes * (n * l + l * m // parts) // parts + (item + 2 * planes // parts) * n * m
    return native / (_OVERHEAD + planes * in_pairs / rates.bytes_multiplied + moved / rates.memory)


# Device memory of remainders.
PAIR = 2 * UNIT  # lines that a cluster of thread blocks computes together, and columns of a tile
CHUNK_ROWS = 512  # rows of B per thread block of kernels/norms.cu
_ALIGNMENT = 256  # bytes, as for CUDA's own allocations
MEASURES, MEASURE_BYTES = 4, 32  # numbers that kernels/norms.cu computes for a line, and their bytes
SUMMARY_WORDS = 4  # 64-bit words in a summary
GUARDS = 16  # most tiles with a pending query of the guard
_MOST_BYTES_OF_PRODUCTS = 512 << 20  # of C's remainders at a time: more columns at once are no faster


@record
class OperandRemainders:
    """Memory regions for the lines of one operand's buffer: rows of A, or columns of B. Offsets are in bytes."""

    lines: int  # in all slots of the buffer
    inner: int  # elements of a line
    in_chunks: bool  # k is summed in chunks
    slot_lines: int  # in a slot, padded
    planes: int  # offset of the packed remainders: one plane for each modulus, three for complex numbers
    magnitudes: int
    measures: int  # MEASURE_BYTES for each line and chunk of k
    numbers: int  # five rows: norm, largest magnitude, power of two, its inverse, and the factor for a mean magnitude of 8
    steps: int  # quantization step of each line's magnitudes, relative to its norm: float32
    end: int


@record
class RemainderLayout:
    """Memory regions of both operands and of the products of remainders. `chunk`: columns of C with remainders at a time."""

    moduli: int
    a: OperandRemainders
    b: OperandRemainders
    summaries: int  # SUMMARY_WORDS for each unit of lines at which a panel may begin: A's, then B's
    least: int  # the guard's results: smallest ratios, 16 bytes apart
    products: int
    chunk: int
    end: int


def remainder_layout(offset: int, problem: Problem, rows: int, width: int, slots: int, moduli: int) -> RemainderLayout:
    """The layout from byte `offset` on, for `rows` rows of A. `width`: columns in a slot of B."""
    inner, dtype, parts = problem.l, problem.dtype, 1 + problem.is_complex
    planes_of_all = 3 * moduli if problem.is_complex else moduli

    def of_operand(offset: int, length: int, slots: int, *, in_chunks: bool) -> OperandRemainders:
        slot_lines, units = -(-length // PAIR) * PAIR, -(-inner // UNIT)
        lines, sampled = slots * slot_lines, -(-units // sampling(inner, dtype))
        packed_units, packed_lines = -(-inner // parts // UNIT), lines // parts if in_chunks else lines
        # A cluster reads two units of lines, so one extra unit behind an odd number of them.
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
    """The size rounded up to CUDA's allocation alignment."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
