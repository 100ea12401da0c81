# SPDX-License-Identifier: MIT
"""The check in host memory of a product whose A, B and C lie in the memory of one process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.host.row_view import RowView
from hybrid.plan.plan import Plan
from hybrid.plan.planning import make_plan
from hybrid.plan.request import PlanRequest
from hybrid.ranks.team import Team
from hybrid.verification.check import Check, Suspect
from hybrid.verification.freivalds import verify
from hybrid.verification.suspects import MultipliedBy, unsaid

if TYPE_CHECKING:
    from hybrid.verification.wrong_parts import WrongParts


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
