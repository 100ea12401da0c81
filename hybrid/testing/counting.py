# SPDX-License-Identifier: MIT
"""What this rank does, counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hybrid.testing.operations import Listener, listening


@dataclass
class Counts:
    """What this rank has done while it was counted.

    Attributes
    ----------
    exchanges : int
        Rounds of messages among ranks in which this one took part.
    bytes_sent : int
        Bytes that it handed to MPI for them: of objects their pickles, of a broadcast the matrix once.
    copied_in, copied_out : int
        Bytes of copies from host memory to a device with memory of its own, and back.
    multiplications : int
        Calls of a device's multiplication, and matrices of stacks.
    """

    exchanges: int = 0
    bytes_sent: int = 0
    copied_in: int = 0
    copied_out: int = 0
    multiplications: int = 0


class _Counting(Listener):
    groups = ("devices", "messages")

    def __init__(self) -> None:
        self.counts = Counts()

    def begins(self, kind: str, into: Any, source: Any = None) -> bool:
        counts = self.counts
        counts.copied_in += into.nbytes if kind == "copy in" and not _on_gpu(source) else 0
        counts.copied_out += into.nbytes if kind == "copy out" and not _on_gpu(into) else 0
        counts.multiplications += kind == "multiply"
        return False

    def sends(self, size: int) -> None:
        self.counts.exchanges += 1
        self.counts.bytes_sent += size


def _on_gpu(matrix: Any) -> bool:
    return hasattr(matrix, "__cuda_array_interface__")


@contextmanager
def count() -> Iterator[Counts]:
    """Count what this rank does in the context.

    Yields
    ------
    Counts
        They go up meanwhile, and stay afterwards.
    """
    counting = _Counting()
    with listening(counting):
        yield counting.counts
