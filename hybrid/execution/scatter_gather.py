"""Rows between the root, the nodes and their windows: to where they are multiplied, and those of C to the root."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from hybrid.arrays.sources import FromRoot, Operand
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.host.row_view import Window
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.transport.node_messages import pass_along
from hybrid.transport.panel_stream import Passing


def place(team: Team, plan: Plan, windows: dict[str, Window], a: Operand, b: Operand, settings: Settings, threads: int) -> None:
    """Before the multiplication: the root's arrays into its node's window, and its A to the nodes.

    B follows panel by panel; or, where every node loads only rows of its own, these are sent there now.
    """
    with team.phase("place"):
        for operand, key in ((a, "A"), (b, "B")):
            if isinstance(operand, FromRoot):
                window = windows[key]
                if team.rank == plan.root and operand.in_place(plan.problem.dtype) is not window.array:
                    operand.rows(window.rows, window.array, threads, lambda done: team.enter("place"))
        if isinstance(a, FromRoot):
            _send_rows(team, plan, windows["A"], a, plan.a_rows_on, settings)
        if isinstance(b, FromRoot) and plan.road == "nccl":
            _send_rows(team, plan, windows["B"], b, plan.b_rows_on, settings)


def _send_rows(
    team: Team, plan: Plan, window: Window, operand: FromRoot, rows_on: Callable[[int], Span], settings: Settings
) -> None:
    """From the root's array to each other node the rows that it has in its window."""
    take = partial(operand.contiguous, dtype=plan.problem.dtype)
    row_bytes = plan.problem.bytes(1, operand.shape[1])
    for node in range(len(plan.topology.nodes)):
        if node != plan.root_node:
            chain = [plan.root, plan.topology.leader(node)]
            pass_along(team, chain, rows_on(node), take, window.__getitem__, row_bytes, settings.message_bytes)


def couriers(plan: Plan) -> list[int]:
    """For each node the rank that passes panels of B on: its leader, on the root's node the root."""
    return [plan.root if node == plan.root_node else plan.topology.leader(node) for node in range(len(plan.topology.nodes))]


def passing_of_b(team: Team, plan: Plan, b: Window, from_root: bool, settings: Settings) -> Passing | None:
    """How panels of B come to all nodes' windows, where there are several nodes and they are read from there.

    `from_root`: all rows are in the root's window; else every node has those its ranks made.
    """
    chain = couriers(plan)
    if len(chain) == 1 or plan.road == "nccl":
        return None
    if team.rank not in chain:
        return Passing(None)
    panels = plan.shares[team.rank].panels
    if from_root:
        sources = [(plan.root_node, Span(0, plan.problem.l))]
    else:
        sources = [(node, plan.b_rows_from(node)) for node in range(len(chain))]

    def pass_panel(index: int) -> None:
        columns = panels[index]
        row_bytes = plan.problem.bytes(1, len(columns))
        began = time.perf_counter()
        team.enter("place")

        def rows_of_panel(rows: Span) -> np.ndarray:
            return b[rows][:, columns.slice]

        for node, rows in sources:
            in_turn = chain[node:] + chain[:node]
            pass_along(team, in_turn, rows, rows_of_panel, rows_of_panel, row_bytes, settings.message_bytes)
        team.timeline.add("place", began, time.perf_counter())

    return Passing(pass_panel)


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
