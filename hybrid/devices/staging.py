# SPDX-License-Identifier: MIT
"""Copies between a GPU and pageable host memory, through small pinned staging buffers, the slots, by threads in C (staging.c).

Pinning an array takes as long as such a copy, and several times as long with several GPUs. So an array is pinned only when a
second product uses it (`PinnedMemory.pin_again`).
"""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.devices.base import EventWait
from hybrid.devices.c_library import declare, structure
from hybrid.devices.cuda_gpus import GpuContext, cuda_driver, pinned_memory
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.loaded_soon import LoadedSoon
from hybrid.errors import DeviceUnavailable
from hybrid.host.memory import LEAST_BYTES, empty_matrix
from hybrid.host.threads import spare_cores

SOURCE = Path(__file__).with_suffix(".c")
SLOT_BYTES = 2 << 20  # a thread's slots stay in its core's cache; with smaller ones, the driver's calls dominate
LEAST_THREADS = 4  # of a process: fewer copy no faster than pinning
LEAST_STAGED = 1 << 20  # bytes of a matrix: smaller ones are copied as fast by the driver
_SLOTS = 2  # SLOTS of staging.c, per H2D thread; a D2H thread has one
_FLAGS = ("-std=c11", "-O3", "-pthread")
# Threads per GPU and direction, by the number of GPUs that share the host's memory bandwidth.
_MOST_THREADS = {1: 13, 2: 10}
_MOST_THREADS_OF_MANY = 8
_PATIENCE = 100  # milliseconds per wait: Python handles an interrupt (SIGINT) only between waits
_ADDRESS = ctypes.c_void_p


# Structures of staging.c.
Driver = structure("void* enter, context, copy, record, follow, wait")
_Matrix = structure("void* host, device; int64_t rows, columns, item, row_bytes, column_bytes, pitch; void* ready, done")
_FUNCTIONS = (
    "void* new_pool(); void* new_workers(void*, int, void*, int64_t, void*, void*); void free_workers(void*); "
    "void* new_copies(void*, void*, void*, int, int); void free_copies(void*); void* copy(void*, int, void*); "
    "int announce(void*, void*, void*, int64_t); int reached(void*, int); void times(void*, void*, void*); "
    "void free_transfer(void*); void populate(void*, void*, int64_t); void settle(void*); void give_up(void*)"
)


def driver_in_context() -> Any:
    """The CUDA driver's functions, for the current context."""
    driver, context = cuda_driver(), _ADDRESS()
    if status := driver.cuCtxGetCurrent(ctypes.byref(context)):
        raise DeviceUnavailable(f"the GPU's context cannot be asked for (CUDA error {status})", code="gpu-failed")
    called = driver.cuMemcpy2DAsync_v2, driver.cuEventRecord, driver.cuStreamWaitEvent, driver.cuEventSynchronize
    enter, *others = (ctypes.cast(each, _ADDRESS) for each in (driver.cuCtxSetCurrent, *called))
    return Driver(enter, context, *others)


def _load() -> Any:
    """The compiled library. HybridError without a C compiler."""
    library: Any = ctypes.CDLL(str(build_plain(c_compiler(), SOURCE, _FLAGS)))
    declare(library, _FUNCTIONS)
    library.pool = library.new_pool()
    return library


@cache
def copier() -> LoadedSoon:
    """The C library, compiled and loaded in the background; nothing is staged until it is there."""
    return LoadedSoon(_load)


class Workers:
    """One GPU's slots in this process, pinned once, with an event each, and the streams of their copies."""

    def __init__(self, gpu: int, context: GpuContext, each: int) -> None:
        """`each`: threads per direction. `context` must be current. DeviceUnavailable if the slots cannot be pinned."""
        import cupy

        self.context, self.each, self._library = context, each, copier().loaded
        self.driver = driver_in_context()
        slots = each * (_SLOTS + 1)
        self._memory = empty_matrix(1, max(slots * SLOT_BYTES, LEAST_BYTES), "uint8")
        if not pinned_memory.pin(self._memory):
            raise DeviceUnavailable("no memory can be pinned")
        self._streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2 * each)]
        # Blocking events: threads sleep while they wait, and leave the cores to those that copy.
        self._events = [cupy.cuda.Event(block=True, disable_timing=True) for _ in range(slots)]
        streams, events = ((_ADDRESS * len(some))(*(each.ptr for each in some)) for some in (self._streams, self._events))
        self.address = self._library.new_workers(
            ctypes.byref(self.driver), each, self._memory.ctypes.data, SLOT_BYTES, streams, events
        )
        _workers[gpu] = self

    def __del__(self) -> None:
        if self.__dict__.get("address"):
            with self.context:
                for stream in self._streams:
                    stream.synchronize()
                self._library.free_workers(self.address)
                self.__dict__.clear()


_workers: weakref.WeakValueDictionary[int, Workers] = weakref.WeakValueDictionary()  # by the GPU's index


class SlotCopies:
    """One device's copies through slots.

    A slot's copy is enqueued on a stream only after a thread has filled the slot. So the event of an H2D copy is a `SlotCopy`,
    which the host must wait for, until it is recorded, before a stream can wait for it.
    """

    def __init__(self, workers: Workers, stream: int, threads: int, links: int) -> None:
        """`stream`: records that H2D copies are complete. `threads`: at most, per direction. `links`: GPUs that copy at once."""
        self._library, self._workers, self._process = copier().loaded, workers, os.getpid()
        self.address = self._library.new_copies(self._library.pool, workers.address, stream, threads, links)
        wait = ctypes.cast(self._library.wait_for_event, _ADDRESS)
        self.event_wait = EventWait(workers.driver.enter, workers.driver.context, wait)
        self._running: list[tuple[SlotCopy, object]] = []  # with references to what the threads use

    def __del__(self) -> None:
        if self.__dict__.get("address") and self._process == os.getpid():  # a forked child has no such threads
            self.give_up()
            self._library.free_copies(self.address)

    def copy(self, host: np.ndarray, on_device: tuple[int, int], ready: Any, done: Any, *, out: bool) -> SlotCopy:
        """Start an H2D copy of a matrix, or with `out` a D2H copy. `on_device`: address and row stride on the device. `ready`:
        the event to wait for, or None. `done`: for H2D, the event to record after the copy; else None."""
        (row_bytes, column_bytes), item, (address_there, pitch) = host.strides, host.itemsize, on_device
        column_bytes = item if host.shape[1] == 1 else column_bytes
        events = (None if each is None else each.ptr for each in (ready, done))
        matrix = _Matrix(host.ctypes.data, address_there, *host.shape, item, row_bytes, column_bytes, pitch, *events)
        address = self._library.copy(self.address, out, ctypes.byref(matrix))
        if not address:
            raise MemoryError("no thread can be started for copies")
        made = SlotCopy(self, address, done)
        self._running.append((made, (host, ready)))
        return made

    def populate(self, array: np.ndarray) -> None:
        """Prefault the pages of an array that will be written, in the background."""
        lo, hi = map(int, np.lib.array_utils.byte_bounds(array))
        self._library.populate(self.address, lo, hi - lo)

    def settle(self) -> None:
        """Wait until all H2D copies are enqueued and all D2H copies are complete. When this returns, no thread reads or writes
        host memory."""
        for each, _ in self._running:
            each.wait_until_reached()
        self._library.settle(self.address)
        self._running.clear()

    def give_up(self) -> None:
        """Cancel all copies. When this returns, no thread reads or writes host memory."""
        with self._workers.context:
            self._library.give_up(self.address)
        self._running.clear()


def slot_copies(gpu: int, context: GpuContext, stream: int, threads: int, links: int) -> SlotCopies:
    """A device's copies through slots, by at most `threads` threads per direction. `context` must be current. `links`: the number
    of GPUs that this node's ranks copy to. DeviceUnavailable if no memory can be pinned."""
    spare_cores()
    each = max(1, min(_MOST_THREADS.get(links, _MOST_THREADS_OF_MANY), threads * 4 // 5))
    workers = _workers.get(gpu)
    if workers is None or workers.each < each:
        workers = Workers(gpu, context, each)
    return SlotCopies(workers, stream, each, links)


class SlotCopy:
    """The event of a copy through slots. A D2H copy's is reached when the copy is complete; an H2D copy's when its CUDA event is
    recorded, so that a stream can wait for it."""

    def __init__(self, of: SlotCopies, address: int, done: Any) -> None:
        self._of, self._library, self._address, self._done = of, of._library, address, done
        self.ptr = address + 1  # odd, which tells `event_wait` of SlotCopies that it is no CUDA event

    def __del__(self) -> None:
        self._library.free_transfer(self._address)

    def is_reached(self) -> bool:
        return self._state(0) == 0

    def wait_until_reached(self) -> None:
        while self._state(_PATIENCE) < 0:
            pass

    def _state(self, milliseconds: int) -> int:
        state: int = self._library.reached(self._address, milliseconds)
        if state > 0:
            raise DeviceUnavailable(f"a copy from or to the device failed (CUDA error {state})", code="gpu-failed")
        return state

    def recorded(self) -> Any:
        """Wait until it is reached. Returns an H2D copy's CUDA event; None for a D2H copy, which is complete."""
        self.wait_until_reached()
        return self._done

    def announce(self, ipc_event: Any, flag: int, value: int) -> None:
        """Record this IPC event after the copy, and then set the flag at this address to `value`, in the background."""
        if status := self._library.announce(self._address, ipc_event.ptr, flag, value):
            raise DeviceUnavailable(f"a copy from or to the device failed (CUDA error {status})", code="gpu-failed")

    def times(self) -> tuple[float, float]:
        """When it began, and when a D2H copy ended."""
        begun, ended = ctypes.c_double(), ctypes.c_double()
        self._library.times(self._address, ctypes.byref(begun), ctypes.byref(ended))
        return begun.value, ended.value
