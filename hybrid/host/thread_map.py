# SPDX-License-Identifier: MIT
"""Work on rows by several threads of a process, for NumPy calls that release the GIL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hybrid.core.spans import Span, pieces

Result = TypeVar("Result")

CALL_BYTES = 4 << 20  # of the operands of one NumPy call: with smaller calls, the threads would mostly wait for the GIL
_MOST_THREADS = 16  # more would wait for the GIL between their calls, and each takes temporary memory


def on_threads(threads: int, work: Callable[[Span], Result], parts: Iterable[Span]) -> Iterator[Result]:
    """`work(part)` for each part by `threads` threads; the results in order."""
    parts, threads = list(parts), min(threads, _MOST_THREADS)
    if threads <= 1 or len(parts) <= 1:
        yield from map(work, parts)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, parts)


def rows_of_about(at_once: int, rows: Span, row_bytes: int) -> Iterator[Span]:
    """`rows` in pieces of at most `at_once` bytes, but of one row at least."""
    return pieces(rows, max(1, at_once // max(1, row_bytes)))
