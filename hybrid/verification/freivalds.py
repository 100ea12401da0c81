# SPDX-License-Identifier: MIT
"""Freivalds' check of C = A·B in host memory: C·x is compared with A·(B·x) for a random x.

Columns are summed in groups, so a difference belongs to one row and one group. If all entries are integers and all sums exact,
both sides must be equal; if the product is exact but these sums are not, they must be equal modulo 2^64. Otherwise differences
are measured in standard deviations of this product's rounding errors (see hybrid.verification.check). A large one only raises
suspicion: the elements of a suspicious sum are recomputed in higher precision, which tells faults from unusual rounding errors.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hybrid.arrays.integers import odd_words, times_words
from hybrid.core.problem import Problem, Span, Topology, merged, pieces
from hybrid.devices.row_sums import (
    MOST_IN_TOTAL,
    MOST_WEIGHT,
    NOT_INTEGRAL,
    OF_PRODUCT,
    TERMS,
    Allowed,
    Bounds,
    Compared,
    Integers,
    can_sum,
    check_product,
    check_stack,
    column_weights,
    compare,
    group_sums,
    norms_from,
    norms_of,
    sampled_peaks,
    sizes_of,
    sums_and_squares,
    times,
)
from hybrid.host.blas import some_matrices
from hybrid.host.memory import RowView
from hybrid.host.threads import CALL_BYTES, limited_threads, on_threads, rows_of_about
from hybrid.kernels.catalogue import numbers_of
from hybrid.planning.plan import COLUMNS_AT_ONCE, Plan, make_plan
from hybrid.planning.schedule import GROUP_COLUMNS
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.verification.check import (
    FEW,
    MOST_NAMED,
    MOST_SUSPECTS,
    TERMS_OF_A_STEP,
    THRESHOLD,
    Check,
    Fault,
    Suspect,
    comparison_numbers,
    is_exact,
    is_exact_product,
    random_x,
    smallest_x,
    spread_of,
    usual_largest,
)

_SCALE = -14  # exponent of 2 that scales the integers in x, so that no sum over a group overflows unless C's elements do
_MOST_SCALE = 700  # exponent of 2: x times larger or smaller numbers may overflow or underflow
_STACK_BYTES = 1 << 20  # of a stack's matrices, as float64, that are multiplied together: they stay in a core's cache
_SMALL_B = 1 << 20  # elements of B: summing them takes a rank about as long as getting the sums of other ranks
_SMALL_B_OF_ALL = 1 << 25  # the same, over all ranks together
_SAMPLED_ROWS = 1000  # of A, sampled for the norm of a typical row
_MOST_COPIED = (
    1 << 23
)  # bytes of A and B that are copied if the C code cannot read their layout: for larger ones NumPy is as fast
_SEEDS = 8  # of x, per process
_MARGIN = 16.0  # safety factor: columns that reach 1/16 of the overflow limit count as overflowing


class _HostSums:
    """The terms of a product's sums: the weighted x, B·x and tolerances."""

    def __init__(self, problem: Problem, x: np.ndarray, threads: int, peaks: np.ndarray, others: np.ndarray) -> None:
        """`x`: from `random_x`, to be weighted here. `peaks`, `others`: of B's columns, from `_peaks`."""
        self._threads, self.in_a, self.in_b = threads, Integers(), Integers()
        self._bounds = how = bounds_of(problem)
        weights, of_groups, largest = column_weights(peaks, others, GROUP_COLUMNS)
        scales = _SCALE - np.clip(of_groups, -_MOST_SCALE, _MOST_SCALE)
        self.x = np.ldexp(x, weights + np.repeat(scales, GROUP_COLUMNS)[: len(x)])
        with np.errstate(all="ignore"):
            self._flushed = np.ldexp(how.flushed_of_b, largest + scales)
            self._overflow = np.ldexp(how.largest, scales) * how.smallest_x

    def of_b(self, b: np.ndarray, columns: Span) -> tuple[np.ndarray, np.ndarray]:
        """B·x for these columns, and the norm of each group's terms."""
        sums, squares = group_sums(b[:, columns.slice], self.x[columns.slice], GROUP_COLUMNS, self.in_b, self._threads)

        def terms(groups: np.ndarray) -> np.ndarray:
            found = np.zeros((len(groups), len(b), GROUP_COLUMNS))
            for into, group in zip(found, groups.tolist(), strict=True):
                part = columns_of(group, columns)
                into[:, : len(part)] = b[:, part.slice] * self.x[part.slice]
            return found.reshape(len(groups), -1)

        with np.errstate(all="ignore"):
            return sums, norms_from(squares.sum(axis=0), terms)

    def allowed(self, columns: Span, norms_b: np.ndarray, *, integral: bool) -> Allowed:
        """The tolerance of sums in these columns of C. `integral`: elements with a fraction are wrong."""
        groups = slice(columns.lo // GROUP_COLUMNS, -(-columns.hi // GROUP_COLUMNS))
        bounds, limits = self._bounds, (self._flushed[groups], self._bounds.flushed_of_a, self._overflow[groups])
        return Allowed(norms_b, bounds.deviation, bounds.per_term, *limits, integral)


@lru_cache(maxsize=16)
def bounds_of(problem: Problem) -> Bounds:
    """This problem's weights of x and tolerances, for the check on the host."""
    variance, per_term, flushed, _, largest_integer = comparison_numbers(problem, GROUP_COLUMNS).tolist()
    overflow, deviation = float(np.finfo(problem.dtype).max) / 4, variance**0.5
    weighting = _SCALE, _MOST_SCALE, MOST_WEIGHT, largest_integer, flushed, overflow, smallest_x(GROUP_COLUMNS)
    return Bounds(*weighting, deviation, per_term, math.ldexp(flushed, _SCALE))


def _peaks(problem: Problem, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return sampled_peaks(b, bounds_of(problem).largest_integer)


def _compared(sizes: np.ndarray, *largest: float) -> Compared:
    """The statistics of these sizes. `largest`: magnitudes in A and in B."""
    open_, count, of_rows = (sizes < 0).sum(), (sizes > 0).sum(), sizes.max(axis=1, initial=0.0)
    totals = float(np.clip(sizes, 0, MOST_IN_TOTAL).sum()), int(count), int(open_), int(sizes.size - open_)
    rows = np.argsort(-of_rows, kind="stable")[:MOST_SUSPECTS]
    worst = list(zip(rows.tolist(), sizes[rows].argmax(axis=1).tolist(), of_rows[rows].tolist(), strict=True))
    return Compared(totals, (float(of_rows.max(initial=0.0)), *largest), worst)


def _joined(parts: Sequence[Compared], first_row: int) -> Compared:
    """The statistics of a rank's rows of C, which begin with `first_row`, from those of each COLUMNS_AT_ONCE columns."""
    if len(parts) == 1 and not first_row:
        return parts[0]
    groups, worst = COLUMNS_AT_ONCE // GROUP_COLUMNS, []
    for number, part in enumerate(parts):
        worst += [(first_row + row, number * groups + group, size) for row, group, size in part.worst]
    return Compared(_sums([part.totals for part in parts]), _largest([part.largest for part in parts]), worst)


def _sums(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def _largest(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(map(max, zip(*rows, strict=True)))


def _suspects(worst: Sequence[tuple[int, int, float]], limit: float, columns: int) -> list[Suspect]:
    """The worst sums above the limit, the largest first. `columns`: how many C has."""
    found = sorted((each for each in worst if each[2] > limit), key=lambda each: -each[2])[:MOST_SUSPECTS]
    return [Suspect(row, columns_of(group, Span(0, columns)), size) for row, group, size in found]


def columns_of(group: int, columns: Span) -> Span:
    """The columns of a group, counted from the first of `columns`."""
    first = columns.lo + group * GROUP_COLUMNS
    return Span(first, min(first + GROUP_COLUMNS, columns.hi))


Multiply = Callable[[], object]  # computes a rank's rows of C

# Given a row of C and columns: who multiplied them, for messages ("" to leave it out), and the rank, if it was one.
MultipliedBy = Callable[[int, Span], tuple[str, int | None]]


def unsaid(row: int, columns: Span) -> tuple[str, int | None]:
    """A MultipliedBy that names nobody."""
    return "", None


@lru_cache(maxsize=1)
def _seeds() -> tuple[int, ...]:
    return tuple(secrets.randbits(64) for _ in range(_SEEDS))


def new_seed() -> int:
    """A seed for the x of a check: one of a few that this process drew, so that their x can be cached."""
    return _seeds()[secrets.randbits(32) % _SEEDS]


def _x_of(columns: int, seed: int) -> np.ndarray:
    """A random x for C's columns; cached, since making it takes longer than checking a small product."""
    return _kept_x(columns, seed) if columns <= COLUMNS_AT_ONCE else _kept_x.__wrapped__(columns, seed)


@lru_cache(maxsize=16 * _SEEDS)
def _kept_x(columns: int, seed: int) -> np.ndarray:
    x = random_x(np.random.default_rng(seed), [columns], GROUP_COLUMNS)
    x.flags.writeable = False
    return x


def verify_alone(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    threads: int,
    suspects: Sequence[Suspect] = (),
    by: MultipliedBy = unsaid,
    *,
    problem: Problem | None = None,
    multiply: Multiply | None = None,
) -> Check:
    """Check a product of this process alone. `problem`: needed if A and B were multiplied in 16 bits. `suspects`: as for
    `HostCheck.result`. `multiply`: as for `HostCheck.compared`."""
    problem = problem or Problem(len(a), len(b), c.shape[1], c.dtype.name)
    if not c.size:
        return Check("exact", 0.0, 0.0, True)
    if multiply is None:
        Team().enter("check")
    seed = new_seed()
    with busy():
        if not suspects:
            found = _compared_by_c(problem, a, b, c, seed, threads, multiply)
            if found and (right := _passed(problem, found.totals, found.largest)):
                return right  # the usual case: the rest takes as long as checking a small product
        views = [RowView(matrix, Span(0, len(matrix))) for matrix in (a, b, c)]
        return HostCheck(Team(), plan_alone(problem), views, threads, by).result(seed, suspects)


def _compared_by_c(
    problem: Problem, a: np.ndarray, b: np.ndarray, c: np.ndarray, seed: int, threads: int, multiply: Multiply | None
) -> Compared | None:
    """Compare by the C code. With `multiply`, C is computed first, by the C code if it can, else by `multiply`. None if the C
    code cannot read a matrix's layout, or finds fractions in C, but none in A and B: it does not tell in which elements."""
    if a.nbytes + b.nbytes <= _MOST_COPIED:
        a, b = map(np.ascontiguousarray, (a, b))
    parts = a, b, c, _x_of(problem.m, seed), GROUP_COLUMNS, bounds_of(problem), threads
    found = check_product(*parts, multiplies=multiply is not None)
    if found is None and multiply is not None:
        multiply()
        found = check_product(*parts, multiplies=False)
    return None if found is None or found[1] else found[0]


def _passed(problem: Problem, totals: tuple[float, ...], largest: tuple[float, ...]) -> Check | None:
    """The check's result if all sums were judged and none looks wrong; else None."""
    total, count, not_judged, judged = totals
    size, *of_operands = largest
    if is_exact(problem, GROUP_COLUMNS, *of_operands):
        return None if count else Check("exact", 0.0, 0.0, True)
    if not_judged or is_exact_product(problem.dtype, problem.l, *of_operands):
        return None
    spread = float(spread_of(total, count)) if count >= FEW else 1.0
    return Check("freivalds", size / spread, THRESHOLD, True) if size <= usual_largest(int(judged)) * spread else None


@lru_cache(maxsize=4)
def plan_alone(problem: Problem) -> Plan:
    """The plan of one rank that multiplies everything and checks it in host memory."""
    return make_plan(PlanRequest(problem, Topology(((0,),)), check="host"))


def needs_no_sums_of_others(plan: Plan) -> bool:
    """Whether each rank sums all of B by itself: it is alone, or all ranks have a small B in their node's memory."""
    return plan.topology.size == 1 or (len(plan.topology.nodes) == 1 and not plan.has_row_blocks and is_small_b(plan))


def is_small_b(plan: Plan) -> bool:
    """Whether summing all of B takes a rank about as long as an exchange of sums. Summing A's transpose takes longer."""
    most = _SMALL_B if plan.problem.symmetric else max(_SMALL_B, _SMALL_B_OF_ALL // plan.topology.size)
    return plan.problem.l * plan.problem.m <= most


class HostCheck:
    """One rank's part of the check of a product. `result` does it all. To combine the exchange with another one, a caller
    gathers `check.compared(seed)` of all ranks in a list, and each rank passes that to `check.judged`."""

    def __init__(
        self,
        team: Team,
        plan: Plan,
        matrices: Sequence[RowView],
        threads: int,
        by: MultipliedBy,
        numbers: np.ndarray | None = None,
        *,
        has_all_of_b: bool = False,
    ) -> None:
        """`matrices`: this rank's rows of A, B and C. `numbers`: if these matrices have only some columns of B and C, their
        numbers in the whole C. `has_all_of_b`: each rank has all of a small B, whatever the plan says."""
        self._share, self._rows_of_c = plan.shares[team.rank], plan.c_rows_at_the_end(team.rank)
        if plan.problem.short_operands:  # 16-bit types, in which the host does not compute
            all_of_b = has_all_of_b or needs_no_sums_of_others(plan)
            needed = self._share.rows, Span(0, plan.problem.l) if all_of_b else self._share.b_rows
            of_a, of_b = (
                RowView(numbers_of(view[rows]).astype(np.float32, copy=False), rows)
                for view, rows in zip(matrices, needed, strict=False)
            )
            matrices = of_a, of_b, matrices[2]
        self._team, self._plan, self._matrices, self._threads = team, plan, matrices, threads
        self._by, self._numbers = by, numbers
        self._has_all_of_b = has_all_of_b

    def result(self, seed: int | None = None, suspects: Sequence[Suspect] = ()) -> Check:
        """Collective: check C in place, gathered on the root's node or in row blocks. Every rank gets the same result.

        `seed`: a `new_seed`, the same on all ranks; None: they agree on one. `suspects`: if devices have judged all sums, those
        that look wrong; nothing else is checked.
        """
        if not (self._plan.problem.n and self._plan.problem.m):
            return Check("exact", 0.0, 0.0, True)  # C has no elements
        if suspects:
            faults, note = self._faults(suspects, exact=False)
            return Check("freivalds", max(each.size for each in suspects), THRESHOLD, not faults, tuple(faults), note)
        by_itself = seed is not None and needs_no_sums_of_others(self._plan)
        found = None if by_itself else self.compared(seed)
        with self._team.phase("check") as comparing:
            comparing.mine = found or self.compared(seed)
        return self.judged(comparing.all)

    def compared(self, seed: int | None = None, multiply: Multiply | None = None) -> Compared:
        """Compare C·x with A·(B·x) in this rank's rows. Collective, unless a seed is given and `needs_no_sums_of_others`. Only
        then there may be a `multiply`, which computes C if the C code cannot."""
        plan, problem, m = self._plan, self._plan.problem, self._plan.problem.m
        self._a, b = self._matrices[0][self._share.rows], self._matrices[1][self._share.b_rows]
        self._c = self._matrices[2][self._rows_of_c] if len(self._rows_of_c) else np.empty((0, m), problem.dtype)
        self._by_itself = seed is not None and (needs_no_sums_of_others(plan) or self._has_all_of_b)
        if self._by_itself:
            assert seed is not None
            b = self._matrices[1][Span(0, problem.l)]
            if found := _compared_by_c(problem, self._a, b, self._c, seed, self._threads, multiply):
                self._seed = seed
                return _joined([found], self._rows_of_c.lo)
            peaks, others = _peaks(problem, b)
        else:
            with self._team.phase("check") as agreeing:
                agreeing.mine = new_seed(), *_peaks(problem, b)
            seeds, of_ranks, of_others = zip(*agreeing.all, strict=True)
            seed, peaks, others = seeds[0], np.max(of_ranks, axis=0), np.any(of_others, axis=0)
        assert seed is not None
        self._seed = seed
        with limited_threads(1):  # one BLAS thread: the rows are divided among our own threads
            sums = _HostSums(problem, _x_of(m, seed), self._threads, peaks, others)
            parts = [self._compared_columns(columns, sums, b) for columns in pieces(Span(0, m), COLUMNS_AT_ONCE)]
        return _joined(parts, self._rows_of_c.lo)

    def judged(self, compared: Sequence[Compared]) -> Check:
        """The result, from `compared` of all ranks, by rank. Collective."""
        problem = self._plan.problem
        totals, largest = _sums([each.totals for each in compared]), _largest([each.largest for each in compared])
        if (right := _passed(problem, totals, largest)) is not None:
            return right
        total, count, not_judged, judged = totals
        size, *of_operands = largest
        worst = [sum_ for each in compared for sum_ in each.worst]
        if is_exact(problem, GROUP_COLUMNS, *of_operands):
            faults = self._faults(_suspects(worst, 0.0, problem.m), exact=True)[0]
            return Check("exact", count, 0.0, False, tuple(faults))
        if is_exact_product(problem.dtype, problem.l, *of_operands):
            return self._checked_modulo(self._seed)
        if not_judged and not judged:
            check = Check("none", 0.0, THRESHOLD, True)
        else:
            spread = float(spread_of(total, count)) if count >= FEW else 1.0
            usual, error, note = usual_largest(int(judged)), size / spread, ""
            if suspects := _suspects(worst, usual * spread, problem.m):
                faults, note = self._faults(suspects, exact=False)
                if faults:
                    return Check("freivalds", error, usual, False, tuple(faults))
            check = Check("freivalds", error, THRESHOLD, True, note=note if error > THRESHOLD else "")
        if not_judged and self._numbers is None:
            unjudged = f"{not_judged:.0f} sums of {not_judged + judged:.0f}"
            return self._with_hidden_columns(check, f"{unjudged} hold NaN or infinities, or may overflow: not judged")
        return check

    def _faults(self, suspects: Sequence[Suspect], *, exact: bool) -> tuple[list[Fault], str]:
        return faults_among(suspects, self._team, self._plan, self._matrices, self._by, self._numbers, exact=exact)

    def _compared_columns(self, columns: Span, sums: _HostSums, b: np.ndarray) -> Compared:
        """Compare these columns in this rank's rows of C. `b`: the rows of B that this rank sums."""
        plan, team = self._plan, self._team
        of_ranks = [(*sums.of_b(b, columns), sums.in_b.largest)]
        if not self._by_itself:
            with team.phase("check") as through_b:
                through_b.mine = of_ranks[0]
            of_ranks = through_b.all
        of_b, norms, in_b = zip(*of_ranks, strict=True)
        with np.errstate(all="ignore"):
            norms_b = norms_of(np.stack(norms, axis=1)) if len(norms) > 1 else norms[0]
        y, largest_b = joined_by_rows(plan, of_b, "b_rows"), max(in_b)
        # Usually each rank compares the rows of C for which it has A's rows, and exchanges only the result.
        if plan.has_row_blocks or len(plan.topology.nodes) == 1:
            expected, norms_a = times(self._a, y, sums.in_a, self._threads)
            largest_a = sums.in_a.largest
        else:
            with team.phase("check") as through_a:
                through_a.mine = *times(self._a, y, sums.in_a, self._threads), sums.in_a.largest
            products, of_a, in_a = zip(*through_a.all, strict=True)
            rows, largest_a = self._rows_of_c.slice, max(in_a)
            expected, norms_a = joined_by_rows(plan, products, "rows")[rows].copy(), joined_by_rows(plan, of_a, "rows")[rows]
        allowed = sums.allowed(columns, norms_b, integral=max(largest_a, largest_b) < NOT_INTEGRAL)
        c, x = self._c[:, columns.slice], sums.x[columns.slice]
        compare(c, x, GROUP_COLUMNS, expected, norms_a, allowed, self._threads)
        return _compared(expected, largest_a, largest_b)

    def _with_hidden_columns(self, judged: Check, note: str) -> Check:
        """Collective: also check finite columns in groups that were not judged because another of their columns holds NaN or
        infinities, or may overflow. `note`: of the result, if it has none."""
        team, problem, own_b = self._team, self._plan.problem, self._matrices[1][self._share.b_rows]
        with team.phase("check") as measuring, np.errstate(all="ignore"):
            norms_a = norms_of(self._a[:: 1 + len(self._a) // _SAMPLED_ROWS].astype(np.float64))
            finite = norms_a[np.isfinite(norms_a)]
            parts = (own_b[:, some.slice].T for some in pieces(Span(0, problem.m), COLUMNS_AT_ONCE))
            norms_b = np.concatenate([norms_of(np.ascontiguousarray(each, np.float64)) for each in parts])
            measuring.mine = float(np.median(finite)) if len(finite) else 1.0, norms_b  # the norm of a typical row of A first
        usual, norms = zip(*measuring.all, strict=True)
        with np.errstate(all="ignore"):
            harmless = norms_of(np.stack(norms, axis=1)) * max(usual) < float(np.finfo(problem.dtype).max) / 4 / _MARGIN
        hidden = np.repeat(~np.logical_and.reduceat(harmless, np.arange(0, problem.m, GROUP_COLUMNS)), GROUP_COLUMNS)
        numbers = np.flatnonzero(harmless & hidden[: problem.m])
        for some in pieces(Span(0, len(numbers)), COLUMNS_AT_ONCE):
            chosen = numbers[some.slice]
            of_b, of_c = RowView(own_b[:, chosen], self._share.b_rows), RowView(self._c[:, chosen], self._rows_of_c)
            plan, matrices = replace(self._plan, problem=replace(problem, m=len(chosen))), (self._matrices[0], of_b, of_c)
            of_chosen = HostCheck(team, plan, matrices, self._threads, self._by, chosen).result()
            if not of_chosen.ok:
                return of_chosen
            judged = max(judged, of_chosen, key=lambda each: (each.kind != "none", each.error))
        return replace(judged, note=judged.note or note)

    def _checked_modulo(self, seed: int | None) -> Check:
        """Collective: check, modulo 2^64, a product of integers that is exact while the sums in float64 are not."""
        x, plan, team = odd_words(np.random.default_rng(seed), self._plan.problem.m), self._plan, self._team
        with team.phase("check") as through_b:
            through_b.mine = times_words(self._matrices[1][self._share.b_rows], x, self._threads)
        with team.phase("check") as through_a:
            through_a.mine = times_words(self._a, joined_by_rows(plan, through_b.all, "b_rows"), self._threads)
        expected = joined_by_rows(plan, through_a.all, "rows")[self._rows_of_c.slice]
        with team.phase("check") as comparing:
            comparing.mine = (self._rows_of_c.lo + _wrong_rows(self._c, x, expected, self._threads)).tolist()
        found = sorted(row for rows in comparing.all for row in rows)
        whole = Span(0, plan.problem.m)
        faults = tuple(_fault_in(row, "", self._by(row, whole)) for row in found[:MOST_NAMED])
        return Check("exact", float(len(found)), 0.0, not found, faults)


def joined_by_rows(plan: Plan, parts: Sequence[np.ndarray], by: str) -> np.ndarray:
    """All ranks' parts, joined in the order of the matrix's rows. `by`: the attribute of a rank's share that tells its rows,
    "rows" or "b_rows"."""
    if len(parts) == 1:
        return parts[0]
    order = sorted(range(len(parts)), key=lambda rank: getattr(plan.shares[rank], by))
    return np.concatenate([parts[rank] for rank in order])


class StackCheck:
    """The check that c[i] = a[i]·b[i] for each i. All are stacks of real matrices in host memory; `a` or `b` may hold one matrix
    for all products. The accuracy of right products is estimated from each product's differences if they are enough, else from
    those of all."""

    def __init__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> None:
        self._a, self._b, self._c, self._threads = a, b, c, threads
        self._problem, self._seed = Problem(c.shape[1], a.shape[2], c.shape[2], c.dtype.name), new_seed()
        self._found: np.ndarray | None = None  # by product, of OF_PRODUCT; None: nothing has been compared

    def compared_in_c(self, *, multiplies: bool = False) -> bool:
        """Compare all products by the C code, which with `multiplies` computes them first. Returns whether it can."""
        a, b = (each if can_sum(each[0]) else np.ascontiguousarray(each) for each in (self._a, self._b))
        how = _x_of(self._problem.m, self._seed), GROUP_COLUMNS, bounds_of(self._problem), self._threads
        self._found = check_stack(a, b, self._c, *how, multiplies=multiplies)
        return self._found is not None

    def _compared(self, part: Span) -> np.ndarray:
        """Compare some products by NumPy."""
        with np.errstate(all="ignore"):
            a, b = (some_matrices(each, part).astype(np.float64) for each in (self._a, self._b))
            c, m = self._c[part.slice].astype(np.float64), self._problem.m
            sums = _HostSums(self._problem, _x_of(m, self._seed), 1, *_peaks(self._problem, b.reshape(-1, m)))
            sums.in_a.look(a)
            sums.in_b.look(b)
            of_b, _ = sums_and_squares(b, sums.x, GROUP_COLUMNS)
            of_c, squares = sums_and_squares(c, sums.x, GROUP_COLUMNS)
            for some in pieces(Span(0, a.shape[2]), TERMS):
                of_c -= a[:, :, some.slice] @ of_b[:, some.slice]
            by_group = np.split(b * sums.x, range(GROUP_COLUMNS, m, GROUP_COLUMNS), axis=2)
            norms_b = np.stack([norms_of(each.reshape(len(b), 1, -1)) for each in by_group], axis=2)
            sizes = sizes_of(of_c, squares, norms_of(a)[:, :, None], sums.allowed(Span(0, m), norms_b, integral=False))
            has_fractions = (np.rint(c) != c).any(axis=(1, 2)) & sums.in_a.integral & sums.in_b.integral
        found, of_product = np.zeros(len(c), OF_PRODUCT), (1, 2)
        found["total"], found["differ"] = np.clip(sizes, 0, MOST_IN_TOTAL).sum(of_product), (sizes > 0).sum(of_product)
        found["largest"], found["not_judged"] = sizes.max(of_product), (sizes < 0).sum(of_product)
        found["largest_a"], found["largest_b"], found["has_fractions"] = sums.in_a.largest, sums.in_b.largest, has_fractions
        return found

    def faults(self) -> dict[int, tuple[Fault, ...]]:
        """The faults of each wrong product, by its number."""
        problem, wrong, count = self._problem, dict[int, tuple[Fault, ...]](), len(self._c)
        of_one = 8 * (problem.n * problem.l + problem.l * problem.m + problem.n * problem.m)
        if self._found is None and not self.compared_in_c() and of_one <= _STACK_BYTES:
            parts = rows_of_about(_STACK_BYTES, Span(0, count), of_one)
            self._found = np.concatenate(on_threads(self._threads, self._compared, parts))
        exact, limits, found = True, np.full(count, -np.inf), self._found
        suspected = limits < 0  # each product is checked by itself
        if found is not None:
            largest = float(found["largest_a"].max()), float(found["largest_b"].max())
            if is_exact(problem, GROUP_COLUMNS, *largest):
                limits[:] = 0
            elif not is_exact_product(problem.dtype, problem.l, *largest):
                exact, totals, counts = False, found["total"], found["differ"]
                judged = count * problem.n * -(-problem.m // GROUP_COLUMNS) - int(found["not_judged"].sum())
                of_all = spread_of(totals.sum(), counts.sum()) if counts.sum() >= FEW else 1.0
                limits = usual_largest(judged) * np.where(counts >= FEW, spread_of(totals, counts), of_all)
            suspected = (found["largest"] > limits) | ((found["has_fractions"] != 0) & exact)
        for index in np.flatnonzero(suspected).tolist():
            matrices = self._a[index % len(self._a)], self._b[index % len(self._b)], self._c[index]
            suspects: Sequence[Suspect] = ()
            if not exact:
                views = [RowView(matrix, Span(0, len(matrix))) for matrix in matrices]
                alone = HostCheck(Team(), plan_alone(problem), views, self._threads, unsaid).compared(self._seed)
                suspects = _suspects(alone.worst, limits[index], problem.m)
            check = verify_alone(*matrices, self._threads, suspects)
            if not check.ok:
                wrong[index] = check.faults
        return wrong


# A product of integers may be exact in float64 while the check's usual sums, multiplied by x, would be rounded. Then sums modulo
# 2^64 are compared. An odd x hides no single error; several errors, multiples of 2^k, are hidden with probability 2^(k-64).

_MOST_EXACT = 2.0**53


def _wrong_rows(c: np.ndarray, x: np.ndarray, expected: np.ndarray, threads: int) -> np.ndarray:
    """The rows of C with another sum than expected, or with an element that no exact product of integers has: a fraction, or a
    number above 2^53."""
    wrong = times_words(c, x, threads) != expected

    def look(rows: Span) -> None:
        values = c[rows.slice]
        with np.errstate(all="ignore"):
            wrong[rows.slice] |= ~((np.rint(values) == values) & (np.abs(values) <= _MOST_EXACT)).all(axis=1)

    on_threads(threads, look, rows_of_about(CALL_BYTES, Span(0, len(c)), c.shape[1] * c.itemsize))
    return np.flatnonzero(wrong)


# Elements of suspicious sums are recomputed in higher precision, to tell wrong ones from rounding errors.
#
# An addition errs by at most u times its result, so the 2-norm of a sum's partial sums bounds random rounding errors. If terms
# are alike, errors have one sign, but then a sum of the same terms in the same type shows them as well. The order in which a
# kernel or BLAS adds is unknown. So eight orders are tried, and an element is wrong if its error exceeds the rounding error of
# the worst order several times. This depends on one row of A and one column of B, and on no other element of the product.

_TAKING_TURNS = (1, 2, 4, 8, 16, 32, 64)  # accumulators: of 4, each adds every fourth term, as SIMD lanes do
_BLOCK = 128  # terms per partial sum, as in BLAS
_TERMS_AGAIN = 4096  # terms recomputed at a time: a multiple of all above
# Right products of structured matrices, by NumPy and in other orders of kernels, had errors up to 3 times the worst order's.
_TIMES_WORST = 6.0


class Verdict(NamedTuple):
    """The judgement of some elements of a row of C."""

    wrong: list[int]  # indices of wrong elements
    error: float  # the largest
    bound: float  # the largest tolerance


def verdict(a: np.ndarray, b: np.ndarray, c: np.ndarray, problem: Problem) -> Verdict:
    """Judge elements of a row of C. `a`: the row of A. `b`: the columns of B.

    Matrix units with 16-bit operands truncate each partial sum to float32: up to 2u of it, always towards zero. The magnitudes of
    all partial sums add up to at most √l times their 2-norm.
    """
    times = _TIMES_WORST + (2 * problem.l**0.5 / TERMS_OF_A_STEP if problem.short_operands else 0.0)
    exact = np.zeros(b.shape[1], np.longdouble)
    with np.errstate(all="ignore"):
        for some in pieces(Span(0, len(a)), _TERMS_AGAIN):
            exact += (a[some.slice, None].astype(np.longdouble) * b[some.slice]).sum(axis=0)
        sizes = np.abs(a).sum(dtype=np.float64) + np.abs(b).sum(axis=0, dtype=np.float64)
        flushed = float(np.finfo(b.dtype).tiny) * (len(a) + sizes)  # error from subnormal numbers flushed to zero
        error = np.abs(c.astype(np.longdouble) - exact).astype(np.float64)
        for taking_turns in ((), _TAKING_TURNS):  # summing in blocks, which takes far less time, explains most right products
            bound = times * _rounding(a, b, exact, taking_turns) + flushed
            wrong = np.flatnonzero(~(error <= bound)).tolist()
            if not wrong:
                break
    return Verdict(wrong, float(error.max(initial=0.0)), float(bound.max(initial=0.0)))


def _rounding(a: np.ndarray, b: np.ndarray, exact: np.ndarray, taking_turns: Sequence[int]) -> np.ndarray:
    """For each column, the rounding error of the sum of a[k]·b[k,j], whose value is `exact`, in the worst order: summed in
    blocks, or with one of these numbers of accumulators."""
    sums = [np.zeros((turns, b.shape[1]), b.dtype) for turns in (*taking_turns, 1)]
    norms = np.zeros((len(sums), b.shape[1]))  # of all terms and partial sums
    for some in pieces(Span(0, len(a)), _TERMS_AGAIN):
        terms = a[some.slice, None] * b[some.slice]
        within = np.add.accumulate(_divided(terms, _BLOCK), axis=1)
        added = [*(_divided(terms, turns) for turns in taking_turns), within[:, -1:]]
        norms = np.hypot(norms, _norms(terms))
        norms[-1] = np.hypot(norms[-1], _norms(within.reshape(-1, b.shape[1])[: len(terms)]))
        for order, of_order in enumerate(added):
            partial = np.add.accumulate(np.concatenate([sums[order][None], of_order]))[1:]
            sums[order] = partial[-1]
            norms[order] = np.hypot(norms[order], _norms(partial.reshape(-1, b.shape[1])[: len(terms)]))
    together = [np.add.accumulate(of_order) for of_order in sums]
    norms = np.hypot(norms, [_norms(partial[1:]) for partial in together])
    errors = np.abs(np.stack([partial[-1] for partial in together]) - exact).astype(np.float64)
    largest: np.ndarray = (float(np.finfo(b.dtype).eps) / 2 * norms + errors).max(axis=0)
    return largest


def _divided(terms: np.ndarray, by: int) -> np.ndarray:
    """The terms in rows of `by`; zeros fill the last row."""
    return np.pad(terms, ((0, -len(terms) % by), (0, 0))).reshape(-1, by, terms.shape[1])


def _norms(sums: np.ndarray) -> np.ndarray:
    """The 2-norm of each column, also where squares overflow or underflow."""
    return norms_of(np.ascontiguousarray(sums.T, np.float64))


def faults_among(
    suspects: Sequence[Suspect],
    team: Team,
    plan: Plan,
    matrices: Sequence[RowView],
    by: MultipliedBy,
    numbers: np.ndarray | None = None,
    *,
    exact: bool,
) -> tuple[list[Fault], str]:
    """Collective: the first MOST_NAMED faults among these suspects, which are the same on all ranks, and a note if none is a
    fault. Rank 0 judges: it gets a row of A, columns of B and elements of C for each suspect.

    `numbers`: as for `HostCheck`. `exact`: the product was computed without rounding.
    """
    problem, share, rows_of_c, (a, b, c) = plan.problem, plan.shares[team.rank], plan.c_rows_at_the_end(team.rank), matrices
    numbers = np.arange(problem.m) if numbers is None else numbers
    faults, error, bound = list[Fault](), 0.0, 0.0
    for suspect in suspects:
        row, some = Span(suspect.row, suspect.row + 1), suspect.columns.slice
        with team.phase("check") as sending:
            of_a = np.array(a[row][0]) if row.lies_in(share.rows) else None
            of_c = np.array(c[row][0, some]) if row.lies_in(rows_of_c) else None
            sending.mine = of_a, np.array(b[share.b_rows][:, some]), of_c
        with team.phase("check") as judging:
            if team.rank == 0:
                rows_of_a, of_b, elements = zip(*sending.all, strict=True)
                of_a, of_c = (next(each for each in parts if each is not None) for parts in (rows_of_a, elements))
                judging.mine = verdict(of_a, joined_by_rows(plan, of_b, "b_rows"), of_c, problem)
        found = judging.all[0]
        error, bound = max(error, found.error), max(bound, found.bound)
        if found.wrong or exact:  # if exact, rounding explains no error
            columns = numbers[some][found.wrong or slice(None)].tolist()
            who = by(suspect.row, Span(columns[0], columns[-1] + 1))
            faults.append(_fault_in(suspect.row, f", {_listed(columns)}: wrong by {found.error:.2e}", who))
            if len(faults) == MOST_NAMED:
                break
    of_rounding = f"{len(suspects)} of the largest differences are of rounding errors up to {error:.2e}, of at most {bound:.2e}"
    return faults, "" if faults else of_rounding


def _fault_in(row: int, text: str, by: tuple[str, int | None]) -> Fault:
    """A fault in a row of C. `by`: the result of MultipliedBy."""
    who, rank = by
    return Fault(f"row {row} of C{text}" + (f", multiplied by {who}" if who else ""), rank=rank, row=row)


def _listed(columns: list[int]) -> str:
    """The columns for a message, neighbours as first:end."""
    runs = merged(Span(column, column + 1) for column in columns)
    named = [str(run.lo) if len(run) == 1 else str(run) for run in runs[:8]]
    return f"columns {', '.join(named)}" + (" and others" if len(runs) > 8 else "")
