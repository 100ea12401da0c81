# SPDX-License-Identifier: MIT
"""Operations of the check that are enqueued together. For the device they still run one after the other; the host enqueues them
by one call, so that it has time for the copies and multiplications of the product."""

from __future__ import annotations

from collections.abc import Sequence

from hybrid.devices.base import CheckOperations, Event, Operation

_LEAST_BYTES = 32 << 20  # that the operations of a batch read: a GPU needs some ten microseconds for them, a launch as long
_MOST_BATCHES = 8  # of a product; the last one delays its end


class Batches:
    """The batches of one product after the other, whose operations come in the same order."""

    def __init__(self, operations: CheckOperations, all_bytes: int) -> None:
        """`all_bytes`: that all operations of a product read."""
        self._together, self._most_bytes = operations.together, max(_LEAST_BYTES, all_bytes // _MOST_BATCHES)
        self._made: dict[tuple[int, ...], tuple[list[Operation], Operation]] = {}  # by the operations' ids
        self.begin()

    def begin(self) -> None:
        """A product begins."""
        self._last: list[Event] = []  # the event of the last batch that is not beside others
        self._next()

    def _next(self) -> None:
        self._waiting: list[Operation] = []
        self._after: list[Event] = []
        self._bytes = 0

    def add(self, operation: Operation, after: Sequence[Event] = (), size: int = 0) -> None:
        """Enqueue an operation soon, behind these events. `size`: the bytes that it reads."""
        self._waiting.append(operation)
        self._after += after
        self._bytes += size
        if self._bytes >= self._most_bytes:
            self.flush()

    def flush(self) -> None:
        """Enqueue what was added."""
        if self._waiting:
            self._last = [self._batch(beside=False)(self._after)]
            self._next()

    def flush_beside(self) -> list[Event]:
        """Enqueue what was added, behind all before, beside what follows. Returns the event that marks its end."""
        if not self._waiting:
            return []
        event = self._batch(beside=True)([*self._last, *self._after])
        self._next()
        return [event]

    def _batch(self, *, beside: bool) -> Operation:
        """What was added, as one operation."""
        key = tuple(map(id, self._waiting))
        if key not in self._made:
            self._made[key] = self._waiting, self._together(self._waiting, beside=beside)
        return self._made[key][1]
