# SPDX-License-Identifier: MIT
"""How C of other nodes goes from device to device to the root's node: who receives from whom, in which pieces, and through which
slots of device memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybrid.core.problem import padded, record
from hybrid.core.spans import Span, pieces
from hybrid.plan.layout import Region, aligned
from hybrid.plan.schedule import RankShare

if TYPE_CHECKING:
    from hybrid.plan.plan import Plan

SLOTS = 4  # of a receiver: some are received while others are copied to host memory
# Of a piece, unless one row has more. A GPU's link to the host takes 0.6 ms for it, beside which starting a kernel of NCCL's and
# a copy counts little.
PIECE_BYTES = 32 << 20


@record
class SentPiece:
    """What one message brings: these rows of these columns of C."""

    sender: int
    rows: Span
    columns: Span
    tile: int  # its number among those of the sender
    tiles: int  # that the sender has


def senders(plan: Plan) -> list[int]:
    """The ranks whose C goes to the root's node."""
    others = (ranks for node, ranks in enumerate(plan.topology.nodes) if node != plan.root_node)
    return [rank for ranks in others for rank in ranks if len(plan.shares[rank].rows)]


def receivers(plan: Plan) -> dict[int, int]:
    """By sender, the rank that receives its C. The senders take turns with the ranks of the root's node, so that all links of
    that node are used."""
    members = plan.topology.nodes[plan.root_node]
    return {sender: members[number % len(members)] for number, sender in enumerate(senders(plan))}


def senders_to(plan: Plan, rank: int) -> list[int]:
    """The ranks whose C this rank receives."""
    if rank not in plan.topology.nodes[plan.root_node]:  # most ranks of a large cluster
        return []
    return [sender for sender, receiver in receivers(plan).items() if receiver == rank]


def rows_of_pieces(plan: Plan, share: RankShare, rows: int) -> list[Span]:
    """The pieces in which so many rows of a tile are sent, by their rows."""
    return list(pieces(Span(0, rows), _most_rows(plan, share)))


def pieces_received(plan: Plan, rank: int) -> list[SentPiece]:
    """What this rank receives, in the order in which it does: each sender's pieces as they are sent, and where there are several
    senders, in turn, so that all of them get on."""
    of_senders = [list(_pieces_of(plan, plan.shares[sender])) for sender in senders_to(plan, rank)]
    in_turn = [
        ((number + 1) / len(of_one), sender, piece)
        for sender, of_one in enumerate(of_senders)
        for number, piece in enumerate(of_one)
    ]
    return [piece for *_, piece in sorted(in_turn, key=lambda entry: entry[:2])]


def slots_of(plan: Plan, rank: int) -> Region:
    """The slots of this rank, behind its buffers."""
    of_one = (plan.shares[sender] for sender in senders_to(plan, rank))
    size = max((min(len(share.rows), _most_rows(plan, share)) * _row_bytes(plan, share) for share in of_one), default=0)
    return Region(aligned(plan.shares[rank].layout.bytes), aligned(size))


def bytes_of_slots(plan: Plan, rank: int) -> int:
    """The bytes of device memory that a rank takes behind its buffers to receive C; 0 where it receives none."""
    slots = slots_of(plan, rank) if plan.c_between_devices else Region(0, 0)
    return slots.offset_of(SLOTS) - plan.shares[rank].layout.bytes if slots.slot_bytes else 0


def rows_written(plan: Plan, rank: int) -> Span:
    """The rows of C in host memory among which a rank's copies write, where C goes between devices: its own, and those that it
    receives; none on other nodes than the root's."""
    if plan.topology.node_of(rank) != plan.root_node:
        return Span(0, 0)
    rows = [plan.shares[each].rows for each in (rank, *senders_to(plan, rank)) if len(plan.shares[each].rows)]
    return Span(min(each.lo for each in rows), max(each.hi for each in rows)) if rows else Span(0, 0)


def _pieces_of(plan: Plan, share: RankShare) -> Iterator[SentPiece]:
    """A sender's pieces, in the order in which it submits its tiles."""
    tiles = [tile for tile in share.tiles() if tile.completes]
    for number, tile in enumerate(tiles):
        first = share.rows.lo + tile.rows.lo
        for rows in rows_of_pieces(plan, share, len(tile.rows)):
            yield SentPiece(share.rank, Span(first + rows.lo, first + rows.hi), tile.columns, number, len(tiles))


def _most_rows(plan: Plan, share: RankShare) -> int:
    return max(1, PIECE_BYTES // max(1, _row_bytes(plan, share)))


def _row_bytes(plan: Plan, share: RankShare) -> int:
    """The row stride of a column panel's part of C in a sender's buffers. Pieces have the same in the slots: gaps between rows
    are sent, too, so that what is sent is contiguous."""
    item, width = plan.problem.item_size, share.layout.width
    return item * (width if plan.device == "cpu" else padded(width, item))
