# SPDX-License-Identifier: MIT
"""Work in several threads, each of which waits for compilers or for kernels that may never end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hybrid.emulation.child import end_children

_PATIENCE = 10.0  # seconds that threads get to end when what they wait for is killed: the kernel may keep that for longer
_ROUND = 0.05  # seconds for a thread to end before what it has started since is killed, too

_Made = TypeVar("_Made")


class SideBySide:
    """Threads that wait for child processes whose commands name files of these folders.

    They are daemons, unlike those of a ThreadPoolExecutor, for whose threads Python waits at its end without a limit.
    """

    def __init__(self, *folders: str) -> None:
        self._folders, self._threads = folders, list[threading.Thread]()

    def begin(self, work: Callable[..., _Made], *given: object) -> Future[_Made]:
        """Have `work` done with these arguments, from now on. Who asks for its result gets its error, too."""
        future: Future[_Made] = Future()

        def run() -> None:
            try:
                future.set_result(work(*given))
            except BaseException as error:
                future.set_exception(error)

        thread = threading.Thread(target=run, name="hybrid-side-by-side", daemon=True)
        self._threads.append(thread)  # first: an interrupt may come while it starts
        thread.start()
        return future

    def end(self) -> None:
        """Kill what the threads wait for until they have ended, and what they start meanwhile; for some seconds at most."""
        deadline = time.monotonic() + _PATIENCE
        while (alive := [thread for thread in self._threads if thread.is_alive()]) and time.monotonic() < deadline:
            end_children(*self._folders)
            alive[0].join(_ROUND)
