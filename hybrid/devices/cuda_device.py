# SPDX-License-Identifier: MIT
"""A CUDA GPU as a device: streams for copies in, exchanges, multiplications and copies out, ordered by events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cached_property
from itertools import chain, cycle
from typing import Any
from weakref import proxy

import numpy as np

from hybrid.core.problem import is_aligned, padded
from hybrid.core.spans import Span, pieces
from hybrid.core.text import readable
from hybrid.devices.base import Event, EventWait, Timings, place_of, row_stride
from hybrid.devices.cpu import some_matrices
from hybrid.devices.cuda_check import CudaCheckOperations
from hybrid.devices.cuda_gpus import Gpu, GpuContext, enable_peer_access, gpu_context, load_driver, pinned_memory, use_context_of
from hybrid.devices.cuda_kernels import CompiledKernel, CudaQueues, multiplication
from hybrid.errors import DeviceUnavailable, DoesNotFit, one_line
from hybrid.kernels.catalogue import Kernel

# -------- cuda events
# CUDA events that streams wait for: recorded by this process, or opened by IPC handle from another.


class RecordedEvent:
    """The event that was recorded in a stream after an operation, to be given to Stream.wait_event.

    Any thread may drop the last reference to it, also one without a CUDA context: the event is destroyed in its GPU's. In a
    thread without one, cudaEventDestroy creates a context on GPU 0, as most of CUDA's runtime does. That takes a quarter of a
    second and memory of a GPU that other ranks use; and where a process ended meanwhile, it was killed by SIGSEGV.
    """

    __slots__ = ("_context", "_event", "ptr", "stream")

    def __init__(self, context: GpuContext, event: Any, stream: Any) -> None:
        self._context, self._event, self.stream = context, event, stream
        self.ptr = event.ptr

    def __del__(self) -> None:
        if self._context.is_current():
            return  # without the context manager, which would take longer than all the rest
        with self._context:
            del self._event, self.stream  # CuPy destroys each of them with the last reference to it

    def synchronize(self) -> None:
        self._event.synchronize()


class OpenedEvent:
    """Another process's interprocess event, to be given to Stream.wait_event. It is destroyed as a RecordedEvent is."""

    def __init__(self, context: GpuContext, runtime: Any, handle: Any) -> None:
        self._context, self._runtime = context, runtime
        self.ptr = 0
        self.ptr = runtime.ipcOpenEventHandle(handle)

    def __del__(self) -> None:
        if self.ptr:
            with self._context:
                self._runtime.eventDestroy(self.ptr)


def event_wait() -> EventWait | None:
    """How threads that are not Python's wait for events in the current CUDA context. None where there is none."""
    driver, context = load_driver(), ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) or not context.value:
        return None
    set_current, synchronize = (
        ctypes.cast(each, ctypes.c_void_p).value for each in (driver.cuCtxSetCurrent, driver.cuEventSynchronize)
    )
    assert set_current
    assert synchronize
    return EventWait(set_current, context.value, synchronize)


# -------- cuda ipc
# What other processes of the node can open of a GPU, by CUDA IPC: its memory and events.


class CudaIpc:
    """The part of `CudaDevice` that is for other processes."""

    def __init__(self, cupy: Any, gpu: Gpu) -> None:
        self.gpu, self._context = gpu, gpu_context(gpu.index)
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._ipc_events: list[Any] = []

    def handle(self, memory: Any) -> Any:
        return self._runtime.ipcGetMemHandle(memory.ptr), memory.size

    def open(self, handle: Any) -> Any:
        memory_handle, size = handle
        try:
            with self._context:
                address = self._runtime.ipcOpenMemHandle(memory_handle)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceUnavailable(
                f"the memory of another rank's GPU cannot be opened ({one_line(error)})", code="gpu-peers"
            ) from None
        return self._cupy.cuda.UnownedMemory(address, size, self, self.gpu.index)

    def close(self, memory: Any) -> None:
        with self._context:
            self._runtime.ipcCloseMemHandle(memory.ptr)

    def make_ipc_events(self, count: int) -> Any:
        with self._context:
            self._ipc_events = [self._cupy.cuda.Event(disable_timing=True, interprocess=True) for _ in range(count)]
            return [self._runtime.ipcGetEventHandle(event.ptr) for event in self._ipc_events]

    def record_ipc_event(self, number: int, event: Event) -> None:
        # On the operation's own stream. On another stream that waits for it, the event would be recorded only in this process's
        # next time slice where several processes share a GPU.
        with self._context:
            self._ipc_events[number].record(event.stream)

    def open_ipc_events(self, handle: Any) -> list[Event]:
        with self._context:
            return [OpenedEvent(self._context, self._runtime, event_handle) for event_handle in handle]


# -------- cuda transposed
# Copies of transposed matrices to a GPU: rows are copied as they lie in memory, and transposed on the GPU.

_BYTES_AT_ONCE = 32 << 20  # transposed: they stay in a GPU's second-level cache, and are enough for the link's full rate
_LEAST_BYTES = 1 << 20


def is_transposed(matrix: Any) -> bool:
    """Whether neighbours in memory are neighbours in a column, and not in a row (Fortran's order)."""
    rows, columns = matrix.shape
    return columns > 1 and matrix.strides[1] != matrix.itemsize and (rows == 1 or matrix.strides[0] == matrix.itemsize)


class TransposedCopies:
    """Copies transposed matrices to one GPU, through memory there that is kept from copy to copy."""

    def __init__(self, cupy: Any, reserve: Callable[[int], Any], copy: Callable[[Any, Any, Any], None]) -> None:
        """`reserve(size)`: allocates memory on the GPU, or raises DoesNotFit. `copy(into, source, stream)`: enqueues a copy of a
        matrix whose rows are contiguous."""
        self._cupy, self._reserve, self._copy = cupy, reserve, copy
        self._memory: Any = None
        self._size = 0

    def copy(self, into: Any, source: Any, stream: Any) -> None:
        """Enqueue a copy. All must be on the same stream, since each uses the memory in between again."""
        stored = source.T
        rows, columns = stored.shape
        if not stored.size:
            return
        row_bytes = columns * stored.itemsize
        for part in pieces(Span(0, rows), max(1, self._room(row_bytes, rows * row_bytes, stream) // row_bytes)):
            arrived = self._cupy.ndarray((len(part), columns), stored.dtype, self._memory)
            self._copy(arrived, stored[part.slice], stream)
            with stream:
                self._cupy.copyto(into[:, part.slice], arrived.T)

    def _room(self, least: int, wanted: int, stream: Any) -> int:
        """How many bytes of memory in between there are: as many as are wanted, up to _BYTES_AT_ONCE, or fewer where the GPU has
        no more, but at least `least`."""
        size = max(least, min(_BYTES_AT_ONCE, wanted))
        if 0 < self._size < size:
            stream.synchronize()  # the memory is about to be freed, and may be used by others at once
        while self._size < size:
            try:
                self._memory, self._size = self._reserve(size), size
            except DoesNotFit:
                if self._size >= least:
                    break
                if size <= max(least, _LEAST_BYTES):
                    raise
                size = max(least, size // 4)
        return self._size


_SUCCESS, _NOT_READY = 0, 600  # of cudaError_t
# Multiplications use two streams: while a kernel's last wave leaves SMs idle, they start thread blocks of the next kernel.
_STREAMS = {
    "copy in": 1,
    "exchange": 4,
    "multiply": 2,
    "products": 1,
    "copy out": 1,
    "copy received": 1,
    "check": 1,
    "check beside": 1,
    "nccl": 1,
    "prepare": 1,
}
# Thread blocks of a stream with a lower number are started first. NCCL's kernels come before multiplications, because the other
# ranks' GPUs wait for them, too. So do the kernels of "prepare", for whose results of the next tile the host waits, and those
# that transpose what was copied in, for which later multiplications wait. The check's get the SMs that multiplications leave.
# A·(B·x) is limited by the matrix units, so it runs beside the sums, which are limited by memory.
_PRIORITIES = {"nccl": -3, "prepare": -3, "copy in": -3, "multiply": -2, "products": -2, "check": -1}


class CudaDevice(CudaIpc):
    """One GPU. Matrices are CuPy arrays, or NumPy arrays in host memory.

    What it keeps refers to it weakly: so its streams and memory are freed with the last reference to it, in its context, also by
    a thread that has none, and not whenever the garbage collector finds a cycle.
    """

    name = "cuda"
    staged = True

    def __init__(self, gpu: Gpu) -> None:
        import cupy

        super().__init__(cupy, gpu)
        with self._context:
            streams = {
                phase: [cupy.cuda.Stream(non_blocking=True, priority=_PRIORITIES.get(phase, 0)) for _ in range(count)]
                for phase, count in _STREAMS.items()
            }
            self.event_wait = event_wait()
        self._all_streams = [*chain.from_iterable(streams.values())]
        self._streams = {phase: cycle(of_phase) for phase, of_phase in streams.items()}
        self._multiplications: dict[tuple[str, str], Any] = {}  # by kernel and type
        self._multiply: Any = None
        self._timed: list[tuple[str, Any, RecordedEvent]] = []  # phase, begin event, end event
        # By stream pointer, the events it waits for already: a tile depends on many, and most are those of the tile before.
        self._awaited: dict[int, set[Event]] = {}
        self._time_origin: Any = None  # an event, recorded when perf_counter was
        self._host_time_origin = 0.0

    def __del__(self) -> None:
        context = self.__dict__.get("_context")
        if context is not None:  # else nothing has been made
            with context:
                self.__dict__.clear()

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        key = (kernel.name, dtype)
        with self._context:
            if key not in self._multiplications:
                self._multiplications[key] = multiplication(kernel, dtype, self.gpu.capability)
            self._multiply = self._multiplications[key]
            if adding and isinstance(self._multiply, CompiledKernel):
                self._multiply.compile_ahead(adds=True)

    def holds(self, array: Any) -> bool:
        if not isinstance(array, self._cupy.ndarray) or array.device.id != self.gpu.index:
            return False
        return is_aligned(array.data.ptr, array.strides[0])

    def reserve(self, size: int, *, shared: bool) -> Any:
        # An IPC handle stands for a whole cudaMalloc allocation, so shared memory must not be a part of one in CuPy's pool.
        allocate = self._cupy.cuda.Memory if shared else self._cupy.cuda.alloc
        with self._context:
            try:
                return allocate(max(1, size))
            except self._cupy.cuda.memory.OutOfMemoryError:
                self._cupy.get_default_memory_pool().free_all_blocks()
            try:
                return allocate(max(1, size))
            except self._cupy.cuda.memory.OutOfMemoryError:
                free = self._runtime.memGetInfo()[0]
        raise DoesNotFit(
            f"{readable(size)} were promised on {self.gpu.name} {self.gpu.uuid}, but only {readable(free)} are free",
            code="gpu-memory",
        )

    def matrix(self, memory: Any, offset: int, rows: int, columns: int, dtype: str) -> Any:
        width = padded(columns, self._cupy.dtype(dtype).itemsize)
        from_pool = isinstance(memory, self._cupy.cuda.MemoryPointer)
        start = memory + offset if from_pool else self._cupy.cuda.MemoryPointer(memory, offset)
        return self._cupy.ndarray((rows, width), dtype, start)[:, :columns]

    def copy_in(self, into: Any, source: Any, after: list[Event]) -> Event:
        copy = self._transposed.copy if is_transposed(source) else self._copy
        return self.enqueue("copy in", after, lambda stream: copy(into, source, stream))

    def exchange(self, into: Any, source: Any, after: list[Event]) -> Event:
        return self.enqueue("exchange", after, lambda stream: self._copy(into, source, stream))

    def multiply(self, a: Any, b: Any, c: Any, after: list[Event], *, adding: bool = False) -> Event:
        def launch(stream: Any) -> None:
            with stream:
                self._multiply(a, b, c, adding)

        return self.enqueue("multiply", after, launch)

    def copy_out(self, into: Any, source: Any, after: list[Event]) -> Event:
        return self.enqueue("copy out", after, lambda stream: self._copy(into, source, stream))

    def copy_received(self, into: Any, source: Any, after: list[Event]) -> Event:
        return self.enqueue("copy out", after, lambda stream: self._copy(into, source, stream), streams="copy received")

    def progress(self) -> object:
        return None  # events tell which operations are complete, but not whether the one under way ever will be

    def finish(self) -> Timings:
        timed, origin, host_origin = self._timed, self._time_origin, self._host_time_origin
        # Reset before anything below can raise: the next product must not find events of this one.
        self._timed, self._time_origin = [], None
        self._awaited.clear()
        # One call waits for all streams: after each, this thread may have to wait for the GIL, which threads of the check use.
        with self._context:
            last, *others = self._all_streams
            for stream in others:
                last.wait_event(stream.record())
            last.synchronize()

        def seconds(event: Any) -> float:
            with self._context:
                return host_origin + self._cupy.cuda.get_elapsed_time(origin, event) / 1e3

        return ((phase, seconds(begin), seconds(end)) for phase, begin, end in timed)

    @cached_property
    def _check_operations(self) -> CudaCheckOperations:
        this, capability = proxy(self), self.gpu.capability
        return CudaCheckOperations(
            self._cupy,
            self._context,
            capability,
            lambda after, launch, streams: this.enqueue("check", [*after], launch, streams),
        )

    def check_operations(self) -> CudaCheckOperations:
        return self._check_operations

    @cached_property
    def _transposed(self) -> TransposedCopies:
        this = proxy(self)
        return TransposedCopies(self._cupy, lambda size: this.reserve(size, shared=False), lambda *copied: this._copy(*copied))

    @cached_property
    def _kernel_queues(self) -> CudaQueues:
        this = proxy(self)
        return CudaQueues(self._cupy, self._context, self.gpu, lambda *work: this.enqueue("multiply", *work))

    def kernel_queues(self) -> CudaQueues:
        return self._kernel_queues

    def wait(self, event: Event) -> None:
        with self._context:
            event.synchronize()

    def pin(self, array: Any) -> None:
        with self._context:
            if isinstance(array, self._cupy.ndarray):
                enable_peer_access(self.gpu.index, array.device.id)
            else:
                pinned_memory().pin(array)

    def poison(self, memory: Any) -> None:
        with self._context:
            self._runtime.memset(memory.ptr, 0xFF, memory.size if hasattr(memory, "size") else memory.mem.size)
            self._runtime.deviceSynchronize()

    def done(self, event: Event) -> bool:
        with self._context:
            status = self._runtime.eventQuery(event.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return status == _SUCCESS

    def enqueue(self, phase: str, after: list[Event], enqueue: Callable[[Any], None], streams: str = "") -> Event:
        """Enqueue an operation of this phase, on the next of its streams or of `streams`, behind the events in `after`."""
        with self._context:
            stream = next(self._streams[streams or phase])
            if self._time_origin is None:
                # Not synchronized, which takes longer than a small copy: the GPU is idle and records it within microseconds,
                # and only the timeline of phases depends on it.
                self._time_origin = stream.record()
                self._host_time_origin = time.perf_counter()
            awaited = self._awaited.setdefault(stream.ptr, set())
            for event in after:
                if event not in awaited:
                    stream.wait_event(event)
            awaited.update(after)
            begin = stream.record()
            enqueue(stream)
            end = RecordedEvent(self._context, stream.record(), stream)
        self._timed.append((phase, begin, end))
        return end

    def _copy(self, into: Any, source: Any, stream: Any) -> None:
        assert into.dtype == source.dtype, "copies do not convert"
        rows, columns = source.shape
        if not (rows and columns):
            return
        self._runtime.memcpy2DAsync(
            place_of(into)[0],
            row_stride(into),
            place_of(source)[0],
            row_stride(source),
            columns * source.itemsize,
            rows,
            self._runtime.memcpyDefault,
            stream.ptr,
        )


def multiply_on_gpu(gpu: Gpu, a: np.ndarray, b: np.ndarray, c: np.ndarray, most_bytes: int) -> None:
    """As `multiply_on_cpu`, for as many products at a time as have room. `most_bytes`: of the GPU's memory that may be used; 0:
    all that is free."""
    import cupy

    use_context_of(gpu)
    with gpu_context(gpu.index):
        pool = cupy.get_default_memory_pool()
        free = cupy.cuda.runtime.memGetInfo()[0] + pool.free_bytes()
        room = min(most_bytes or free, free - free // 8)
        shared = sum(each.nbytes for each in (a, b) if len(each) == 1)
        each = sum(matrix[0].nbytes for matrix in (a, b, c) if len(matrix) > 1 or matrix is c)
        at_once = (room - shared) // max(1, each)
        if at_once < 1:
            raise DoesNotFit(
                f"a product of the stack takes {readable(shared + each)} of {gpu.name} {gpu.uuid}, "
                f"where {readable(room)} may be used",
                code="gpu-memory",
            )
        first, second = (cupy.asarray(matrix) if len(matrix) == 1 else None for matrix in (a, b))
        for part in pieces(Span(0, len(c)), at_once):
            on_gpu = [
                cupy.asarray(some_matrices(host, part)) if there is None else there for host, there in ((a, first), (b, second))
            ]
            cupy.matmul(*on_gpu).get(out=c[part.slice])
