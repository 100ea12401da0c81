# SPDX-License-Identifier: MIT
"""Freivalds' check of C = A·B: C·x is compared with A·(B·x) for a random x. O(n²) operations, divided among all ranks.

Where all entries are integers and all sums are exact, both sides are computed exactly and must be equal. Elsewhere the
tolerance is a bound on rounding errors that holds for any order of summation. With u the unit roundoff and
s[i] = Σₖ |a[i,k]|·‖b[k,:]‖₂, the rounding error of c[i,j] is at most l·u·(|A||B|)[i,j]. The signs in x are random, so these
errors add up like a random walk: the sum exceeds λ·l·u·s[i] with probability 2·exp(-λ²/2) only. The magnitudes in x are
random, too, so that two equal errors do not cancel. The columns are checked in groups, each with its own elements of x: the
fewer columns a sum has, the smaller an error in one element is found.

Matrix-vector products use np.dot, since @ does not release the GIL for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hybrid.core.spans import Span, even_pieces
from hybrid.host.row_view import RowView
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about
from hybrid.host.threads import limited_threads
from hybrid.plan.plan import Plan, column_groups
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team

Result = TypeVar("Result")

LAMBDA = 8.0  # λ above: a right sum is taken for wrong with probability 2·exp(-32) = 3e-14
_LARGEST_WEIGHT = 1.0625  # |x| is in [1, this): at least 1, so that no error is scaled down
_LARGEST_X = 1 << 16  # bound on |x| in the exact check
_EXACT_UP_TO = {"float32": 2**24, "float64": 2**53}  # the type holds every integer up to this magnitude


@dataclass(frozen=True)
class Check:
    """The result. `error` and `tolerance` are in units of s[i]; in an exact check the largest difference in C·x, and 0."""

    kind: str  # "exact", "freivalds", or "none" where NaN, infinity or overflow leaves nothing to compare
    error: float
    tolerance: float
    ok: bool


@dataclass(frozen=True)
class _Integers:
    """Whether some rows hold integers only, and their largest magnitude."""

    integral: bool
    largest: float


def verify(team: Team, plan: Plan, a: RowView, b: RowView, c: RowView, threads: int = 1) -> Check:
    """Check C where the product left it: gathered on the root's node, or as row blocks on all ranks.

    `threads`: of this rank. Every rank calls it and gets the same result.
    """
    with limited_threads(1), busy():  # one thread of BLAS: the rows are divided among our own threads
        return _verify(team, plan, a, b, c, threads)


def _verify(team: Team, plan: Plan, a: RowView, b: RowView, c: RowView, threads: int) -> Check:
    share, problem = plan.shares[team.rank], plan.problem
    if not (problem.n and problem.m):
        return Check("exact", 0.0, 0.0, True)  # C has no elements
    my_a, my_b = a[share.rows], b[share.b_rows]
    with team.phase("check") as scan:
        scan.mine = (secrets.randbits(64), _integers(my_a, threads), _integers(my_b, threads))
    random = np.random.default_rng(scan.all[0][0])
    exact_bound = _exact_bound(plan, [of_a for _, of_a, _ in scan.all], [of_b for _, _, of_b in scan.all])
    arithmetic = _Exact(plan, random, threads, exact_bound) if exact_bound is not None else _Rounded(plan, random, threads)
    with team.phase("check") as through_b:
        through_b.mine = arithmetic.of_b(my_b)
    b_times_x = _stack(plan, through_b.all, by="b_rows")
    own = plan.has_row_blocks or len(plan.topology.nodes) == 1  # each rank compares its own rows of C, for which it has A's rows
    with team.phase("check") as through_a:
        expected = arithmetic.of_a(my_a, b_times_x)
        through_a.mine = None if own else expected
    if not own:
        expected = _stack(plan, through_a.all, by="rows")[plan.c_rows_at_the_end(team.rank).slice]
    with team.phase("check") as comparing:
        rows = plan.c_rows_at_the_end(team.rank)
        comparing.mine = arithmetic.compare(c[rows], expected) if len(rows) else None
    return arithmetic.conclude([found for found in comparing.all if found is not None])


def _stack(plan: Plan, parts: list[np.ndarray], by: str) -> np.ndarray:
    """The ranks' results for their rows, in the order of the matrix' rows. `by`: the rows, an attribute of a rank's share."""
    if len(parts) == 1:
        return parts[0]
    order = sorted(range(len(parts)), key=lambda rank: getattr(plan.shares[rank], by))
    return np.concatenate([parts[rank] for rank in order])


def _over_rows(matrix: np.ndarray, threads: int, work: Callable[[slice, np.ndarray], Result]) -> Iterator[Result]:
    """`work(where, rows)` for some rows at a time, `where` in the matrix, by several threads."""
    parts = rows_of_about(CALL_BYTES, Span(0, len(matrix)), matrix.shape[1] * matrix.itemsize)
    return on_threads(threads, lambda rows: work(rows.slice, matrix[rows.slice]), parts)


def _integers(matrix: np.ndarray, threads: int) -> _Integers:
    def look(where: slice, rows: np.ndarray) -> _Integers:
        if not rows.size:
            return _Integers(True, 0.0)
        if not (np.rint(rows) == rows).all():  # true for infinity, but its magnitude exceeds any exact bound
            return _Integers(False, 0.0)
        return _Integers(True, float(np.abs(rows).max()))

    largest = 0.0
    for found in _over_rows(matrix, threads, look):
        if not found.integral:
            return found
        largest = max(largest, found.largest)
    return _Integers(True, largest)


def _norms(rows: np.ndarray) -> np.ndarray:
    """The 2-norm of each row, also where the squares overflow or underflow float64."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    out_of_range = ~((norms > 1e-140) & (norms < 1e150))
    if out_of_range.any():
        sizes = np.abs(rows[out_of_range])
        peaks = sizes.max(axis=1)
        scaled = sizes / np.where(peaks > 0, peaks, 1.0)[:, None]
        norms[out_of_range] = peaks * np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    return norms


def _exact_bound(plan: Plan, a: list[_Integers], b: list[_Integers]) -> float | None:
    """A bound on the elements of C if every sum in the product is exact, None if some sum may be rounded."""
    if not all(part.integral for part in (*a, *b)):
        return None
    bound = plan.problem.l * max(1.0, *(part.largest for part in a)) * max(1.0, *(part.largest for part in b))
    return bound if bound <= _EXACT_UP_TO[plan.problem.dtype] else None


class _Exact:
    """Both sides without rounding: in float64 if all sums stay below 2^53, else in integers modulo 2^64."""

    def __init__(self, plan: Plan, random: np.random.Generator, threads: int, bound: float) -> None:
        self._bound, self._threads = bound, threads
        self._kind = np.float64 if bound * plan.problem.m * _LARGEST_X <= 2**53 else np.int64
        # Odd numbers have inverses modulo 2^64, so an error in a single element is never multiplied to zero.
        sizes = 2 * random.integers(_LARGEST_X // 2, size=plan.problem.m) + 1
        self._x = (sizes * random.choice([-1, 1], size=plan.problem.m)).astype(self._kind)

    def of_b(self, b: np.ndarray) -> np.ndarray:
        return self._times(b, self._x)

    def of_a(self, a: np.ndarray, of_b: np.ndarray) -> np.ndarray:
        return self._times(a, of_b)

    def compare(self, c: np.ndarray, expected: np.ndarray) -> float:
        def possible(where: slice, rows: np.ndarray) -> bool:
            return bool(((np.rint(rows) == rows) & (np.abs(rows) <= self._bound)).all())

        if not all(_over_rows(c, self._threads, possible)):
            return float("inf")  # C cannot have such elements; as integers they might pass
        difference = self._times(c, self._x) - expected
        return float(np.abs(difference.astype(np.float64)).max(initial=0.0))

    def conclude(self, found: list[float]) -> Check:
        error = max(found, default=0.0)
        return Check("exact", error, 0.0, error == 0.0)

    def _times(self, matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
        product = np.empty(len(matrix), self._kind)

        def multiply(where: slice, rows: np.ndarray) -> None:
            product[where] = np.dot(rows.astype(self._kind, copy=False), vector)

        for _ in _over_rows(matrix, self._threads, multiply):
            pass
        return product


class _Rounded:
    """Both sides in float64, compared with the tolerance for rounding errors."""

    def __init__(self, plan: Plan, random: np.random.Generator, threads: int) -> None:
        problem = plan.problem
        width = -(-problem.m // column_groups(problem.m))
        self._groups = [span.slice for span in even_pieces(Span(0, problem.m), width)]
        self._threads = threads
        self._x = random.uniform(1.0, _LARGEST_WEIGHT, problem.m) * random.choice([-1.0, 1.0], size=problem.m)
        of_type = np.finfo(problem.dtype)
        u_product, u_here = float(of_type.eps) / 2, 2.0**-53
        here = LAMBDA * problem.l + 2 * width**1.5  # of this check: in A·(B·x), and in B·x and C·x with sums over a group
        self._relative = 1.05 * _LARGEST_WEIGHT * (LAMBDA * problem.l * u_product + here * u_here) + 8 * u_here
        # Subnormal numbers may be flushed to zero, in A, in B or as a product.
        self._tiny = _LARGEST_WEIGHT * LAMBDA * float(of_type.tiny)
        self._root_width, self._inner = width**0.5, problem.l
        self._overflow = float(of_type.max) / 2

    def of_b(self, b: np.ndarray) -> np.ndarray:
        """For each row of B and group of columns: their sum with the elements of x, and their 2-norm."""
        found = np.empty((len(b), 2, len(self._groups)))

        def sums_and_norms(where: slice, rows: np.ndarray) -> None:
            for index, columns in enumerate(self._groups):
                part = rows[:, columns].astype(np.float64, copy=False)
                found[where, 0, index] = np.dot(part, self._x[columns])
                found[where, 1, index] = _norms(part)

        self._run(b, sums_and_norms)
        return found

    def of_a(self, a: np.ndarray, of_b: np.ndarray) -> np.ndarray:
        """For each row of A and group of columns: the expected C·x, the scale s, and the absolute error by underflow."""
        found = np.empty((len(a), 3, len(self._groups)))
        sums, norms = np.ascontiguousarray(of_b[:, 0]), np.ascontiguousarray(of_b[:, 1])
        with np.errstate(all="ignore"):
            all_norms = norms.sum(axis=0)

        def expect(where: slice, rows: np.ndarray) -> None:
            wide = rows.astype(np.float64, copy=False)
            sizes = np.abs(wide)
            found[where, 0] = np.dot(wide, sums)
            found[where, 1] = np.dot(sizes, norms)
            flushed = self._root_width * (sizes.sum(axis=1, keepdims=True) + self._inner)
            found[where, 2] = self._tiny * (all_norms + flushed)

        self._run(a, expect)
        return found

    def compare(self, c: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
        """The largest error in units of s, and the number of sums that could be compared."""

        def look(where: slice, rows: np.ndarray) -> tuple[float, int]:
            wide = rows.astype(np.float64, copy=False)
            expected_sums, scale, absolute = expected[where].transpose(1, 0, 2)
            got = np.stack([np.dot(wide[:, columns], self._x[columns]) for columns in self._groups], axis=1)
            # With overflow, infinities or NaN in A or B, non-finite elements of C may be right: those are not compared.
            usable = np.isfinite(expected_sums) & (scale < self._overflow)
            error = np.abs(got - expected_sums) / (scale + absolute / self._relative)
            error = np.where(got == expected_sums, 0.0, np.where(np.isnan(error), np.inf, error))
            return float(error[usable].max(initial=0.0)), int(usable.sum())

        found = self._run(c, look)
        return max((worst for worst, _ in found), default=0.0), sum(compared for _, compared in found)

    def conclude(self, found: list[tuple[float, int]]) -> Check:
        error = max((worst for worst, _ in found), default=0.0)
        none_compared = self._groups and found and not any(compared for _, compared in found)
        return Check("none" if none_compared else "freivalds", error, self._relative, error <= self._relative)

    def _run(self, matrix: np.ndarray, work: Callable[[slice, np.ndarray], Result]) -> list[Result]:
        def quietly(where: slice, rows: np.ndarray) -> Result:
            with np.errstate(all="ignore"):  # `compare` deals with overflow and NaN
                return work(where, rows)

        return list(_over_rows(matrix, self._threads, quietly))
