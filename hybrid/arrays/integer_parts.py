# SPDX-License-Identifier: MIT
"""Matrices of integers in parts: in host memory for several threads, each with a few rows at a time that stay in a core's cache;
on a GPU so large that kernels take longer than their launch, and so small that temporary arrays take little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hybrid.arrays.interop import on_gpu
from hybrid.arrays.primes import Room
from hybrid.core.spans import Span
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about

Result = TypeVar("Result")

_CACHED_BYTES = CALL_BYTES // 16  # of the elements on which several steps are done together; temporary arrays take as much each
_GPU_BYTES = 32 << 20  # the same, on a GPU


def by_parts(
    beside: Any, shape: tuple[int, ...], work: Callable[[Span], Result], threads: int, item_size: int = 8
) -> Iterator[Result]:
    """`work(rows)` for consecutive rows of a matrix of this shape, and the results in order.

    `beside`: an array on the GPU where the work is done, which must be CuPy's current one; else the work is that of so many
    threads.
    """
    there = on_gpu(beside)
    parts = rows_of_about(_GPU_BYTES if there else CALL_BYTES, Span(0, shape[0]), shape[1] * item_size)
    return on_threads(1 if there else threads, work, parts)


def with_room(rows: Span, columns: int, beside: Any) -> Iterator[tuple[Span, Room]]:
    """A few of these rows at a time, with room for as many remainders; on the GPU of `beside`, where it lies on one, all of
    them."""
    parts = [rows] if on_gpu(beside) else list(rows_of_about(_CACHED_BYTES, rows, columns * 8))
    room = Room(max(map(len, parts), default=0) * columns, beside)
    return ((part, room) for part in parts)


def bytes_of_part(rows: int, columns: int) -> int:
    """The bytes of a part of a matrix of this shape on a GPU, of 8 bytes an element."""
    return 8 * columns * min(rows, max(1, _GPU_BYTES // max(1, columns * 8)))
