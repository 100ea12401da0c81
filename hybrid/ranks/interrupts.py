# SPDX-License-Identifier: MIT
"""Interrupts (SIGINT) of commands that are starting, and of ranks that wait in an exchange of results.

A rank that left an exchange at once would report the interrupt in its next one, which the others would take for the answer to
the first: from then on every rank would take the others' messages for something else. Only the main thread is interrupted.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from hybrid.ranks.job_end import end_job
from hybrid.ranks.launcher import rank_by_launcher
from hybrid.ranks.turns import wait_for_turn

_PATIENCE = 1.0  # seconds that an interrupt waits for the other ranks

_came = 0.0  # when the interrupt came that is noted; 0: there is none


@contextmanager
def deferred() -> Iterator[None]:
    """A context in which an interrupt is only noted. At its end the interrupt is handled, unless the body has raised an error
    anyway."""
    global _came
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
        waits = _came
    finally:
        _came = 0.0
        signal.signal(signal.SIGINT, handler)
    if waits:
        handler(signal.SIGINT, None)


def _note(signum: int, frame: FrameType | None) -> None:
    global _came
    _came = _came or time.monotonic()


def overdue() -> bool:
    """Whether an interrupt that was noted has waited for too long."""
    return bool(_came) and time.monotonic() - _came > _PATIENCE and threading.current_thread() is threading.main_thread()


def end_when_interrupted(name: str) -> None:
    """From now on an interrupt ends this process with one line: a command that is starting and has not told anybody of itself.

    Of a worker that it has just forked, the supervisor tells.
    """
    starting = os.getpid()

    def end(signum: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() == starting:
            if wait_for_turn(rank_by_launcher()):
                os.write(2, f"{name}: interrupted [interrupted]\n".encode())
            end_job(1, _remove_files)
        os._exit(1)

    handle(signal.SIGINT, end)


def _remove_files() -> None:
    with suppress(ImportError):  # it is being imported: then this rank is the first, and others have hardly begun
        from hybrid.ranks.leftovers import remove_files_of_job  # whose modules a command needs later

        remove_files_of_job([])


def handle(signum: int, handler: Callable[[int, FrameType | None], object]) -> None:
    """Set a handler for a signal, unless this process was started to ignore it, as by nohup, or by `&` in scripts."""
    if signal.getsignal(signum) is not signal.SIG_IGN:
        signal.signal(signum, handler)


def end_by_signals() -> None:
    """From now on let those that ask a process to end do so: there is nobody left to pass them on to."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
