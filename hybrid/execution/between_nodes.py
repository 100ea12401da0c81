# SPDX-License-Identifier: MIT
"""What moves between nodes for a product: rows of the root's operands before it, column panels of B and C during it, and on a
grid of nodes rectangles of all three. Each function says who sends what to whom; MPI's collectives do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hybrid.arrays.root_operands import MatrixSource, RootMatrix
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, pieces
from hybrid.errors import CheckFailed
from hybrid.execution.rank_run import Progress, RankRun
from hybrid.execution.session import Session
from hybrid.host.memory import RowView, empty_matrix
from hybrid.host.threads import limited_threads
from hybrid.planning.decision import Decision
from hybrid.planning.grid import Place, Rectangle
from hybrid.planning.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.messages import Matrices, Series, Start, broadcast, exchange
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.transport.base import RankMatrices
from hybrid.transport.panels import Moves, PanelMoves
from hybrid.verification.check import Check, Fault
from hybrid.verification.copies import verify_exchange
from hybrid.verification.freivalds import verify_alone

_ROWS = "rows"  # the series that move rows before a product
_ROWS_AHEAD = 1  # collectives that are started while the one before is under way


def gateways(plan: Plan) -> tuple[int, ...]:
    """The rank of each node that exchanges data with other nodes: the root, or the node's leader."""
    return tuple(plan.root if plan.root in ranks else ranks[0] for ranks in plan.topology.nodes)


class FromRoot:
    """Brings the root's arrays to shared matrices before each product: its own node's, and rows to those of the other nodes.
    Every rank makes one, and calls its methods.

    B follows panel by panel while others are multiplied, unless every node loads only rows of its own.
    """

    def __init__(
        self,
        team: Team,
        plan: Plan,
        views: Mapping[str, RowView],
        operands: tuple[MatrixSource, MatrixSource],
        settings: Settings,
    ) -> None:
        """`views`: by "A" and "B", the rows in the node's shared matrices."""
        self._team, self._plan, self._views, self._operands = team, plan, views, operands
        self._message_bytes = settings.message_bytes
        self._series: Series | None = None
        self._sent: list[tuple[str, RootMatrix]] = []
        if len(plan.topology.nodes) > 1 and not plan.at_root:
            keys = "AB" if plan.b_stays_parted else "A"
            self._sent = [(key, each) for key, each in zip(keys, operands, strict=False) if isinstance(each, RootMatrix)]
        if self._sent:
            team.connect(_ROWS, gateways(plan))

    def begin(self) -> None:
        """Begin a product, in a phase that ends before `scatter`."""
        if self._sent:
            self._series = self._team.messages.series(_ROWS, gateways(self._plan), self._collectives())

    def scatter(self, threads: int) -> None:
        """Bring the rows, in a phase. PhaseEnded if a rank fails meanwhile."""
        team, plan = self._team, self._plan
        for key, operand in zip("A" if plan.problem.symmetric else "AB", self._operands, strict=False):
            view = self._views[key]
            if not isinstance(operand, RootMatrix) or team.rank != plan.root:
                continue
            if operand.in_place(plan.problem.operand_dtype) is not view.array:
                operand.rows(view.rows, view.array, threads, lambda done: team.enter("scatter"))
        if self._series is not None:
            self._series.wait_until_complete(_ROWS_AHEAD)

    def _collectives(self) -> Iterator[Start]:
        """No message to a node is longer than `message_bytes`. The root's rows are converted when they are sent."""
        team, plan, problem = self._team, self._plan, self._plan.problem
        for key, operand in self._sent:
            cut = [self._cut(plan.rows_on(node)[key], operand.shape[1]) for node in range(len(plan.topology.nodes))]
            for number in range(max(map(len, cut))):
                parts = {node: of[number] for node, of in enumerate(cut) if number < len(of) and node != plan.root_node}
                sends, receives = dict[int, list[np.ndarray]](), dict[int, list[np.ndarray]]()
                if team.rank == plan.root:
                    for node, part in parts.items():
                        rows = np.ascontiguousarray(operand.array[part.rows.slice], problem.dtype)
                        sends[node] = [rows[:, part.columns.slice]]
                elif team.node in parts:
                    part = parts[team.node]
                    receives[plan.root_node] = [self._views[key][part.rows][:, part.columns.slice]]
                yield exchange(sends, receives, team.node)

    def _cut(self, rows: Span, columns: int) -> list[Rectangle]:
        """Rows in rectangles that each fit a message: of whole rows, where a message has room for one."""
        item = self._plan.problem.item_size
        width = max(1, min(columns, self._message_bytes // item))
        height = max(1, self._message_bytes // max(1, width * item))
        return [Rectangle(down, across) for down in pieces(rows, height) for across in pieces(Span(0, columns), width)]


def gather_b(team: Team, plan: Plan, b: RowView, settings: Settings) -> None:
    """Bring all rows of B to the shared matrix of every node, in which the node's ranks have put their own. Every rank calls
    it."""
    nodes, problem = plan.topology.nodes, plan.problem
    if len(nodes) == 1:
        return
    rows_of = [[plan.shares[rank].b_rows for rank in ranks] for ranks in nodes]
    widest = max(1, settings.message_bytes // max(1, problem.bytes(problem.l, 1)))
    leaders = [ranks[0] for ranks in nodes]
    team.connect(_ROWS, leaders)
    with team.phase("scatter", timed=False):
        of_panels = pieces(Span(0, problem.m if problem.l else 0), widest)
        starts = (_to_all_nodes(b, columns, rows_of, team.node) for columns in of_panels)
        series = team.messages.series(_ROWS, leaders, starts)
    with team.phase("scatter"):
        if series is not None:
            series.wait_until_complete(_ROWS_AHEAD)


def _to_all_nodes(b: RowView, columns: Span, rows_of: Sequence[Sequence[Span]], me: int) -> Start:
    """The collective that brings these columns of each node's rows to all other nodes. `rows_of[node]`: what a node has."""
    parts = {node: [b[rows][:, columns.slice] for rows in of_node if len(rows)] for node, of_node in enumerate(rows_of)}
    return exchange({node: parts[me] for node in parts if node != me}, {**parts, me: []}, me)


def panel_moves(team: Team, plan: Plan, b: RowView, c: RowView, *, from_root: bool, settings: Settings) -> PanelMoves | None:
    """How column panels of B reach the shared matrices of all nodes, and those of C the root's node; None where there is one
    node, or they form a grid, or both go from device to device. Every rank calls it.

    `from_root`: all rows of B lie on the root's node; else every node has those that its ranks have made.
    """
    problem, nodes = plan.problem, range(len(plan.topology.nodes))
    if len(nodes) == 1 or plan.b_stays_parted:
        return None
    b_rows = [[plan.topology.rows_of_node(node, problem.l)] for node in nodes]
    c_rows = [plan.rows_on(node)["A"] for node in nodes]

    def of_b(columns: Span) -> Start:
        if from_root:
            return broadcast(b[Span(0, problem.l)][:, columns.slice], plan.root_node)
        return _to_all_nodes(b, columns, b_rows, team.node)

    def of_c(columns: Span) -> Start:
        if team.node != plan.root_node:
            return exchange({plan.root_node: [c[c_rows[team.node]][:, columns.slice]]}, {}, team.node)
        others = [node for node in nodes if node != team.node]
        return exchange({}, {node: [c[c_rows[node]][:, columns.slice]] for node in others}, team.node)

    computing = [] if team.node == plan.root_node else [rank for rank in team.node_ranks if len(plan.shares[rank].rows)]
    columns, ranks = plan.shares[team.rank].column_panels, gateways(plan)

    def by_gateways(operand: str, height: int, move: Callable[[Span], Start], members: Sequence[int]) -> Moves:
        """The moves of the panels, in collectives of `message_bytes` at most."""
        widest = max(1, settings.message_bytes // max(1, problem.bytes(height, 1)))
        team.connect(operand, ranks)
        takes_part = height and team.rank in ranks
        return Moves(operand, ranks, [[*map(move, pieces(each, widest))] if takes_part else [] for each in columns], members)

    arriving = by_gateways("B", problem.l, of_b, [ranks[team.node]])
    return PanelMoves(columns, arriving, by_gateways("C", problem.n, of_c, computing))


_TO_GRID, _FROM_GRID = "to the grid", "from the grid"


class OnGrid:
    """One rank's matrices and moves of a product on a grid. Every rank makes one: it sends and receives rectangles of A, then of
    B and C, panel by panel.

    `matrices`: what it multiplies and computes; its node's ranks have B in common.
    """

    def __init__(self, team: Team, plan: Plan, kept: Mapping[str, np.ndarray]) -> None:
        """`kept`: what this rank has of A and B, and is to have of C, by operand."""
        assert plan.grid_layout is not None
        self._team, self._layout, layout = team, plan.grid_layout, plan.grid_layout
        dtype, of_b = layout.problem.dtype, layout.part_of_b(team.rank)
        b = make_shared_matrices(team, {"B": of_b.rows}, {"B": len(of_b.columns)}, {"B": dtype})["B"].array
        with team.phase("prepare", timed=False), busy():
            a = kept["A"] if layout.rows_stay else empty_matrix(*layout.rows_of_a(team.rank).shape, dtype)
            c = kept["C"] if layout.computes_in_place else empty_matrix(*layout.part_of_c(team.rank).shape, dtype)
            (height, width), layers = kept["C"].shape, layout.grid.layers
            self._terms = empty_matrix(height * layers, width, dtype).reshape(layers, height, width) if layers > 1 else None
        self._kept = kept
        self._from = {"A": kept["A"], "B": kept["B"], "C": c}
        self._to = {"A": a, "B": b, "C": kept["C"] if self._terms is None else self._terms.reshape(height * layers, width)}
        self.matrices = RankMatrices(a, RowView(b, Span(0, len(b))), c)

    def run(self, session: Session, decision: Decision, settings: Settings, progress: Progress) -> RankRun:
        a, b, c = self.matrices.a, self.matrices.b.array, self.matrices.c
        return RankRun(session, decision, self.matrices, [a, b, c], settings, progress, self._moves())

    def _moves(self) -> PanelMoves:
        """A arrives with the first panel of B."""
        team, ranks = self._team, tuple(range(self._team.size))
        for kind in (_TO_GRID, _FROM_GRID):
            team.connect(kind, ranks)
        of_a, of_b, of_c = ([exchange(*each, team.rank) for each in self._exchanged(operand)] for operand in "ABC")
        columns = self._layout.panels(team.rank)
        arriving = [[*of_a, of_b[0]], *([each] for each in of_b[1:])]
        leaving = [[each] for each in of_c] or [[] for _ in columns]
        return PanelMoves(
            columns,
            Moves(_TO_GRID, ranks, arriving, team.node_ranks),
            Moves(_FROM_GRID, ranks, leaving, [team.rank]),
            self._terms,
            self._kept["C"],
        )

    def _exchanged(self, operand: str) -> Iterator[tuple[Matrices, Matrices]]:
        """For each piece of an operand what this rank sends to each rank, and receives from each."""
        me, ranks, layout = self._team.rank, range(self._team.size), self._layout
        here, there = self._from[operand], self._to[operand]
        for number in range(layout.pieces[operand]):
            sends = {rank: _at(here, (place for place, _ in layout.moves(operand, number, me, rank))) for rank in ranks}
            receives = {rank: _at(there, (place for _, place in layout.moves(operand, number, rank, me))) for rank in ranks}
            yield sends, receives

    def verify(self, decision: Decision, threads: int) -> Check:
        """The check of what each rank has computed, and of what was sent, where no rank has whole rows. Every rank calls it."""
        team, matrices = self._team, self.matrices
        self._verify_exchanges("AB", threads)
        with team.phase("check") as checking, busy(), limited_threads(1):
            checking.mine = verify_alone(matrices.a, matrices.b.array, matrices.c, threads)
        self._verify_exchanges("C", threads)
        if self._terms is not None:
            with team.phase("check"):
                if not np.array_equal(np.sum(self._terms, axis=0), self._kept["C"], equal_nan=True):
                    raise CheckFailed("the layers' results were added up wrong", code="check-exchange")
        faults = list[Fault]()
        for rank, check in enumerate(checking.all):
            part = self._layout.part_of_c(rank)
            who = f"{decision.device_of(rank)}, rows {part.rows}, columns {part.columns}, counted from there"
            faults += [replace(fault, rank=rank) for fault in check.of(who, part.rows.lo).faults]
        worst = max(checking.all, key=lambda check: (not check.ok, check.kind, check.error))
        return replace(worst, faults=tuple(faults))

    def _verify_exchanges(self, operands: str, threads: int) -> None:
        for operand in operands:
            for sent, received in self._exchanged(operand):
                verify_exchange(self._team, operand, sent, received, threads)


def _at(matrix: np.ndarray, places: Iterable[Place]) -> list[np.ndarray]:
    return [matrix[place] for place in places]
