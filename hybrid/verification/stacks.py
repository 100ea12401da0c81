# SPDX-License-Identifier: MIT
"""Freivalds' check of many products of small matrices together: of each C·x against A·(B·x), as for a single product.

One pass of NumPy over many matrices measures all differences in the same units (see hybrid.verification.rounding). What is too
large is looked at again element by element. How accurate right products are is told by the differences of each if it has
enough, else by those of all. Matrices too large for a core's cache are checked one by one, as a single product is.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, pieces
from hybrid.devices.cpu_check import MOST_IN_TOTAL
from hybrid.devices.stacks import some_matrices
from hybrid.host.row_view import RowView
from hybrid.host.thread_map import on_threads
from hybrid.host.threads import limited_threads
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.ranks.team import Team
from hybrid.verification.alone import plan_alone, verify_alone
from hybrid.verification.check import MOST_NAMED, Check, Fault, Suspect
from hybrid.verification.comparison import MOST_SUSPECTS, Comparison, columns_of, mark_fractions
from hybrid.verification.freivalds import SCALE
from hybrid.verification.group_sums import Integers, are_integers, norms_of, sums_and_norms
from hybrid.verification.modular import Modular
from hybrid.verification.rounding import FEW, is_exact, is_exact_product, random_x, spread_of, usual_largest
from hybrid.verification.suspects import SecondLook, unsaid

_TOGETHER_BYTES = 1 << 20  # of one stack's matrices as float64: they stay in a core's cache
_COLUMNS_AT_ONCE = 128  # of A: sums of few terms are more accurate than those of the product


@dataclass(frozen=True)
class StackCheck:
    """The result of checking one rank's stack of products. `kind` and `error` are those of `Check`."""

    kind: str
    error: float
    wrong: Mapping[int, tuple[Fault, ...]]  # what is wrong in each wrong product, by its number


def verify_stack(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> StackCheck:
    """Check that c[i] is a[i]·b[i] for each i. All are real matrices in host memory; `a`, or `b`, may hold one for all
    products."""
    with limited_threads(1):  # one thread of BLAS: the products are divided among our own threads
        return _verify(a, b, c, threads)


def _verify(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> StackCheck:
    _, n, m = c.shape
    l = a.shape[2]
    if not c.size:
        return StackCheck("exact", 0.0, {})
    if 8 * max(n * l, l * m, n * m) > _TOGETHER_BYTES:
        return _one_by_one(a, b, c, threads)
    problem = Problem(n, l, m, c.dtype.name)
    sizes = _Sizes(problem, a, b, c)
    sizes.measure(threads)
    if is_exact(problem, GROUP_COLUMNS, sizes.in_a.largest, sizes.in_b.largest):
        wrong = {int(i): sizes.faults(int(i), 0.0, exact=True) for i in np.flatnonzero(sizes.counts)}
        return StackCheck("exact", float(sizes.counts.sum()), wrong)
    if is_exact_product(problem.dtype, l, sizes.in_a.largest, sizes.in_b.largest):
        return _modulo_a_prime(a, b, c)
    return sizes.judged()


class _Sizes:
    """How large the differences of all products' sums are: a size for each product, row and group of columns."""

    def __init__(self, problem: Problem, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        self._problem, self._a, self._b, self._c = problem, a, b, c
        groups = -(-problem.m // GROUP_COLUMNS)
        self.in_a, self.in_b = Integers(), Integers()
        self._x = random_x(np.random.default_rng(secrets.randbits(64)), [problem.m], GROUP_COLUMNS) * SCALE
        self._comparison = Comparison(problem, SCALE)
        self._sizes = np.empty((len(c), problem.n, groups))
        self.counts, self._judged = np.zeros(len(c), np.intp), np.zeros(len(c), np.intp)

    def measure(self, threads: int) -> None:
        """Compare the sums of all products, by so many threads."""
        n, l, m = self._problem.n, self._problem.l, self._problem.m
        together = max(1, _TOGETHER_BYTES // (8 * max(1, n * l, l * m, n * m)))
        for _ in on_threads(threads, self._measure, pieces(Span(0, len(self._c)), together)):
            pass

    def _measure(self, some: Span) -> None:
        with np.errstate(all="ignore"):  # overflow and NaN are not judged
            a, b = (some_matrices(stack, some).astype(np.float64) for stack in (self._a, self._b))
            c = self._c[some.slice].astype(np.float64)
            (count, n, m), l = c.shape, a.shape[2]
            self.in_a.look(a)
            self.in_b.look(b)
            of_b, norms_b = sums_and_norms(b.reshape(len(b) * l, m), self._x, GROUP_COLUMNS)
            groups = of_b.shape[1]
            of_b = of_b.reshape(len(b), l, groups)
            norms_b = norms_of(np.ascontiguousarray(norms_b.reshape(len(b), l, groups).transpose(0, 2, 1)))
            expected = np.zeros((count, n, groups))
            for part in pieces(Span(0, l), _COLUMNS_AT_ONCE):
                expected += np.matmul(a[:, :, part.slice], of_b[:, part.slice])
            rows = c.reshape(count * n, m)
            sums, norms_c = sums_and_norms(rows, self._x, GROUP_COLUMNS)
            differences = sums - expected.reshape(sums.shape)
            if are_integers(a) and are_integers(b):
                mark_fractions(differences, rows)
            norms_a = np.broadcast_to(norms_of(a), (count, n)).reshape(-1, 1)
            norms_b = np.broadcast_to(norms_b[:, None, :], (count, n, groups)).reshape(sums.shape)
            sizes, counted, judged = self._comparison.sizes(differences, norms_c, norms_a, norms_b, self._x)
        self._sizes[some.slice] = sizes.reshape(count, n, groups)
        self.counts[some.slice] = counted.reshape(count, -1).sum(axis=1)
        self._judged[some.slice] = judged.reshape(count, -1).sum(axis=1)

    def judged(self) -> StackCheck:
        """Judge the sizes, where products are rounded: those that are unusually large are looked at again."""
        if not self._judged.sum():
            return StackCheck("none", 0.0, {})
        totals = np.minimum(self._sizes, MOST_IN_TOTAL).sum(axis=(1, 2))
        enough = self.counts >= FEW
        spreads = np.where(enough, spread_of(totals, self.counts), 1.0)
        if self.counts.sum() >= FEW:
            spreads[~enough] = spread_of(totals.sum(), self.counts.sum())
        usual = usual_largest(int(self._judged.sum()))
        worst = self._sizes.max(axis=(1, 2)) / spreads
        wrong = {}
        for index in np.flatnonzero(worst > usual).tolist():
            if faults := self.faults(index, usual * spreads[index], exact=False):
                wrong[index] = faults
        return StackCheck("freivalds", float(worst.max()), wrong)

    def faults(self, index: int, limit: float, *, exact: bool) -> tuple[Fault, ...]:
        """What is wrong in one product, where differences are larger than the limit."""
        sizes, views = self._sizes[index], _views(self._a, self._b, self._c, index)
        rows, groups = np.nonzero(sizes > limit)
        order = np.argsort(-sizes[rows, groups])[:MOST_SUSPECTS]
        suspects = [
            Suspect(row, columns_of(group, Span(0, self._problem.m)), float(sizes[row, group]))
            for row, group in zip(rows[order].tolist(), groups[order].tolist(), strict=True)
        ]
        look = SecondLook(Team(), plan_alone(self._problem), views, unsaid)
        return tuple(look.faults(suspects, exact=exact)[0])


def _one_by_one(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> StackCheck:
    checks = {index: _verified(a, b, c, index, threads) for index in range(len(c))}
    worst = max(checks.values(), key=lambda check: check.error)
    return StackCheck(worst.kind, worst.error, {index: check.faults for index, check in checks.items() if not check.ok})


def _verified(a: np.ndarray, b: np.ndarray, c: np.ndarray, index: int, threads: int) -> Check:
    of_a, of_b, of_c = (view.array for view in _views(a, b, c, index))
    return verify_alone(of_a, of_b, of_c, threads)


def _modulo_a_prime(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> StackCheck:
    modular = Modular(np.random.default_rng(secrets.randbits(64)), c.shape[2], 1)
    of_all = modular.times(b[0], modular.x)
    wrong = {}
    for index in range(len(c)):
        of_b = of_all if len(b) == 1 else modular.times(b[index], modular.x)
        expected = modular.times(a[index if len(a) > 1 else 0], of_b)
        rows = np.flatnonzero(modular.impossible(c[index]) | modular.differ(modular.times(c[index], modular.x), expected))
        if len(rows):
            wrong[index] = tuple(Fault(f"row {row} of C", row=int(row)) for row in rows[:MOST_NAMED])
    return StackCheck("exact", float(len(wrong)), wrong)


def _views(a: np.ndarray, b: np.ndarray, c: np.ndarray, index: int) -> tuple[RowView, RowView, RowView]:
    """One product's A, B and C."""
    of_a, of_b, of_c = (
        RowView(matrix, Span(0, len(matrix)))
        for matrix in (a[index if len(a) > 1 else 0], b[index if len(b) > 1 else 0], c[index])
    )
    return of_a, of_b, of_c
