# SPDX-License-Identifier: MIT
"""CUDA events that streams wait for: recorded by this process, or opened by IPC handle from another."""

from __future__ import annotations

import ctypes
from typing import Any

from hybrid.devices.base import EventWait
from hybrid.devices.cuda_gpus import load_driver


class OperationEnd:
    """The end of an enqueued operation, to be given to Stream.wait_event."""

    __slots__ = ("_end", "ptr", "stream")

    def __init__(self, end: Any, stream: Any) -> None:
        self._end = end  # CuPy destroys the event with its last reference
        self.ptr = end.ptr
        self.stream = stream

    def synchronize(self) -> None:
        self._end.synchronize()


class OpenedEvent:
    """Another process's interprocess event, to be given to Stream.wait_event."""

    def __init__(self, runtime: Any, handle: Any) -> None:
        self._runtime = runtime
        self.ptr = 0
        self.ptr = runtime.ipcOpenEventHandle(handle)

    def __del__(self) -> None:
        if self.ptr:
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
