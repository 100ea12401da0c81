# SPDX-License-Identifier: MIT
"""The table of a run's phases: seconds, shares and rates; and how much work is done and how many bytes are moved in each
phase."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hybrid.core.text import rate_in_units
from hybrid.core.timeline import PHASES, Spread
from hybrid.planning.plan import Plan

OUTSIDE_TOTAL = ("fill", "prepare", "check", "repair")  # phases whose time is not part of the product's


Plans = Plan | Sequence[Plan]  # a product's plan, or those of the parts in which it was computed


def _listed(plans: Plans) -> Sequence[Plan]:
    return [plans] if isinstance(plans, Plan) else plans


def operations(plans: Plans) -> int:
    """Multiplications and additions of a product, or of the parts that were computed."""
    return sum(plan.problem.operations for plan in _listed(plans))


def table(plan: Plans, phases: dict[str, Spread], total: Spread) -> str:
    """A line for each phase: median, least and most seconds of its slowest rank over the repeats, share of the total, rate.

    The shares add up to 100 %: the last line has the time between phases, or by how much they overlapped.
    """
    inside = [phase for phase in PHASES if phase in phases and phase not in OUTSIDE_TOTAL]
    medians = [phases[phase].median for phase in inside]
    rest = total.median - sum(medians)
    *shares, share_of_rest = _percents([*medians, rest])
    share_of = dict(zip(inside, shares, strict=True)) if total.median else {}
    lines = [f"  {'phase':<10}{'seconds':>10}{'min':>10}{'max':>10}{'share':>8}  rate"]
    for phase in PHASES:
        if phase not in phases:
            continue
        spread = phases[phase]
        share = f"{share_of[phase]} %" if phase in share_of else "–"
        seconds = f"{spread.median:>10.4f}{spread.min:>10.4f}{spread.max:>10.4f}"
        lines.append(f"  {phase:<10}{seconds}{share:>8}  {rate(plan, phase, spread.median)}".rstrip())
    if share_of_rest:
        lines.append(f"  {'between' if rest > 0 else 'overlap':<10}{rest:>10.4f}{'':>20}{share_of_rest:>6} %")
    return "\n".join(lines)


def rate(plan: Plans, phase: str, seconds: float) -> str:
    """The rate of a phase that takes so many seconds: the work of all ranks, divided by the time of the slowest; "" where it has
    none."""
    if seconds <= 0:
        return ""
    if phase == "multiply":
        return rate_in_units(operations(plan) / seconds, "F")
    moved = sum(moved_bytes(of_part, phase) for of_part in _listed(plan))
    if phase == "fill":  # B is the same for all parts
        moved -= sum(each.problem.operand_bytes(each.problem.l, each.problem.m) for each in _listed(plan)[1:])
    return rate_in_units(moved / seconds, "B") if moved else ""


def moved_bytes(plan: Plan, phase: str) -> int:
    """Bytes that all ranks write (fill), read (check) or move in a phase; 0 where that depends on where the operands lie."""
    p = plan.problem
    a, b, c = p.operand_bytes(p.n, p.l), p.operand_bytes(p.l, p.m), p.bytes(p.n, p.m)
    nodes = len(plan.topology.nodes)
    rows_on_other_nodes = sum(len(plan.rows_on(node)["A"]) for node in range(nodes) if node != plan.root_node)
    # How often each row of B is loaded from host memory. Other devices fetch it from one that has loaded it.
    loads_of_b = {"peers": nodes, "nccl": 1}.get(plan.transport, 0)
    return {
        "fill": a + b,
        "copy in": a + loads_of_b * b if loads_of_b else _loaded_bytes(plan),
        "exchange": (plan.topology.size - loads_of_b) * b if loads_of_b else 0,
        "copy out": c * (plan.grid_layout.grid.layers if plan.grid_layout else 1),
        "gather": p.bytes(rows_on_other_nodes, p.m),
        "check": a + b + c,
    }.get(phase, 0)


def _loaded_bytes(plan: Plan) -> int:
    """Bytes of row panels, column panels and k-slabs, each as often as it is loaded."""
    if plan.parts:
        return sum(map(_loaded_bytes, plan.parts))
    p = plan.problem
    return sum(
        sum(p.operand_bytes(len(rows), len(arrival.span)) for rows in arrival.slab) or p.operand_bytes(len(arrival.span), p.l)
        for share in plan.shares
        if len(share.rows)
        for arrival in share.arrivals()
    )


def _percents(parts: Sequence[float]) -> list[int]:
    """The parts as whole percents of their sum, which add up to 100: what rounding down leaves goes to those that lost most by
    it.

    Parts may be negative, but not their sum; where that is 0, all percents are 0.
    """
    whole = sum(parts)
    if whole <= 0:
        return [0 for _ in parts]
    exact = [100 * part / whole for part in parts]
    rounded = [math.floor(each) for each in exact]
    order = sorted(range(len(parts)), key=lambda index: rounded[index] - exact[index])
    for index in order[: 100 - sum(rounded)]:
        rounded[index] += 1
    return rounded
