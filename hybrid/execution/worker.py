# SPDX-License-Identifier: MIT
"""A thread that multiplies while the caller moves data: MPI goes on only while it is called."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from hybrid.host.threads import limited_threads, threads_allowed

_PAUSE = 1e-3  # seconds, at most, between two looks of the thread that moves data while another one multiplies


class Worker:
    """Does work in the order in which it is given: at once, or `beside` the caller, in another thread."""

    def __init__(self, *, beside: bool) -> None:
        self._thread = ThreadPoolExecutor(1) if beside else None
        self._asked: list[Future[None]] = []

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def do(self, work: Callable[[], None]) -> None:
        """Do the work now, or in its turn."""
        if self._thread is None:
            work()
        else:
            self._asked.append(self._thread.submit(_by_threads, threads_allowed(), work))

    def computes(self) -> bool:
        """Whether the other thread still has something to do."""
        return bool(self._asked) and not self._asked[-1].done()

    def wait(self, meanwhile: Callable[[], None]) -> None:
        """Wait until all work is done, and call `meanwhile` again and again. Raises what any of the work has raised."""
        for each in self._asked:
            while not wait([each], _PAUSE).done:
                meanwhile()
            each.result()


def _by_threads(count: int, work: Callable[[], None]) -> None:
    """Do the work with as many threads as the caller of `do` may use: how many is told to each thread by itself."""
    with limited_threads(count):
        work()
