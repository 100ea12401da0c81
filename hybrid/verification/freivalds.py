# SPDX-License-Identifier: MIT
"""Freivalds' check of C = A·B in host memory: C·x is compared with A·(B·x) for a random x.

The columns are summed in groups, each with its own elements of x, so a difference belongs to one row and one group. Where all
entries are integers and all sums are exact, both sides must be equal. Elsewhere differences are measured in standard deviations
of this product's rounding errors (see hybrid.verification.rounding). Where they are too large, the elements are looked at again
in higher precision, which tells a fault from rounding errors that are not as usual.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.host.row_view import RowView
from hybrid.host.threads import limited_threads
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.plan.plan import COLUMNS_AT_ONCE, Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.verification.check import MOST_NAMED, Check, Suspect
from hybrid.verification.comparison import MOST_SUSPECTS, Comparison, Expected, Totals, columns_of, together
from hybrid.verification.group_sums import Integers, norms_of_all, sums_of_groups, times
from hybrid.verification.judgeable import finite_columns, groups_left_open, mark, norms_of_columns, usual_norm
from hybrid.verification.modular import Modular
from hybrid.verification.rounding import THRESHOLD, is_exact, is_exact_product, random_x, spread_beside, usual_largest
from hybrid.verification.suspects import MultipliedBy, SecondLook, fault_in, unsaid

if TYPE_CHECKING:
    from hybrid.verification.wrong_parts import WrongParts

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
        from hybrid.verification.wrong_parts import LARGE  # which most products need not load

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
