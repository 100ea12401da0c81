"""What the pipeline asks of a device: memory, copies, multiplications, and the order between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from hybrid.core.spans import Span
from hybrid.kernels.catalogue import Kernel

# Of each piece of work its phase and when it ran, on this rank's clock (perf_counter). To be asked for when there is time.
Work = Iterable[tuple[str, float, float]]
# A mark stands for a piece of work handed to the device: a thing other work can be ordered after.
Event = Any


class Device(Protocol):
    """One rank's GPU, or its share of the CPU. Work is handed over in order and may run later; `finish` waits for it.

    Copies in run in the order in which they were handed over, and so do copies out; everything else is ordered by marks
    alone. Every array may lie in the host's memory or in the device's.
    """

    name: str  # "cpu", "cuda" or "emulate"
    staged: bool  # False: it multiplies host matrices where they lie, and copies nothing

    def take_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        """Multiply by this kernel from now on, perhaps also `adding`; it is compiled now, where that is not done yet."""

    def reserve(self, size: int, *, shared: bool) -> Any:
        """`size` bytes of the device's memory, their contents undefined; `shared`: other processes can open them."""

    def matrix(self, memory: Any, offset: int, rows: int, columns: int, dtype: str) -> Any:
        """A matrix in reserved or opened memory, from byte `offset` on; its rows are padded (as `padded` says) on a GPU."""

    def copy_in(self, into: Any, source: Any, after: list[Event]) -> Event:
        """Rows of an operand into a buffer (or a part of one), once `after` is done."""

    def exchange(self, into: Any, source: Any, after: list[Event]) -> Event:
        """A part of another rank's buffer into the same part of this one's, once `after` is done."""

    def multiply(self, a: Any, b: Any, c: Any, after: list[Event], *, adding: bool = False) -> Event:
        """c = a · b, once `after` is done; or, by a kernel that adds, c += a · b. The three may be parts of buffers: rows
        contiguous, any distance apart."""

    def copy_out(self, into: Any, source: Any, after: list[Event]) -> Event:
        """A part of a buffer to where C shall be, once `after` is done."""

    def finish(self) -> Work:
        """Wait for all work."""

    def poison(self, memory: Any) -> None:
        """Fill reserved memory with NaN: what is read before it was written shows."""

    def lock(self, array: Any) -> None:
        """Let copies from and to this memory, the host's or another GPU's, run at full speed for as long as the memory lives."""


class PeerDevice(Device, Protocol):
    """A device whose memory and marks other processes of the node can open."""

    def handle(self, memory: Any) -> Any:
        """What opens shared memory elsewhere; it can be sent in a message."""

    def open(self, handle: Any) -> Any:
        """Another rank's memory, until it is closed. DeviceUnavailable where it cannot be opened."""

    def close(self, memory: Any) -> None:
        """Give opened memory back; its owner may free it then."""

    def make_ipc_events(self, count: int) -> Any:
        """Make marks that other ranks can open, in place of those made before; what opens them elsewhere."""

    def record_ipc_event(self, number: int, event: Event) -> None:
        """Announcement `number` stands from now on for this work, the last that was handed over. Who waits for it must
        know that it was made."""

    def done(self, event: Event) -> bool:
        """Whether the work is done, of this device or announced by another."""

    def open_ipc_events(self, handle: Any) -> list[Event]:
        """Another rank's announcements."""


class DeviceCommunicator(Protocol):
    """One device's part in what joins the devices of all ranks."""

    def check(self) -> None:
        """DeviceUnavailable if what was handed over can no more come to its end."""

    def leave(self) -> None:
        """Give it back, with nothing under way. Every rank calls it."""

    def abort(self) -> None:
        """Give it back at once: what is under way ends, whatever the other ranks do."""


class CollectiveDevice(Device, Protocol):
    """A device that can be joined with those of all ranks, on whichever nodes."""

    def load_collectives(self) -> None:
        """Load what joining takes. DeviceUnavailable, with what to do, where it is missing."""

    def unique_id(self) -> Any:
        """Made on one rank: what the others join it with. It can be sent in a message, and serves once."""

    def init_communicator(self, unique_id: Any, rank: int, size: int) -> DeviceCommunicator:
        """Waits, without an end, for all `size` ranks. DeviceUnavailable where they cannot be joined."""

    def gather_rows(self, joined: DeviceCommunicator, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        """Bring the rows `rows_of[rank]` of each rank's matrix into those of all others, once `after` is done.

        The matrix is alike on all ranks, and all hand over the same exchanges in the same order. It is not done before
        every rank has handed it over.
        """

    def done(self, event: Event) -> bool:
        """Whether the work is done."""
