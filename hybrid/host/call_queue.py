# SPDX-License-Identifier: MIT
"""Threads that wait for calls and are kept from product to product: handing a call over takes microseconds, and a future takes
longer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

Call = Callable[[], object]

_MOST_THREADS = 12  # more take longer: they want the GIL between their calls, as does the thread that submits copies and kernels


class _Threads:
    """The threads of the process, which end with it. They take calls from an unbounded queue in the order in which these
    came."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Call, Calls]] = SimpleQueue()
        self._count, self._starting = 0, threading.Lock()

    def have(self, count: int) -> None:
        """Have at least so many threads, up to the most there are, or fewer where no more can be started. RuntimeError where
        there would be none."""
        with self._starting:
            while self._count < min(count, _MOST_THREADS):
                try:
                    threading.Thread(target=self._work, name=f"hybrid-call-{self._count + 1}", daemon=True).start()
                except RuntimeError:  # the limit of threads is reached
                    if not self._count:
                        raise
                    return
                self._count += 1

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
            del call  # the matrices it refers to may be freed as soon as the outcome is known
            group.note(outcome)
            del group, outcome


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
        self._outcomes: list[BaseException | None] = []  # one for each call that has ended
        self._changing = threading.Condition()
        self._threads.have(max(1, threads))

    def soon(self, call: Call) -> None:
        """Have the call made as soon as a thread is free."""
        with self._changing:
            self._begun += 1
        self._threads.call_soon(call, self)

    def note(self, outcome: BaseException | None) -> None:
        """A call has ended, and raised this, or nothing."""
        with self._changing:
            self._outcomes.append(outcome)
            if len(self._outcomes) == self._begun:
                self._changing.notify_all()

    def wait(self) -> None:
        """Wait until all calls have ended. Raises what the first one that failed has raised."""
        for error in filter(None, self._ended()):
            raise error

    def abandon(self) -> None:
        """Make no further call of these, and wait until those under way have ended."""
        self.abandoned = True
        self._ended()

    def _ended(self) -> list[BaseException | None]:
        """What each call raised, or None, when all have ended. If it is interrupted, it can be called again."""
        with self._changing:
            self._changing.wait_for(lambda: len(self._outcomes) == self._begun)
            outcomes, self._outcomes, self._begun = self._outcomes, [], 0
        return outcomes
