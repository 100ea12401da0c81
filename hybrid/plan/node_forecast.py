# SPDX-License-Identifier: MIT
"""A simulation of a product on many nodes of GPUs, panel by panel, for the busiest node and the root's.

A column panel of B comes over the network, goes to the GPUs and is multiplied. Its part of C goes back to the host and on to the
root's node; or by NCCL to the GPUs of the root's node and from them to its host, when all of B is there. Each of these works on
one thing at a time, and both directions of a link at once. A node's link brings the parts of A and B that the node needs before
it brings C.
"""

from __future__ import annotations

from hybrid.core.record import record
from hybrid.plan.grid import Grid, received_of_each
from hybrid.plan.machine_model import MachineModel
from hybrid.plan.plan import Plan
from hybrid.plan.request import PlanRequest


@record
class NodeForecast:
    """Seconds after the start, on the node that is last."""

    a_there: float  # all of A that a node needs
    b_there: float
    multiplied: float
    c_there: float  # all of C, at the root


def node_forecast(plan: Plan, model: MachineModel, network: float, speed: float, gpus: int) -> NodeForecast:
    """The forecast where each rank makes its own rows of A and B, and the root gathers C.

    `network`: bytes that a node's link carries in a second. `speed`: of the kernels, relative to the model's. `gpus`: the number
    of GPUs on which the ranks of a node multiply.
    """
    problem, topology, layout = plan.problem, plan.topology, plan.grid_layout
    nodes = range(len(topology.nodes))
    grid = layout.grid if layout is not None else Grid(len(nodes), 1)
    panels = max(1, layout.pieces["B"] if layout is not None else len(plan.shares[0].column_panels))
    placement = PlanRequest(problem, topology, root=plan.root).placement
    received = [received_of_each(grid, node, problem, topology, placement) for node in nodes]
    of_a, of_b = (max(each[operand] for each in received) for operand in (0, 1))
    of_c = received[plan.root_node][2]
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
