# SPDX-License-Identifier: MIT
"""A GPU's part in a communicator of all ranks' GPUs (NCCL)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from hybrid.core.spans import Span
from hybrid.devices.base import Event
from hybrid.devices.buffers import place_of, row_stride
from hybrid.devices.cuda_ipc import CudaIpc
from hybrid.devices.nccl import NcclCommunicator, load_nccl, unique_id


class CudaNccl(CudaIpc, ABC):
    """The part of `CudaDevice` that uses NCCL.

    All its operations are on one stream: then they run in the order in which they were enqueued, which must be such on all ranks
    that none waits for one that another rank has behind it.
    """

    @abstractmethod
    def _enqueue(self, phase: str, after: list[Event], enqueue: Callable[[Any], None], streams: str = "") -> Event:
        """Have an operation enqueued on one of the streams of this kind, behind these events. Returns its own event."""

    def load_collectives(self) -> None:
        load_nccl()

    def unique_id(self) -> Any:
        with self._context:
            return unique_id()

    def init_communicator(self, unique_id: Any, rank: int, size: int) -> NcclCommunicator:
        with self._context:
            return NcclCommunicator(unique_id, rank, size)

    def allgather_rows(self, communicator: NcclCommunicator, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        def allgather(stream: Any) -> None:
            communicator.allgather_rows(place_of(matrix)[0], row_stride(matrix), rows_of, stream.ptr)

        return self._enqueue("exchange", after, allgather, streams="nccl")

    # The phases "send" and "receive" are in no table: most of their time they wait, and "gather" is what remains of them when all
    # is multiplied.
    def send(self, communicator: NcclCommunicator, matrix: Any, to: int, after: list[Event]) -> Event:
        def send(stream: Any) -> None:
            communicator.send(place_of(matrix)[0], _extent(matrix), to, stream.ptr)

        return self._enqueue("send", after, send, streams="nccl")

    def receive(self, communicator: NcclCommunicator, into: Any, source: int, after: list[Event]) -> Event:
        def receive(stream: Any) -> None:
            communicator.receive(place_of(into)[0], _extent(into), source, stream.ptr)

        return self._enqueue("receive", after, receive, streams="nccl")


def _extent(matrix: Any) -> int:
    """The bytes from a matrix's first element to its last one."""
    rows, columns = matrix.shape
    return (rows - 1) * row_stride(matrix) + columns * matrix.itemsize if rows and columns else 0
