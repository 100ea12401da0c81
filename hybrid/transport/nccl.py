# SPDX-License-Identifier: MIT
"""NCCL: its library, the communicator of all ranks' GPUs, and the transport that brings B by an allgather, C by sends.

Each rank loads some rows of B over its GPU's own link, and an allgather brings all ranks the others. C of other nodes goes from
their GPUs to those of the root's node.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from hybrid.ranks.shared_memory import pauses
from hybrid.ranks.team import Team
from hybrid.transport.base import CopyObserver, HostTransport, RankMatrices, pattern_of

if TYPE_CHECKING:
    from hybrid.devices.cuda_device import CudaDevice
    from hybrid.transport.rank_device import RankDevice

_LIBRARY = "libnccl.so.2"
_BINDINGS = "cupy_backends.cuda.libs.nccl"
_ROWS, _COLUMNS = 64, 1024  # of the matrix that each rank sends in a test: enough for NCCL to split it
_SENT_AHEAD = 16  # pieces: so many can be sent while the host does something else, and NCCL always has room for them


@cache
def load_nccl() -> Any:
    """CuPy's bindings. DeviceUnavailable, with what to install, where they or the library cannot be loaded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of several lines, where CuPy does not find the library: we raise instead
        try:
            module = importlib.import_module("cupy.cuda.nccl")
        except ImportError as error:
            raise _unavailable(error) from None
    if module.available:
        return module
    # CuPy leaves the search to the dynamic loader, which does not look where pip installs the library. Once it is loaded from
    # there by its path, the bindings, whose import failed, can be imported.
    try:
        for path in _installed_by_pip():
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        return importlib.import_module(_BINDINGS)
    except (ImportError, OSError) as error:
        raise _unavailable(error) from None


def _installed_by_pip() -> list[Path]:
    """The library of nvidia-nccl-cu12 or nvidia-nccl-cu13, which install to the same folder."""
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return []
    folders = list(package.submodule_search_locations or []) if package else []
    paths = [Path(folder) / "lib" / _LIBRARY for folder in folders]
    return [path for path in paths if path.is_file()]


def _unavailable(error: Exception) -> DeviceUnavailable:
    return DeviceUnavailable(f"NCCL cannot be used ({one_line(error)}): {install('nccl13')} (or nccl12)", code="nccl")


@contextmanager
def _as_device_unavailable() -> Iterator[None]:
    """Turn NCCL's errors, whose messages have several lines, into a DeviceUnavailable of one line."""
    try:
        yield
    except (load_nccl().NcclError, KeyError) as error:  # CuPy lacks names for some of NCCL's codes, and raises KeyError
        raise DeviceUnavailable(f"NCCL failed ({one_line(error)}); NCCL_DEBUG=WARN tells more", code="nccl") from None


class DeviceGroup:
    """One rank's part in the communicator of all ranks' GPUs. Ranks create and test it together, keep it, and create it anew
    after a failure. `init_communicator`, `connect` and `destroy` are collective. No two ranks may use the same GPU.

    All operations of a communicator run on one stream, in the order in which they were enqueued. None completes before the other
    ranks concerned have enqueued their parts: so that order must be such on all ranks that none waits for an operation that
    another rank has behind it.
    """

    def __init__(self, team: Team, device: CudaDevice) -> None:
        self._team, self._device = team, device
        self._communicator: Any = None  # CuPy's
        # Aborts the communicator when it is garbage-collected or Python ends. CuPy would call ncclCommDestroy then, which is
        # collective and hangs where another rank does not call it.
        self._abort_once: Any = None
        self._tested = False
        self._connected: set[frozenset[tuple[int, int]]] = set()  # the senders with their receivers that were tested

    def init_communicator(self) -> None:
        """Create and test the communicator, unless it is there. DeviceUnavailable on all ranks, with the reason, if that fails
        on one or a rank receives wrong data."""
        try:
            with self._team.phase("prepare", timed=False) as checking, busy():
                if self._communicator is None:
                    load_nccl()
                checking.mine = self._tested
            # After a failure some ranks may have aborted it and others not: then all create it anew.
            if not all(checking.all):
                self.abort()
                self._create()
                self._test()
        except BaseException:
            self.abort()
            raise

    def connect(self, receivers: Mapping[int, int]) -> None:
        """Connect the devices of senders, by rank, with those of the ranks that receive from them, and test that, unless it was
        done before. DeviceUnavailable on all ranks if it fails on one."""
        pairs = frozenset(receivers.items())
        if pairs not in self._connected:
            try:
                # A decision that is remembered tests nothing again, and a connection that failed has ended the communicator.
                self.init_communicator()
                self._test(receivers)
            except BaseException:
                self.abort()
                raise
            self._connected.add(pairs)

    def allgather_rows(self, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        """In place: send rows `rows_of[own rank]` of this rank's matrix to all others, and receive theirs (an Allgatherv). The
        matrix has the same shape on all ranks.

        Call `wait_for` before any call that blocks the host until this is complete.
        """
        (address, _), row_bytes = place_of(matrix), row_stride(matrix)

        def allgather(communicator: Any, nccl: Any, stream: int) -> None:
            # By a broadcast from each: ncclAllGather would want the same number of rows from all ranks.
            nccl.groupStart()
            try:
                for rank, rows in enumerate(rows_of):
                    if len(rows):
                        start, size = address + rows.lo * row_bytes, len(rows) * row_bytes
                        communicator.bcast(start, size, nccl.NCCL_UINT8, rank, stream)
            finally:
                nccl.groupEnd()

        return self._enqueue("exchange", after, allgather)

    # The phases "send" and "receive" are in no table: most of their time they wait, and "gather" is what remains of them when all
    # is multiplied.
    def send(self, matrix: Any, to: int, after: list[Event]) -> Event:
        """Send rows of a matrix, with the gaps between them, to a rank that receives a matrix of the same shape and row stride.

        The first send between two ranks connects their devices, which blocks the host until both have enqueued their parts.
        """

        def send(communicator: Any, nccl: Any, stream: int) -> None:
            communicator.send(place_of(matrix)[0], _extent(matrix), nccl.NCCL_UINT8, to, stream)

        return self._enqueue("send", after, send)

    def receive(self, into: Any, source: int, after: list[Event]) -> Event:
        """Receive what rank `source` sends."""

        def receive(communicator: Any, nccl: Any, stream: int) -> None:
            communicator.recv(place_of(into)[0], _extent(into), nccl.NCCL_UINT8, source, stream)

        return self._enqueue("receive", after, receive)

    def _enqueue(self, phase: str, after: list[Event], work: Callable[[Any, Any, int], None]) -> Event:
        """Enqueue `work(communicator, CuPy's bindings, stream)` behind these events."""

        def enqueue(stream: Any) -> None:
            with _as_device_unavailable():
                work(self._communicator, load_nccl(), stream.ptr)

        return self._device.enqueue(phase, after, enqueue, "nccl")

    def done(self, event: Event) -> bool:
        """Whether an operation is complete, without waiting. DeviceUnavailable if it failed and no longer can be."""
        if self._device.done(event):
            return True
        with _as_device_unavailable():
            self._communicator.check_async_error()
        return False

    def wait_for(self, event: Event, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Poll until an operation is complete, and call `meanwhile` between two polls. PhaseEnded if a rank fails before it
        submits its part: the other ranks' devices would wait for it for ever."""
        pause = pauses(self._team)
        while not self.done(event):
            meanwhile()
            next(pause)

    def abort(self) -> None:
        """Give the communicator up at once, after a failure on this rank or another, and end its operations in flight."""
        if self._forget() is not None:
            with suppress(Exception):  # the failure that led here is reported already
                self._abort_once()

    def destroy(self) -> None:
        """Give the communicator up. Collective, and nothing may be in flight."""
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
        # Blocks until all ranks call it. They do: a rank that failed before would have ended the phase above on all.
        with team.phase("prepare", timed=False), busy(), context, _as_device_unavailable():
            self._communicator = load_nccl().NcclCommunicator(team.size, sharing.all[0], team.rank)
            self._abort_once = weakref.finalize(self, self._communicator.abort)

    def _test(self, receivers: Mapping[int, int] | None = None) -> None:
        """Let every rank receive a matrix from every other; with `receivers`, these from their senders. DeviceUnavailable where
        one is not what was sent."""
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
            # To connect two devices, NCCL blocks both hosts until both have come so far. They do: what can fail before was done
            # in the phase above.
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
            self.abort()  # before the device is waited for
            raise
        finally:
            device.finish()  # before the memory is freed
        with team.phase("prepare", timed=False):
            for source in sources:
                if not np.array_equal(received[rows_of[source].slice], pattern_of(source, _ROWS, _COLUMNS)):
                    raise DeviceUnavailable(f"what the GPU of rank {source} sent is not what arrived", code="gpu-data")
        self._tested = True


def _extent(matrix: Any) -> int:
    """The bytes from a matrix's first element to its last one."""
    rows, columns = matrix.shape
    return (rows - 1) * row_stride(matrix) + columns * matrix.itemsize if rows and columns else 0


class DeviceGather:
    """C of other nodes on its way from device to device to the root's node, tile by tile, while others are multiplied. Made for a
    plan by all ranks, and used for any number of products, each from `begin` to `wait_for_stored`.

    The ranks of other nodes send their tiles in pieces. Those of the root's node receive them in a few slots of their devices'
    memory. The schedule is deadlock-free, whatever the devices run side by side. Every rank enqueues what it sends or receives
    behind all the product's collectives of B, which wait for nothing of C, on the same stream. Then no multiplication waits for
    another rank any more. A rank either sends or receives. A sender sends its tiles in the order in which it multiplies them. A
    receiver has one order, in which every sender's pieces are in theirs. So the first piece that has not arrived is one that its
    sender comes to next. What an operation waits for on its own device was enqueued before it: so all this holds even where a GPU
    runs everything in that order.

    One communicator brings B and C. Of two, NCCL's kernels may keep each other from running, in another order on each GPU.
    """

    def __init__(self, plan: Plan, rank_device: RankDevice, c: RowView) -> None:
        """`c`: the rows of C in this node's memory. On the root's node these are all."""
        team = rank_device.team
        self._team, self._plan, self._rank_device, self._c = team, plan, rank_device, c
        self._device, self._group, self._share = rank_device.device, rank_device.device_group, plan.shares[team.rank]
        of_ranks = receivers(plan)
        self._group.connect(of_ranks)
        self._to = of_ranks.get(team.rank, -1)
        self.sends = team.rank in of_ranks  # whether this rank's tiles are sent, and not copied to this node's memory
        self._own: deque[Event] = deque()  # of this rank's tiles, until they are multiplied and copied
        self.is_open = False  # all collectives of the product are enqueued
        self._to_send: deque[tuple[Any, list[Event]]] = deque()  # pieces, each with what it is sent after
        self._sending: deque[Event] = deque()
        self._pieces, self._slots = pieces_received(plan, team.rank), slots_of(plan, team.rank)
        self._tiles = sum(tile.completes for arrival in self._share.order for tile in arrival.releases)
        self._computed: list[list[Event]] = []  # on a receiver, for each of its tiles, so far
        self._receiving: deque[tuple[SentPiece, Any, Event]] = deque()  # each with the memory where it arrives
        self._copied: list[Event] = []  # of each piece that is or will be in host memory

    def begin(self) -> None:
        self.is_open = False
        for kept in (self._own, self._to_send, self._sending, self._computed, self._receiving, self._copied):
            kept.clear()

    def computed(self, tile: Tile, source: Any, after: list[Event]) -> None:
        """Note that a tile of this rank is in `source` when the events are complete."""
        if not self.sends:
            self._computed.append(after)
            return
        self._to_send += ((source[rows.slice], after) for rows in rows_of_pieces(self._plan, self._share, len(tile.rows)))
        self.advance()

    def will_be_stored(self, tile: Tile, event: Event) -> None:
        """Note that a tile of this rank is multiplied, and copied if it is not sent, when the event is complete."""
        self._own.append(event)

    def advance(self) -> None:
        """Send what is computed, or will be without waiting for another rank; but not all at once. Copy what has arrived to host
        memory, and receive into the slots that are free, or will be without waiting for another rank."""
        while self._sending and self._group.done(self._sending[0]):
            self._sending.popleft()
        while self.is_open and self._to_send and len(self._sending) < _SENT_AHEAD:
            part, after = self._to_send.popleft()
            self._sending.append(self._group.send(part, self._to, after))
        while self._receiving and self._group.done(self._receiving[0][-1]):
            piece, there, event = self._receiving.popleft()
            # Submitted only now, since a copy to pageable memory blocks the host until it is made.
            into = self._c[piece.rows][:, piece.columns.slice]
            self._copied.append(self._device.copy_received(into, there, [event]))
        while self.is_open and self._receive_next():
            pass

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

    def _is_complete(self) -> bool:
        """Whether nothing is left to be sent or received."""
        if self._to_send or self._sending or len(self._copied) < len(self._pieces):
            return False
        return not self._copied or self._device.done(self._copied[-1])

    def _receive_next(self) -> bool:
        """Receive the next piece, if its slot is copied from and enough of this rank's tiles are submitted. Whether it was.

        Enough are about as many as its sender has submitted then: a kernel that waits for a piece would take multiprocessors
        from multiplications.
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


class NcclTransport(HostTransport):
    """For products of which all panels fit on the devices: then all ranks load them in the same order, as collectives must be. A
    is copied as by HostTransport, and so is C, unless it goes to another node."""

    def __init__(
        self,
        device: CudaDevice,
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
        if self._gather is not None:
            self._gather.is_open = len(self._gathered) == self._panels
