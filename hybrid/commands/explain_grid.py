# SPDX-License-Identifier: MIT
"""`--explain` of several nodes: what each would receive from others with row blocks and with grids, beside what it must."""

from __future__ import annotations

from collections.abc import Iterator

from hybrid.core.text import readable
from hybrid.plan.bounds import least_received
from hybrid.plan.grid import Cost, Grid, costs, received
from hybrid.plan.plan import Plan
from hybrid.plan.request import PlanRequest

_SHOWN = 4  # grids beside the one that is chosen


def grid_lines(plan: Plan, network: float) -> Iterator[str]:
    """`network`: bytes a second of a node's link, 0 where nobody said."""
    problem, topology = plan.problem, plan.topology
    nodes = len(topology.nodes)
    placement = PlanRequest(problem, topology, root=plan.root).placement
    found = costs(problem, topology, placement)
    chosen = plan.grid_layout.grid if plan.grid_layout is not None else Grid(nodes, 1)
    other = next(node for node in (nodes - 1, 0) if node != plan.root_node)

    def said(grid: Grid, cost: Cost) -> str:
        at_root, elsewhere = (
            problem.bytes(1, count) for count in (cost.received, received(grid, other, problem, topology, placement))
        )
        seconds = f", {max(at_root, elsewhere) / network:.3g} s of its link" if network else ""
        name = "rows" if grid.is_rows else str(grid)
        return f"{name}: a node receives {readable(elsewhere)}, the busiest {readable(at_root)}{seconds}"

    others = {str(cost.grid): cost for cost in reversed(found) if str(cost.grid) != str(chosen)}  # of each name the best
    yield from (f"grid {said(cost.grid, cost)} (chosen)" for cost in found if cost.grid == chosen)
    for cost in sorted(others.values(), key=found.index)[:_SHOWN]:
        yield f"grid {said(cost.grid, cost)}"
    if plan.staged and plan.grid_layout is None:
        yield "devices with memory of their own multiply on a grid where --grid asks for one"
    least = problem.item_size * least_received(problem, nodes)
    times = problem.bytes(1, received(chosen, other, problem, topology, placement)) / least if least else 1.0
    yield f"at least {readable(int(least))} must go to or from some node, however A, B and C are distributed: {times:.2f} × that"
