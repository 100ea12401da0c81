"""The marks of a CUDA GPU: events, of this process or opened of another's."""

from __future__ import annotations

from typing import Any


class WorkDone:
    """The end of a piece of work, for Stream.wait_event; so is `begin`, of its begin."""

    __slots__ = ("_end", "begin", "ptr", "stream")

    def __init__(self, begin: Any, end: Any, stream: Any) -> None:
        self._end = end  # destroyed with the last that refers to it
        self.begin = begin
        self.ptr = end.ptr
        self.stream = stream


class OpenedEvent:
    """Another process's event, for Stream.wait_event."""

    def __init__(self, runtime: Any, handle: Any) -> None:
        self._runtime = runtime
        self.ptr = 0
        self.ptr = runtime.ipcOpenEventHandle(handle)

    def __del__(self) -> None:
        if self.ptr:
            self._runtime.eventDestroy(self.ptr)
