# SPDX-License-Identifier: MIT
"""The transport by NCCL: each rank loads some rows of B over its GPU's own link, and an allgather brings all ranks the others. C
of other nodes goes from their GPUs to those of the root's node.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event
from hybrid.host.memory import RowView
from hybrid.plan.gather_layout import SLOTS, SentPiece, pieces_received, receivers, rows_of_pieces, slots_of
from hybrid.plan.plan import Plan
from hybrid.plan.schedule import Arrival, Tile
from hybrid.ranks.shared_memory import pauses
from hybrid.ranks.team import Team
from hybrid.transport.base import CopyObserver, HostTransport, LeavingPanels, RankMatrices
from hybrid.transport.links import DeviceGroup
from hybrid.transport.rank_device import RankDevice

# -------- device gather
# C of other nodes on its way from device to device to the root's node, tile by tile, while others are multiplied.
#
# No rank ever waits for one that waits for it, whatever the devices run side by side. Every rank enqueues what it sends or
# receives behind all the product's collectives of B, which wait for nothing of C, on the same stream. Then no multiplication
# waits for another rank any more. A rank either sends or receives. A sender sends its tiles in the order in which it
# multiplies them. A receiver has one order, in which every sender's pieces are in theirs. So the first piece that has not
# arrived is one that its sender comes to next. What an operation waits for on its own device was enqueued before it: so all
# this holds even where a GPU runs everything in that order.
#
# It is one communicator that brings B and C. Of two, NCCL's kernels may keep each other from running, in another order on
# each GPU.

_SENT_AHEAD = 16  # pieces: so many can be sent while the host does something else, and NCCL always has room for them


class DeviceGather(LeavingPanels, Protocol):
    """One rank's part in it, for the transport."""

    sends: bool  # whether this rank's tiles are sent, and not copied to this node's memory

    def begin(self) -> None:
        """A product begins."""

    def collectives_enqueued(self) -> None:
        """Note that all collectives of this product are enqueued."""

    def computed(self, tile: Tile, source: Any, after: list[Event]) -> None:
        """Note that a tile of this rank is in `source` when the events are complete."""


class _Part(ABC):
    """What senders and receivers have in common. One is made for a plan, and used for any number of products, each from `begin`
    to `wait_for_stored`."""

    def __init__(self, team: Team, plan: Plan, rank_device: RankDevice) -> None:
        self._team, self._plan, self._rank_device = team, plan, rank_device
        self._device, self._group = rank_device.device, rank_device.device_group
        self._share = plan.shares[team.rank]
        self._own: deque[Event] = deque()  # of this rank's tiles, until they are multiplied and copied
        self._open = False  # all collectives of the product are enqueued

    def begin(self) -> None:
        """A product begins."""
        self._own.clear()
        self._open = False

    def collectives_enqueued(self) -> None:
        self._open = True

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        self._own.append(event)

    @abstractmethod
    def advance(self) -> None:
        """Send or receive what there is, without waiting."""

    def wait_for_stored(self) -> None:
        """Wait until this rank's part of C has been sent, or all that it receives is in host memory, whose time from this rank's
        last tile on is noted as "gather". PhaseEnded if a rank fails meanwhile."""
        self._wait_until(self._own_are_done)
        began = time.perf_counter()
        self._team.enter("gather")
        self._wait_until(self._is_complete)
        self._team.timeline.add("gather", began, time.perf_counter())

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        pause = pauses(self._team)
        self.advance()
        while not reached():
            next(pause)
            self.advance()

    def _own_are_done(self) -> bool:
        while self._own and self._device.done(self._own[0]):
            self._own.popleft()
        return not self._own

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether nothing is left to be sent or received."""


class SentC(_Part):
    """The part of a rank outside of the root's node."""

    sends = True

    def __init__(self, team: Team, plan: Plan, rank_device: RankDevice) -> None:
        super().__init__(team, plan, rank_device)
        self._to = receivers(plan)[team.rank]
        self._waiting: deque[tuple[Any, list[Event]]] = deque()  # pieces, each with what it is sent after
        self._under_way: deque[Event] = deque()

    def begin(self) -> None:
        super().begin()
        self._waiting.clear()
        self._under_way.clear()

    def computed(self, tile: Tile, source: Any, after: list[Event]) -> None:
        self._waiting += ((source[rows.slice], after) for rows in rows_of_pieces(self._plan, self._share, len(tile.rows)))
        self.advance()

    def advance(self) -> None:
        """Send what is computed, or will be without waiting for another rank; but not all at once."""
        while self._under_way and self._group.done(self._under_way[0]):
            self._under_way.popleft()
        while self._open and self._waiting and len(self._under_way) < _SENT_AHEAD:
            piece, after = self._waiting.popleft()
            self._under_way.append(self._group.send(piece, self._to, after))

    def _is_complete(self) -> bool:
        return not (self._waiting or self._under_way)


class ReceivedC(_Part):
    """The part of a rank of the root's node, which receives pieces in a few slots of its device's memory."""

    sends = False

    def __init__(self, team: Team, plan: Plan, rank_device: RankDevice, c: RowView) -> None:
        """`c`: all of C, in the node's memory."""
        super().__init__(team, plan, rank_device)
        self._c, self._pieces, self._slots = c, pieces_received(plan, team.rank), slots_of(plan, team.rank)
        self._tiles = sum(tile.completes for arrival in self._share.order for tile in arrival.releases)
        self._computed: list[list[Event]] = []  # for each of this rank's tiles, so far
        self._receiving: deque[tuple[SentPiece, Any, Event]] = deque()  # each with the memory where it arrives
        self._copied: list[Event] = []  # of each piece that is or will be in host memory

    def begin(self) -> None:
        super().begin()
        self._computed.clear()
        self._receiving.clear()
        self._copied.clear()

    def computed(self, tile: Tile, source: Any, after: list[Event]) -> None:
        self._computed.append(after)

    def advance(self) -> None:
        """Copy what has arrived to host memory, and receive into the slots that are free, or will be without waiting for another
        rank."""
        while self._receiving and self._group.done(self._receiving[0][-1]):
            piece, there, event = self._receiving.popleft()
            # Submitted only now, since a copy to pageable memory blocks the host until it is made.
            into = self._c[piece.rows][:, piece.columns.slice]
            self._copied.append(self._device.copy_received(into, there, [event]))
        while self._open and self._may_receive():
            self._receive(len(self._copied) + len(self._receiving))

    def _may_receive(self) -> bool:
        """Whether there is a next piece, its slot is copied from, and enough of this rank's tiles are submitted."""
        number = len(self._copied) + len(self._receiving)
        if number == len(self._pieces) or len(self._receiving) == SLOTS:
            return False
        return len(self._computed) >= self._tiles_before(self._pieces[number])

    def _tiles_before(self, piece: SentPiece) -> int:
        """After how many of this rank's tiles it receives a piece: about as many as its sender has then. A kernel that waits
        for it would take multiprocessors from multiplications."""
        return -(-(piece.tile + 1) * self._tiles // piece.tiles)

    def _receive(self, number: int) -> None:
        piece, slot, plan = self._pieces[number], number % SLOTS, self._plan
        memory, width = self._rank_device.memory, plan.shares[piece.sender].layout.width
        whole = self._device.matrix(memory, self._slots.offset_of(slot), len(piece.rows), width, plan.problem.dtype)
        there = whole[:, : len(piece.columns)]
        tiles = self._tiles_before(piece)
        after = [*(self._computed[tiles - 1] if tiles else ())]
        if number >= SLOTS:
            after.append(self._copied[number - SLOTS])
        self._receiving.append((piece, there, self._group.receive(there, piece.sender, after)))

    def _is_complete(self) -> bool:
        return len(self._copied) == len(self._pieces) and (not self._copied or self._device.done(self._copied[-1]))


class NcclTransport(HostTransport):
    """For products of which all panels fit on the devices: then all ranks load them in the same order, as collectives must be. A
    is copied as by HostTransport, and so is C, unless it goes to another node."""

    def __init__(
        self,
        device: Device,
        rank: int,
        matrices: RankMatrices,
        device_group: DeviceGroup,
        rows_of: Sequence[Span],
        observer: CopyObserver | None = None,
        in_place: Container[str] = (),
        gather: DeviceGather | None = None,
    ) -> None:
        """`rows_of[rank]`: the rows of B that this rank loads. `matrices.b` has at least those of the calling one. `gather`:
        brings C of other nodes to the root's; None where it stays where it is computed."""
        super().__init__(device, rank, matrices, observer, in_place=in_place)
        self._device_group, self._own_rows, self._rows_of = device_group, rows_of[rank], rows_of
        self._gather, self._panels = gather, 0
        self._gathered: list[Event] = []

    def begin(self, order: Sequence[Arrival]) -> None:
        super().begin(order)
        self._gathered, self._panels = [], sum(arrival.operand == "B" for arrival in order)
        self._open_gather()

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        if arrival.operand == "A":
            return super()._copy_in(arrival, into, after)
        assert arrival.index == arrival.slot == len(self._gathered), "ranks that gather panels in different orders mix them up"
        loaded = self._device.copy_in(into[self._own_rows.slice], self._matrices.b[self._own_rows][:, arrival.span.slice], after)
        # Enqueued here and not in `exchange`: copies out may block the host, and must not delay a collective of later panels.
        self._gathered.append(self._device_group.allgather_rows(into, self._rows_of, [*after, loaded]))
        self._open_gather()
        return self._gathered[-1]

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        # A copy to pageable memory blocks the host until the tile is computed. If a rank has failed, its panel never arrives:
        # so wait where that is noticed.
        gather = self._gather
        if gather is None:
            self._device_group.wait_for(self._gathered[tile.slot])
            return super().store(tile, source, after)
        self._device_group.wait_for(self._gathered[tile.slot], gather.advance)
        gather.computed(tile, source, after)
        return after[-1] if gather.sends else super().store(tile, source, after)

    def _open_gather(self) -> None:
        """Let C leave or arrive once all collectives of B are enqueued: none of them may have to wait for C."""
        if self._gather is not None and len(self._gathered) == self._panels:
            self._gather.collectives_enqueued()
