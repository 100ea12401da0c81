# SPDX-License-Identifier: MIT
"""Counts the walks of a given length between all vertices, exactly at any length, by powers of the adjacency matrix with repeated
squaring.

How large the numbers can become is bounded before anything is multiplied: an entry of A^(i+j) is at most ‖A^i‖·‖A^j‖, in the
norm of the largest row sum and in that of the largest column sum. This decides the arithmetic. As long as every sum stays below
2^53 (2^24 in float32), floating point is exact and used directly. From the first product on whose sums might exceed that, all
is computed modulo primes, and joined by the Chinese remainder theorem. Small matrices of many primes are one stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid.arrays.integers import EXACT_BITS, balanced, largest_modulus, primes_below
from hybrid.arrays.interop import on_device_of, on_gpu, on_host
from hybrid.core.problem import record
from hybrid.errors import CheckFailed, UsageError


def enough_primes(bits: int, terms: int, dtype: str) -> list[int]:
    """The fewest of the largest primes whose product exceeds 2^bits, and one more.

    The last one serves as a check: with an error in any remainder the result exceeds 2^bits, but for one chance in about p.
    UsageError where there are not so many primes.
    """
    chosen, reached = [], 0.0  # `reached`: bits of the product of all chosen primes
    largest = largest_modulus(terms, dtype)
    if bits <= 1.017 * largest / math.log(2):  # Σ log p < 1.017·x over all primes p ≤ x (Rosser, Schoenfeld)
        for prime in primes_below(largest):
            chosen.append(prime)
            if reached > bits + 1:  # one bit is far more than the logarithms' rounding
                return chosen
            reached += math.log2(prime)
    other = "use --dtype float64, or make" if dtype == "float32" else "make"
    raise UsageError(
        f"numbers of up to {bits} bits need more primes than leave sums of {terms} products exact in {dtype}: "
        f"{other} the length or the graph smaller",
        code="too-long",
    )


def reconstructed(primes: Sequence[int], remainders: np.ndarray) -> np.ndarray:
    """The numbers, below the product M of all primes, with these remainders modulo each, as Python integers (Chinese remainder
    theorem). `remainders[prime, …]`: whole numbers."""
    derivative, whole = _sum_and_product(primes, [1] * len(primes))  # Σ M/p, which modulo each p is M/p
    pairs = zip(primes, remainders, strict=True)
    scaled = [np.remainder(of_prime, p) * pow(derivative % p, -1, p) % p for p, of_prime in pairs]
    return np.remainder(_sum_and_product(primes, [each.astype(object) for each in scaled])[0], whole)


def _sum_and_product(primes: Sequence[int], numbers: Sequence[Any]) -> tuple[Any, int]:
    """Σ numbers[p]·M/p, and M. The factors of each multiplication have about the same length."""
    if len(primes) == 1:
        return numbers[0], primes[0]
    half = len(primes) // 2
    left, of_left = _sum_and_product(primes[:half], numbers[:half])
    right, of_right = _sum_and_product(primes[half:], numbers[half:])
    return left * of_right + right * of_left, of_left * of_right


# The product of two matrices that rank 0 has, in host memory or on its GPU, called on all ranks together; the other ranks pass
# None and get None.
Multiply = Callable[[Any, Any], Any]
Place = Callable[[np.ndarray], Any]  # gives a matrix of rank 0 where products read it: on its GPU, or the matrix itself
# Called with the number of products that are done, and with the number of all.
Progress = Callable[[int, int], None]

SQUARE, TIMES_A = "square", "times A"
INT64_BITS = 63
_IN_A_STACK = 1 << 18  # elements of the matrices that are multiplied at once; a larger matrix alone
_MOST_NORMS = 64  # small powers whose norms are computed, to bound those of large ones
_SLACK = 1e-9  # a tolerance far larger than the rounding of the logarithms that are compared
_LOG_OF_ZERO = -math.inf


class Bounds:
    """Upper bounds, as base-2 logarithms, of the entries of the powers of a matrix without negative entries."""

    def __init__(self, adjacency: np.ndarray) -> None:
        self._largest = _log2(int(adjacency.max()))
        self._norms = [_norms_of_powers(matrix) for matrix in (adjacency, adjacency.T)]

    def entry(self, power: int) -> float:
        """The bound of all entries of A^power; -inf where all are zero."""
        if power == 0:
            return 0.0
        return min(min(_norm(norms, power), _norm(norms, power - 1) + self._largest) for norms in self._norms)

    def bits(self, power: int) -> int:
        """A number b such that every entry of A^power is below 2^b. UsageError where no memory could hold such numbers."""
        bound = self.entry(power)
        if bound > 1e15:
            raise UsageError("the numbers at this length may have more than 10^15 bits: make it shorter", code="too-long")
        return 0 if bound == _LOG_OF_ZERO else math.floor(bound * (1 + _SLACK)) + 1


def _norms_of_powers(adjacency: np.ndarray) -> list[float]:
    """The logarithms of the largest row sums of A^0, A^1, A^2, …, as far as float64 is exact."""
    sums_fit = int(adjacency.max()) * len(adjacency) < 2**INT64_BITS
    sums = (adjacency if sums_fit else adjacency.astype(object)).sum(axis=1)
    first = int(sums.max())
    norms = [0.0, _log2(first)]
    matrix = adjacency.astype(np.float64)
    while norms[-1] != _LOG_OF_ZERO and len(norms) <= _MOST_NORMS and int(sums.max()) * first <= 2 ** EXACT_BITS["float64"]:
        sums = matrix @ sums.astype(np.float64)
        norms.append(_log2(int(sums.max())))
    return norms


def _norm(norms: list[float], power: int) -> float:
    """A bound for the norm of A^power, as a logarithm, from the norms of small powers."""
    if power < len(norms):
        return norms[power]
    if norms[-1] == _LOG_OF_ZERO:
        return _LOG_OF_ZERO
    times = min(power, 10**300)  # which a float holds
    return min(times // small * norms[small] + norms[power % small] for small in range(1, len(norms)))


def _log2(number: int) -> float:
    return math.log2(number) if number else _LOG_OF_ZERO


def further_steps(length: int) -> list[str]:
    """The products from A^1 to A^length: a squaring for each binary digit of the length but the first, and after it a product
    with A where the digit is 1."""
    digits = format(length, "b")[1:] if length else ""
    return [step for digit in digits for step in ((SQUARE, TIMES_A) if digit == "1" else (SQUARE,))]


@record
class Arithmetic:
    """How A^length is computed exactly. The same on every rank."""

    vertices: int
    length: int
    dtype: str  # of the products
    bits: int  # every entry of the result is below 2^bits
    plain: int  # how many of the first steps are exact in floating point
    primes: tuple[int, ...] = ()  # the moduli of the other steps
    at_once: int = 1  # primes whose matrices are a stack

    @property
    def products(self) -> int:
        """The number of matrix products."""
        return self.plain + -(-len(self.primes) // self.at_once) * (len(further_steps(self.length)) - self.plain)

    def bytes_for(self, entries: int) -> int:
        """Host memory on rank 0 for so many entries of the result: operands, remainders, partial sums, products of primes."""
        operands = 8 * (4 * self.at_once + 3) * self.vertices**2
        levels = max(1, len(self.primes).bit_length())
        return operands + entries * (100 * len(self.primes) + self.bits // 2) + levels * (self.bits // 4)

    def __str__(self) -> str:
        exact_bits = {**EXACT_BITS, "int64": INT64_BITS}
        if not self.products:
            return "nothing is multiplied"
        if not self.primes:
            return f"every number stays below 2^{exact_bits[self.dtype]}: exact in plain {self.dtype}"
        outgrown = [f"{name} (2^{bits})" for name, bits in exact_bits.items() if bits < self.bits]
        beyond = f"numbers up to 2^{self.bits}" + (f" outgrow {', '.join(outgrown)}" if outgrown else "")
        start = f"{self.plain} of {len(further_steps(self.length))} products in plain {self.dtype}, then " if self.plain else ""
        return (
            f"{beyond}; {start}exact modulo {len(self.primes)} primes of {self.primes[-1].bit_length()} bits in {self.dtype}, "
            f"{self.at_once} at once, joined by the Chinese remainder theorem"
        )


def choose_arithmetic(adjacency: np.ndarray, length: int, dtype: str) -> Arithmetic:
    """Decide, before anything is multiplied, how the power is computed exactly. UsageError where it cannot be."""
    bounds, vertices = Bounds(adjacency), len(adjacency)
    bits = bounds.bits(length)
    steps, plain, power = further_steps(length), 0, 1
    for step in steps:
        factors = (bounds.entry(power), bounds.entry(power if step == SQUARE else 1))
        # hybrid.multiply's check is exact under the same condition: l·max|A|·max|B| ≤ 2^53.
        if math.log2(vertices) + sum(max(0.0, factor) for factor in factors) > EXACT_BITS[dtype] - _SLACK:
            break
        plain, power = plain + 1, power * 2 if step == SQUARE else power + 1
    if plain == len(steps):
        return Arithmetic(vertices, length, dtype, bits, plain)
    primes = enough_primes(bits, vertices, dtype)
    at_once = min(len(primes), max(1, _IN_A_STACK // vertices**2))
    return Arithmetic(vertices, length, dtype, bits, plain, tuple(primes), at_once)


def in_host_memory(matrix: np.ndarray) -> np.ndarray:
    return matrix


def carry_out(
    arithmetic: Arithmetic,
    adjacency: np.ndarray | None,
    rows: list[int],
    columns: list[int],
    multiply: Multiply,
    progress: Progress,
    place: Place = in_host_memory,
) -> np.ndarray | None:
    """These rows and columns of A^length, for `as_integers`, on rank 0; None on the others, which pass None as adjacency.

    Every rank calls it with the same arithmetic, so all call `multiply` equally often. Only `multiply` raises HybridErrors.
    Powers stay where `place` has put the first one.
    """
    steps, done = further_steps(arithmetic.length), 0

    def powers(first: Any, base: Any, steps: Sequence[str], reduced: Callable[[Any], Any]) -> Any:
        nonlocal done
        for step in steps:
            progress(done, arithmetic.products)
            product, done = multiply(first, first if step == SQUARE else base), done + 1
            first = product if product is None else reduced(product)
        return first

    power = base = adjacency
    if adjacency is not None and arithmetic.length == 0:
        power = np.eye(arithmetic.vertices, dtype=np.int64)
    elif adjacency is not None and arithmetic.plain:
        power = base = place(adjacency.astype(arithmetic.dtype))
    power = powers(power, base, steps[: arithmetic.plain], lambda product: product)
    if not arithmetic.primes:
        return None if power is None else on_host(power)[np.ix_(rows, columns)]
    remainders = []
    for at in range(0, len(arithmetic.primes), arithmetic.at_once):
        primes = arithmetic.primes[at : at + arithmetic.at_once]
        moduli = np.array(primes, np.int64)[:, None, None] if arithmetic.at_once > 1 else primes[0]

        def reduced(product: Any, moduli: Any = moduli) -> Any:
            with on_device_of(product):
                return balanced(product, moduli).astype(arithmetic.dtype)

        first = base = None
        if adjacency is not None:
            # A stack is made of, and stays in, host memory; the matrix of one prime stays on a GPU.
            at_home = on_host if arithmetic.at_once > 1 else lambda matrix: matrix if on_gpu(matrix) else place(matrix)
            first, base = reduced(at_home(power)), reduced(at_home(adjacency))
        last = powers(first, base, steps[arithmetic.plain :], reduced)
        if last is not None:
            remainders.append(on_host(last).reshape(-1, *on_host(last).shape[-2:])[:, rows][:, :, columns].astype(np.int64))
    return np.concatenate(remainders) if remainders else None


def as_integers(arithmetic: Arithmetic, found: np.ndarray) -> np.ndarray:
    """What `carry_out` returned, as Python integers.

    CheckFailed for a number beyond the bound: there is one prime more than are needed, so wrong remainders give such a number.
    """
    numbers = reconstructed(arithmetic.primes, found) if arithmetic.primes else found.astype(np.int64).astype(object)
    if any(int(number).bit_length() > arithmetic.bits for number in numbers.flat):
        raise CheckFailed(
            f"a count exceeds 2^{arithmetic.bits}, which none can: a product, or what was computed from it, is wrong"
        )
    return numbers
