# SPDX-License-Identifier: MIT
"""Checksums, made on the root's node, of the pieces that other nodes' ranks copy: of the operands that were sent to them, and of
C as it was gathered. Compared with theirs, they show whether sending and gathering changed anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hybrid.arrays.sources import MatrixSource, RootMatrix
from hybrid.core.spans import Span
from hybrid.host.row_sums import WEIGHTED_ROWS, checksum_weights, row_checksums
from hybrid.host.row_view import RowView
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about
from hybrid.plan.check_layout import Piece
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team
from hybrid.verification.check import InMemory
from hybrid.verification.copied import CopiedPieces, Place


def sums_of_other_nodes(
    team: Team,
    plan: Plan,
    operands: tuple[MatrixSource, MatrixSource],
    views: Mapping[str, RowView],
    threads: int,
    pieces: Sequence[CopiedPieces],
) -> InMemory:
    """By rank of another node, the numbers of its pieces that this rank sums, and their checksums.

    The root sums the pieces that it sent from its own arrays. The ranks of its node divide among them the pieces of C, and of B
    where it is gathered there. Ranks of other nodes sum nothing here. `views`: by "A", "B" and "C", the rows in the node's
    memory.
    """
    found: dict[int, tuple[list[int], np.ndarray]] = {}
    if team.node != plan.root_node:
        return found
    sources = dict(zip("AB", operands, strict=True))
    done: set[Place] = {place for rank in team.node_ranks for place in pieces[rank].places if not _is_sent(sources, place)}
    for rank in range(team.size):
        if rank in team.node_ranks:
            continue
        of_rank = pieces[rank]
        of_rows, mine = np.zeros(of_rank.layout.checksums, np.uint64), []
        for piece, place in zip(of_rank.layout.pieces, of_rank.places, strict=True):
            if place in done:
                continue
            done.add(place)
            rows = _rows_here(team, plan, sources, views, piece, place)
            if rows is not None:
                weights = checksum_weights(plan.problem.l if place[0] == "A" else plan.problem.m, plan.problem.item_size)
                _sum(rows, weights[piece.columns.slice], of_rows[piece.offset :][: len(piece.rows)], plan.problem.dtype, threads)
                mine.append(piece.number)
        found[rank] = mine, of_rank.of_pieces(of_rows)
    return found


def _is_sent(sources: Mapping[str, MatrixSource], place: Place) -> bool:
    """Whether the root sends this place to other nodes, from an array of its own."""
    return isinstance(sources.get(place[0]), RootMatrix)


def _rows_here(
    team: Team, plan: Plan, sources: Mapping[str, MatrixSource], views: Mapping[str, RowView], piece: Piece, place: Place
) -> np.ndarray | None:
    """The elements of a piece that a rank of another node copies, as they are here; None where another rank sums them, or where
    this node does not have them."""
    operand, rows, columns = place
    source = sources.get(operand)
    if isinstance(source, RootMatrix):
        return source.array[rows.slice, columns.slice] if team.rank == plan.root else None
    view = views[operand]
    if not rows.lies_in(view.rows) or team.node_ranks[piece.number % len(team.node_ranks)] != team.rank:
        return None
    matrix: np.ndarray = view[rows][:, columns.slice]
    return matrix


def _sum(rows: np.ndarray, weights: np.ndarray, checksums: np.ndarray, dtype: str, threads: int) -> None:
    """Write the rows' checksums, of their elements as `dtype`, to `checksums`."""

    def add(part: slice) -> None:
        some = rows[part]
        if some.dtype != dtype or not some.dtype.isnative or not some.flags.aligned or some.strides[1] != some.itemsize:
            some = np.ascontiguousarray(some, dtype)
        row_checksums(some, weights, checksums[part])

    for _ in on_threads(threads, add, _parts(rows)):
        pass


def _parts(rows: np.ndarray) -> Iterator[slice]:
    """Some rows at a time; the first of each part is a multiple of WEIGHTED_ROWS."""
    together = WEIGHTED_ROWS * rows.shape[1] * rows.itemsize
    for part in rows_of_about(CALL_BYTES, Span(0, -(-len(rows) // WEIGHTED_ROWS)), together):
        yield slice(part.lo * WEIGHTED_ROWS, part.hi * WEIGHTED_ROWS)
