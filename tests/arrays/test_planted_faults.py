# SPDX-License-Identifier: MIT
"""Faults in how products of complex numbers and integers are put together: is each found? (In kernels: scripts/mutants.py.)"""

from __future__ import annotations

import sys

import pytest
from support.commands import ROOT, start
from support.selection import exhaustive

FAULTS = {
    "complex_matrices": [
        ("-of_b.imag, of_b.real", "of_b.imag, of_b.real"),
        ("-of_b.imag, of_b.real", "of_b.real, of_b.imag"),
        ("to.real, to.imag = 0, of_b", "to.real, to.imag = of_b, 0"),
        ("[to.real if odd else to.imag] * gemm.conjugate_b", "[to.imag if odd else to.real] * gemm.conjugate_b"),
        ("[to.real if odd else to.imag] * gemm.conjugate_b", "[to.imag] * gemm.conjugate_b"),
        ("* (gemm.conjugate_a and odd)", "* gemm.conjugate_a"),
        ("[to.real, to.imag] * (gemm.conjugate_a and odd)", "[to.real] * (gemm.conjugate_a and odd)"),
        ("part *= -1 ", "part *= 1j "),
        ("part.lo + (2 * part.lo + odd < rows.lo)", "part.lo"),
        ("part.hi - (2 * part.hi - 2 + odd >= rows.hi)", "part.hi"),
        ("2 * down.start + odd - rows.lo", "2 * down.start + odd"),
        ("Span(rows.lo // 2, -(-rows.hi // 2))", "Span(rows.lo // 2, rows.hi // 2)"),
        ("whole[start:stop:2, across]", "whole[start : stop - 1 : 2, across]"),
        ("real_view(b.conj() if gemm.conjugate_b else b)", "real_view(b)"),
        ("on_gpu(b) else threads, gemm)", "on_gpu(b) else threads)"),
    ],
    "integers": [
        ("abs(alpha) * sums + abs(beta) * largest_c", "alpha * sums + abs(beta) * largest_c"),
        ("abs(alpha) * sums + abs(beta) * largest_c", "abs(alpha) * sums"),
        ("terms * largest[0] * largest[1]", "largest[0] * largest[1]"),
        ("limit = 1 << bits if", "limit = 4 << bits if"),
        ('bound <= 1 << EXACT_BITS["float64"]', "bound <= 1 << 62"),
        ("_primes_above(2 * bound, terms, limit)", "_primes_above(bound, terms, limit)"),
        ("if product > number:", "if product > number >> 22:"),
        ("max(abs(int(part.min())), abs(int(part.max())))", "max(int(part.min()), int(part.max()))"),
        ("matrix[rows.lo + some.lo : rows.lo + some.hi]", "matrix[some.lo : some.hi]"),
    ],
    "exact_result": [
        ("rest *= self._alpha % prime", "rest *= 1"),
        ("balanced(self._c[rows.slice], prime) * (self._beta % prime)", "balanced(self._c[rows.slice], prime)"),
        ("rest -= np.multiply(digits, weight, dtype=np.int64)", "rest -= digits"),
        ("weight = weight * p % prime", "weight = p % prime"),
        ("digits *= pow(weight, -1, prime)", "digits *= weight"),
        ("digits = balanced(rest, prime, room, nearly=True)", "digits = rest"),
        ("zip(self._digits[:number, rows.slice], before", "zip(self._digits[:number, rows.slice], reversed(before)"),
        ("np.abs(rounded - values) > _WRAPPED", "np.abs(rounded - values) > 2.0**65"),
        ("> _WRAPPED) | impossible", "> _WRAPPED)"),
        ("values < least", "values <= least"),
        ("values > largest", "values >= largest"),
        ("values < least", "(values < least - 1)"),
        ("self._exact.bound > _magnitude(self._result)", "self._exact.bound > 2 * _magnitude(self._result)"),
        ('0 if dtype.kind == "u" else int', "int"),
        ("wrapped.view(np.uint64) if self._result == np.uint64 else wrapped", "wrapped"),
        ("values = values != 0", "values = values > 1"),
        ("value = value * p + int(digits[row, column])", "value = value + p * int(digits[row, column])"),
        ("values *= float(self._alpha)", "values *= float(abs(self._alpha))"),
        ("copy=combines)", "copy=False)"),
        ("values += np.float64(self._beta) * self._c[rows.slice]", "values += self._c[rows.slice]"),
    ],
    "primes": [
        ("return 2 * math.isqrt(", "return 3 * math.isqrt("),
        ('"float64": 53', '"float64": 54'),
        ('"float32": 24', '"float32": 26'),
        ("dtype.itemsize <= 4", "dtype.itemsize <= 8"),
        ("nearly or _always_right(numbers.dtype)", "True"),
        ("np.rint(np.multiply", "np.trunc(np.multiply"),
        ("out=quotients, dtype=np.float64)", "out=quotients, dtype=np.float32)"),
        ("max(prime * prime, -(-low // prime) * prime)", "-(-low // prime) * prime"),
        ("first - low :: prime", "first - low :: 2 * prime"),
        ("high = limit + 1", "high = limit"),
        ("_sieve(math.isqrt(limit) + 1)", "_sieve(math.isqrt(limit) // 2)"),
        ("high = low\n", "high = low - 1\n"),
    ],
}  # fmt: skip
ALL = [(module, *fault) for module, faults in FAULTS.items() for fault in faults]
CHOSEN = [(module, *fault) for module, faults in FAULTS.items() for fault in faults[:3]]


def planted(module: str, old: str, new: str):
    program = [sys.executable, ROOT / "tests" / "support" / "planted.py"]
    return start(program, f"hybrid.arrays.{module}", old, new, HYBRID_DEVICE="cpu", PYTHONPATH=str(ROOT))


@pytest.mark.parametrize(("module", "old", "new"), exhaustive(CHOSEN, ALL), ids=lambda text: text if text in FAULTS else "")
def test_a_planted_fault_is_found(module, old, new):
    done = planted(module, old, new)
    assert done.returncode == 1, done.stdout + done.stderr


@pytest.mark.parametrize("module", FAULTS)
def test_without_a_fault_nothing_is_found(module):
    done = planted(module, FAULTS[module][0][0], FAULTS[module][0][0])
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_a_fault_whose_place_is_gone_is_said():
    done = planted("primes", "nothing like it", "")
    assert done.returncode == 2
    assert "hybrid.arrays.primes has 0 times 'nothing like it'" in done.stderr
