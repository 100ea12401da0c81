# SPDX-License-Identifier: MIT
"""CUDA events that streams wait for: recorded by this process, or opened by IPC handle from another."""

from __future__ import annotations

import ctypes
from typing import Any

from hybrid.devices.base import EventWait
from hybrid.devices.cuda_contexts import GpuContext
from hybrid.devices.cuda_gpus import load_driver


class RecordedEvent:
    """The event that was recorded in a stream after an operation, to be given to Stream.wait_event.

    Any thread may drop the last reference to it, also one without a CUDA context: the event is destroyed in its GPU's. In a
    thread without one, cudaEventDestroy creates a context on GPU 0, as most of CUDA's runtime does. That takes a quarter of a
    second and memory of a GPU that other ranks use; and where a process ended meanwhile, it was killed by SIGSEGV.
    """

    __slots__ = ("_context", "_event", "ptr", "stream")

    def __init__(self, context: GpuContext, event: Any, stream: Any) -> None:
        self._context, self._event, self.stream = context, event, stream
        self.ptr = event.ptr

    def __del__(self) -> None:
        if self._context.is_current():
            return  # without the context manager, which would take longer than all the rest
        with self._context:
            del self._event, self.stream  # CuPy destroys each of them with the last reference to it

    def synchronize(self) -> None:
        self._event.synchronize()


class OpenedEvent:
    """Another process's interprocess event, to be given to Stream.wait_event. It is destroyed as a RecordedEvent is."""

    def __init__(self, context: GpuContext, runtime: Any, handle: Any) -> None:
        self._context, self._runtime = context, runtime
        self.ptr = 0
        self.ptr = runtime.ipcOpenEventHandle(handle)

    def __del__(self) -> None:
        if self.ptr:
            with self._context:
                self._runtime.eventDestroy(self.ptr)


def event_wait() -> EventWait | None:
    """How threads that are not Python's wait for events in the current CUDA context. None where there is none."""
    driver, context = load_driver(), ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
        return None
    set_current, synchronize = (
        ctypes.cast(each, ctypes.c_void_p).value for each in (driver.cuCtxSetCurrent, driver.cuEventSynchronize)
    )
    assert set_current
    assert synchronize
    return EventWait(set_current, context.value, synchronize)
