# SPDX-License-Identifier: MIT
"""When a rank heeds an interrupt (SIGINT) in a call of several ranks: where the others hear of it.

A KeyboardInterrupt at a random moment would leave the other ranks in an exchange, or begin one that they take for another: the
ranks would be out of step from then on.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_PATIENCE = 1.0  # seconds that an interrupt waits for the other ranks


class Interrupts:
    """Interrupts of one rank. Within the body of a phase one is raised at once: the phase's end reports it to the others. Any
    other is noted, and raised when the next phase begins, or else when the call has ended."""

    def __init__(self, end_of_body: CodeType) -> None:
        """`end_of_body`: of the function that ends the body of a phase, and clears `in_body`."""
        self.in_body = False  # of a phase
        self._end_of_body = end_of_body
        self._handler: Any = None
        self._came = 0.0  # when the interrupt came that is noted; 0: there is none

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which interrupts are heeded so. Only the main thread is interrupted."""
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            yield
            return
        self._handler = handler
        try:
            signal.signal(signal.SIGINT, self._take)
            yield
        finally:
            signal.signal(signal.SIGINT, handler)

    @contextmanager
    def within_call(self) -> Iterator[None]:
        """A context for a call, at whose end an interrupt that was noted is raised."""
        try:
            with self.held():
                yield
        finally:
            self.raise_noted()

    def _take(self, signum: int, frame: FrameType | None) -> None:
        # The first moment of the function that ends a body is its end, though `in_body` is not cleared yet.
        if self.in_body and (frame is None or frame.f_code is not self._end_of_body):
            self._handler(signum, frame)
        else:
            self._came = self._came or time.monotonic()

    def raise_noted(self) -> None:
        """Raise an interrupt that was noted."""
        if self._came:
            self._came = 0.0
            self._handler(signal.SIGINT, None)

    def raise_overdue(self) -> None:
        """Raise an interrupt that was noted, and has waited too long for the other ranks."""
        if self._came and time.monotonic() - self._came > _PATIENCE:
            self.raise_noted()
