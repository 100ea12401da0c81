# SPDX-License-Identifier: MIT
"""A CUDA GPU as a device: streams for copies in, exchanges, multiplications and copies out, ordered by events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, cycle
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hybrid.core.problem import Span, is_aligned, padded, pieces
from hybrid.core.text import readable
from hybrid.devices import row_sums, staging
from hybrid.devices.base import Device, Event, EventWait, KernelCall, Timings, phase_of, place_of, row_stride
from hybrid.devices.cuda_gpus import (
    GpuContext,
    enable_peer_access,
    gpu_context,
    owner_of,
    pinned_memory,
    use_context_of,
)
from hybrid.devices.cuda_kernels import CompiledKernel, CompiledKernels, Multiply, Together, multiplication
from hybrid.devices.staging import SlotCopies, SlotCopy, slot_copies
from hybrid.errors import DeviceUnavailable, DoesNotFit, one_line
from hybrid.host.blas import some_matrices
from hybrid.kernels.catalogue import Kernel, Launch
from hybrid.planning.decision import Gpu
from hybrid.ranks.shared_memory import NodeFlags

Result = TypeVar("Result")

_SUCCESS, _NOT_READY = 0, 600  # of cudaError_t
# The number of streams of each queue, and their priority (lower numbers are scheduled first). Multiplications use two streams, so
# that the last wave of one kernel overlaps with the next kernel. NCCL's kernels have a higher priority than multiplications,
# because other ranks' GPUs wait for them; so have "prepare", for whose results of the next tile the host waits, and transposes of
# copied panels, which later multiplications need. The check has a lower one. A·(B·x), on "check beside", is compute-bound and
# overlaps with the memory-bound sums on "check".
_STREAMS = {
    "copy in": (1, -3), "transpose": (1, -3), "arrivals": (1, -3), "exchange": (4, 0), "multiply": (2, -2), "products": (1, -2),
    "copy out": (1, 0), "copy received": (1, 0), "check": (1, -1), "check beside": (1, 0), "nccl": (1, -3), "prepare": (1, -3),
}  # fmt: skip
# Bytes transposed at a time: both halves fit into the L2 cache, and reach the link's full rate.
_TRANSPOSED_BYTES, _LEAST_TRANSPOSED_BYTES = 16 << 20, 1 << 20


class RecordedEvent:
    """An event recorded on a stream after an operation, for Stream.wait_event.

    Its destructor enters the GPU's context, because any thread may drop the last reference. In a thread without a context,
    cudaEventDestroy creates one on GPU 0, as most of CUDA's runtime does. That takes a quarter of a second and memory of a GPU
    that other ranks use; processes that ended meanwhile were killed by SIGSEGV.
    """

    __slots__ = ("_context", "_event", "ptr", "stream")

    def __init__(self, context: GpuContext, event: Any, stream: Any) -> None:
        self._context, self._event, self.stream = context, event, stream
        self.ptr = event.ptr

    def __del__(self) -> None:
        if self._context.is_current():
            return  # the context manager would take longer than all the rest
        with self._context:
            del self._event, self.stream  # CuPy destroys each with its last reference

    def synchronize(self) -> None:
        self._event.synchronize()

    def record(self) -> None:
        """Record it again, after all that is on its stream now."""
        self._event.record(self.stream)


class OpenedEvent:
    """Another process's interprocess event, for Stream.wait_event, destroyed in its GPU's context."""

    def __init__(self, context: GpuContext, runtime: Any, handle: Any) -> None:
        self._context, self._runtime = context, runtime
        self.ptr = 0
        self.ptr = runtime.ipcOpenEventHandle(handle)

    def __del__(self) -> None:
        if self.ptr:
            with self._context:
                self._runtime.eventDestroy(self.ptr)


def event_wait() -> EventWait:
    """The EventWait of the current CUDA context."""
    driver = staging.driver_in_context()
    return EventWait(driver.enter, driver.context, driver.wait)


def is_transposed(matrix: Any) -> bool:
    """Whether columns are contiguous, and not rows (Fortran order)."""
    rows, columns = matrix.shape
    return columns > 1 and matrix.strides[1] != matrix.itemsize and (rows == 1 or matrix.strides[0] == matrix.itemsize)


def _make_wait(stream: Any, event: Event) -> None:
    recorded = event.recorded() if isinstance(event, SlotCopy) else event
    if recorded is not None:
        stream.wait_event(recorded)


class _Operation(NamedTuple):
    """An operation on a stream, after the events in `after`."""

    stream: Any
    after: Sequence[RecordedEvent]
    enqueue: Callable[[Any], None]
    end: RecordedEvent | None  # None: nothing waits for it


def _with_least_waits(recording: Sequence[_Operation]) -> Sequence[_Operation]:
    """The same operations, without waits for their own stream and duplicate ones, and without events that nothing waits for."""
    waits = [[event for event in dict.fromkeys(each.after) if event.stream.ptr != each.stream.ptr] for each in recording]
    awaited = {event for events in waits for event in events}
    return [
        each._replace(after=events, end=each.end if each.end in awaited else None)
        for each, events in zip(recording, waits, strict=True)
    ]


class CudaDevice(Device):
    """One GPU. Matrices are CuPy arrays, or NumPy arrays in host memory.

    There are no reference cycles, so its streams and memory are freed with its last reference, by any thread, in its context.
    """

    name = "cuda"
    staged = True

    def __init__(self, gpu: Gpu) -> None:
        import cupy

        for library in (staging.copier, row_sums.adder):
            library()  # starts compiling, once per machine, and loading in the background
        self.gpu, self.capability, self._context = gpu, gpu.capability, gpu_context(gpu.index)
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        with self._context:
            streams = {
                queue: [cupy.cuda.Stream(non_blocking=True, priority=priority) for _ in range(count)]
                for queue, (count, priority) in _STREAMS.items()
            }
            self.event_wait = event_wait()
        self._all_streams = [*chain.from_iterable(streams.values())]
        self._streams = {queue: cycle(of_queue) for queue, of_queue in streams.items()}
        self._ipc_events: list[Any] = []
        self._multiplications: dict[tuple[str, str], Multiply] = {}  # by kernel and type
        self._multiply: Multiply
        self._kernels = CompiledKernels(gpu.capability)  # outside the catalogue
        # The two staging buffers of `_copy_transposed`, alternating, each with two events: it is filled, it is free again.
        self._transposing: Iterator[tuple[Any, Any, Any]] = iter(())
        self._transposing_bytes = 0  # of each
        self._slot_owners: set[int] = set()  # ids of the arrays whose memory is copied through slots
        self._slot_copies: SlotCopies | None = None  # made at first use
        self.timed = True  # without times, fewer events are recorded
        self._timed: list[tuple[str, Any, Any]] = []  # phase, begin event (None for copies through slots), end event
        # By stream pointer, the events that it waits for already: most that a tile depends on are those of the tile before.
        self._awaited: dict[int, set[Event]] = {}
        self._used: dict[int, Any] = {}  # by pointer, the streams with operations since the last `finish`
        self._recording: list[_Operation] | None = None  # for `recorded`
        self._time_origin: Any = None  # an event, recorded at _host_time_origin
        self._host_time_origin = 0.0

    def __del__(self) -> None:
        context = self.__dict__.get("_context")
        if context is not None:  # else __init__ failed before it made anything
            with context:
                self.__dict__.clear()

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        key = (kernel.name, dtype)
        with self._context:
            if key not in self._multiplications:
                self._multiplications[key] = multiplication(kernel, dtype, self.capability)
            self._multiply = self._multiplications[key]
            if adding and isinstance(self._multiply, CompiledKernel):
                self._multiply.compile_ahead(adds=True)

    def holds(self, array: Any) -> bool:
        if not isinstance(array, self._cupy.ndarray) or array.device.id != self.gpu.index:
            return False
        return is_aligned(array.data.ptr, array.strides[0])

    def reserve(self, size: int, *, shared: bool) -> Any:
        # An IPC handle covers a whole cudaMalloc allocation, so shared memory must not come from CuPy's pool.
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

    def poison(self, memory: Any) -> None:
        with self._context:
            self._runtime.memset(memory.ptr, 0xFF, memory.size if hasattr(memory, "size") else memory.mem.size)
            self._runtime.deviceSynchronize()

    def pin(self, array: Any) -> None:
        with self._context:
            if isinstance(array, self._cupy.ndarray):
                enable_peer_access(self.gpu.index, array.device.id)
            else:
                pinned_memory.pin(array)

    def pin_again(self, arrays: Sequence[np.ndarray], threads: int) -> list[np.ndarray]:
        with self._context:
            no_slots = staging.copier().loaded is None or threads < staging.LEAST_THREADS
            others = pinned_memory.pin_again(arrays, at_once=no_slots)
        return [array for array in others if array.nbytes >= staging.LEAST_STAGED and not no_slots]

    def use_slots(self, arrays: Sequence[np.ndarray], threads: int, links: int) -> bool:
        self._slot_owners = {id(owner_of(array)) for array in arrays}
        if arrays and self._slot_copies is None:
            with self._context:
                try:
                    stream = next(self._streams["arrivals"]).ptr
                    self._slot_copies = slot_copies(self.gpu.index, self._context, stream, threads, links)
                except DeviceUnavailable:  # no memory can be pinned: PinnedMemory has warned
                    self._slot_owners = set()
                    return False
            self.event_wait = self._slot_copies.event_wait
        return True

    def populate(self, array: np.ndarray) -> None:
        if self._slot_copies is not None and self._uses_slots(array):
            self._slot_copies.populate(array)

    def give_up(self) -> None:
        if self._slot_copies is not None:
            self._slot_copies.give_up()

    def copy_in(self, into: Any, source: Any, after: list[Event]) -> Event:
        if self._uses_slots(source):
            return self._copy_through_slots("copy in", source, into, after)
        if is_transposed(source):
            return self.enqueue("copy in", after, lambda stream: self._copy_transposed(into, source, stream), "transpose")
        return self.enqueue("copy in", after, lambda stream: self._copy(into, source, stream))

    def exchange(self, into: Any, source: Any, after: list[Event]) -> Event:
        return self.enqueue("exchange", after, lambda stream: self._copy(into, source, stream))

    def multiply(self, a: Any, b: Any, c: Any, after: list[Event], *, adding: bool = False) -> Event:
        with self._context:
            multiply = self._multiply.prepared(a, b, c, adding)
        return self.enqueue("multiply", after, multiply)

    def mirror(self, into: Any, source: Any, after: list[Event]) -> Event:
        cupy = self._cupy

        def work(stream: Any) -> None:
            with stream:  # also for temporary arrays
                if into is source:
                    numbers = cupy.arange(len(into))
                    cupy.copyto(into, into.T, where=numbers[:, None] < numbers)
                else:
                    cupy.copyto(into, source.T)

        return self.enqueue("multiply", after, work, "exchange")

    def copy_out(self, into: Any, source: Any, after: list[Event]) -> Event:
        if self._uses_slots(into):
            return self._copy_through_slots("copy out", into, source, after)
        return self.enqueue("copy out", after, lambda stream: self._copy(into, source, stream))

    def copy_received(self, into: Any, source: Any, after: list[Event]) -> Event:
        """Copy to host memory what NCCL received, on a stream of its own: `copy_out`'s stream waits for multiplications."""
        if self._uses_slots(into):
            return self._copy_through_slots("copy out", into, source, after)
        return self.enqueue("copy out", after, lambda stream: self._copy(into, source, stream), streams="copy received")

    def empty(self, shape: tuple[int, int], dtype: str) -> Any:
        with self._context:
            return self._cupy.empty(shape, dtype)

    def write(self, into: Any, values: np.ndarray) -> None:
        with self._context:
            into.set(values)
            # A copy from pageable memory may return before it is complete, and our streams do not wait for CuPy's.
            self._cupy.cuda.get_current_stream().synchronize()

    def read(self, matrix: Any) -> np.ndarray:
        with self._context:
            return self._cupy.asnumpy(matrix)

    def wait(self, event: Event) -> None:
        recorded = event.recorded() if isinstance(event, SlotCopy) else event
        if recorded is not None:
            with self._context:
                recorded.synchronize()

    def have_caller_follow(self, events: Sequence[Event]) -> None:
        """Make CuPy's current stream wait for these events."""
        with self._context:
            for event in events:
                _make_wait(self._cupy.cuda.get_current_stream(), event)

    def done(self, event: Event) -> bool:
        if isinstance(event, SlotCopy):
            if not event.is_reached():
                return False
            event = event.recorded()
            if event is None:
                return True
        with self._context:
            status = self._runtime.eventQuery(event.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return status == _SUCCESS

    def finish(self) -> Timings:
        timed, origin, host_origin = self._timed, self._time_origin, self._host_time_origin
        # Reset before anything below can raise: the next product must not see this one's events.
        self._timed, self._time_origin = [], None
        self._awaited.clear()
        if self._slot_copies is not None:
            self._slot_copies.settle()
        # Wait for all streams by one call: after each call, this thread may wait for the GIL, which the check's threads take.
        with self._context:
            *others, last = self._used.values() or self._all_streams[:1]
            for stream in others:
                last.wait_event(stream.record())
            last.synchronize()
        self._used.clear()

        def seconds(event: Any) -> float:
            with self._context:
                return host_origin + self._cupy.cuda.get_elapsed_time(origin, event) / 1e3

        def interval(begin: Any, end: Any) -> tuple[float, float]:
            if not isinstance(end, SlotCopy):
                return seconds(begin), seconds(end)
            first, last = end.times()
            return first, last if end.recorded() is None else seconds(end.recorded())

        return ((phase, *interval(begin, end)) for phase, begin, end in timed)

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

    def record_ipc_event(self, number: int, event: Event, flags: NodeFlags, flag: int) -> None:
        # On the operation's own stream: if processes share a GPU, an event on another stream, which waits for the operation, is
        # recorded only in this process's next time slice.
        with self._context:
            if isinstance(event, SlotCopy):
                event.announce(self._ipc_events[number], *flags.place_of(flag))
                return
            self._ipc_events[number].record(event.stream)
        flags.set_flag(flag)

    def open_ipc_events(self, handle: Any) -> list[Event]:
        with self._context:
            return [OpenedEvent(self._context, self._runtime, event_handle) for event_handle in handle]

    @cached_property
    def multiprocessors(self) -> int:  # type: ignore[override]
        return int(self._cupy.cuda.Device(self.gpu.index).attributes["MultiProcessorCount"])

    def compile_ahead(self, launches: Sequence[Launch]) -> None:
        with self._context:
            self._kernels.compile_ahead(launches)

    def kernel(self, launch: Launch, arguments: Sequence[Any]) -> KernelCall:
        with self._context:
            return self._kernels.prepared(launch, arguments)

    def clearing(self, matrix: Any, byte: int) -> KernelCall:
        if not matrix.size:
            return lambda stream: None
        memset = self._runtime.memsetAsync
        return lambda stream: memset(matrix.data.ptr, byte, matrix.nbytes, stream.ptr)

    def uploading(self, matrix: Any, host: np.ndarray) -> KernelCall:
        copy, how = self._runtime.memcpyAsync, self._runtime.memcpyHostToDevice
        return lambda stream: copy(matrix.data.ptr, host.ctypes.data, matrix.nbytes, how, stream.ptr)

    def downloading(self, matrix: Any, host: np.ndarray) -> KernelCall:
        if not matrix.size:
            return lambda stream: None
        copy, how = self._runtime.memcpyAsync, self._runtime.memcpyDeviceToHost
        return lambda stream: copy(host.ctypes.data, matrix.data.ptr, matrix.nbytes, how, stream.ptr)

    def together(self, calls: Sequence[KernelCall]) -> KernelCall:
        return Together(calls)

    def host_memory(self, shape: tuple[int, int], dtype: str) -> np.ndarray:
        size = shape[0] * shape[1]
        with self._context:
            pinned = self._cupy.cuda.alloc_pinned_memory(max(1, size * np.dtype(dtype).itemsize))
        return np.frombuffer(pinned, dtype, size).reshape(shape)

    def launch(self, calls: Sequence[KernelCall], after: list[Event], queue: str) -> Event:
        def launch(stream: Any) -> None:
            for call in calls:
                call(stream)

        return self.enqueue(phase_of(queue), after, launch, queue)

    def enqueue(self, phase: str, after: list[Event], enqueue: Callable[[Any], None], streams: str = "") -> Event:
        """Enqueue an operation after these events, on the next stream of the queue `streams`, by default that named like its
        phase."""
        with self._context:
            stream = next(self._streams[streams or phase])
            self._wait_for(stream, after)
            begin = stream.record() if self.timed else None
            enqueue(stream)
            end = RecordedEvent(self._context, stream.record(), stream)
        if self.timed:
            self._timed.append((phase, begin, end))
        if self._recording is not None:
            self._recording.append(_Operation(stream, after, enqueue, end))
        return end

    def recorded(self, run: Callable[[], Result]) -> tuple[Result, Sequence[_Operation]]:
        """The result of `run`, and the operations that it enqueues, for `enqueue_again`."""
        recording = self._recording = []
        try:
            result = run()
        finally:
            self._recording = None
        return result, _with_least_waits(recording)

    def enqueue_again(self, recording: Sequence[_Operation]) -> None:
        """Enqueue the same operations in the same order on the same streams, untimed."""
        with self._context:
            for each in recording:
                stream = self._used[each.stream.ptr] = each.stream
                for event in each.after:
                    stream.wait_event(event)
                each.enqueue(stream)
                if each.end is not None:
                    each.end.record()

    def _wait_for(self, stream: Any, after: list[Event]) -> None:
        """Make a stream that gets an operation wait for these events."""
        if self.timed and self._time_origin is None:
            # Without synchronizing, which takes longer than a small copy: an idle GPU records the event within microseconds,
            # and only the timeline of phases depends on it.
            self._time_origin = stream.record()
            self._host_time_origin = time.perf_counter()
        awaited = self._awaited.setdefault(stream.ptr, set())
        for event in after:
            if event not in awaited:
                _make_wait(stream, event)
        awaited.update(after)
        self._used[stream.ptr] = stream

    def _uses_slots(self, array: Any) -> bool:
        """Whether this array, or the one that it is a view of, was given to `use_slots`."""
        if not self._slot_owners or isinstance(array, self._cupy.ndarray) or not array.size:
            return False
        return id(owner_of(array)) in self._slot_owners

    def _copy_through_slots(self, phase: str, host: np.ndarray, on_device: Any, after: list[Event]) -> Event:
        """Copy a matrix by threads: H2D if the phase is "copy in", else D2H."""
        assert host.dtype == on_device.dtype, "copies do not convert"
        assert self._slot_copies is not None
        with self._context:
            stream = next(self._streams["arrivals" if phase == "copy in" else phase])
            self._wait_for(stream, after)
            ready = RecordedEvent(self._context, stream.record(), stream) if after else None
            done = RecordedEvent(self._context, self._cupy.cuda.Event(), stream) if phase == "copy in" else None
            place = place_of(on_device)[0], row_stride(on_device)
            event = self._slot_copies.copy(host, place, ready, done, out=phase == "copy out")
        self._timed.append((phase, None, event))
        return event

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

    def _copy_transposed(self, into: Any, source: Any, stream: Any) -> None:
        """Copy a matrix in Fortran order: the "copy in" stream copies a part as it is stored to a staging buffer, and `stream`
        transposes it. Double buffering overlaps both, since a transpose may wait for SMs that multiply."""
        stored, copies = source.T, next(self._streams["copy in"])
        rows, columns = stored.shape
        if not stored.size:
            return
        self._used[copies.ptr] = copies
        row_bytes = columns * stored.itemsize
        self._reserve_transposing(row_bytes, rows * row_bytes, stream)
        for part in pieces(Span(0, rows), max(1, self._transposing_bytes // row_bytes)):
            memory, filled, free = next(self._transposing)
            arrived = self._cupy.ndarray((len(part), columns), stored.dtype, memory)
            copies.wait_event(free)
            self._copy(arrived, stored[part.slice], copies)
            filled.record(copies)
            stream.wait_event(filled)
            with stream:
                self._cupy.copyto(into[:, part.slice], arrived.T)
            free.record(stream)

    def _reserve_transposing(self, least: int, wanted: int, stream: Any) -> None:
        """Grow the staging buffers to `wanted` bytes each, capped at _TRANSPOSED_BYTES. If the GPU has too little memory, keep
        buffers of at least `least` bytes, or allocate small ones."""
        size = padded(max(least, min(_TRANSPOSED_BYTES, wanted)), 1)  # aligns elements of any type in both buffers
        if size <= self._transposing_bytes:
            return
        if self._transposing_bytes:
            stream.synchronize()  # the buffers are freed below, and others may use their memory at once
        try:
            memory = self.reserve(2 * size, shared=False)
        except DoesNotFit:
            if least <= self._transposing_bytes:
                return
            size = padded(max(least, min(size, _LEAST_TRANSPOSED_BYTES)), 1)
            memory = self.reserve(2 * size, shared=False)
        event = partial(self._cupy.cuda.Event, disable_timing=True)
        self._transposing = cycle([(memory + half, event(), event()) for half in (0, size)])
        self._transposing_bytes = size


def multiply_on_gpu(gpu: Gpu, a: np.ndarray, b: np.ndarray, c: np.ndarray, most_bytes: int) -> None:
    """As `blas_stack`, for as many products at a time as fit. `most_bytes`: of GPU memory to use; 0: all that is free."""
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
