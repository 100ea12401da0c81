# SPDX-License-Identifier: MIT
"""Counts the walks of any length between all vertices exactly, by powers of the adjacency matrix with repeated squaring; lists
walks one by one, and writes counts as sums, tables and files.

The numbers are bounded before anything is multiplied: an entry of A^(i+j) is at most ‖A^i‖·‖A^j‖, in the norms of the largest row
sum and of the largest column sum. If every sum stays below 2^53, float64 is exact. Otherwise the powers are computed modulo
primes and joined by the Chinese remainder theorem; small matrices modulo many primes form one stack.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hybrid.arrays.integers import balanced, largest_modulus, primes_below
from hybrid.arrays.interop import on_device_of, on_host
from hybrid.core.problem import record
from hybrid.core.text import aligned, counted
from hybrid.errors import CheckFailed, UsageError
from hybrid.host.files import atomic_write, write_text
from hybrid.planning.arithmetic import EXACT_BITS


def enough_primes(bits: int, terms: int) -> list[int]:
    """The fewest of the largest primes whose product exceeds 2^bits, and one more.

    The last one is a check: with an error in any remainder the result exceeds 2^bits, except with probability about 1/p.
    UsageError if there are too few primes.
    """
    chosen, reached = [], 0.0  # `reached`: bits of the product of all chosen primes
    largest = largest_modulus(terms, "float64")
    if bits <= 1.017 * largest / math.log(2):  # Σ log p < 1.017·x over all primes p ≤ x (Rosser, Schoenfeld)
        for prime in primes_below(largest):
            chosen.append(prime)
            if reached > bits + 1:  # one bit exceeds the logarithms' rounding by far
                return chosen
            reached += math.log2(prime)
    raise UsageError(f"too few primes for numbers of {bits} bits: make the length or the graph smaller", code="too-long")


def reconstructed(primes: Sequence[int], remainders: np.ndarray) -> np.ndarray:
    """The numbers below the product M of all primes that have these remainders, as Python integers (Chinese remainder theorem).
    `remainders[prime, …]`: whole numbers."""
    derivative, whole = _sum_and_product(primes, [1] * len(primes))  # Σ M/p, which modulo each p is M/p
    pairs = zip(primes, remainders, strict=True)
    scaled = [np.remainder(of_prime, p) * pow(derivative % p, -1, p) % p for p, of_prime in pairs]
    return np.remainder(_sum_and_product(primes, [each.astype(object) for each in scaled])[0], whole)


def _sum_and_product(primes: Sequence[int], numbers: Sequence[Any]) -> tuple[Any, int]:
    """Σ numbers[p]·M/p, and M, by divide and conquer: the factors of each multiplication have about the same length."""
    if len(primes) == 1:
        return numbers[0], primes[0]
    half = len(primes) // 2
    left, of_left = _sum_and_product(primes[:half], numbers[:half])
    right, of_right = _sum_and_product(primes[half:], numbers[half:])
    return left * of_right + right * of_left, of_left * of_right


# The collective product of two matrices of rank 0, in host memory or on its GPU; the other ranks pass None and get None.
Multiply = Callable[[Any, Any], Any]
Place = Callable[[np.ndarray], Any]  # moves a matrix of rank 0 to its GPU, or returns the matrix itself
Progress = Callable[[int, int], None]  # is called with the numbers of products done, and of all

SQUARE, TIMES_A = "square", "times A"
_IN_A_STACK = 1 << 18  # elements of a stack's matrices; a larger matrix is multiplied alone
_LARGEST_NORM = 900.0  # as a logarithm: its product with any row sum does not overflow float64
_MOST_NORMS = 64  # small powers whose norms are computed, to bound the norms of large ones
_SLACK = 1e-9  # far larger than the rounding of the compared logarithms
_LOG_OF_ZERO = -math.inf


class Bounds:
    """Upper bounds, as base-2 logarithms, of the entries of the powers of a matrix without negative entries."""

    def __init__(self, adjacency: np.ndarray) -> None:
        self._largest = _log2(int(adjacency.max()))
        self._norms = [_norms_of_powers(matrix) for matrix in (adjacency, adjacency.T)]

    def entry(self, power: int) -> float:
        """The bound on the entries of A^power; -inf if all are zero."""
        if power == 0:
            return 0.0
        return min(min(_norm(norms, power), _norm(norms, power - 1) + self._largest) for norms in self._norms)

    def bits(self, power: int) -> int:
        """A number b such that every entry of A^power is below 2^b. UsageError if no memory could hold such numbers."""
        bound = self.entry(power)
        if bound > 1e15:
            raise UsageError("the numbers at this length may have more than 10^15 bits: make it shorter", code="too-long")
        return 0 if bound == _LOG_OF_ZERO else math.floor(bound * (1 + _SLACK)) + 1


def _norms_of_powers(adjacency: np.ndarray) -> list[float]:
    """The logarithms of the largest row sums of A^0, A^1, A^2, …, as far as they fit float64."""
    matrix, sums, norms = adjacency.astype(np.float64), np.ones(len(adjacency)), [0.0]
    while norms[-1] != _LOG_OF_ZERO and norms[-1] < _LARGEST_NORM and len(norms) <= _MOST_NORMS:
        sums = matrix @ sums
        norms.append(_log2(sums.max()))
    return norms


def _norm(norms: list[float], power: int) -> float:
    """A bound on the norm of A^power, as a logarithm, from the norms of small powers."""
    if power < len(norms):
        return norms[power]
    times = min(power, 10**300)  # fits a float
    return min(times // small * norms[small] + norms[power % small] for small in range(1, len(norms)))


def _log2(number: float) -> float:
    return math.log2(number) if number else _LOG_OF_ZERO


def further_steps(length: int) -> list[str]:
    """The products from A^1 to A^length: for each binary digit of the length after the first, a squaring, and if the digit is 1 a
    product with A."""
    digits = format(length, "b")[1:] if length else ""
    return [step for digit in digits for step in ((SQUARE, TIMES_A) if digit == "1" else (SQUARE,))]


@record
class Arithmetic:
    """How A^length is computed exactly. The same on every rank."""

    vertices: int
    length: int
    bits: int  # every entry of the result is below 2^bits
    primes: tuple[int, ...] = ()  # the moduli; none if float64 is exact
    at_once: int = 1  # primes whose matrices form a stack

    @property
    def products(self) -> int:
        return -(-max(1, len(self.primes)) // self.at_once) * len(further_steps(self.length))

    def bytes_for(self, entries: int) -> int:
        """Host memory on rank 0 for this many entries of the result: operands, remainders, partial sums, products of primes."""
        operands = 8 * (4 * self.at_once + 3) * self.vertices**2
        levels = max(1, len(self.primes).bit_length())
        return operands + entries * (100 * len(self.primes) + self.bits // 2) + levels * (self.bits // 4)

    def __str__(self) -> str:
        if not self.products:
            return "nothing is multiplied"
        if not self.primes:
            return "every number stays below 2^53: exact in plain float64"
        primes = f"{len(self.primes)} primes of {self.primes[-1].bit_length()} bits, {self.at_once} at once"
        return f"numbers up to 2^{self.bits}: exact modulo {primes}, joined by the Chinese remainder theorem"


def least_bits(adjacency: np.ndarray, length: int) -> float:
    """A lower bound on the base-2 logarithm of the largest entry of A^length: the largest row sum over the number of vertices."""
    matrix, sums, bits = adjacency.astype(np.float64), np.ones(len(adjacency)), 0.0
    for _ in range(length):
        sums = matrix @ sums
        if not (largest := float(sums.max())):
            return _LOG_OF_ZERO
        sums, bits = sums / largest, bits + math.log2(largest)
    return bits - math.log2(len(adjacency))


def choose_arithmetic(adjacency: np.ndarray, length: int) -> Arithmetic:
    """Decide, before anything is multiplied, how to compute the power exactly. UsageError if that is impossible."""
    bounds, vertices, power = Bounds(adjacency), len(adjacency), 1
    bits = bounds.bits(length)
    for step in further_steps(length):
        factors = (bounds.entry(power), bounds.entry(power if step == SQUARE else 1))
        # hybrid.multiply's check is exact under the same condition: l·max|A|·max|B| ≤ 2^53.
        if math.log2(vertices) + sum(max(0.0, factor) for factor in factors) > EXACT_BITS["float64"] - _SLACK:
            primes = enough_primes(bits, vertices)
            return Arithmetic(vertices, length, bits, tuple(primes), min(len(primes), max(1, _IN_A_STACK // vertices**2)))
        power = power * 2 if step == SQUARE else power + 1
    return Arithmetic(vertices, length, bits)


def carry_out(
    arithmetic: Arithmetic,
    adjacency: np.ndarray | None,
    rows: list[int],
    columns: list[int],
    multiply: Multiply,
    progress: Progress,
    place: Place | None = None,
) -> np.ndarray | None:
    """On rank 0, these rows and columns of A^length modulo each prime, for `as_integers`. Other ranks pass None as adjacency and
    get None.

    Every rank calls it with the same arithmetic, so all call `multiply` equally often. Only `multiply` raises HybridErrors.
    Powers stay where `place` has put the first one; None: in host memory.
    """
    steps, done, found = further_steps(arithmetic.length), 0, list[np.ndarray]()
    if not steps:
        if adjacency is None:
            return None
        return (adjacency if arithmetic.length else np.eye(len(adjacency), dtype=np.int64))[np.ix_(rows, columns)][None]
    for at in range(0, len(arithmetic.primes) or 1, arithmetic.at_once):
        moduli: Any = None
        if primes := arithmetic.primes[at : at + arithmetic.at_once]:
            moduli = np.array(primes, np.int64)[:, None, None] if arithmetic.at_once > 1 else primes[0]
        power = base = None
        if adjacency is not None:
            power = base = _reduced(adjacency, moduli).astype(np.float64)
            if place is not None and arithmetic.at_once == 1:  # a stack is multiplied in host memory
                power = base = place(base)
        for step in steps:
            progress(done, arithmetic.products)
            product, done = multiply(power, power if step == SQUARE else base), done + 1
            power = None if product is None else _reduced(product, moduli)
        if power is not None:
            whole = on_host(power)
            found.append(whole.reshape(-1, *whole.shape[-2:])[:, rows][:, :, columns].astype(np.int64))
    return np.concatenate(found) if found else None


def _reduced(product: Any, moduli: Any) -> Any:
    """The remainders of least magnitude, in the same type; without moduli the numbers themselves."""
    if moduli is None:
        return product
    with on_device_of(product):
        return balanced(product, moduli).astype(product.dtype)


def as_integers(arithmetic: Arithmetic, found: np.ndarray) -> np.ndarray:
    """The result of `carry_out` as Python integers. CheckFailed for a number beyond the bound, as wrong remainders give."""
    numbers = reconstructed(arithmetic.primes, found) if arithmetic.primes else found[0].astype(object)
    if any(int(number).bit_length() > arithmetic.bits for number in numbers.flat):
        raise CheckFailed(f"a count exceeds 2^{arithmetic.bits}, which none can: a product is wrong")
    return numbers


@record
class Walk:
    """All walks through the same vertices."""

    vertices: tuple[int, ...]
    edges: int  # the number of walks: one for each choice among parallel edges

    def told(self, names: Sequence[str]) -> str:
        """The walk in a line, as C-E-H-J."""
        between = " → " if any("-" in name for name in names) else "-"
        times = f" ({counted(self.edges, 'path')}: parallel edges)" if self.edges > 1 else ""
        return between.join(names[vertex] for vertex in self.vertices) + times


def listed(adjacency: np.ndarray, length: int, tail: int, head: int, count: int) -> list[Walk]:
    """All walks of this length from tail to head, in the order of their vertices. CheckFailed if they are not `count`."""
    edges = adjacency > 0
    ends = [np.arange(len(adjacency)) == head]  # by number of steps: the vertices from which a walk can end at `head`
    for _ in range(length):
        ends.append((edges & ends[-1]).any(axis=1))
    found: list[tuple[int, ...]] = [(tail,)] if ends[length][tail] else []
    for left in reversed(range(length)):
        onward = {vertex: np.flatnonzero(edges[vertex] & ends[left]).tolist() for vertex in {walk[-1] for walk in found}}
        found = [(*walk, vertex) for walk in found for vertex in onward[walk[-1]]]
    walks = [Walk(walk, math.prod(int(adjacency[step]) for step in pairwise(walk))) for walk in found]
    if (there := sum(walk.edges for walk in walks)) != count:
        raise CheckFailed(f"{there} paths were found one by one, and {shortened(count)} were counted: a product is wrong")
    return walks


def terms(adjacency: np.ndarray, names: Sequence[str], length: int, tail: int, head: int, count: int) -> Iterator[str]:
    """An entry of A^length as row · column: for each vertex, the edges to it, and the walks of length - 1 from there, step by
    step. CheckFailed if the sum is not `count`, the result of the powers."""
    edges = adjacency.astype(object)
    column = np.array([int(vertex == head) for vertex in range(len(edges))], object)
    for _ in range(length - 1):
        column = edges.dot(column)
    pairs = list(zip(edges[tail], column, strict=True))
    if sum(one * rest for one, rest in pairs) != count:
        raise CheckFailed(f"row times column does not give the {shortened(count)} that the power has: a product is wrong")
    heads = ("by way of", f"from {names[tail]}, length 1", f"to {names[head]}, length {length - 1}", "product")
    numbers = [(name, *map(shortened, (one, rest, one * rest))) for name, (one, rest) in zip(names, pairs, strict=True)]
    yield from aligned([heads, *numbers, ("", "", "sum", shortened(count))])
    yield " + ".join(f"{shortened(one)}·{shortened(rest)}" for one, rest in pairs) + f" = {shortened(count)}"


NO_INT64 = "the numbers exceed int64: use .csv or .json"
_LONGEST = 30  # digits of a number that is printed whole
_END = 8  # digits printed of both ends of a longer one


def shortened(number: Any) -> str:
    """The number for a table: of more than 30 digits, the first and last eight and their count."""
    whole = str(number)
    return whole if len(whole) <= _LONGEST else f"{whole[:_END]}…{whole[-_END:]} ({len(whole)} digits)"


def table(numbers: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> str:
    """The numbers in aligned columns, with the vertices' names as heads of columns and rows."""
    lines = ([name, *map(shortened, line)] for name, line in zip(rows, numbers, strict=True))
    return "\n".join(aligned([["from\\to", *columns], *lines]))


def write(path: str, numbers: np.ndarray, names: Sequence[str], about: dict[str, Any]) -> None:
    """Write the matrix to a file: .npy of int64, .csv, which can be read as a graph, or .json, with counts as strings, since
    many readers would round long numbers. `about`: more entries for .json."""
    if path.endswith(".npy"):
        if max(map(int, numbers.flat)) >= 2**63:
            raise UsageError(f"--out {path}: {NO_INT64}", code="dtype")
        with atomic_write(path) as beside, open(beside, "wb") as file:
            np.save(file, numbers.astype(np.int64))
    elif path.endswith(".csv"):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [["from/to", *names], *([name, *line] for name, line in zip(names, numbers, strict=True))]
        )
        write_text(path, text.getvalue())
    else:
        cells = [list(map(str, line)) for line in numbers]
        write_text(path, json.dumps({**about, "vertices": list(names), "walks": cells}) + "\n")
