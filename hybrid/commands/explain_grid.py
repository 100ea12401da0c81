# SPDX-License-Identifier: MIT
"""`--explain` for several nodes: how much a node would receive from others with row blocks and with grids, the least that any
distribution allows, and when nodes of GPUs would have their operands and results."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hybrid.core.problem import Problem, record
from hybrid.core.text import readable
from hybrid.planning.grid import Cost, Grid, costs, received
from hybrid.planning.machine_model import MachineModel
from hybrid.planning.plan import Plan
from hybrid.planning.tiling import PlanRequest
from hybrid.selection.decision import Decision, Machine

_SHOWN = 4  # grids beside the one that is chosen


def grid_lines(decision: Decision, machine: Machine, network: float) -> Iterator[str]:
    """The lines about grids. `network`: bytes a second of a node's link; 0 where that is not known."""
    plan = decision.plan
    problem, topology = plan.problem, plan.topology
    nodes = len(topology.nodes)
    placement = PlanRequest(problem, topology, root=plan.root).placement
    found = costs(problem, topology, placement)
    chosen = plan.grid_layout.grid if plan.grid_layout is not None else Grid(nodes, 1)
    other = next(node for node in (nodes - 1, 0) if node != plan.root_node)

    def said(grid: Grid, cost: Cost) -> str:
        at_root, elsewhere = (
            problem.bytes(1, count) for count in (cost.received, sum(received(grid, other, problem, topology, placement)))
        )
        seconds = f", {max(at_root, elsewhere) / network:.3g} s of its link" if network else ""
        name = "rows" if grid.is_rows else str(grid)
        return f"{name}: a node receives {readable(elsewhere)}, the busiest {readable(at_root)}{seconds}"

    others = {str(cost.grid): cost for cost in reversed(found) if str(cost.grid) != str(chosen)}  # by name, the best grid
    yield from (f"grid {said(cost.grid, cost)} (chosen)" for cost in found if cost.grid == chosen)
    for cost in sorted(others.values(), key=found.index)[:_SHOWN]:
        yield f"grid {said(cost.grid, cost)}"
    if plan.staged and plan.grid_layout is None:
        yield "devices with memory of their own multiply on a grid where --grid asks for one"
    yield from _bounds(plan, sum(received(chosen, other, problem, topology, placement)))
    if network:
        yield from _timeline(decision, machine, network)


def _bounds(plan: Plan, words: int) -> Iterator[str]:
    """What a node receives, compared with lower bounds. `words`: how many elements that is."""
    problem, nodes = plan.problem, len(plan.topology.nodes)
    least = least_received(problem, nodes)
    times = words / least if least else 1.0
    yield (
        f"at least {readable(int(problem.item_size * least))} must go to or from some node, however A, B and C are distributed: "
        f"{times:.2f} × that"
    )
    a_rank = words / max(map(len, plan.topology.nodes))
    memory = max(map(plan.bytes_on_node, range(nodes))) // problem.item_size
    leading = 2 * problem.n * problem.l * problem.m / (nodes * memory**0.5) if memory else 0.0
    with_memory = max(0.0, least_received_with(problem, nodes, memory)) if memory else 0.0
    yield (
        f"words (elements): a node receives {words:.3g}, {a_rank:.3g} a rank; the least is {least:.3g} with any memory, and "
        f"{with_memory:.3g} with S = {memory:.3g} a node, as planned (2·n·l·m/(P·√S) = {leading:.3g}, less 3·S that may be there)"
    )


def least_received(problem: Problem, nodes: int) -> float:
    """A lower bound of the elements that some node, of any memory, must receive or send, however the elements of A, B and C are
    distributed before and after: that of Al Daas, Ballard, Grigori, Kumar and Rouse (2022).

    A node that computes its part of the multiplications, seen as a box, needs as many elements as the faces of the box have, and
    has a P-th of the matrices before.
    """
    if not (problem.n and problem.l and problem.m):
        return 0.0
    small, middle, large = sorted((problem.n, problem.l, problem.m))
    if nodes * middle <= large:
        needed = (large * middle + large * small) / nodes + middle * small
    elif nodes * small * small <= large * middle:
        needed = 2 * math.sqrt(large * middle * small * small / nodes) + large * middle / nodes
    else:
        needed = 3 * (large * middle * small / nodes) ** (2 / 3)
    return needed - (large * middle + large * small + middle * small) / nodes


def least_received_with(problem: Problem, nodes: int, memory: int) -> float:
    """The same for nodes that can hold `memory` elements: the bound of Smith, Lowery, Langou and van de Geijn (2019) for one
    processor with a fast memory, all of which may be full of operands before. It may be negative."""
    return 2 * problem.n * problem.l * problem.m / nodes / math.sqrt(memory) - 3 * memory


def _timeline(decision: Decision, machine: Machine, network: float) -> Iterator[str]:
    """When the last node will have its operands and results, on nodes of GPUs."""
    plan = decision.plan
    if plan.device != "cuda":
        yield "no timeline: how fast this machine's CPUs multiply is not known"
        return
    gpus = min(len({decision.placements[rank].gpu for rank in ranks}) for ranks in plan.topology.nodes)
    speed = 1.0 if decision.speed is None else decision.speed
    expected = node_forecast(plan, machine.model, network, speed, gpus)
    moments = (
        ("A there", expected.a_there),
        ("B there", expected.b_there),
        ("multiplied", expected.multiplied),
        (f"C on node {plan.root_node}", expected.c_there),
    )
    said = ", ".join(f"{what} after {seconds:.3g} s" for what, seconds in moments)
    yield f"expected of the last node, by a network of {network / 1e9:.3g} GB/s a node and {gpus} GPU(s): {said}"


@record
class NodeForecast:
    """Seconds after the start, on the node that is last."""

    a_there: float  # all of A that a node needs
    b_there: float
    multiplied: float
    c_there: float  # all of C, at the root


def node_forecast(plan: Plan, model: MachineModel, network: float, speed: float, gpus: int) -> NodeForecast:
    """Simulate a product on nodes of GPUs, panel by panel, for the busiest node and the root's. Each rank makes its own rows of A
    and B, and the root gathers C.

    A column panel of B comes over the network, goes to the GPUs and is multiplied. Its part of C goes back to the host and on to
    the root's node; or by NCCL to the GPUs of the root's node and from them to its host, when all of B is there. Each of these
    works on one thing at a time, and both directions of a link at once. A node's link brings the parts of A and B that the node
    needs before it brings C.

    `network`: bytes that a node's link carries in a second. `speed`: of the kernels, relative to the model's. `gpus`: the number
    of GPUs on which the ranks of a node multiply.
    """
    problem, topology, layout = plan.problem, plan.topology, plan.grid_layout
    nodes = range(len(topology.nodes))
    grid = layout.grid if layout is not None else Grid(len(nodes), 1)
    panels = max(1, layout.pieces["B"] if layout is not None else len(plan.shares[0].column_panels))
    placement = PlanRequest(problem, topology, root=plan.root).placement
    of_each = [received(grid, node, problem, topology, placement) for node in nodes]
    of_a, of_b = (max(each[operand] for each in of_each) for operand in (0, 1))
    of_c = of_each[plan.root_node][2]
    tallest = max(nodes, key=lambda node: grid.of_a(node, problem).elements * len(grid.of_b(node, problem).columns))
    (height, depth), width = grid.of_a(tallest, problem).shape, len(grid.of_b(tallest, problem).columns)

    # How often a GPU's link brings all of a node's B: once for each of its ranks, or a part of it where the GPUs fetch the rest
    # from each other, or not at all where NCCL brings it to the GPUs.
    ranks_a_gpu = -(-max(map(len, topology.nodes)) // gpus)
    over_each_link = {"peers": 1 / gpus, "nccl": 0.0}.get(plan.transport, float(ranks_a_gpu))
    rate = model.multiply_adds_per_byte(problem.operand_dtype) * model.link_bytes_per_second * speed * gpus

    def seconds(elements: float, bytes_per_second: float) -> float:
        return elements * problem.item_size / bytes_per_second

    link = model.link_bytes_per_second
    a_there = b_there = seconds(of_a, network)
    root_free = a_there + seconds(of_b, network)
    copied = a_there + seconds(height * depth, link * gpus)
    multiplied = copied_out = c_there = 0.0
    for _ in range(panels):
        b_there += seconds(of_b / panels, network)
        copied = max(copied, b_there) + seconds(depth * width * over_each_link / panels, link)
        multiplied = max(multiplied, copied) + height * depth * width / panels / rate
        copied_out = max(copied_out, multiplied) + seconds(height * width / panels, link * gpus)
        if plan.c_between_devices:
            c_there = max(c_there, multiplied, root_free) + seconds(of_c / panels, min(network, link * gpus))
        else:
            c_there = max(c_there, copied_out, root_free) + seconds(of_c / panels, network)
    return NodeForecast(a_there, b_there, multiplied, c_there)
