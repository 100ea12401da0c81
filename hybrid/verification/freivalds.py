# SPDX-License-Identifier: MIT
"""Freivalds' check of C = A·B in host memory: C·x is compared with A·(B·x) for a random x.

The columns are summed in groups, each with its own elements of x, so a difference belongs to one row and one group. Where all
entries are integers and all sums are exact, both sides must be equal. Elsewhere differences are measured in standard deviations
of this product's rounding errors (see hybrid.verification.check). Where they are too large, the elements are looked at again
in higher precision, which tells a fault from rounding errors that are not as usual.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hybrid.core.problem import Problem, record
from hybrid.core.spans import Span, Topology, pieces
from hybrid.devices.cpu import MOST_IN_TOTAL, compare, some_matrices
from hybrid.host.memory import RowView
from hybrid.host.row_sums import NOT_INTEGRAL, row_sums
from hybrid.host.threads import limited_threads, on_threads
from hybrid.plan.check_layout import GROUP_COLUMNS, NUMBERS_A_ROW
from hybrid.plan.plan import COLUMNS_AT_ONCE, Plan, make_plan
from hybrid.plan.tiling import PlanRequest
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.verification.check import (
    FEW,
    MOST_NAMED,
    THRESHOLD,
    Check,
    Fault,
    Suspect,
    is_exact,
    is_exact_product,
    random_x,
    spread_beside,
    spread_of,
    usual_largest,
)
from hybrid.verification.comparison import (
    MOST_SUSPECTS,
    Comparison,
    Expected,
    Integers,
    Totals,
    are_integers,
    columns_of,
    finite_columns,
    groups_left_open,
    in_cache,
    mark,
    mark_fractions,
    norms_of,
    norms_of_all,
    norms_of_columns,
    over_rows,
    sums_and_norms,
    sums_of_groups,
    times,
    together,
    usual_norm,
)
from hybrid.verification.second_look import MultipliedBy, SecondLook, fault_in, unsaid

if TYPE_CHECKING:
    from hybrid.verification.second_look import WrongParts


# -------- expected sums
# The sums over a part of C that a device's check expects. With them the host checks that part after computing it again.


@record
class ExpectedSums:
    """A·(B·x) over whole groups of columns, and what `compare` needs beside it, as the device has summed them: a check by these
    reads neither A nor B."""

    rows: Span
    columns: Span
    group: int  # columns in a sum
    x: np.ndarray
    products: np.ndarray  # A·(B·x)
    row_squares: np.ndarray
    column_squares: np.ndarray
    numbers: np.ndarray
    exact: bool  # nothing is rounded

    def part(self, rows: Span, columns: Span) -> ExpectedSums | None:
        """The sums of a smaller part; None where it is not wholly within this one, or cuts groups of columns."""
        if not (rows.lies_in(self.rows) and columns.lies_in(self.columns)):
            return None
        lo, hi = columns.lo - self.columns.lo, columns.hi - self.columns.lo
        if lo % self.group or (hi % self.group and columns.hi != self.columns.hi):
            return None
        own, groups = rows.within(self.rows).slice, slice(lo // self.group, -(-hi // self.group))
        return replace(
            self,
            rows=rows,
            columns=columns,
            x=self.x[lo:hi],
            products=self.products[own, groups],
            row_squares=self.row_squares[own],
            column_squares=self.column_squares[:, groups],
        )

    def check(self, c: np.ndarray) -> Check:
        """Check `c`, the elements of this part of C."""
        found, largest = self._compared(c)
        if found[:, 4].any():
            return Check("none", 0.0, THRESHOLD, False)  # A·B may overflow, or holds NaN or infinities
        error, count = float(found[:, 2].max(initial=0.0)), float(found[:, 1].sum())
        if self.exact:
            return Check("exact", count, 0.0, not count and float(largest.max(initial=0.0)) < NOT_INTEGRAL)
        return Check("freivalds", error, THRESHOLD, error <= THRESHOLD)

    def most_wrong(self, c: np.ndarray) -> tuple[int, Span]:
        """The row of `c`, and the columns in it, whose sum differs most, in units of the rounding errors to be expected."""
        found, _ = self._compared(c)
        row = int(found[:, 2].argmax())
        first = int(found[row, 3]) * self.group
        return row, Span(first, min(first + self.group, c.shape[1]))

    def _compared(self, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What `compare` finds of each row of `c`, and the largest magnitudes of the rows."""
        sums, squares = np.empty_like(self.products), np.empty_like(self.products)
        largest, found = np.empty(len(c)), np.empty((len(c), NUMBERS_A_ROW))
        with np.errstate(all="ignore"):
            row_sums(c, self.x, self.group, sums, squares, largest)
            compare(sums - self.products, squares, self.row_squares, self.column_squares, self.numbers, found)
        return found, largest


# -------- modular
# Freivalds' check modulo a random prime, for products of integers that are exact in float64, while the check's usual sums,
# whose terms are multiplied by x, would be rounded.

_LEAST, _MOST = 1 << 19, 1 << 20  # of the prime
_COLUMNS = 1 << 13  # so many products of two numbers below 2^20 add up to at most 2^53
_MOST_EXACT = 2.0**53


class Modular:
    """Products of matrices with vectors, modulo a prime. Ranks that seed the generator alike have the same prime and the same x.

    An error stays unseen if the prime divides it, or if several cancel: about one of 100,000 such checks does not see it.
    """

    def __init__(self, random: np.random.Generator, columns: int, threads: int) -> None:
        self._prime, self._threads = float(_next_prime(int(random.integers(_LEAST, _MOST - 1000)))), threads
        self._below_inverse = (1 - 2.0**-50) / self._prime
        self.x = random.integers(1, int(self._prime), columns).astype(np.float64)

    def times(self, matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
        """matrix·vector modulo the prime."""
        product = np.zeros(len(matrix))

        def multiply(where: slice, rows: np.ndarray) -> None:
            for part, values in in_cache(rows):
                into = product[where.start + part.start : where.start + part.stop]
                residues = self._residues(values)
                for some in pieces(Span(0, values.shape[1]), _COLUMNS):
                    into += self._residues(np.dot(residues[:, some.slice], vector[some.slice]))
                into[...] = self._residues(into)

        for _ in over_rows(matrix, self._threads, multiply):
            pass
        return product

    def _residues(self, values: np.ndarray) -> np.ndarray:
        """Residues of integers up to 2^53: as `fmod` gives them, but up to 8 above the prime, in a tenth of the time. The
        quotient is never too large, so its product with the prime is exact."""
        return values - np.trunc(values * self._below_inverse) * self._prime

    def differ(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Which elements are not the same modulo the prime; NaN never is."""
        return np.fmod(one - other, self._prime) != 0

    def impossible(self, matrix: np.ndarray) -> np.ndarray:
        """Which rows hold an element that no exact product of integers has: a fraction, or a number above 2^53."""
        found = np.zeros(len(matrix), bool)

        def look(where: slice, rows: np.ndarray) -> None:
            for part, values in in_cache(rows):
                right = (np.rint(values) == values) & (np.abs(values) <= _MOST_EXACT)
                found[where.start + part.start : where.start + part.stop] = ~right.all(axis=1)

        for _ in over_rows(matrix, self._threads, look):
            pass
        return found


def _next_prime(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


SCALE = 2.0**-14  # of the integers in x, so that no sum over a group overflows where C's elements do not


def verify(
    team: Team,
    plan: Plan,
    a: RowView,
    b: RowView,
    c: RowView,
    threads: int = 1,
    wrong: WrongParts | None = None,
    suspects: Sequence[Suspect] = (),
    by: MultipliedBy = unsaid,
) -> Check:
    """Check C where the product left it: gathered on the root's node, or as row blocks on all ranks.

    Every rank calls this and gets the same result. `a`, `b` and `c`: the rows that this rank has. `threads`: of this rank.
    `wrong`: if the product is wrong, all parts that look wrong are marked there. `suspects`: where devices have judged all sums
    before, those that look wrong; if rounding errors explain all of them, nothing else is checked. `by`: who multiplied what is
    wrong, for messages.
    """
    problem = plan.problem
    if not (problem.n and problem.m):
        return Check("exact", 0.0, 0.0, True)  # C has no elements
    with limited_threads(1), busy():  # one thread of BLAS: the rows are divided among our own threads
        verification = _Verification(team, plan, (a, b, c), threads, wrong, by)
        return verification.second_look(suspects) or verification.result()


@dataclass
class _Found:
    """What one rank found in its rows of C."""

    sums: list[Totals] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)


class _Verification:
    def __init__(
        self,
        team: Team,
        plan: Plan,
        matrices: tuple[RowView, RowView, RowView],
        threads: int,
        wrong: WrongParts | None,
        by: MultipliedBy,
        numbers: np.ndarray | None = None,
    ) -> None:
        """`numbers`: of the columns in the whole C, where these matrices have only some of them."""
        self._team, self._plan, self._matrices, self._threads = team, plan, matrices, threads
        self._share, self._rows_of_c = plan.shares[team.rank], plan.c_rows_at_the_end(team.rank)
        self._comparison = Comparison(plan.problem, SCALE)
        self._second_look = SecondLook(team, plan, matrices, by, numbers)
        self._wrong, self._by, self._numbers = wrong, by, numbers
        self._norms_b: list[np.ndarray] = []  # of the groups of columns
        self._norms_a = np.ones(0)  # of this rank's rows of C
        self._sizes: np.ndarray | None = None  # of all differences in this rank's rows of C, a column for each group
        if wrong is not None:
            self._sizes = np.zeros((len(self._rows_of_c), -(-plan.problem.m // GROUP_COLUMNS)), np.float32)

    def second_look(self, suspects: Sequence[Suspect]) -> Check | None:
        """The result, if there are suspects and rounding errors explain all of them; else None: all must be checked."""
        faults, note = self._second_look.faults(suspects, exact=False)
        if faults or not suspects:
            return None
        return Check("freivalds", max(suspect.size for suspect in suspects), THRESHOLD, True, note=note)

    def result(self) -> Check:
        """Compare C·x with A·(B·x), some columns of C at a time, and judge all sums together."""
        problem, found = self._plan.problem, _Found()
        with self._team.phase("check") as agreeing:
            agreeing.mine = secrets.randbits(64)
        x = random_x(np.random.default_rng(agreeing.all[0]), [problem.m], GROUP_COLUMNS) * SCALE
        in_a, in_b = Integers(), Integers()
        for columns in pieces(Span(0, problem.m), COLUMNS_AT_ONCE):
            expected = self._expected(columns, x[columns.slice], in_a, in_b)
            self._norms_b.append(expected.norms_b)
            self._norms_a = expected.norms_a
            with self._team.phase("check"):
                if len(self._rows_of_c):
                    first, c = self._rows_of_c.lo, self._matrices[2][self._rows_of_c]
                    sums, suspects = self._comparison.suspects(c, first, expected, self._threads, self._sizes)
                    found.sums.append(sums)
                    found.suspects += suspects
        with self._team.phase("check") as comparing:
            comparing.mine = (found, in_a.largest, in_b.largest)
        of_ranks, largest_a, largest_b = zip(*comparing.all, strict=True)
        sums = together([each for one in of_ranks for each in one.sums])
        suspects = sorted((each for one in of_ranks for each in one.suspects), key=lambda suspect: -suspect.size)
        largest = max(largest_a), max(largest_b)
        if is_exact(problem, GROUP_COLUMNS, *largest):
            return self._exactly(sums, suspects)
        if is_exact_product(problem.dtype, problem.l, *largest):
            return self._modulo_a_prime(agreeing.all[0])
        judged = self._judged(sums, suspects)
        return self._with_columns_beside(judged, sums) if sums.not_judged and judged.ok and self._numbers is None else judged

    def _with_columns_beside(self, judged: Check, sums: Totals) -> Check:
        """The result together with that of the columns of which no sum was judged, since another column of their group holds NaN
        or infinities, or may overflow."""
        problem, b, c = self._plan.problem, *self._matrices[1:]
        largest = float(np.finfo(problem.dtype).max) / 4
        with self._team.phase("check") as telling:
            telling.mine = usual_norm(self._norms_a)
        usual = max(telling.all)
        groups = groups_left_open(np.concatenate(self._norms_b), usual, largest)
        note = f"{sums.not_judged} sums of {sums.not_judged + sums.judged} hold NaN or infinities, or may overflow: not judged"
        if not groups:
            return replace(judged, note=judged.note or note)
        with self._team.phase("check") as measuring:
            measuring.mine = norms_of_columns(b[self._share.b_rows], groups, problem.m)
        with np.errstate(all="ignore"):
            norms = norms_of_all(measuring.all)
        numbers = finite_columns(groups, norms, usual, largest, problem.m)
        for some in pieces(Span(0, len(numbers)), COLUMNS_AT_ONCE):
            chosen = numbers[some.slice]
            of_b = RowView(b[self._share.b_rows][:, chosen], self._share.b_rows)
            of_c = RowView(c[self._rows_of_c][:, chosen], self._rows_of_c)
            plan = replace(self._plan, problem=replace(problem, m=len(chosen)))
            matrices = self._matrices[0], of_b, of_c
            beside = _Verification(self._team, plan, matrices, self._threads, None, self._by, chosen).result()
            if not beside.ok:
                if self._wrong is not None:  # all of them is computed again, which costs little, as they are few
                    mark(self._wrong, groups, problem.n, problem.m)
                return beside
            judged = max(judged, beside, key=lambda each: (each.kind != "none", each.error))
        return replace(judged, note=judged.note or note)

    def _expected(self, columns: Span, x: np.ndarray, in_a: Integers, in_b: Integers) -> Expected:
        """What this rank's rows of C are to be compared with, in these columns. `x`: its elements for them."""
        plan, team, threads = self._plan, self._team, self._threads
        my_a, my_b = self._matrices[0][self._share.rows], self._matrices[1][self._share.b_rows]
        with team.phase("check") as through_b:
            sums, norms = sums_of_groups(my_b[:, columns.slice], x, GROUP_COLUMNS, in_b, threads)
            through_b.mine = sums, norms, in_b.largest
        of_b = [sums for sums, _, _ in through_b.all]
        with np.errstate(all="ignore"):
            norms_b = norms_of_all([norms for _, norms, _ in through_b.all])
        own = plan.has_row_blocks or len(plan.topology.nodes) == 1  # each rank compares its own rows of C, for which it has A's
        with team.phase("check") as through_a:
            mine = times(my_a, joined_by_rows(plan, of_b, "b_rows"), in_a, threads)
            through_a.mine = None if own else (*mine, in_a.largest)
        integral = Integers.all([in_a.largest, *(largest for _, _, largest in through_b.all)])
        if not own:
            products, norms_a, largest = map(list, zip(*through_a.all, strict=True))
            integral, rows = integral and Integers.all(largest), self._rows_of_c.slice
            mine = joined_by_rows(plan, products, "rows")[rows], joined_by_rows(plan, norms_a, "rows")[rows]
        return Expected(columns, x, *mine, norms_b, integral)

    def _exactly(self, sums: Totals, suspects: list[Suspect]) -> Check:
        faults = self._second_look.faults(suspects, exact=True)[0] if sums.count else []
        if sums.count:
            self._mark_wrong(0.0)
        return Check("exact", float(sums.count), 0.0, not sums.count, tuple(faults))

    def _modulo_a_prime(self, seed: int) -> Check:
        """Check a product of integers that is exact, while the sums that were compared are not."""
        modular, (a, b, c) = Modular(np.random.default_rng(seed), self._plan.problem.m, self._threads), self._matrices
        with self._team.phase("check") as through_b:
            through_b.mine = modular.times(b[self._share.b_rows], modular.x)
        with self._team.phase("check") as through_a:
            through_a.mine = modular.times(a[self._share.rows], joined_by_rows(self._plan, through_b.all, "b_rows"))
        expected = joined_by_rows(self._plan, through_a.all, "rows")[self._rows_of_c.slice]
        with self._team.phase("check") as comparing:
            rows = c[self._rows_of_c] if len(self._rows_of_c) else np.empty((0, self._plan.problem.m))
            wrong = modular.impossible(rows) | modular.differ(modular.times(rows, modular.x), expected)
            comparing.mine = (self._rows_of_c.lo + np.flatnonzero(wrong)).tolist()
        found = sorted(row for rows in comparing.all for row in rows)
        if self._wrong is not None:
            self._wrong.suspect_rows(np.array(found, np.intp))
        whole = Span(0, self._plan.problem.m)
        faults = tuple(fault_in(row, "", self._by(row, whole)) for row in found[:MOST_NAMED])
        return Check("exact", float(len(found)), 0.0, not found, faults)

    def _judged(self, sums: Totals, suspects: list[Suspect]) -> Check:
        if sums.not_judged and not sums.judged:
            return Check("none", 0.0, THRESHOLD, True)
        usual = usual_largest(sums.judged)
        above = [suspect for suspect in suspects if suspect.size > usual * sums.spread][:MOST_SUSPECTS]
        faults, note = self._second_look.faults(above, exact=False)
        if faults:
            self._mark_wrong(usual)
            return Check("freivalds", sums.error, usual, False, tuple(faults))
        return Check("freivalds", sums.error, THRESHOLD, True, note=note if sums.error > THRESHOLD else "")

    def _mark_wrong(self, usual: float) -> None:
        """Mark on all ranks the parts of C whose differences are larger than `usual`, the largest that right products have."""
        if self._wrong is None:
            return
        from hybrid.verification.second_look import LARGE  # which most products need not load

        assert self._sizes is not None
        limit = usual * spread_beside(self._sizes, usual)  # large errors hide small ones
        rows, groups = np.nonzero(self._sizes > limit * (1 - 1e-6))  # they are in float32
        large = self._sizes[rows, groups] > LARGE * limit
        for group in np.unique(groups).tolist():
            of_group = groups == group
            columns = columns_of(group, Span(0, self._plan.problem.m))
            self._wrong.suspect(self._rows_of_c.lo + rows[of_group], columns, large[of_group])
        with self._team.phase("check") as telling:
            telling.mine = self._wrong.found()
        for found in telling.all:
            self._wrong.merge(*found)


def joined_by_rows(plan: Plan, parts: Sequence[np.ndarray], by: str) -> np.ndarray:
    """What all ranks have for their rows, joined in the order of the matrix's rows.

    `by`: the attribute of a rank's share that says which rows these are, "rows" or "b_rows".
    """
    if len(parts) == 1:
        return parts[0]
    order = sorted(range(len(parts)), key=lambda rank: getattr(plan.shares[rank], by))
    return np.concatenate([parts[rank] for rank in order])


# -------- alone
# The check in host memory of a product whose A, B and C lie in the memory of one process.


def verify_alone(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    threads: int,
    wrong: WrongParts | None = None,
    suspects: Sequence[Suspect] = (),
    by: MultipliedBy = unsaid,
    *,
    short_operands: str = "",
) -> Check:
    """`verify` with this process as the only rank.

    `short_operands`: the 16-bit type in which A and B were multiplied, where they were ("float16" or "bfloat16").
    """
    plan = plan_alone(Problem(len(a), len(b), c.shape[1], c.dtype.name, short_operands))
    views = [RowView(matrix, Span(0, len(matrix))) for matrix in (a, b, c)]
    return verify(Team(), plan, views[0], views[1], views[2], threads, wrong, suspects, by)


@lru_cache(maxsize=4)  # a repair asks for the same several times
def plan_alone(problem: Problem) -> Plan:
    """The plan of one rank that multiplies everything and checks it in host memory."""
    return make_plan(PlanRequest(problem, Topology(((0,),)), check="host"))


# -------- stacks
# Freivalds' check of many products of small matrices together: of each C·x against A·(B·x), as for a single product.
#
# One pass of NumPy over many matrices measures all differences in the same units (see hybrid.verification.check). What is
# too large is looked at again element by element. How accurate right products are is told by the differences of each if it
# has enough, else by those of all. Matrices too large for a core's cache are checked one by one, as a single product is.

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
