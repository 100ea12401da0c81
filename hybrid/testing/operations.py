# SPDX-License-Identifier: MIT
"""Wraps internal functions while somebody listens: multiplications, copies, arrivals, phases, files and the clock.

A group's wrappers are installed with its first `Listener` and removed with its last.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from hybrid.ranks.launcher import rank_by_launcher

FILE_OPERATIONS = ("pwrite", "fsync", "replace", "unlink", "ftruncate", "truncate")


class Listener:
    """Is called about operations. `kind`: "multiply", "copy in", "copy out", "arrive" or "rank", as in `hybrid.testing.plant`;
    for "rank" `into` is the name of the phase."""

    groups: tuple[str, ...] = ()  # of wrappers

    def begins(self, kind: str, into: Any, source: Any = None) -> bool:
        """An operation begins. Returns whether this listener will change its result."""
        return False

    def ends(self, into: Any, source: Any, before: Any) -> None:
        """An operation for which `begins` was true has written `into`, a NumPy array. `before`: its elements before."""

    def sends(self, size: int) -> None:
        """This rank takes part in an exchange or message, and sends `size` bytes."""

    def timed(self, timings: Any) -> Any:
        """Returns the timings of `Device.finish`, perhaps changed."""
        return timings

    def file_operation(self, name: str, given: tuple[Any, ...], run: Callable[[], Any]) -> Callable[[], Any]:
        """One of FILE_OPERATIONS is called with `given`. Returns the function to run instead of `run`, the operation itself."""
        return run


_listeners: list[Listener] = []
_installed: dict[str, tuple[int, ExitStack]] = {}
_here = threading.local()  # `inside`: this thread is in an operation that listeners know already
_rank_of_call: list[int] = []


def _tell(what: str, *about: Any) -> None:
    for listener in list(_listeners):
        getattr(listener, what)(*about)


def rank() -> int:
    """This process's rank: in the communicator of the current call, or in the job before the first call."""
    return _rank_of_call[-1] if _rank_of_call else rank_by_launcher()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A context in which the listener is called."""
    with ExitStack() as undone:
        for group in ("phases", *listener.groups):
            count, stack = _installed.pop(group, (0, ExitStack()))
            if not count:
                _GROUPS[group](stack)
            _installed[group] = count + 1, stack
            undone.callback(_left, group)
        _listeners.append(listener)
        try:
            yield
        finally:
            _listeners[:] = [each for each in _listeners if each is not listener]  # others may be equal


def _left(group: str) -> None:
    count, stack = _installed.pop(group)
    if count > 1:
        _installed[group] = count - 1, stack
    else:
        stack.close()


def replace(stack: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Until the stack is closed, replace a method of a class, or a function in all modules that have imported it, by
    `around(original, ...)`."""
    original = owner.__dict__[name]

    @functools.wraps(original)
    def replaced(*given: Any, **how: Any) -> Any:
        return around(original, *given, **how)

    def swap(old: Any, new: Any) -> None:
        ours = not isinstance(owner, type) and owner.__name__.startswith("hybrid.")
        modules = [each for each in list(sys.modules.values()) if getattr(each, "__name__", "").startswith("hybrid.")]
        for place in modules if ours else [owner]:
            if vars(place).get(name) is old:
                setattr(place, name, new)

    swap(original, replaced)
    stack.callback(swap, replaced, original)


class Operation:
    """An operation that writes `into`, which listeners may change at its end."""

    def __init__(self, kind: str, into: Any, source: Any = None, ready: Callable[[], object] = lambda: None) -> None:
        """`ready`: waits until earlier writes to `into` are complete."""
        told = into.size and not getattr(_here, "inside", False)
        self.changing = [listener for listener in list(_listeners) if listener.begins(kind, into, source)] if told else []
        self._into, self._source = into, source
        if self.changing:
            ready()
            self._before = _on_host(into).copy()

    def end(self) -> None:
        """Call this when the operation is complete."""
        source = self._source
        sources = tuple(map(_on_host, source)) if isinstance(source, tuple) else source if source is None else _on_host(source)
        for listener in self.changing:
            on_host = _on_host(self._into)
            listener.ends(on_host, sources, self._before)
            if hasattr(self._into, "get"):
                cupy = sys.modules["cupy"]
                self._into[...] = cupy.asarray(on_host)
                cupy.cuda.runtime.deviceSynchronize()  # the next reader may be on another stream


def _on_host(matrix: Any) -> Any:
    """The matrix as a NumPy array: itself, or a copy from the GPU."""
    import numpy as np

    return np.asarray(matrix) if isinstance(matrix, np.ndarray) else matrix.get()


def _on_device(device: Any, kind: str, parts: Sequence[tuple[Any, Any]], after: Sequence[Any], run: Callable[[], Any]) -> Any:
    """Enqueue one call behind the events `after`. Its operations write `parts`: pairs of a matrix and its source. Wait for the
    call if a listener will change something."""

    def ready() -> None:
        for event in after:  # another process's events can only be polled
            while not device.done(event):
                time.sleep(1e-4)

    operations = [Operation(kind, into, source, ready) for into, source in parts]
    before, _here.inside = getattr(_here, "inside", False), True  # listeners do not hear of nested operations
    try:
        event = run()
    finally:
        _here.inside = before
    if any(operation.changing for operation in operations):
        device.wait(event)
        for operation in operations:
            operation.end()
    return event


def _phases(stack: ExitStack) -> None:
    from hybrid.ranks import mpi, team
    from hybrid.ranks.messages import Messages
    from hybrid.ranks.team import Team

    def enter(original: Any, team: Team, activity: str) -> None:
        _rank_of_call[:] = [team.rank]
        original(team, activity)
        _tell("begins", "rank", activity)

    def begin(phase: str, original: Any, *given: Any, **how: Any) -> Any:
        _tell("begins", "rank", phase)
        return original(*given, **how)

    stack.callback(_rank_of_call.clear)
    replace(stack, Team, "enter", enter)
    replace(stack, Messages, "wait_until", partial(begin, "wait"))
    replace(stack, team, "start_world", partial(begin, "start"))
    replace(stack, mpi, "start_mpi", partial(begin, "MPI start"))


def _devices(stack: ExitStack) -> None:
    from hybrid.devices import row_sums
    from hybrid.devices.base import Device, EmulatedDevice
    from hybrid.devices.remainders import ModularProduct
    from hybrid.execution.rank_run import RankRun
    from hybrid.host import blas
    from hybrid.transport.nccl import DeviceGroup

    def copy(kind: str, original: Any, device: Any, into: Any, source: Any, after: Sequence[Any]) -> Any:
        return _on_device(device, kind, [(into, source)], after, lambda: original(device, into, source, after))

    def multiply(original: Any, device: Any, *given: Any, **how: Any) -> Any:
        after = how.get("after", given[-1])
        a, b, c = given[-3:] if "after" in how else given[-4:-1]  # in a product from remainders, after its tile
        waiting = getattr(device, "_device", device)
        return _on_device(waiting, "multiply", [(c, (a, b))], after, lambda: original(device, *given, **how))

    def multiply_stack(original: Any, *given: Any) -> None:
        a, b, c = given[-4:-1]
        operations = [Operation("multiply", c[at], (a[at % len(a)], b[at % len(b)])) for at in range(len(c))]
        original(*given)
        for operation in operations:
            operation.end()

    def receive(original: Any, group: Any, into: Any, source: int, after: Sequence[Any]) -> Any:
        return _on_device(group._device, "arrive", [(into, None)], after, lambda: original(group, into, source, after))

    def allgather(original: Any, group: Any, matrix: Any, rows_of: Sequence[Any], after: Sequence[Any]) -> Any:
        parts = [(matrix[rows.slice], None) for each, rows in enumerate(rows_of) if each != rank()]
        return _on_device(group._device, "arrive", parts, after, lambda: original(group, matrix, rows_of, after))

    replace(stack, RankRun, "_recorded", lambda original, run, places: None)  # no replay: each operation is enqueued
    replace(stack, row_sums, "matmul_loop", lambda original, char: 0)  # no shortcut: a device multiplies
    replace(stack, blas, "blas_stack", multiply_stack)
    if _cuda("multiply_on_gpu"):
        replace(stack, sys.modules["hybrid.devices.cuda_device"], "multiply_on_gpu", multiply_stack)
    for owner in (ModularProduct, EmulatedDevice, Device, *_cuda("CudaDevice")):
        replace(stack, owner, "multiply", multiply)
    for owner in (Device, *_cuda("CudaDevice")):
        for name, kind in (("copy_in", "copy in"), ("exchange", "arrive"), ("copy_out", "copy out")):
            replace(stack, owner, name, partial(copy, kind))
    replace(stack, DeviceGroup, "receive", receive)
    replace(stack, DeviceGroup, "allgather_rows", allgather)


def _cuda(name: str) -> list[Any]:
    """A class or function of hybrid.devices.cuda_device, if CuPy is there."""
    there = "cupy" in sys.modules or importlib.util.find_spec("cupy")
    return [getattr(importlib.import_module("hybrid.devices.cuda_device"), name)] if there else []


def _clocks(stack: ExitStack) -> None:
    from hybrid.devices.base import Device

    def finish(original: Any, device: Any) -> Any:
        timings = original(device)
        for listener in list(_listeners):
            timings = listener.timed(timings)
        return timings

    for owner in (Device, *_cuda("CudaDevice")):
        replace(stack, owner, "finish", finish)


class _Arriving:
    """An MPI request; when it completes, the operations end."""

    def __init__(self, request: Any, operations: Sequence[Operation]) -> None:
        self._request, self._operations = request, operations

    def Test(self) -> bool:
        if complete := self._request.Test():
            operations, self._operations = self._operations, ()
            for operation in operations:
                operation.end()
        return complete

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def _messages(stack: ExitStack) -> None:
    from hybrid.ranks import messages as module
    from hybrid.ranks.messages import Messages

    Parts = tuple[Sequence[Any], Sequence[Any]]  # the matrices that this rank sends to others, and that it receives

    def broadcast(me: int, matrix: Any, root: int) -> Parts:
        return ([matrix], []) if me == root else ([], [matrix])

    def exchange(me: int, to: Any, taken: Any, own: int) -> Parts:
        sent, arrives = ([each for other in some if other != own for each in some[other]] for some in (to, taken))
        return sent, arrives

    def collective(parts: Callable[..., Parts], original: Any, *given: Any) -> Callable[[Any], Any]:
        def start(comm: Any) -> Any:
            sent, arrives = parts(comm.Get_rank(), *given)
            _tell("sends", sum(matrix.nbytes for matrix in sent))
            operations = [Operation("arrive", matrix) for matrix in arrives]
            request = original(*given)(comm)
            return _Arriving(request, operations) if any(each.changing for each in operations) else request

        return start

    def exchange_objects(original: Any, messages: Messages, mine: Any, *given: Any, **how: Any) -> Any:
        everybody = original(messages, mine, *given, **how)
        _tell("sends", len(pickle.dumps(mine, protocol=5)))
        return everybody

    for name, parts in (("broadcast", broadcast), ("exchange", exchange)):
        replace(stack, module, name, partial(collective, parts))
    replace(stack, Messages, "exchange", exchange_objects)


def _files(stack: ExitStack) -> None:
    def operation(original: Any, *given: Any, **how: Any) -> Any:
        run: Callable[[], Any] = partial(original, *given, **how)
        if sys._getframe(2).f_globals.get("__name__", "").startswith(("hybrid.host.", "hybrid.runs.", "hybrid.commands.")):
            for listener in list(_listeners):
                run = listener.file_operation(original.__name__, given, run)
        return run()

    for name in FILE_OPERATIONS:
        replace(stack, os, name, operation)


_GROUPS = {"phases": _phases, "devices": _devices, "clocks": _clocks, "messages": _messages, "files": _files}
