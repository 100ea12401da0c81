# SPDX-License-Identifier: MIT
"""In which arithmetic a product is computed: natively, or from remainders modulo several numbers (Ozaki scheme II).

A's rows and B's columns are multiplied by powers of two and rounded to integers. Products of their remainders modulo N pairwise
coprime numbers, which are bytes, determine the integers' product (Chinese remainder theorem), as long as it lies within ±P/2, P
the product of the moduli. So N products of bytes take the place of one in float64 or float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from hybrid.core.record import record

MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)  # as in kernels/moduli.cuh
UNIT = 128  # lines, and bytes along k, of a packed unit: kernels/packed.cuh
# Where there are so many units along k, the guard looks at one of so many: as few as prove enough of usual numbers.
_SAMPLED = {"float64": ((17, 8),), "float32": ((17, 3),)}

_INTEGER_BITS = {"float64": 63, "float32": 31}  # of the integers that scaled elements become
_EXACT_BITS = {"float64": 53, "float32": 24}  # every integer of so many bits is a number of the type
_FOR_INTEGERS = (3, 5, 7)  # moduli; 7 are enough for 53 bits
# So many moduli are as accurate as native arithmetic, if the least ratio Σ|a·b| / (|row|·|column|) is proved to be at least so
# much. With these bounds none of thousands of random matrices had a larger error (tests/experiments/test_accuracy.py).
_PROVED = {"float64": ((15, 2.0**-6),), "float32": ((7, 2.0**-3), (8, 2.0**-6))}
_FAST = {"float64": (14, 2.0**-2)}  # about as accurate, if it is estimated to be so much
_ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24}  # of an element of C, as a part of it
_NO_OVERFLOW = {"float64": 2.0**1023, "float32": 2.0**127}
_UNDERFLOW = {"float64": 2.0**-1074, "float32": 2.0**-150}  # a subnormal element is rounded by no more
RECONSTRUCTION = 2.0**-68  # parts of P that kernels/reconstruct.cu errs by at most before it rounds


@record
class Arithmetic:
    """`moduli`: 0 for native arithmetic. Where not `scaled`, the elements are integers, and so is the exact result; one modulus
    then stands for signed bytes."""

    moduli: int
    scaled: bool = True

    @property
    def name(self) -> str:
        if not self.moduli:
            return "native"
        if self.scaled:
            return f"{self.moduli} moduli"
        return f"{self.moduli} moduli, exact" if self.moduli > 1 else "bytes, exact"

    def limit(self, inner: int) -> float:
        """The largest norm that a scaled line of so many elements may have, before it is rounded; 0 where none is scaled.

        Norms of R = √((P-1)/2) each keep a sum of products within ±P/2 (Cauchy-Schwarz). Rounding adds √inner / 2 at most. And
        near ±P/2 the last step may be wrong: it takes off a multiple of P that the high parts of the weights choose alone, which
        errs by less than 5e-8·P.
        """
        if not self.scaled:
            return 0.0
        return (math.sqrt((math.prod(MODULI[: self.moduli]) - 1) // 2) - math.sqrt(inner) / 2) * (1 - 1e-7)

    def error_bound(self, inner: int, dtype: str, ratio: float, least: float = math.inf) -> float:
        """What an element of C errs by at most, as a part of (|A||B|)ᵢⱼ, if that is at least `ratio` times its row's norm times
        its column's, and this product of norms at least `least`. Proved, for scaled lines, unless the element overflows.

        Rounding moves each element of a scaled line by half at most, so a sum of products by √inner/2 times the sum of both
        norms, plus inner/4 (Cauchy-Schwarz). A scaled norm is at least half of the limit, or the line's elements have as many
        bits as they may. The last step errs by a part of P, and rounds once to float64 and, in float32, once to that.
        """
        norm = min(self.limit(inner) / 2, 2.0 ** (_INTEGER_BITS[dtype] - 2))
        moved = math.sqrt(inner) * norm + inner / 4 + math.prod(MODULI[: self.moduli]) * RECONSTRUCTION
        before = moved / norm**2 / ratio
        rounding = _ROUNDING["float64"] if dtype == "float64" else _ROUNDING["float32"] + 2 * _ROUNDING["float64"]
        return before + rounding * (1 + before) + _UNDERFLOW[dtype] / ratio / least


NATIVE, BYTES = Arithmetic(0, scaled=False), Arithmetic(1, scaled=False)

# Elements of C by arithmetic, and what they err by at most, as a part of (|A||B|)ᵢⱼ; None: nothing is proved.
Computed = dict[Arithmetic, tuple[int, float | None]]


def joined(parts: Iterable[Computed]) -> Computed:
    """Of several parts of C the elements together, and the worst that is proved."""
    whole: Computed = {}
    for part in parts:
        for arithmetic, (elements, error) in part.items():
            before, worst = whole.get(arithmetic, (0, error))
            whole[arithmetic] = before + elements, None if error is None or worst is None else max(error, worst)
    return whole


@record
class Summary:
    """What is known of some rows of A or columns of B. `largest`: magnitude. `in_range`: no NaN, no infinity, and squares that
    float64 can hold. `least`: norm of a line that is not 0; infinite where all are."""

    largest: float
    integral: bool
    in_range: bool
    least: float = math.inf

    def joined(self, other: Summary) -> Summary:
        integral, in_range = self.integral and other.integral, self.in_range and other.in_range
        return Summary(max(self.largest, other.largest), integral, in_range, min(self.least, other.least))


def sampling(inner: int, dtype: str) -> int:
    """Of so many units along k the guard looks at one."""
    return next((every for units, every in _SAMPLED[dtype] if inner >= units * UNIT), 1)


def most_moduli(dtype: str) -> int:
    """So many planes of remainders a product may need."""
    return _PROVED[dtype][-1][0]


def integer_bits(dtype: str) -> int:
    return _INTEGER_BITS[dtype]


def expected(dtype: str, *, fast: bool) -> Arithmetic:
    """That of most matrices of numbers that are no integers."""
    return Arithmetic(_FAST[dtype][0] if fast and dtype in _FAST else _PROVED[dtype][0][0])


def choose(
    a: Summary, b: Summary, inner: int, dtype: str, least_ratio: Callable[[], float], *, fast: bool
) -> tuple[Arithmetic, float | None]:
    """The arithmetic that is exact, or as accurate as native arithmetic, and takes the least work; else native. And what an
    element of C errs by at most, as a part of (|A||B|)ᵢⱼ; None where nothing is proved: natively, or if it may overflow.

    `least_ratio` is asked only where needed: a bound of the least ratio, from the units along k that the guard looks at.
    """
    if not (a.in_range and b.in_range):
        return NATIVE, None
    if a.integral and b.integral:
        bound = inner * int(a.largest) * int(b.largest)
        exact = bound < 1 << _EXACT_BITS[dtype]
        if max(a.largest, b.largest) < 128 and bound < 1 << 31:
            return BYTES, 0.0 if exact else _ROUNDING[dtype]
        if exact:
            return Arithmetic(_moduli_for(bound), scaled=False), 0.0
    ratio = least_ratio()
    taken = next((Arithmetic(moduli) for moduli, least in _taken_from(inner, dtype, fast=fast) if ratio >= least), NATIVE)
    if not taken.moduli or inner * a.largest * b.largest > _NO_OVERFLOW[dtype]:
        return taken, None
    return taken, taken.error_bound(inner, dtype, ratio, a.least * b.least)


def largest_error_bound(inner: int, dtype: str, *, fast: bool) -> float:
    """What is proved of all elements of C but those of native arithmetic, whatever A and B are: as `Arithmetic.error_bound`."""
    return max(Arithmetic(moduli).error_bound(inner, dtype, least) for moduli, least in _taken_from(inner, dtype, fast=fast))


def _taken_from(inner: int, dtype: str, *, fast: bool) -> Iterator[tuple[int, float]]:
    """Numbers of moduli, each with the least proved ratio from which on it is taken; the fewest first."""
    if fast and dtype in _FAST:
        moduli, estimated = _FAST[dtype]
        yield moduli, estimated / sampling(inner, dtype)
    yield from _PROVED[dtype]


def _moduli_for(bound: int) -> int:
    """The fewest for which kernels are compiled, and whose product has room for integers up to ±bound, and a bit more."""
    return next(count for count in _FOR_INTEGERS if math.prod(MODULI[:count]) > 2 * bound + (bound >> 20))
