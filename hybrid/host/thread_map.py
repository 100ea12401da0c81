# SPDX-License-Identifier: MIT
"""Work by several threads of a process, for NumPy calls that release the GIL. The threads are kept from call to call."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar

from hybrid.core.spans import Span, pieces

Part = TypeVar("Part")
Result = TypeVar("Result")

CALL_BYTES = 4 << 20  # of the operands of one NumPy call: in smaller calls the threads would mostly wait for the GIL
MOST_THREADS = 16  # more would wait for the GIL between their calls, and each takes temporary memory


class _Here(threading.local):
    """What this thread is doing."""

    in_part = False


_here = _Here()


def _new_pool() -> None:
    """Make the pool of threads. They start when they are first needed, wait for work without using a core, and end with the
    interpreter."""
    global _pool
    _pool = ThreadPoolExecutor(MOST_THREADS, "hybrid")


_pool: ThreadPoolExecutor
_new_pool()
os.register_at_fork(after_in_child=_new_pool)  # the threads exist in the parent only


def on_threads(threads: int, work: Callable[[Part], Result], parts: Iterable[Part]) -> Iterator[Result]:
    """`work(part)` for each part by `threads` threads, this one among them; the results in order.

    After an exception, or when the caller abandons the iterator, no more parts are begun, and those begun are waited for.
    Within `work`, on_threads uses no more threads.
    """
    parts = list(parts)
    helpers = min(threads, MOST_THREADS, len(parts)) - 1
    if helpers < 1 or _here.in_part:
        yield from map(work, parts)
        return
    shared = _Parts(work, parts)
    # This thread takes parts, too: so all are done even if the pool is busy with other work, or this is a thread of the pool.
    helping: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # the limit of threads is reached: those that there are take all parts
            for _ in range(helpers):
                helping.append(_pool.submit(shared.take_all))
        for index in range(len(parts)):
            yield shared.result(index)
    finally:
        shared.todo.clear()
        for helper in helping:
            if not helper.cancel():
                helper.result()
        shared.errors.clear()  # whose tracebacks refer to this list: it would keep all arrays of a failed call


class _Parts(Generic[Part, Result]):
    """The parts of one call of on_threads, which several threads take."""

    def __init__(self, work: Callable[[Part], Result], parts: Iterable[Part]) -> None:
        self._work = work
        self.todo = deque(enumerate(parts))
        self._results: dict[int, Result] = {}
        self.errors: list[BaseException] = []
        self._done: SimpleQueue[int] = SimpleQueue()  # the parts' numbers, each after its result or error

    def take_all(self) -> None:
        """Do parts until none is left."""
        while self._take():
            pass

    def result(self, index: int) -> Result:
        """The result of part `index`, once. Until it is there, this thread does other parts, and waits when none is left."""
        while index not in self._results:
            if self.errors:
                raise self.errors[0]
            if self._done.empty():
                self._take()
            self._done.get()
        return self._results.pop(index)

    def _take(self) -> bool:
        """Do the next part; False if none is left."""
        try:
            index, part = self.todo.popleft()
        except IndexError:
            return False
        _here.in_part = True
        try:
            self._results[index] = self._work(part)
        except BaseException as error:  # raised by `result`
            self.errors.append(error)
            self.todo.clear()
        finally:
            _here.in_part = False
        self._done.put(index)
        return True


def rows_of_about(at_once: int, rows: Span, row_bytes: int) -> Iterator[Span]:
    """The rows in pieces of at most `at_once` bytes, but of at least one row."""
    return pieces(rows, max(1, at_once // max(1, row_bytes)))
