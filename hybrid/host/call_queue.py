# SPDX-License-Identifier: MIT
"""Threads that wait for calls and are kept from product to product: handing a call over takes microseconds, and a future takes
longer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

Call = Callable[[], object]
Outcomes = SimpleQueue[BaseException | None]  # an entry for each call that has ended

_MOST_THREADS = 12  # more take longer: they want the GIL between their calls, as does the thread that submits copies and kernels


class _Threads:
    """The threads of the process, which end with it. They take calls from an unbounded queue in the order in which these
    came."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Call, Calls]] = SimpleQueue()
        self._count = 0

    def have(self, count: int) -> None:
        """Have at least so many threads, up to the most there are."""
        while self._count < min(count, _MOST_THREADS):
            self._count += 1
            threading.Thread(target=self._work, name=f"hybrid-call-{self._count}", daemon=True).start()

    def call_soon(self, call: Call, group: Calls) -> None:
        self._calls.put((call, group))

    def _work(self) -> None:
        while True:
            call, group = self._calls.get()
            outcome: BaseException | None = None
            try:
                if not group.abandoned:
                    call()
            except BaseException as error:  # raised by `wait`
                outcome = error
            outcomes = group.outcomes
            del call, group  # the matrices they refer to may be freed as soon as the outcome is known
            outcomes.put(outcome)
            del outcome, outcomes


def _new_threads() -> None:
    global _threads
    _threads = _Threads()


_threads: _Threads
_new_threads()
os.register_at_fork(after_in_child=_new_threads)  # the threads exist in the parent only


class Calls:
    """Calls that belong together. Each is made by one of at least `threads` threads, or of 12 at most. Any thread may add
    one."""

    def __init__(self, threads: int) -> None:
        self._threads, self._begun, self.abandoned = _threads, 0, False
        self._counting = threading.Lock()
        self.outcomes: Outcomes = SimpleQueue()
        self._threads.have(max(1, threads))

    def soon(self, call: Call) -> None:
        """Have the call made as soon as a thread is free."""
        with self._counting:
            self._begun += 1
        self._threads.call_soon(call, self)

    def wait(self) -> None:
        """Wait until all calls have ended. Raises what the first one that failed has raised."""
        for error in filter(None, self._ended()):
            raise error

    def abandon(self) -> None:
        """Make no further call of these, and wait until those under way have ended."""
        self.abandoned = True
        self._ended()

    def _ended(self) -> list[BaseException | None]:
        """What each call raised, or None, when all have ended."""
        with self._counting:
            begun, self._begun = self._begun, 0
        return [self.outcomes.get() for _ in range(begun)]
