# SPDX-License-Identifier: MIT
"""What other processes of the node can open of a GPU, by CUDA IPC: its memory and events."""

from __future__ import annotations

from typing import Any

from hybrid.devices.base import Event
from hybrid.devices.cuda_contexts import gpu_context
from hybrid.devices.cuda_events import OpenedEvent
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DeviceUnavailable, one_line


class CudaIpc:
    """The part of `CudaDevice` that is for other processes."""

    def __init__(self, cupy: Any, gpu: Gpu) -> None:
        self.gpu, self._context = gpu, gpu_context(gpu.index)
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._ipc_events: list[Any] = []

    def handle(self, memory: Any) -> Any:
        return self._runtime.ipcGetMemHandle(memory.ptr), memory.size

    def open(self, handle: Any) -> Any:
        memory_handle, size = handle
        try:
            with self._context:
                address = self._runtime.ipcOpenMemHandle(memory_handle)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceUnavailable(
                f"the memory of another rank's GPU cannot be opened ({one_line(error)})", code="gpu-peers"
            ) from None
        return self._cupy.cuda.UnownedMemory(address, size, self, self.gpu.index)

    def close(self, memory: Any) -> None:
        with self._context:
            self._runtime.ipcCloseMemHandle(memory.ptr)

    def make_ipc_events(self, count: int) -> Any:
        with self._context:
            self._ipc_events = [self._cupy.cuda.Event(disable_timing=True, interprocess=True) for _ in range(count)]
            return [self._runtime.ipcGetEventHandle(event.ptr) for event in self._ipc_events]

    def record_ipc_event(self, number: int, event: Event) -> None:
        # On the operation's own stream. On another stream that waits for it, the event would be recorded only in this process's
        # next time slice where several processes share a GPU.
        with self._context:
            self._ipc_events[number].record(event.stream)

    def open_ipc_events(self, handle: Any) -> list[Event]:
        with self._context:
            return [OpenedEvent(self._context, self._runtime, event_handle) for event_handle in handle]
