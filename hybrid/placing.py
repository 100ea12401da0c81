"""Rows between the root, the nodes and their windows: before a product to where they are multiplied, after it to the root."""

from __future__ import annotations

from hybrid.exchange.nodes import pass_along
from hybrid.operands import FromRoot, Operand
from hybrid.partition import Span
from hybrid.plan import Plan
from hybrid.settings import Settings
from hybrid.team import Team
from hybrid.window import Window


def place(team: Team, plan: Plan, windows: dict[str, Window], a: Operand, b: Operand, settings: Settings, threads: int) -> None:
    """Bring the operands' rows to the nodes that need them: the root's arrays from the root, others between the nodes."""
    with team.phase("place"):
        for operand, key in ((a, "A"), (b, "B")):
            if isinstance(operand, FromRoot):
                _place_from_root(team, plan, windows[key], operand, key, settings, threads)
            elif key == "B":
                _place_from_nodes(team, plan, windows[key], settings)


def _place_from_root(
    team: Team, plan: Plan, window: Window, operand: FromRoot, key: str, settings: Settings, threads: int
) -> None:
    dtype = plan.problem.dtype
    if team.rank == plan.root and operand.in_place(dtype) is not window.array:
        operand.rows(window.rows, window.array, threads, lambda done: team.enter("place"))
    others = [index for index in range(len(plan.topology.nodes)) if index != plan.root_node]
    leaders = [plan.topology.leader(index) for index in others]
    row_bytes = operand.shape[1] * plan.problem.item_size

    def send(rows: Span, to: list[int]) -> None:
        chain = [plan.root, *to]
        pass_along(
            team, chain, rows, lambda part: operand.contiguous(part, dtype), window.__getitem__, row_bytes, settings.message_bytes
        )

    if key == "B":
        send(Span(0, plan.problem.l), leaders)
    else:
        for index, leader in zip(others, leaders, strict=True):
            send(plan.a_rows_on(index), [leader])


def _place_from_nodes(team: Team, plan: Plan, window: Window, settings: Settings) -> None:
    for node in range(len(plan.topology.nodes)):
        pass_to_all_nodes(team, plan, window, plan.b_rows_from(node), node, settings)


def pass_to_all_nodes(team: Team, plan: Plan, b: Window, rows: Span, node: int, settings: Settings) -> None:
    """Rows of B that lie in one node's window, into all others'. Within a phase, on every rank."""
    leaders = [ranks[0] for ranks in plan.topology.nodes]
    chain = leaders[node:] + leaders[:node]
    if len(chain) > 1:
        take = put = b.__getitem__
        pass_along(team, chain, rows, take, put, plan.problem.bytes(1, plan.problem.m), settings.message_bytes)


def gather(team: Team, plan: Plan, c: Window, settings: Settings) -> None:
    """The rows of C from the other nodes' leaders to the root; on the root's node they lie where they belong."""
    with team.phase("gather"):
        for index in range(len(plan.topology.nodes)):
            if index != plan.root_node:
                chain = [plan.topology.leader(index), plan.root]
                row_bytes = plan.problem.bytes(1, plan.problem.m)
                take = put = c.__getitem__
                pass_along(team, chain, plan.a_rows_on(index), take, put, row_bytes, settings.message_bytes)
