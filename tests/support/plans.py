# SPDX-License-Identifier: MIT
"""Plans for tests, with the request's fields as keywords, and a device that works in any order that its events allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from hybrid.core.problem import Problem, Topology
from hybrid.host.blas import add_by_blas, blas
from hybrid.planning.plan import Plan, make_plan
from hybrid.planning.tiling import PlanRequest


def planned(problem: Problem, topology: Topology, **fields: Any) -> Plan:
    return make_plan(PlanRequest(problem, topology, **fields))


KINDS = ("copy in", "multiply", "copy out", "check", "check beside")


@dataclass(eq=False)
class Work:
    kind: str
    run: Callable[[], None]
    after: list[Work]
    done: bool = False


class ShuffledDevice:
    """Works only at finish, in an order drawn from all that the Device protocol allows. New matrices are full of NaN.

    Copies in run in their order, and so do copies out, the check's operations, and those beside these; everything else is held
    back by events alone.
    """

    name = "cpu"
    staged = True

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._waiting: dict[str, deque[Work]] = {kind: deque() for kind in KINDS}

    def reserve(self, size, *, shared):
        return np.full(size, 0xFF, np.uint8)

    def matrix(self, memory, offset, rows, columns, dtype):
        size = rows * columns * np.dtype(dtype).itemsize
        return memory[offset : offset + size].view(dtype).reshape(rows, columns)

    def copy_in(self, into, source, after):
        return self.later("copy in", after, partial(np.copyto, into, source))

    def multiply(self, a, b, c, after, *, adding=False):
        return self.later("multiply", after, partial(add_by_blas if adding else blas, a, b, c))

    def copy_out(self, into, source, after):
        return self.later("copy out", after, partial(np.copyto, into, source))

    def empty(self, shape, dtype):
        return np.full(shape, np.nan).view(dtype)

    def write(self, into, values):
        into[...] = values

    def read(self, matrix):
        return matrix

    def host_memory(self, shape, dtype):
        return np.empty(shape, dtype)

    def clearing(self, matrix, byte):
        return lambda stream: matrix.fill(byte)

    def downloading(self, matrix, host):
        return lambda stream: np.copyto(host, matrix)

    def together(self, calls):
        return calls

    def launch(self, calls, after, queue):
        together = calls[0] if isinstance(calls[0], list) else calls
        return [self.later(queue, after, partial(call, None)) for call in together][-1]

    def later(self, kind, after, run):
        assert not any(event.done for event in after), "an event of the product before"
        work = Work(kind, run, list(after))
        self._waiting[kind].append(work)
        return work

    def finish(self):
        eager = {kind: self._random.random() for kind in KINDS}  # a run in which one kind is fast, another slow
        done = []
        while any(self._waiting.values()):
            ready = [(kind, work) for kind in KINDS for work in self._next(kind) if all(event.done for event in work.after)]
            assert ready, "work waits for work that was handed over after it"
            kind, work = self._random.choices(ready, [eager[kind] for kind, _ in ready])[0]
            self._waiting[kind].remove(work)
            work.run()
            work.done = True
            done.append((kind, float(len(done)), float(len(done) + 1)))
        return done

    def _next(self, kind):
        waiting = self._waiting[kind]
        return list(waiting) if kind == "multiply" else list(waiting)[:1]


class ForgetfulDevice(ShuffledDevice):
    """Drops the events that one kind of work gets, as a pipeline would that forgot to hand them over."""

    def __init__(self, seed: int, kind: str) -> None:
        super().__init__(seed)
        self._forgets = kind

    def later(self, kind, after, run):
        return super().later(kind, [] if kind == self._forgets else after, run)
