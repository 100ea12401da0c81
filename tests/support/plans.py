# SPDX-License-Identifier: MIT
"""Plans for tests, with the request's fields as keywords."""

from __future__ import annotations

from typing import Any

from hybrid.core.problem import Problem
from hybrid.core.spans import Topology
from hybrid.plan.plan import Plan
from hybrid.plan.planning import make_plan
from hybrid.plan.request import PlanRequest


def planned(problem: Problem, topology: Topology, **fields: Any) -> Plan:
    return make_plan(PlanRequest(problem, topology, **fields))
