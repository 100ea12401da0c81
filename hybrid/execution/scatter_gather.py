# SPDX-License-Identifier: MIT
"""Scatter and gather between nodes: the root's rows of A and B go to the nodes that multiply them, and the nodes' rows of C to
the root."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hybrid.arrays.sources import MatrixSource, RootMatrix
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, pieces
from hybrid.host.row_view import RowView
from hybrid.plan.plan import Plan
from hybrid.ranks.collectives import Series, Start, row_allgather, row_broadcast, row_gather
from hybrid.ranks.team import Team

# What moves data between nodes is loaded where there are several: on one node a product starts sooner without it.
if TYPE_CHECKING:
    from hybrid.transport.panel_stream import PanelTransfers
    from hybrid.transport.row_exchange import Matrices, Piece, RowExchange


def scatter(
    team: Team, plan: Plan, views: dict[str, RowView], a: MatrixSource, b: MatrixSource, rows: RowExchange | None, threads: int
) -> None:
    """Before the multiplication: copy the root's arrays into its node's shared matrices, and send the other nodes theirs.

    B follows column panel by column panel while others are multiplied; or, where every node loads only rows of its own, they
    are among the `rows` that are sent now.
    """
    with team.phase("scatter"):
        for operand, key in ((a, "A"), (b, "B")):
            if isinstance(operand, RootMatrix):
                view = views[key]
                if team.rank == plan.root and operand.in_place(plan.problem.operand_dtype) is not view.array:
                    operand.rows(view.rows, view.array, threads, lambda done: team.enter("scatter"))
        if rows is not None:
            rows.run()


def rows_from_root(
    team: Team, plan: Plan, views: dict[str, RowView], a: MatrixSource, b: MatrixSource, settings: Settings
) -> RowExchange | None:
    """The exchange that sends rows of the root's arrays to the nodes in whose shared matrices they lie; None where there are
    none."""
    if len(plan.topology.nodes) == 1 or plan.at_root:
        return None
    from hybrid.transport.row_exchange import RowExchange

    parts: list[Piece] = []
    if isinstance(a, RootMatrix):
        parts += _rows_from_root(team, plan, views["A"], a, plan.a_rows_on, settings)
    if isinstance(b, RootMatrix) and plan.b_stays_parted:
        parts += _rows_from_root(team, plan, views["B"], b, plan.b_rows_on, settings)
    return RowExchange(team, gateways(plan)[0], parts) if parts else None


def _rows_from_root(
    team: Team, plan: Plan, view: RowView, operand: RootMatrix, rows_on: Callable[[int], Span], settings: Settings
) -> Iterator[Piece]:
    """The pieces in which the rows of one operand are sent. `rows_on`: the rows that a node needs."""
    from hybrid.transport.row_exchange import cut

    item, nodes = plan.problem.item_size, range(len(plan.topology.nodes))
    of_nodes = [list(cut(rows_on(node), operand.shape[1], item, settings.message_bytes)) for node in nodes]

    def piece(number: int) -> tuple[Matrices, Matrices]:
        parts = {node: of[number] for node, of in enumerate(of_nodes) if number < len(of) and node != plan.root_node}
        if team.rank == plan.root:
            dtype = plan.problem.dtype
            return {node: [operand.contiguous(part.rows, dtype)[:, part.columns.slice]] for node, part in parts.items()}, {}
        own = parts.get(team.node)
        return {}, {plan.root_node: [view[own.rows][:, own.columns.slice]]} if own else {}

    return (partial(piece, number) for number in range(max(map(len, of_nodes))))


def gateways(plan: Plan, number: int = 1) -> list[list[int]]:
    """The ranks that exchange data with other nodes, up to so many on a node.

    Each list has one rank of each node; these make up a communicator. In the first list they are the nodes' leaders, and on the
    root's node the root.
    """

    def of_node(members: Sequence[int]) -> list[int]:
        return sorted(members, key=lambda rank: (rank != plan.root, members.index(rank)))

    return [list(ranks) for ranks in zip(*map(of_node, plan.topology.nodes), strict=False)][:number]


def transfers_of_b(team: Team, plan: Plan, b: RowView, from_root: bool, settings: Settings) -> PanelTransfers | None:
    """How column panels of B reach the shared matrices of all nodes; None where there is one node, or none needs all of B.

    `from_root`: all rows lie on the root's node; else every node has those that its ranks have made.
    """
    nodes, depth = range(len(plan.topology.nodes)), plan.problem.l
    if len(nodes) == 1 or plan.b_stays_parted:
        return None

    def transfer(columns: Span) -> Start:
        matrix = b[Span(0, depth)][:, columns.slice]
        if from_root:
            return row_broadcast(matrix, plan.root_node)
        return row_allgather(matrix, [plan.b_rows_from(node) for node in nodes])

    return _panel_transfers(team, plan, "B", depth, transfer, settings)


def transfers_of_c(team: Team, plan: Plan, c: RowView, settings: Settings) -> PanelTransfers | None:
    """How the nodes' rows of column panels of C reach the root's node by MPI; None where there is one node, or they form a grid,
    or C goes from device to device."""
    nodes = range(len(plan.topology.nodes))
    if len(nodes) == 1 or plan.c_only_at_root:
        return None
    rows = [plan.a_rows_on(node) for node in nodes]

    def transfer(columns: Span) -> Start:
        own = Span(0, plan.problem.n) if team.node == plan.root_node else rows[team.node]
        return row_gather(c[own][:, columns.slice], rows, plan.root_node)

    return _panel_transfers(team, plan, "C", plan.problem.n, transfer, settings)


def _panel_transfers(
    team: Team, plan: Plan, operand: str, height: int, transfer: Callable[[Span], Start], settings: Settings
) -> PanelTransfers:
    """The transfers of column panels between the nodes' gateways, in collectives of at most so many bytes as a message may have.

    Where a node has several gateways, each has some columns of every panel.
    """
    from hybrid.transport.panel_stream import PanelTransfers

    widest = max(1, settings.message_bytes // max(1, plan.problem.bytes(height, 1)))
    communicators = {f"{operand} {number}": ranks for number, ranks in enumerate(gateways(plan, settings.gateways))}
    number = next((number for number, ranks in enumerate(communicators.values()) if team.rank in ranks), 0)
    columns_of_panels = [panel.part(len(communicators), number) for panel in plan.shares[team.rank].column_panels]
    parts = [list(pieces(columns, widest)) if height else [] for columns in columns_of_panels]
    collectives = team.messages.collectives
    for kind, ranks in communicators.items():
        team.connect(kind, ranks)

    def begin() -> Series | None:
        own = None
        for kind, ranks in communicators.items():
            starts = [transfer(columns) for of_panel in parts for columns in of_panel] if team.rank in ranks else []
            own = collectives.series(kind, ranks, starts) or own
        return own

    own_gateways = [ranks[team.node] for ranks in communicators.values()]
    return PanelTransfers([len(of_panel) for of_panel in parts], begin, own_gateways)


def gather_b(team: Team, plan: Plan, b: RowView, settings: Settings) -> None:
    """Bring all rows of B to the shared matrix of every node, in which the node's ranks have put their own. Every rank calls
    it."""
    nodes, problem = plan.topology.nodes, plan.problem
    if len(nodes) == 1:
        return
    from hybrid.transport.row_exchange import RowExchange

    rows_of = [[plan.shares[rank].b_rows for rank in ranks if len(plan.shares[rank].b_rows)] for ranks in nodes]

    def piece(columns: Span) -> tuple[Matrices, Matrices]:
        def of(node: int) -> list[np.ndarray]:
            return [b[rows][:, columns.slice] for rows in rows_of[node]]

        others = [node for node in range(len(nodes)) if node != team.node]
        return {node: of(team.node) for node in others}, {node: of(node) for node in others}

    widest = max(1, settings.message_bytes // max(1, problem.bytes(problem.l, 1)))
    parts = [partial(piece, columns) for columns in pieces(Span(0, problem.m), widest)] if problem.l else []
    rows = RowExchange(team, [ranks[0] for ranks in nodes], parts)
    with team.phase("scatter", timed=False):
        rows.begin()
    with team.phase("scatter"):
        rows.run()
