# SPDX-License-Identifier: MIT
"""The protocols of devices that NCCL, or what stands for it in tests, joins across ranks and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from hybrid.core.spans import Span
from hybrid.devices.base import Device, Event


class DeviceCommunicator(Protocol):
    """One rank's part in a communicator of devices, as NCCL's."""

    def check(self) -> None:
        """DeviceUnavailable if an enqueued operation failed asynchronously and can no longer complete."""

    def destroy(self) -> None:
        """Free the communicator. Collective: all ranks call it, when no operation is in flight."""

    def abort(self) -> None:
        """Free the communicator at once, and end its operations in flight, whatever the other ranks do."""


class CollectiveDevice(Device, Protocol):
    """A device that takes part in collective operations with those of all ranks, on any nodes."""

    def load_collectives(self) -> None:
        """Load the library of collectives. DeviceUnavailable, with what to install, where it is missing."""

    def unique_id(self) -> Any:
        """The id of a new communicator. One rank makes it and sends it to the others; it serves once."""

    def init_communicator(self, unique_id: Any, rank: int, size: int) -> DeviceCommunicator:
        """Create this rank's part of a communicator. Blocks, without a time limit, until all `size` ranks have called it.
        DeviceUnavailable where that fails."""

    def allgather_rows(self, communicator: DeviceCommunicator, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        """In place: send rows `rows_of[own rank]` of this rank's matrix to all others, and receive theirs (an Allgatherv).

        The matrix has the same shape on all ranks, and all enqueue their collectives in the same order. None completes before
        every rank has enqueued it.
        """

    def send(self, communicator: DeviceCommunicator, matrix: Any, to: int, after: list[Event]) -> Event:
        """Send rows of a matrix, with the gaps between them, to a rank that receives a matrix of the same shape and row stride.

        Sends and receives of a communicator run in the order in which they are enqueued, behind its collectives of before. Those
        between two ranks are enqueued in the same order on both. None completes before the other rank has enqueued its part. The
        first one between two ranks connects their devices, which blocks the host until both have enqueued it.
        """

    def receive(self, communicator: DeviceCommunicator, into: Any, source: int, after: list[Event]) -> Event:
        """Receive what rank `source` sends."""

    def copy_received(self, into: Any, source: Any, after: list[Event]) -> Event:
        """Copy to host memory what was received. Such copies run in the order in which they were enqueued, but not behind copies
        out, which wait for multiplications."""
