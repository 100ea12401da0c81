# SPDX-License-Identifier: MIT
"""Products of complex numbers and integers, with a fault planted into how they are put together: is it noticed?

Run as a program: MODULE, what is replaced, by what. Nothing else of the package is changed, and its own check of a product is
left out, so that what these comparisons find does not rest on it. Prints what was noticed, and ends with 1; else with 0.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder

import numpy as np

rng = np.random.default_rng(20)


class Planting(MetaPathFinder, Loader):
    """Finds one module, and changes its source."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self._module, self._old, self._new = module, old, new

    def find_spec(self, name, path, target=None):
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        self._path = spec.origin
        return importlib.util.spec_from_file_location(name, spec.origin, loader=self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        with open(self._path, encoding="utf-8") as file:
            source = file.read()
        if source.count(self._old) != 1:
            raise LookupError(f"{self._module} has {source.count(self._old)} times {self._old!r}, which a fault changes")
        exec(compile(source.replace(self._old, self._new), self._path, "exec"), module.__dict__)


def numbers(shape, kind):
    parts = rng.integers(-9, 10, (2, *shape))
    return (parts[0] + 1j * parts[1]).astype(kind) if np.dtype(kind).kind == "c" else parts[0].astype(kind)


def complex_products() -> Iterator[str]:
    """Of small whole numbers, which no order of summation rounds; and of infinities, whose signs no NaN may hide."""
    import hybrid
    from hybrid.arrays.complex_matrices import write_expanded
    from hybrid.arrays.gemm import Gemm
    from hybrid.core.spans import Span

    for of_a, of_b in (("complex64", "complex64"), ("complex128", "float64"), ("float32", "complex64")):
        for flags in range(4):
            asked = {"conjugate_a": bool(flags & 1), "conjugate_b": bool(flags & 2)}
            a, b = numbers((7, 5), of_a), numbers((5, 6), of_b)
            expected = (a.conj() if flags & 1 else a) @ (b.conj() if flags & 2 else b)
            rows = hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(b), check=False, **asked).array
            for where, found in (("array", hybrid.multiply(a, b, check=False, **asked)), ("RowBlock", rows)):
                if not np.array_equal(found, expected):
                    yield f"{where} of {of_a} and {of_b}, {asked}"
    b = numbers((9, 4), "complex128")
    whole = np.empty((18, 8))
    write_expanded(b, Span(0, 18), whole, 1)
    for lo in range(18):
        for hi in range(lo, 19):
            part = np.full((hi - lo + 2, 8), 77.0)
            write_expanded(b, Span(lo, hi), part[1:-1], 2)
            if not (np.array_equal(part[1:-1], whole[lo:hi]) and (part[[0, -1]] == 77).all()):
                yield f"rows {lo}:{hi} of the expanded B"
    parts = np.empty((2, 2))
    write_expanded(np.array([[complex(np.inf, 0)]]), Span(0, 2), parts, 1, Gemm(conjugate_b=True))
    if np.isnan(parts).any():
        yield "an infinity became NaN"


def integer_products() -> Iterator[str]:
    """Beside Python's integers: the exact result, or the refusal of one that the type does not hold."""
    import hybrid

    cases = [  # operands, result, largest operand, alpha, beta
        ("int8", "int32", 9, 1, 0),
        ("int16", "int64", 2**15 - 1, -3, 2),
        ("int32", "int64", 2**30, 1, 0),
        ("int32", "int64", 1300, 1, 0),
        ("int32", "int32", 2047, 1, 0),
        ("int32", "int32", 46000, 3, 0),
        ("uint8", "uint8", 3, 1, 0),
        ("int64", "int64", 2**28, 2, -5),
        ("int64", "int64", 2**29, -1, 0),
        ("int64", "int64", 5, 2**50 + 1, 1),
        ("int64", "int64", 2**13, 2**27, 2**20),
        ("uint64", "uint64", 2**31, 1, 1),
        ("bool", "bool", 1, 1, 0),
    ]
    for kind, result, most, alpha, beta in cases:
        for largest in (False, True):
            l = 4 if kind != "int32" or most > 5000 else 6
            low = 0 if kind[0] in "ub" else -most
            a, b, c = (rng.integers(low, most, shape, endpoint=True).astype(kind) for shape in ((5, l), (l, 6), (5, 6)))
            if largest:
                a[0], b[:, 0] = most, most - (most % 2 == 0)
                a[1], b[:, 1] = (low, most)
            c = (c % 100).astype(kind)
            exact = alpha * (a.astype(object) @ b.astype(object)) + (beta * c.astype(object) if beta else 0)
            if kind == "bool":
                exact = (exact != 0).astype(object)
            yield from compared(hybrid, (a, b, c), alpha, beta, result, exact)
    yield from at_the_limits(hybrid)


def compared(hybrid, operands, alpha, beta, result, exact) -> Iterator[str]:
    from hybrid.errors import Overflow

    limits = (0, 1) if result == "bool" else (np.iinfo(result).min, np.iinfo(result).max)
    outside = [value for value in exact.flat if not limits[0] <= value <= limits[1]]
    about = f"{operands[0].dtype}, dtype={result}, alpha={alpha}, beta={beta}"
    try:
        found = hybrid.multiply(*operands, alpha=alpha, beta=beta, dtype=result, check=False)
    except Overflow as refusal:
        if not outside:
            yield f"{about}: refused, and nothing is outside"
        elif f"is {outside[0]}, which" not in str(refusal):
            yield f"{about}: {outside[0]} is told wrong: {refusal}"
        return
    if outside or not (found.astype(object) == exact).all():
        yield f"{about}: wrong"


def at_the_limits(hybrid) -> Iterator[str]:
    """The largest and smallest that a type holds, and the next ones."""
    for result in ("int8", "int16", "int32", "uint8", "int64", "uint64"):
        limits = np.iinfo(result)
        for value in (limits.min - 1, limits.min, limits.max, limits.max + 1):
            kind = "uint64" if result == "uint64" and value > 0 else "int64"
            first = min(max(value, int(np.iinfo(kind).min)), int(np.iinfo(kind).max))
            a, b = np.array([[first, value - first]], "object").astype(kind), np.ones((2, 1), kind)
            operands = a, b, np.zeros((1, 1), kind)
            yield from compared(hybrid, operands, 1, 0, result, a.astype(object) @ b.astype(object))
            if value == first:  # of which there is no larger one
                operands = a[:, :1], b[:1], operands[2]
                yield from compared(hybrid, operands, 1, 0, result, a[:, :1].astype(object))
    a, b = np.array([[-100, 3]], "int8"), np.array([[1], [3]], "int8")
    yield from compared(hybrid, (a, b, np.zeros((1, 1), "int8")), 1, 0, "uint8", a.astype(object) @ b.astype(object))


def exact_plans() -> Iterator[str]:
    """Of what a product of integers is made: enough primes for any sign, and none too large for its sums."""
    from hybrid.arrays.exact_result import ExactResult
    from hybrid.arrays.integers import Exact, write_remainders
    from hybrid.arrays.primes import EXACT_BITS, balanced, largest_modulus, primes_below
    from hybrid.core.spans import Span
    from hybrid.errors import CheckFailed

    for terms in (1, 3, 1000, 8191, 10**6):
        most = largest_modulus(terms, "float64")
        if terms * (most // 2) ** 2 > 2 ** EXACT_BITS["float64"]:
            yield f"sums of {terms} products modulo {most} are not exact"
        for exponent in range(54, 140):
            try:
                exact = Exact.of(terms, (2**exponent // terms, 1), alpha=-1)
            except Exception as refusal:
                yield f"bound 2^{exponent}: {refusal}"
                continue
            product = 1
            for prime in exact.primes:
                product *= prime
                if prime > most:
                    yield f"{prime} is too large for {terms} terms"
            if exact.bound < 0 or product <= 2 * exact.bound:
                yield f"{exact.primes} do not tell all integers up to {exact.bound}"
    for limit in ((1 << 18) + 65537, 65537):  # which is a prime, and the last number of the second segment of the sieve
        found = list(primes_below(limit))
        if found != [n for n in range(limit, 2, -1) if n % 2 and all(n % d for d in range(3, int(n**0.5) + 1, 2))]:
            yield "the primes are others"
    for prime in (3, 65537):
        for dtype in ("int64", "uint64"):
            values = np.array([0, 1, prime - 1, prime // 2, prime // 2 + 1, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
            remainders = balanced(values, prime)
            if (abs(remainders) > prime // 2).any() or ((values.astype(object) - remainders.astype(object)) % prime).any():
                yield f"remainders of {dtype} modulo {prime}"
    matrix, part = rng.integers(-(2**40), 2**40, (9, 4)), np.empty((3, 4))
    write_remainders(matrix, 101, Span(2, 5), part, 2)
    if not np.array_equal(part, balanced(matrix[2:5], 101)):
        yield "remainders of some rows"
    exact = Exact.of(10, (2**30, 2**21))
    impossible = ExactResult(exact, "int64", (1, 1))
    for number, prime in enumerate(exact.primes):
        impossible.add(number, np.array([[float(2**60 % prime)]]), 1)  # which int64 holds, and no right product has
    try:
        impossible.result(None, 1)
        yield "an impossible element passes"
    except CheckFailed:
        pass


def main(module: str, old: str, new: str) -> int:
    sys.meta_path.insert(0, Planting(module, old, new))
    for look in (complex_products, integer_products, exact_plans):
        try:
            for noticed in look():
                print(noticed)
                return 1
        except LookupError as gone:
            print(gone, file=sys.stderr)
            return 2
        except Exception as error:  # a fault may show as any error
            print(f"{type(error).__name__}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
