# SPDX-License-Identifier: MIT
"""NCCL: the library, the communicator of all ranks' GPUs, and the transport: B by allgather, C by send and receive.

Each rank loads some rows of B over its GPU's own link, and an allgather distributes them. Other nodes' GPUs send C to the root's.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid.core.installation import install
from hybrid.core.problem import Span
from hybrid.devices.base import Event, place_of, row_stride
from hybrid.devices.cuda_gpus import gpu_context
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.host.memory import RowView
from hybrid.planning.plan import SLOTS, Plan, SentPiece, pieces_received, receivers, rows_of_pieces, slots_of
from hybrid.planning.schedule import Arrival, Tile
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team
from hybrid.transport.base import HostTransport, pattern_of

if TYPE_CHECKING:
    from hybrid.devices.cuda_device import CudaDevice
    from hybrid.transport.rank_device import RankDevice

_LIBRARY = "libnccl.so.2"
_BINDINGS = "cupy_backends.cuda.libs.nccl"
_ROWS, _COLUMNS = 64, 1024  # of each rank's test matrix: large enough for NCCL to split it
_SENT_AHEAD = 16  # pieces in flight: enough while the host is busy, few enough for NCCL's queue


@cache
def load_nccl() -> Any:
    """CuPy's bindings. DeviceUnavailable, with what to install, if they or the library cannot be loaded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # CuPy's multi-line warning about a missing library: raised below instead
            module = importlib.import_module("cupy.cuda.nccl")
        if module.available:
            return module
        # CuPy relies on the dynamic loader, which does not search where pip installs the library: load it by path first.
        for path in _installed_by_pip():
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        return importlib.import_module(_BINDINGS)
    except (ImportError, OSError) as error:
        why = f"NCCL cannot be used ({one_line(error)}): {install('nccl13')} (or nccl12)"
        raise DeviceUnavailable(why, code="nccl") from None


def _installed_by_pip() -> list[Path]:
    """The library of nvidia-nccl-cu12 or nvidia-nccl-cu13, which share a folder."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return []
    folders = list(package.submodule_search_locations or []) if package else []
    paths = [Path(folder) / "lib" / _LIBRARY for folder in folders]
    return [path for path in paths if path.is_file()]


@contextmanager
def _as_device_unavailable() -> Iterator[None]:
    """Turn NCCL's multi-line errors into a one-line DeviceUnavailable."""
    try:
        yield
    except (load_nccl().NcclError, KeyError) as error:  # CuPy lacks names for some of NCCL's codes, and raises KeyError
        raise DeviceUnavailable(f"NCCL failed ({one_line(error)}); NCCL_DEBUG=WARN tells more", code="nccl") from None


class DeviceGroup:
    """One rank's part in the NCCL communicator of all ranks' GPUs, which is kept between products and recreated after a failure.
    `init_communicator`, `connect` and `destroy` are collective. No two ranks may use the same GPU.

    All operations run on one stream, in the order of enqueueing, and complete only after the other ranks involved have enqueued
    their parts. So all ranks must enqueue matching operations in a consistent order, or they deadlock.
    """

    def __init__(self, team: Team, device: CudaDevice) -> None:
        self._team, self._device = team, device
        self._communicator: Any = None  # CuPy's
        # Aborts the communicator at this object's end. CuPy would call ncclCommDestroy, which hangs if another rank does not.
        self._abort_once: Any = None
        self._tested = False
        self._connected: set[frozenset[tuple[int, int]]] = set()  # tested sets of (sender, receiver)

    def init_communicator(self) -> None:
        """Create and test the communicator if needed. DeviceUnavailable on all ranks, with the reason, if one cannot."""
        try:
            with self._team.phase("prepare", timed=False) as checking, busy():
                if self._communicator is None:
                    load_nccl()
                checking.mine = self._tested
            # After a failure only some ranks may have aborted it: then all recreate it.
            if not all(checking.all):
                self.abort()
                self._create()
                self._test()
        except BaseException:
            self.abort()
            raise

    def connect(self, receivers: Mapping[int, int]) -> None:
        """Connect each sender's device with `receivers[sender]`'s, tested, once. DeviceUnavailable on all ranks if one fails."""
        pairs = frozenset(receivers.items())
        if pairs not in self._connected:
            try:
                # A cached decision skips this test, and a failed connection has aborted the communicator.
                self.init_communicator()
                self._test(receivers)
            except BaseException:
                self.abort()
                raise
            self._connected.add(pairs)

    def allgather_rows(self, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        """In-place Allgatherv of a matrix, of the same shape on all ranks: send rows `rows_of[own rank]`, receive the others.

        Call `wait_for` before any call that blocks the host until this is complete.
        """
        (address, _), row_bytes = place_of(matrix), row_stride(matrix)
        # One broadcast from each rank: ncclAllGather requires the same number of rows from all.
        broadcasts = [
            ("bcast", address + rows.lo * row_bytes, len(rows) * row_bytes, rank)
            for rank, rows in enumerate(rows_of)
            if len(rows)
        ]
        return self._enqueue("exchange", after, broadcasts)

    # No table shows the phases "send" and "receive", which mostly wait; "gather" shows their time after the last multiplication.
    def send(self, matrix: Any, to: int, after: list[Event]) -> Event:
        """Send a matrix, including the gaps between its rows, to a rank that receives one of the same shape and row stride.

        The first send between two ranks connects their devices, which blocks the host until both have enqueued their parts.
        """
        return self._enqueue("send", after, [("send", place_of(matrix)[0], _extent(matrix), to)])

    def receive(self, into: Any, source: int, after: list[Event]) -> Event:
        return self._enqueue("receive", after, [("recv", place_of(into)[0], _extent(into), source)])

    def _enqueue(self, phase: str, after: list[Event], calls: Sequence[tuple[str, int, int, int]]) -> Event:
        """Enqueue a group of the communicator's calls, each a name, address, size and other rank, behind these events."""

        def enqueue(stream: Any) -> None:
            nccl = load_nccl()
            with _as_device_unavailable():
                nccl.groupStart()
                try:
                    for name, address, size, rank in calls:
                        getattr(self._communicator, name)(address, size, nccl.NCCL_UINT8, rank, stream.ptr)
                finally:
                    nccl.groupEnd()

        return self._device.enqueue(phase, after, enqueue, "nccl")

    def done(self, event: Event) -> bool:
        """Whether an operation is complete. Does not wait. DeviceUnavailable if it has failed."""
        if self._device.done(event):
            return True
        with _as_device_unavailable():
            self._communicator.check_async_error()
        return False

    def wait_for(self, event: Event, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Poll until an operation is complete, calling `meanwhile` before each poll. PhaseEnded if a rank fails before it
        enqueues its part, for which the other devices would wait forever."""

        def done() -> bool:
            meanwhile()
            return self.done(event)

        self._team.messages.wait_until(done)

    def abort(self) -> None:
        """Abort the communicator and its operations in flight, after a failure on any rank."""
        if self._forget() is not None:
            with suppress(Exception):  # the failure that led here has been reported already
                self._abort_once()

    def destroy(self) -> None:
        """Destroy the communicator. Collective; nothing may be in flight."""
        communicator = self._forget()
        if communicator is not None:
            communicator.destroy()
            self._abort_once.detach()

    def _forget(self) -> Any:
        communicator, self._communicator, self._tested = self._communicator, None, False
        self._connected.clear()
        return communicator

    def _create(self) -> None:
        team, context = self._team, gpu_context(self._device.gpu.index)
        with team.phase("prepare", timed=False) as sharing, busy(), context, _as_device_unavailable():
            sharing.mine = load_nccl().get_unique_id() if team.rank == 0 else None
        # Blocks until all ranks call it. They do: an earlier failure would have ended the phase above on all ranks.
        with team.phase("prepare", timed=False), busy(), context, _as_device_unavailable():
            self._communicator = load_nccl().NcclCommunicator(team.size, sharing.all[0], team.rank)
            self._abort_once = weakref.finalize(self, self._communicator.abort)

    def _test(self, receivers: Mapping[int, int] | None = None) -> None:
        """Send test matrices from each rank to all, or to its receiver. DeviceUnavailable if one arrives changed."""
        team, device = self._team, self._device
        rows_of = [Span(rank * _ROWS, (rank + 1) * _ROWS) for rank in range(team.size)]
        to = {} if receivers is None else receivers
        sources = [rank for rank in range(team.size) if receivers is None or to.get(rank) == team.rank]
        with team.phase("prepare", timed=False), busy():
            memory = device.reserve(8 * _ROWS * _COLUMNS * team.size, shared=False)
            device.poison(memory)
            matrix = device.matrix(memory, 0, team.size * _ROWS, _COLUMNS, "float64")
            # Host memory, kept until the copies are complete.
            own, received = pattern_of(team.rank, _ROWS, _COLUMNS), np.full(matrix.shape, np.nan)
            mine = matrix[rows_of[team.rank].slice]
            loaded = device.copy_in(mine, own, [])
        try:
            # NCCL blocks both hosts until both connect. They do: everything that can fail before is in the phase above.
            with team.phase("prepare", timed=False), busy():
                if receivers is None:
                    moved = [self.allgather_rows(matrix, rows_of, [loaded])]
                else:
                    moved = [self.send(mine, to[team.rank], [loaded])] if team.rank in to else []
                    moved += [self.receive(matrix[rows_of[source].slice], source, []) for source in sources]
                for event in moved:
                    self.wait_for(event)
                device.copy_out(received, matrix, [loaded, *moved])
        except BaseException:
            self.abort()  # before `finish`, which would wait for it
            raise
        finally:
            device.finish()  # before memory is freed
        with team.phase("prepare", timed=False):
            for source in sources:
                if not np.array_equal(received[rows_of[source].slice], pattern_of(source, _ROWS, _COLUMNS)):
                    raise DeviceUnavailable(f"what the GPU of rank {source} sent is not what arrived", code="gpu-data")
        self._tested = True


def _extent(matrix: Any) -> int:
    """The bytes from a matrix's first to its last element, with gaps."""
    rows, columns = matrix.shape
    return (rows - 1) * row_stride(matrix) + columns * matrix.itemsize if rows and columns else 0


class DeviceGather:
    """Sends C of other nodes from device to device to the root's node, tile by tile, during the multiplication. Constructed for a
    plan by all ranks, and used for any number of products, each from `begin` to `wait_for_stored`.

    Ranks of other nodes send their tiles in pieces; ranks of the root's node receive them in a few slots of device memory. The
    schedule is deadlock-free, however little the devices run concurrently:

    * On the one NCCL stream, sends and receives follow all collectives of B. After these, no multiplication waits for a rank.
    * A rank either sends or receives. Senders send tiles in the order of multiplication, and a receiver's order preserves each
      sender's. So the first missing piece is always the next one of its sender.
    * An operation waits only for operations enqueued before it on its device, so this holds even if a GPU runs everything in
      order.

    B and C share one communicator: kernels of two could block each other, in a different order on each GPU.
    """

    def __init__(self, plan: Plan, rank_device: RankDevice, c: RowView) -> None:
        """`c`: the rows of C in this node's memory; on the root's node all rows."""
        team = rank_device.team
        self._team, self._plan, self._rank_device, self._c = team, plan, rank_device, c
        self._device, self._group, self._share = rank_device.device, rank_device.device_group, plan.shares[team.rank]
        of_ranks = receivers(plan)
        self._group.connect(of_ranks)
        self._to = of_ranks.get(team.rank, -1)
        self.sends = team.rank in of_ranks  # this rank's tiles are sent, not copied to this node's memory
        self._own: deque[Event] = deque()  # of this rank's tiles, until multiplied and copied
        self.is_open = False  # all collectives of B are enqueued
        self._to_send: deque[tuple[Any, list[Event]]] = deque()  # pieces, with the events before the send
        self._sending: deque[Event] = deque()
        self._pieces, self._slots = pieces_received(plan, team.rank), slots_of(plan, team.rank)
        self._tiles = sum(tile.completes for arrival in self._share.order for tile in arrival.releases)
        self._computed: list[list[Event]] = []  # on a receiver, of its submitted tiles
        self._receiving: deque[tuple[SentPiece, Any, Event]] = deque()  # pieces with their slot memory
        self._copied: list[Event] = []  # of the pieces' D2H copies

    def begin(self) -> None:
        self.is_open = False
        for kept in (self._own, self._to_send, self._sending, self._computed, self._receiving, self._copied):
            kept.clear()

    def computed(self, tile: Tile, source: Any, after: list[Event]) -> None:
        """Note that a tile of this rank will be in `source` when the events are complete."""
        if not self.sends:
            self._computed.append(after)
            return
        self._to_send += ((source[rows.slice], after) for rows in rows_of_pieces(self._plan, self._share, len(tile.rows)))
        self.advance()

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        """Note that a tile of this rank will be multiplied, and copied unless sent, when the event is complete."""
        self._own.append(event)

    def advance(self) -> None:
        """Progress without waiting: enqueue sends of submitted tiles, up to `_SENT_AHEAD`; copy arrived pieces to host memory;
        and enqueue receives into slots that are free or will be without another rank."""
        while self._sending and self._group.done(self._sending[0]):
            self._sending.popleft()
        while self.is_open and self._to_send and len(self._sending) < _SENT_AHEAD:
            part, after = self._to_send.popleft()
            self._sending.append(self._group.send(part, self._to, after))
        while self._receiving and self._group.done(self._receiving[0][-1]):
            piece, there, event = self._receiving.popleft()
            # Not submitted earlier, since a copy to pageable memory blocks the host until it is complete.
            into = self._c[piece.rows][:, piece.columns.slice]
            self._copied.append(self._device.copy_received(into, there, [event]))
        while self.is_open and self._receive_next():
            pass

    def wait_for_stored(self) -> None:
        """Wait until this rank's C is sent, and all received pieces are in host memory. The time after this rank's last tile
        counts as "gather". PhaseEnded if a rank fails meanwhile."""
        self._team.messages.wait_until(self._own_are_done)
        began = time.perf_counter()
        self._team.enter("gather")
        self._team.messages.wait_until(self._is_complete)
        self._team.timeline.add("gather", began, time.perf_counter())

    def _own_are_done(self) -> bool:
        self.advance()
        while self._own and self._device.done(self._own[0]):
            self._own.popleft()
        return not self._own

    def _is_complete(self) -> bool:
        self.advance()
        if self._to_send or self._sending or len(self._copied) < len(self._pieces):
            return False
        return not self._copied or self._device.done(self._copied[-1])

    def _receive_next(self) -> bool:
        """Enqueue the next piece's receive, if its slot's copy and enough tiles are submitted. Returns whether it did.

        Enough: about as many as its sender has submitted by then. A receive kernel that waits takes SMs from multiplications.
        """
        number, plan = len(self._copied) + len(self._receiving), self._plan
        if number == len(self._pieces) or len(self._receiving) == SLOTS:
            return False
        piece, slot = self._pieces[number], number % SLOTS
        tiles = -(-(piece.tile + 1) * self._tiles // piece.tiles)
        if len(self._computed) < tiles:
            return False
        memory, width = self._rank_device.memory, plan.shares[piece.sender].layout.width
        whole = self._device.matrix(memory, self._slots.offset_of(slot), len(piece.rows), width, plan.problem.dtype)
        there = whole[:, : len(piece.columns)]
        after = [*(self._computed[tiles - 1] if tiles else ())]
        if number >= SLOTS:
            after.append(self._copied[number - SLOTS])
        self._receiving.append((piece, there, self._group.receive(there, piece.sender, after)))
        return True


@dataclass(kw_only=True)
class NcclTransport(HostTransport):
    """Copies A like HostTransport, and C unless it goes to another node. All panels must fit on the devices: then all ranks load
    them in the same order, as collectives need."""

    group: DeviceGroup
    rows_of: Sequence[Span]  # by rank: the rows of B that it loads; `matrices.b` has at least this rank's
    gather: DeviceGather | None = None  # sends C of other nodes to the root's; None: C stays on its node

    def begin(self, order: Sequence[Arrival]) -> None:
        super().begin(order)
        self._gathered, self._to_gather = list[Event](), sum(arrival.operand == "B" for arrival in order)
        self._open_gather()

    def _copy_in(self, arrival: Arrival, into: Any, after: list[Event]) -> Event:
        if arrival.operand == "A":
            return super()._copy_in(arrival, into, after)
        assert arrival.index == arrival.slot == len(self._gathered), "ranks that gather panels in different orders mix them up"
        own_rows = self.rows_of[self.rank]
        loaded = self.device.copy_in(into[own_rows.slice], self.matrices.b[own_rows][:, arrival.span.slice], after)
        # Enqueued here, not in `exchange`: D2H copies may block the host, and must not delay collectives of later panels.
        self._gathered.append(self.group.allgather_rows(into, self.rows_of, [*after, loaded]))
        self._open_gather()
        return self._gathered[-1]

    def store(self, tile: Tile, source: Any, after: list[Event]) -> Event:
        # A copy to pageable memory blocks the host. Wait here first: the panel of a failed rank never arrives.
        gather = self.gather
        if gather is None:
            self.group.wait_for(self._gathered[tile.slot])
            return super().store(tile, source, after)
        self.group.wait_for(self._gathered[tile.slot], gather.advance)
        gather.computed(tile, source, after)
        return after[-1] if gather.sends else super().store(tile, source, after)

    def _open_gather(self) -> None:
        """Allow C to move once all collectives of B are enqueued, so that none waits for C."""
        if self.gather is not None:
            self.gather.is_open = len(self._gathered) == self._to_gather
