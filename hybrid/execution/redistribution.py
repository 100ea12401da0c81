# SPDX-License-Identifier: MIT
"""Moves elements of a matrix from the ranks that have them to the ranks that shall have them, by one of MPI's collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.arrays.block_2d import Block2D, refuse_no_grid
from hybrid.arrays.distributed import Distributed, RowBlock, TransposedRowBlock, refuse_out
from hybrid.arrays.gemm import is_number
from hybrid.arrays.interop import as_matrix
from hybrid.arrays.sources import MatrixSource, RootMatrix
from hybrid.core.settings import Settings
from hybrid.core.spans import Span, block, consecutive, pieces
from hybrid.errors import UsageError
from hybrid.execution.calls import refuse_no_rank
from hybrid.host.memory import RowView
from hybrid.plan.grid import Part, Rectangle
from hybrid.plan.plan import Plan, shortage_of_matrix
from hybrid.ranks.collectives import Series, Start, copy_own, exchange, row_allgather, row_broadcast, row_gather
from hybrid.ranks.team import Team
from hybrid.selection.machine import free_memory_of, same_on_all_ranks
from hybrid.selection.session import Session

if TYPE_CHECKING:
    from hybrid.transport.panels import Matrices, PanelTransfers, Piece, RowExchange


_KIND = "redistribute"
_KINDS: dict[type, str] = {RowBlock: "RowBlock", TransposedRowBlock: "transposed", Block2D: "Block2D"}


@dataclass(frozen=True)
class _Share:
    """What one rank has, and how many rows it wants.

    `kind`: one of `_KINDS`, "matrix" (which the root alone has) or "nothing". `shape`: of the rows that it has; or of the whole
    matrix where `place` says which part of that it has.
    """

    kind: str
    shape: tuple[int, int]
    place: Part | None
    dtype: np.dtype
    wanted: int | None
    free: Any


def scattered(session: Session, a: Any, rows: int | None, root: int, stall: float | None = None) -> RowBlock:
    """This rank's rows of the root's matrix, or of all ranks' RowBlocks or Block2Ds. `rows`: how many this rank wants; None for
    equal shares."""
    own, parts = _agreed(session, "rows of a matrix (scatter)", a, root, rows, stall)
    if isinstance(a, TransposedRowBlock):
        want = _wanted(parts, parts[0].shape[1])
        array = _transposed(session.team, parts, own, want)
    else:
        have, n = _places(parts)
        want = _wanted(parts, n)
        array = _moved(session.team, parts, own, have, want, None)
    return RowBlock(array, first_row=want[session.team.rank].lo)


def _wanted(parts: Sequence[_Share], rows: int) -> list[Span]:
    """The rows that each rank gets of a matrix that has so many. UsageError where those that the ranks want do not add up to
    them."""
    wanted = [part.wanted for part in parts]
    if None not in wanted:
        want = consecutive(each or 0 for each in wanted)
        if want[-1].hi != rows:
            raise UsageError(f"the ranks want {want[-1].hi} rows together, and the matrix has {rows}", code="rows")
        return want
    if set(wanted) != {None}:
        raise UsageError("rows is given on some ranks and not on others: on each, or on none for even shares", code="rows")
    return [block(rows, len(parts), rank) for rank in range(len(parts))]


def gathered(session: Session, a: Any, out: np.ndarray | None, root: int, stall: float | None) -> np.ndarray | None:
    """The whole matrix at the root, in `out` where that is given; None elsewhere."""
    own, parts = _agreed(session, "a whole matrix (gather)", a, root, None, stall)
    if any(part.kind not in _KINDS.values() for part in parts):
        raise UsageError("gather takes a RowBlock or Block2D on every rank", code="mixed-kinds")
    is_transposed = isinstance(a, TransposedRowBlock)
    (have, n), m = _places(parts), parts[0].shape[1]
    shape = (m, n) if is_transposed else (n, m)
    want = [Span(0, n) if rank == root else Span(n, n) for rank in range(len(parts))]
    team = session.team
    with team.phase("agree", timed=False):
        if team.rank == root and out is not None:
            refuse_out(out, shape, parts[0].dtype, "matrix")
    into = out if team.rank == root else None
    if is_transposed:  # whose columns are gathered as the rows that they are
        c = _moved(team, parts, own, have, want, into.T if into is not None else None).T
    else:
        c = _moved(team, parts, own, have, want, into)
    return (c if into is None else into) if team.rank == root else None


def _agreed(
    session: Session, call: str, a: Any, root: int, rows: int | None, stall: float | None
) -> tuple[np.ndarray, list[_Share]]:
    """This rank's elements in host memory, and what all ranks have. The same UsageError on all ranks where that does not fit
    together."""
    team = session.team
    with team.phase("agree", timed=False) as agreeing:
        refuse_no_rank(team, root)
        if rows is not None and (type(rows) is not int or rows < 0):
            raise UsageError(f"rows={rows!r} is no number of rows", code="rows")
        kind = _KINDS.get(type(a), "nothing" if a is None or team.rank != root else "matrix")
        given = a.rows.array if isinstance(a, TransposedRowBlock) else a.array if isinstance(a, Distributed) else a
        place = a.part if isinstance(a, Block2D) else None
        own = np.empty((0, 0)) if kind == "nothing" else as_matrix(given, "a")
        if not is_number(own.dtype):
            raise UsageError(f"a has elements of {own.dtype}, and only numbers are distributed", code="no-numbers")
        settings = Settings.gather({"stall": stall})
        free = free_memory_of(session, settings, None, now=True)
        shape = a.shape if place else own.shape
        agreeing.mine = ({"kind": call, "root": root}, _Share(kind, shape, place, own.dtype, rows, free))
    same_on_all_ranks([said[0] for said in agreeing.all])
    parts: list[_Share] = [said[1] for said in agreeing.all]
    kinds = {part.kind for part in parts}
    if len(kinds) == 1 and parts[0].kind in _KINDS.values():
        if len({(part.shape if part.place else part.shape[1], part.dtype) for part in parts}) > 1:
            what = "Block2Ds differ in their shapes" if parts[0].place else "RowBlocks differ in their columns"
            raise UsageError(f"the ranks' {what} or types", code="ranks-differ")
    elif kinds.intersection(_KINDS.values()) or parts[root].kind != "matrix":
        raise UsageError(
            "a is the matrix at the root and None elsewhere, or a RowBlock or Block2D on every rank", code="mixed-kinds"
        )
    return own, parts


def _places(parts: Sequence[_Share]) -> tuple[list[Part], int]:
    """The part of the matrix that each rank has, and the number of rows. UsageError where Block2Ds do not make up a matrix."""
    if places := [part.place for part in parts if part.place is not None]:
        refuse_no_grid("a", places, parts[0].shape)
        return places, parts[0].shape[0]
    rows = consecutive(part.shape[0] for part in parts)
    return [Part((span,), (Span(0, part.shape[1]),)) for span, part in zip(rows, parts, strict=True)], rows[-1].hi


def _moved(
    team: Team, parts: Sequence[_Share], own: np.ndarray, have: Sequence[Part], want: Sequence[Span], out: np.ndarray | None
) -> np.ndarray:
    """This rank's rows `want[rank]`, in `out` where it is given. `have`: the part that each rank has."""
    first = next(part for part in parts if part.kind != "nothing")
    dtype, columns, rank = first.dtype, first.shape[1], team.rank
    wanted = [Rectangle(rows, Span(0, columns)) for rows in want]
    _prepare(team, parts, [each.elements * dtype.itemsize for each in wanted])
    with team.phase("allocate", timed=False):
        # Rows may lie apart, but each is contiguous, as MPI's datatypes have them.
        takes = out is not None and _rows_are_contiguous(out) and not np.may_share_memory(out, own)
        into = out if takes and out is not None else np.empty(wanted[rank].shape, dtype)
        own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
        to = {each: [own[place] for _, place in have[rank].common(rows)] for each, rows in enumerate(wanted)}
        taken = {
            each: [into[rectangle.within(wanted[rank])] for rectangle, _ in part.common(wanted[rank])]
            for each, part in enumerate(have)
        }
        series = exchanged(team, to, taken)
    with team.phase("exchange", timed=False):
        if series is not None:
            series.wait_until_complete()
        if out is not None and into is not out:
            out[...] = into
    return into if out is None else out


def _transposed(team: Team, parts: Sequence[_Share], own: np.ndarray, want: Sequence[Span]) -> np.ndarray:
    """This rank's rows `want[rank]` of the transpose.

    They are the matrix's columns, of which each rank has the elements in its rows. They are received as columns, in row-major
    order, and are rows of a view.
    """
    dtype, rank, have = parts[0].dtype, team.rank, consecutive(part.shape[0] for part in parts)
    _prepare(team, parts, [have[-1].hi * len(rows) * dtype.itemsize for rows in want])
    with team.phase("allocate", timed=False):
        into = np.empty((have[-1].hi, len(want[rank])), dtype)
        own = own if _rows_are_contiguous(own) else np.ascontiguousarray(own)
        to = {each: [own[:, rows.slice]] for each, rows in enumerate(want) if own.size and len(rows)}
        taken = {each: [into[rows.slice]] for each, rows in enumerate(have) if len(rows) and into.size}
        series = exchanged(team, to, taken)
    with team.phase("exchange", timed=False):
        if series is not None:
            series.wait_until_complete()
    return into.T


def _prepare(team: Team, parts: Sequence[_Share], needed: Sequence[int]) -> None:
    """Prepare an exchange for which each rank needs so many bytes. DoesNotFit where a node has no room for its ranks'."""
    for node in team.topology.nodes:
        of_node = sum(needed[each] for each in node)
        if missing := shortage_of_matrix(of_node, [parts[each].free for each in node], shared=False):
            raise missing.error()
    connect(team)


def connect(team: Team) -> None:
    """Have what `exchanged` needs between these ranks. Every rank calls it before the first exchange."""
    if team.size > 1:
        team.connect(_KIND, range(team.size))


def exchanged(team: Team, to: Mapping[int, Sequence[np.ndarray]], taken: Mapping[int, Sequence[np.ndarray]]) -> Series | None:
    """A series of one collective, in which each rank sends matrices to others and receives theirs; None where there are no
    others.

    Every rank calls it in a phase, and waits for the series in the next.
    """
    if team.size == 1:
        copy_own(to, taken, team.rank)
        return None
    return team.messages.collectives.series(_KIND, range(team.size), [exchange(to, taken, team.rank)])


def _rows_are_contiguous(matrix: np.ndarray) -> bool:
    return matrix.strides[1] == matrix.itemsize and matrix.strides[0] >= 0


# -------- scatter gather
# Scatter and gather between nodes: the root's rows of A and B go to the nodes that multiply them, and the nodes' rows of C to
# the root.

# What moves data between nodes is loaded where there are several: on one node a product starts sooner without it.


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
    from hybrid.transport.panels import RowExchange

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
    from hybrid.transport.panels import cut

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
    from hybrid.transport.panels import PanelTransfers

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
    from hybrid.transport.panels import RowExchange

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
