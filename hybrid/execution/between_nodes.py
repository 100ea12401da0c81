# SPDX-License-Identifier: MIT
"""Data between nodes, by MPI collectives: rows before a product, column panels of B and C during it, on a grid rectangles of all.

Some ranks of each node take part in the panels' collectives. Flags in node-shared memory tell the node's other ranks which panels
have arrived, and tell these ranks which are computed. The schedule is deadlock-free: all ranks start the same collectives in the
same order, and a waiting rank progresses every pending one, so none waits for a rank that multiplies.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from hybrid.arrays.root_operands import RootMatrix
from hybrid.core.problem import Span, pieces, record
from hybrid.core.settings import Settings
from hybrid.devices.base import Event
from hybrid.errors import CheckFailed
from hybrid.host.memory import RowView, empty_matrix
from hybrid.host.threads import limited_threads
from hybrid.planning.decision import Decision
from hybrid.planning.plan import Plan
from hybrid.planning.schedule import RankShare, Tile
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.messages import Matrices, Series, Start, broadcast, exchange
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.transport.base import RankMatrices
from hybrid.transport.rank_device import RankDevice
from hybrid.verification.check import Check, Fault
from hybrid.verification.copies import verify_exchange
from hybrid.verification.freivalds import verify_alone

ROWS = "rows"  # name of the series that move rows before a product
# Collectives started ahead, to keep the network busy while earlier ones end.
ROWS_AHEAD, _B_AHEAD, _C_AHEAD = 1, 2, 4


def gateways(plan: Plan) -> tuple[int, ...]:
    """The rank of each node that exchanges data with other nodes: the root, or the node's leader."""
    return tuple(plan.root if plan.root in ranks else ranks[0] for ranks in plan.topology.nodes)


def rows_from_root(
    team: Team, plan: Plan, sent: Sequence[tuple[str, RootMatrix]], views: Mapping[str, RowView], message_bytes: int
) -> Iterator[Start]:
    """The collectives that send rows of these operands ("A", "B") from the root to the other nodes' shared matrices. A message
    holds up to `message_bytes`, but at least one row. The root converts rows as it sends them."""
    for key, operand in sent:
        height = max(1, message_bytes // max(1, plan.problem.bytes(1, operand.shape[1])))
        cut = [[*pieces(plan.rows_on(node)[key], height)] for node in range(len(plan.topology.nodes))]
        for number in range(max(map(len, cut))):
            parts = {node: of[number] for node, of in enumerate(cut) if number < len(of) and node != plan.root_node}
            sends, receives = dict[int, list[np.ndarray]](), dict[int, list[np.ndarray]]()
            if team.rank == plan.root:
                for node, rows in parts.items():
                    sends[node] = [np.ascontiguousarray(operand.array[rows.slice], plan.problem.dtype)]
            elif team.node in parts:
                receives[plan.root_node] = [views[key][parts[team.node]]]
            yield exchange(sends, receives, team.node)


def gather_b(team: Team, plan: Plan, b: RowView, settings: Settings) -> None:
    """Allgather the rows of B into every node's shared matrix, which holds the rows of the node's ranks. Collective."""
    nodes, problem = plan.topology.nodes, plan.problem
    if len(nodes) == 1:
        return
    rows_of = [[plan.shares[rank].b_rows for rank in ranks] for ranks in nodes]
    widest = max(1, settings.message_bytes // max(1, problem.bytes(problem.l, 1)))
    of_panels = pieces(Span(0, problem.m if problem.l else 0), widest)
    starts = (_to_all_nodes(b, columns, rows_of, team.node) for columns in of_panels)
    team.carry_out("scatter", ROWS, [ranks[0] for ranks in nodes], starts, ROWS_AHEAD)


def _to_all_nodes(b: RowView, columns: Span, rows_of: Sequence[Sequence[Span]], me: int) -> Start:
    """The collective that sends these columns of each node's rows to all other nodes. `rows_of[node]`: the node's rows."""
    parts = {node: [b[rows][:, columns.slice] for rows in of_node if len(rows)] for node, of_node in enumerate(rows_of)}
    return exchange({node: parts[me] for node in parts if node != me}, {**parts, me: []}, me)


@record
class Moves:
    """One rank's collectives for the panels of B on their way to the nodes, or of C to their destination.

    `kind`, `ranks`: their communicator. `of_panels`: the collectives of each panel; empty on a rank that takes no part.
    `members`: for B, the ranks that receive parts of a panel for this node; for C, the ranks whose results this rank sends.
    """

    kind: str
    ranks: tuple[int, ...]
    of_panels: Sequence[Sequence[Start]]
    members: Sequence[int]

    def begin(self, team: Team) -> Series | None:
        starts = [start for of_panel in self.of_panels for start in of_panel]
        return team.messages.series(self.kind, self.ranks, starts) if team.rank in self.ranks else None


class Panels:
    """One rank's view of the moving panels, for any number of products, each from `begin` to `finish`. Every rank constructs one.

    The device's panels may be cut differently: one of B is complete when all moving panels that overlap it have arrived.
    """

    def __init__(self, team: Team, columns: Sequence[Span], b: Moves, c: Moves, terms: Any = None, kept: Any = None) -> None:
        """`columns`: of each panel, within this rank's part of C. `terms`: results of several grid layers, summed in `kept`."""
        self._team, self._columns, self._b, self._c, self._terms, self._kept = team, columns, b, c, terms, kept
        self.takes_part = team.rank in (*b.ranks, *c.ranks)  # in the collectives
        # The index of each panel's first collective, and the total, for B and for C.
        self._b_starts, self._c_starts = ([*accumulate(map(len, each.of_panels), initial=0)] for each in (b, c))

    def attach(self, plan: Plan, share: RankShare, rank_device: RankDevice) -> None:
        """Serve this device, whose share of the plan this is. Collective, before the transport is made."""
        from hybrid.transport.peers import flags_of  # other products need not load this module

        first_flag = flags_of(plan)  # behind the transport's flags, each rank has one for each panel of B, then of C
        self._flags, self._device = rank_device.meet(first_flag + 2 * len(self._columns)), rank_device.device
        self._rows, self._flag_of_b, self._flag_of_c = len(share.rows), first_flag, first_flag + len(self._columns)
        self._last_overlapping = [self._overlapped(panel)[-1] for panel in share.column_panels]

    def begin(self) -> None:
        """Reset for a new product."""
        self._expected = deque[tuple[Tile, Event]]()
        self._left = [self._rows * len(panel) for panel in self._columns]  # elements of C not computed by this rank yet
        self._arrived = self._computed = self._sent = 0  # panels of B and of C, and collectives of C that are complete
        self._arriving, self._leaving = self._b.begin(self._team), self._c.begin(self._team)
        for number, elements in enumerate(self._left):
            if not elements:
                self._flags.set_flag(self._flag_of_c + number)

    def arrived(self, index: int) -> bool:
        """Whether panel `index` of this rank's device is in host memory. Does not wait."""
        return self._is_on_node(self._last_overlapping[index])

    def wait_for(self, index: int, computing: Callable[[], bool] = lambda: False) -> None:
        """Wait until panel `index` of this rank's device is in host memory. `computing`: if another thread needs the core."""
        self._wait_for(self._last_overlapping[index], computing)

    def wait_for_panels(self, count: int | None = None) -> None:
        """Wait until the first `count` panels (None: all) are on the node. Ranks without rows wait too: they may receive some."""
        if self._columns:
            self._wait_for((len(self._columns) if count is None else count) - 1)

    def _wait_for(self, panel: int, computing: Callable[[], bool] = lambda: False) -> None:
        began = time.perf_counter()
        if (series := self._arriving) is not None:
            self._team.enter("scatter")
            while self._arrived <= panel:
                for number in self._next_collectives():
                    series.start(number + 1 + _B_AHEAD)
                    series.wait_for(number, self._advance_c, computing)
                self._note_arrived()
        self._team.messages.wait_until(lambda: self._is_on_node(panel))
        if series is not None:
            self._team.timeline.add("scatter", began, time.perf_counter())

    def _is_on_node(self, panel: int) -> bool:
        self.advance()
        return all(self._flags.is_set(rank, self._flag_of_b + panel) for rank in self._b.members)

    def _next_collectives(self) -> range:
        """The collectives of the next panel of B."""
        return range(self._b_starts[self._arrived], self._b_starts[self._arrived + 1])

    def _note_arrived(self) -> None:
        """Flag that this rank's part of the next panel of B has arrived."""
        self._flags.set_flag(self._flag_of_b + self._arrived)
        self._arrived += 1

    def stored(self, tile: Tile) -> None:
        """Note that a tile of C is in host memory."""
        for number in self._overlapped(tile.columns):
            self._left[number] -= len(tile.rows) * len(self._columns[number].common(tile.columns))
            if not self._left[number]:
                self._flags.set_flag(self._flag_of_c + number)

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        """Note that a tile of C will be in host memory when the event is complete."""
        self._expected.append((tile, event))

    def advance(self) -> None:
        """Progress without waiting: flag arrived panels of B and stored tiles of C, and send computed panels."""
        if (series := self._arriving) is not None:
            while self._arrived < len(self._columns):
                series.start(self._b_starts[self._arrived + 1] + _B_AHEAD)
                if not all(series.is_complete(number) for number in self._next_collectives()):
                    break
                self._note_arrived()
        self._advance_c()

    def wait_for_stored(self) -> None:
        """Wait until all tiles announced by `will_be_stored` are. PhaseEnded if a rank fails meanwhile."""

        def all_stored() -> bool:
            self.advance()
            return not self._expected

        self._team.messages.wait_until(all_stored)

    def finish(self) -> None:
        """After the last tile, wait until this rank's moves of C are complete, and sum the layers. May raise PhaseEnded."""
        if self._leaving is not None:
            self._leaving.wait_until_complete()
        if self._terms is not None:
            np.sum(self._terms, axis=0, out=self._kept)

    def _advance_c(self) -> None:
        """Start the collectives of computed panels of C, `_C_AHEAD` at a time."""
        while self._expected and self._device.done(self._expected[0][1]):
            self.stored(self._expected.popleft()[0])
        if (series := self._leaving) is None:
            return
        flag, members = self._flag_of_c, self._c.members
        while self._computed < len(self._columns) and all(self._flags.is_set(rank, flag + self._computed) for rank in members):
            self._computed += 1
        series.start(min(self._c_starts[self._computed], self._sent + _C_AHEAD))
        while self._sent < series.started and series.is_complete(self._sent):
            self._sent += 1

    def _overlapped(self, columns: Span) -> list[int]:
        return [number for number, panel in enumerate(self._columns) if panel.meets(columns)]


def panels_of(team: Team, plan: Plan, b: RowView, c: RowView, *, from_root: bool, settings: Settings) -> Panels | None:
    """The panels of B that move to all nodes, and of C to the root's; None for a single node or grid, or between devices.
    Collective.

    `from_root`: the root's node has all rows of B; else every node has the rows that its ranks have filled.
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
        """The panels' moves, in collectives of up to `message_bytes`."""
        widest = max(1, settings.message_bytes // max(1, problem.bytes(height, 1)))
        team.connect(operand, ranks)
        takes_part = height and team.rank in ranks
        return Moves(operand, ranks, [[*map(move, pieces(each, widest))] if takes_part else [] for each in columns], members)

    arriving = by_gateways("B", problem.l, of_b, [ranks[team.node]])
    return Panels(team, columns, arriving, by_gateways("C", problem.n, of_c, computing))


_TO_GRID, _FROM_GRID = "to the grid", "from the grid"


class OnGrid:
    """One rank's matrices on a grid. Every rank constructs one; they exchange rectangles of A, then of B and C panel by panel.

    `matrices`: the rank's operands and result; the ranks of a node share B.
    """

    def __init__(self, team: Team, plan: Plan, kept: Mapping[str, np.ndarray]) -> None:
        """`kept`: this rank's parts of A, B and, for the result, C."""
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

    def panels(self) -> Panels:
        """A arrives with the first panel of B."""
        team, ranks = self._team, tuple(range(self._team.size))
        for kind in (_TO_GRID, _FROM_GRID):
            team.connect(kind, ranks)
        of_a, of_b, of_c = ([exchange(*each, team.rank) for each in self._exchanged(operand)] for operand in "ABC")
        columns = self._layout.panels(team.rank)
        arriving = [[*of_a, of_b[0]], *([each] for each in of_b[1:])]
        leaving = [[each] for each in of_c] or [[] for _ in columns]
        b, c = Moves(_TO_GRID, ranks, arriving, team.node_ranks), Moves(_FROM_GRID, ranks, leaving, [team.rank])
        return Panels(team, columns, b, c, self._terms, self._kept["C"])

    def _exchanged(self, operand: str) -> Iterator[tuple[Matrices, Matrices]]:
        """For each piece of an operand, this rank's sends and receives by rank."""
        me, ranks, layout = self._team.rank, range(self._team.size), self._layout
        here, there = self._from[operand], self._to[operand]
        for number in range(layout.pieces[operand]):
            sends = {rank: [here[place] for place, _ in layout.moves(operand, number, me, rank)] for rank in ranks}
            receives = {rank: [there[place] for _, place in layout.moves(operand, number, rank, me)] for rank in ranks}
            yield sends, receives

    def verify(self, decision: Decision, threads: int) -> Check:
        """Check each rank's product and all exchanges, for grids on which no rank has whole rows. Collective."""
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
