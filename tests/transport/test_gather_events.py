# SPDX-License-Identifier: MIT
"""What each operation that brings C from device to device waits for on its device, where the host waits for none of it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.host.row_view import RowView
from hybrid.plan import gather_layout
from hybrid.plan.gather_layout import SLOTS, pieces_received
from hybrid.transport.device_gather import ReceivedC, SentC


class Recorded:
    """Stands for the device and its communicator: it notes what each operation is enqueued behind, and completes nothing that is
    not named in `complete`."""

    def __init__(self):
        self.after, self.places, self.complete = {}, {}, set()

    def _enqueued(self, what, after, place=0):
        event = f"{what} {sum(name.startswith(what) for name in self.after)}"
        self.after[event], self.places[event] = after, place
        return event

    def matrix(self, memory, offset, rows, columns, dtype):
        return np.frombuffer(memory, dtype, rows * columns, offset).reshape(rows, columns)

    def done(self, event):
        return event in self.complete

    def send(self, matrix, to, after):
        return self._enqueued("send", after)

    def receive(self, into, source, after):
        return self._enqueued("receive", after, into.ctypes.data)

    def copy_received(self, into, source, after):
        return self._enqueued("copy", after, source.ctypes.data)


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setattr(gather_layout, "PIECE_BYTES", 100)
    topology = Topology.of_equal_nodes(2, 1)
    return planned(Problem(60, 5, 6), topology, device="cuda", panel_rows=6, panel_columns=6).with_transport("nccl")


def begun(kind, plan, rank, *more):
    recorded = Recorded()
    rank_device = SimpleNamespace(device=recorded, device_group=recorded, memory=bytearray(plan.bytes_of_buffers(rank)))
    part = kind(SimpleNamespace(rank=rank), plan, rank_device, *more)
    part.begin()
    part.collectives_enqueued()
    return part, recorded


def tiles_of(plan, rank):
    return [(number, tile) for number, tile in enumerate(plan.shares[rank].tiles())]


def test_a_piece_is_sent_when_its_tile_is_computed(plan):
    part, recorded = begun(SentC, plan, 1)
    for number, tile in tiles_of(plan, 1):
        before = len(recorded.after)
        part.computed(tile, np.empty((len(tile.rows), 6)), [f"tile {number}"])
        sent = list(recorded.after.values())[before:]
        assert sent
        assert sent == [[f"tile {number}"]] * len(sent)
        recorded.complete.update(recorded.after)


def test_a_slot_is_received_into_when_the_piece_before_is_copied_from_it(plan):
    part, recorded = begun(ReceivedC, plan, 0, RowView(np.empty((60, 6)), Span(0, 60)))
    for number, tile in tiles_of(plan, 0):
        part.computed(tile, None, [f"tile {number}"])
    pieces = len(pieces_received(plan, 0))
    assert pieces > 2 * SLOTS
    for number in range(pieces):
        part.advance()
        recorded.complete.add(f"receive {number}")
    part.advance()
    assert len(recorded.after) == 2 * pieces
    assert len({recorded.places[f"receive {number}"] for number in range(SLOTS)}) == SLOTS
    for number in range(pieces):
        received, copied = f"receive {number}", f"copy {number}"
        assert recorded.after[copied] == [received]
        assert recorded.places[copied] == recorded.places[received]
        assert recorded.after[received][0].startswith("tile ")
        if number >= SLOTS:
            assert recorded.after[received][1:] == [f"copy {number - SLOTS}"]
            assert recorded.places[received] == recorded.places[f"copy {number - SLOTS}"]
