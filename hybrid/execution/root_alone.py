# SPDX-License-Identifier: MIT
"""What only the root can do where the matrices stay in its private memory: check and repair C, alone, with the cores of all
ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hybrid.arrays.interop import copy_back, on_host
from hybrid.host.row_view import RowView
from hybrid.kernels.elements import numbers_of
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.verification.alone import plan_alone, verify_alone
from hybrid.verification.check import Check, Suspect
from hybrid.verification.suspects import MultipliedBy

if TYPE_CHECKING:
    from hybrid.verification.expected_sums import ExpectedSums
    from hybrid.verification.recompute import Recomputed
    from hybrid.verification.wrong_parts import WrongParts


def verify_at_root(
    team: Team,
    plan: Plan,
    views: Mapping[str, RowView],
    threads: int,
    wrong: WrongParts | None,
    suspects: Sequence[Suspect],
    by: MultipliedBy,
) -> Check:
    """The check that `verify` makes, by the root alone. Every rank calls it, and gets the same. `threads`: of all ranks."""
    with team.phase("check") as checking:
        if team.rank == plan.root:
            a, b, c = _on_host(views)
            short = plan.problem.short_operands
            check = verify_alone(a.array, b.array, c.array, threads, wrong, suspects, by, short_operands=short)
            checking.mine = check, wrong.found() if wrong is not None else ()
    check, found = checking.all[plan.root]
    if wrong is not None:
        wrong.merge(*found)
    return check


def recompute_at_root(
    team: Team, plan: Plan, views: Mapping[str, RowView], threads: int, wrong: WrongParts, expected: Sequence[ExpectedSums]
) -> list[Recomputed]:
    """What `recompute` does, by the root alone. Every rank calls it, and gets the same."""
    from hybrid.verification.recompute import recompute  # which most products need not load

    with team.phase("repair") as computing:
        if team.rank == plan.root:
            a, b, c = _on_host(views)
            alone, row_blocks = plan_alone(plan.problem.with_operands("")), [share.rows for share in plan.shares]
            done = recompute(Team(), alone, (a, b, c), wrong, expected, threads, row_blocks)
            copy_back(c.array, views["C"].array)
            computing.mine = [replace(each, by=plan.root) for each in done]
    return computing.all[plan.root]


def _on_host(views: Mapping[str, RowView]) -> list[RowView]:
    """A, B and C in numbers with which the host computes. They are copied where they lie on a GPU, and where they have 16 bits,
    which become float32."""
    on_the_host = {key: numbers_of(on_host(views[key].array)) for key in "ABC"}
    of_c = on_the_host["C"].dtype
    return [RowView(array.astype(of_c, copy=False), views[key].rows) for key, array in on_the_host.items()]
