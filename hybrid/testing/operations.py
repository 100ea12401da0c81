# SPDX-License-Identifier: MIT
"""Where the inside is wrapped, as long as somebody listens: multiplications, copies, arrivals, phases, files and the clock.

What listens is a `Listener`. The wrappers of a group are put in place with its first listener and taken away with its last.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
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
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class Listener:
    """What is told of operations. `kind`: "multiply", "copy in", "copy out", "arrive" or "rank", as `hybrid.testing.plant` names
    them; of a phase of a rank `into` is its name."""

    groups: tuple[str, ...] = ()  # of wrappers

    def begins(self, kind: str, into: Any) -> bool:
        """An operation begins. Whether this listener is to change what it writes."""
        return False

    def ends(self, into: Any, source: Any, before: Any) -> None:
        """An operation for which `begins` was true has written `into`, a NumPy array. `before`: what was there before."""

    def sends(self, size: int) -> None:
        """This rank takes part in an exchange, or sends or receives a message, and sends so many bytes."""

    def timed(self, timings: Any) -> Any:
        """What `Device.finish` tells of when operations ran, as it is to be told."""
        return timings

    def file_operation(self, name: str, given: tuple[Any, ...], run: Callable[[], Any]) -> Callable[[], Any]:
        """A file is written, flushed, renamed, removed or changed in size, by one of FILE_OPERATIONS: what is to be done."""
        return run


_listeners: list[Listener] = []
_installed: dict[str, tuple[int, ExitStack]] = {}
_here = threading.local()  # `inside`: this thread is in an operation that is told of already
_rank_of_call: list[int] = []


def rank() -> int:
    """This process's rank: in the communicator of the present call, or in the job before the first."""
    return _rank_of_call[-1] if _rank_of_call else rank_by_launcher()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A context in which the listener is told."""
    with ExitStack() as undone:
        for group in ("phases", *listener.groups):
            count, stack = _installed.pop(group, (0, ExitStack()))
            if not count:
                _GROUPS[group](stack)
            _installed[group] = count + 1, stack
            undone.callback(_left, group)
        _listeners.append(listener)
        undone.callback(_listeners.remove, listener)
        yield


def _left(group: str) -> None:
    count, stack = _installed.pop(group)
    if count > 1:
        _installed[group] = count - 1, stack
    else:
        stack.close()


def replace(stack: ExitStack, owner: Any, name: str, wrapper: Wrapper) -> None:
    """Wrap a function until the stack is closed: a method of a class, or a function in all modules that have imported it."""
    original = owner.__dict__[name]
    wrapped = functools.wraps(original)(wrapper(original))

    def swap(old: Any, new: Any) -> None:
        if isinstance(owner, type) or not owner.__name__.startswith("hybrid"):
            setattr(owner, name, new)
            return
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith("hybrid.") and vars(module).get(name) is old:
                setattr(module, name, new)

    swap(original, wrapped)
    stack.callback(swap, wrapped, original)


class Operation:
    """An operation that writes `into`: listeners that are to change that do so at its end."""

    def __init__(self, kind: str, into: Any, source: Any = None, ready: Callable[[], object] = lambda: None) -> None:
        """`ready`: waits until what was there before is complete."""
        told = into.size and not getattr(_here, "inside", False)
        self.changing = [listener for listener in list(_listeners) if listener.begins(kind, into)] if told else []
        self._into, self._source = into, source
        if self.changing:
            ready()
            self._before = _on_host(into).copy()

    def end(self) -> None:
        """To be called when the operation is complete."""
        source = self._source
        sources = tuple(map(_on_host, source)) if isinstance(source, tuple) else source if source is None else _on_host(source)
        for listener in self.changing:
            on_host = _on_host(self._into)
            listener.ends(on_host, sources, self._before)
            if not _is_numpy(self._into):
                self._into[...] = sys.modules["cupy"].asarray(on_host)


def _is_numpy(matrix: Any) -> bool:
    return hasattr(matrix, "__array_interface__")


def _on_host(matrix: Any) -> Any:
    import numpy as np

    return np.asarray(matrix) if _is_numpy(matrix) else matrix.get()


@contextmanager
def _inside() -> Iterator[None]:
    """A context of an operation: those of which it consists are not told."""
    before, _here.inside = getattr(_here, "inside", False), True
    try:
        yield
    finally:
        _here.inside = before


def _on_device(device: Any, operations: Sequence[Operation], run: Callable[[], Any]) -> Any:
    """Enqueue one call that does these operations, and wait for it where something is to be changed."""
    with _inside():
        event = run()
    if any(operation.changing for operation in operations):
        device.wait(event)
        for operation in operations:
            operation.end()
    return event


def _phases(stack: ExitStack) -> None:
    from hybrid.ranks import world
    from hybrid.ranks.messages import Messages
    from hybrid.ranks.team import Team

    def told(phase: str) -> None:
        for listener in list(_listeners):
            listener.begins("rank", phase)

    def enter(original: Callable[..., Any]) -> Callable[..., Any]:
        def entered(team: Team, activity: str) -> None:
            _rank_of_call[:] = [team.rank]
            original(team, activity)
            told(activity)

        return entered

    def before(phase: str) -> Wrapper:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def entered(*given: Any, **how: Any) -> Any:
                told(phase)
                return original(*given, **how)

            return entered

        return wrapper

    replace(stack, Team, "enter", enter)
    replace(stack, Messages, "_poll", before("wait"))
    replace(stack, world, "start_world", before("start"))
    replace(stack, world, "start_mpi", before("MPI start"))
    stack.callback(_rank_of_call.clear)


def _devices(stack: ExitStack) -> None:
    from hybrid.devices import stacks
    from hybrid.devices.cpu import CpuDevice
    from hybrid.devices.emulated import EmulatedDevice
    from hybrid.devices.modular import ModularProduct

    def copying(kind: str) -> Wrapper:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def copy(device: Any, into: Any, source: Any, after: list[Any]) -> Any:
                operation = Operation(kind, into, source, partial(_wait_all, device, after))
                return _on_device(device, [operation], lambda: original(device, into, source, after))

            return copy

        return wrapper

    def multiplying(original: Callable[..., Any]) -> Callable[..., Any]:
        def multiply(device: Any, *given: Any, **how: Any) -> Any:
            after = how.get("after", given[-1])
            a, b, c = given[-3:] if "after" in how else given[-4:-1]  # a product from remainders gets its tile before them
            waiting = getattr(device, "_device", device)
            operation = Operation("multiply", c, (a, b), partial(_wait_all, waiting, after))
            return _on_device(waiting, [operation], lambda: original(device, *given, **how))

        return multiply

    def of_stacks(original: Callable[..., Any]) -> Callable[..., Any]:
        def multiply(*given: Any) -> None:
            a, b, c = given[-4:-1]
            operations = [Operation("multiply", c[at], (a[at % len(a)], b[at % len(b)])) for at in range(len(c))]
            original(*given)
            for operation in operations:
                operation.end()

        return multiply

    def receiving(original: Callable[..., Any]) -> Callable[..., Any]:
        def receive(device: Any, communicator: Any, into: Any, source: int, after: list[Any]) -> Any:
            run = partial(original, device, communicator, into, source, after)
            return _on_device(device, [Operation("arrive", into, None, partial(_wait_all, device, after))], run)

        return receive

    def gathering(original: Callable[..., Any]) -> Callable[..., Any]:
        def allgather(device: Any, communicator: Any, matrix: Any, rows_of: Sequence[Any], after: list[Any]) -> Any:
            ready = partial(_wait_all, device, after)
            parts = [matrix[rows.slice] for each, rows in enumerate(rows_of) if each != rank()]
            run = partial(original, device, communicator, matrix, rows_of, after)
            return _on_device(device, [Operation("arrive", part, None, ready) for part in parts], run)

        return allgather

    replace(stack, stacks, "multiply_on_cpu", of_stacks)
    replace(stack, stacks, "multiply_on_gpu", of_stacks)
    replace(stack, ModularProduct, "multiply", multiplying)
    replace(stack, EmulatedDevice, "multiply", multiplying)
    devices: list[Any] = [CpuDevice]
    if "cupy" in sys.modules or importlib.util.find_spec("cupy"):
        devices.append(importlib.import_module("hybrid.devices.cuda_device").CudaDevice)
        cuda_nccl = importlib.import_module("hybrid.devices.cuda_nccl").CudaNccl
        replace(stack, cuda_nccl, "receive", receiving)
        replace(stack, cuda_nccl, "allgather_rows", gathering)
    for device in devices:
        replace(stack, device, "multiply", multiplying)
        for name, kind in (("copy_in", "copy in"), ("exchange", "arrive"), ("copy_out", "copy out")):
            replace(stack, device, name, copying(kind))


def _wait_all(device: Any, events: Sequence[Any]) -> None:
    for event in events:  # another process's can only be asked
        while not device.done(event):
            time.sleep(1e-4)


def _clocks(stack: ExitStack) -> None:
    from hybrid.devices.cpu import CpuDevice

    def finishing(original: Callable[..., Any]) -> Callable[..., Any]:
        def finish(device: Any) -> Any:
            timings = original(device)
            for listener in list(_listeners):
                timings = listener.timed(timings)
            return timings

        return finish

    replace(stack, CpuDevice, "finish", finishing)
    if "cupy" in sys.modules or importlib.util.find_spec("cupy"):
        replace(stack, importlib.import_module("hybrid.devices.cuda_device").CudaDevice, "finish", finishing)


class _Arriving:
    """An MPI request at whose completion the operations end."""

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
    from hybrid.ranks import collectives
    from hybrid.ranks.messages import Messages

    def sends(size: int) -> None:
        for listener in list(_listeners):
            listener.sends(size)

    def collective(parts: Callable[..., tuple[list[Any], list[Any]]]) -> Wrapper:
        """`parts(rank, ...)`: the matrices that this rank sends to others, and those that arrive."""

        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def make(*given: Any) -> Callable[[Any], Any]:
                def start(comm: Any) -> Any:
                    sent, arrives = parts(comm.Get_rank(), *given)
                    sends(sum(matrix.nbytes for matrix in sent))
                    operations = [Operation("arrive", matrix) for matrix in arrives]
                    request = original(*given)(comm)
                    return _Arriving(request, operations) if any(each.changing for each in operations) else request

                return start

            return make

        return wrapper

    def broadcast(me: int, matrix: Any, root: int) -> tuple[list[Any], list[Any]]:
        return ([matrix], []) if me == root else ([], [matrix])

    def allgather(me: int, matrix: Any, rows: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        return [matrix[rows[me].slice]], [matrix[each.slice] for number, each in enumerate(rows) if number != me]

    def gather(me: int, matrix: Any, rows: Sequence[Any], root: int) -> tuple[list[Any], list[Any]]:
        return ([], allgather(me, matrix, rows)[1]) if me == root else ([matrix], [])

    def exchange(me: int, to: Any, taken: Any, own: int) -> tuple[list[Any], list[Any]]:
        sent, arrives = ([each for other in some if other != own for each in some[other]] for some in (to, taken))
        return sent, arrives

    for name, parts in (("row_broadcast", broadcast), ("row_allgather", allgather), ("row_gather", gather)):
        replace(stack, collectives, name, collective(parts))
    replace(stack, collectives, "exchange", collective(exchange))

    def exchanging(original: Callable[..., Any]) -> Callable[..., Any]:
        def exchanged(messages: Messages, mine: Any, *given: Any, **how: Any) -> Any:
            everybody = original(messages, mine, *given, **how)
            sends(len(pickle.dumps(mine, protocol=5)))
            return everybody

        return exchanged

    def sending(original: Callable[..., Any]) -> Callable[..., Any]:
        def send(messages: Messages, data: Any, to: int) -> None:
            sends(memoryview(data).nbytes)
            original(messages, data, to)

        return send

    def receiving(original: Callable[..., Any]) -> Callable[..., Any]:
        def receive(messages: Messages, into: Any, source: int) -> None:
            sends(0)
            original(messages, into, source)

        return receive

    replace(stack, Messages, "exchange", exchanging)
    replace(stack, Messages, "send", sending)
    replace(stack, Messages, "receive", receiving)


def _files(stack: ExitStack) -> None:
    import os

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*given: Any, **how: Any) -> Any:
            of = sys._getframe(1).f_globals.get("__name__", "")
            if not of.startswith("hybrid.host."):
                return original(*given, **how)
            run: Callable[[], Any] = partial(original, *given, **how)
            for listener in list(_listeners):
                run = listener.file_operation(original.__name__, given, run)
            return run()

        return operation

    for name in FILE_OPERATIONS:
        replace(stack, os, name, wrapper)


_GROUPS = {"phases": _phases, "devices": _devices, "clocks": _clocks, "messages": _messages, "files": _files}
