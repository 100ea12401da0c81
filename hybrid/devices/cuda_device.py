"""One CUDA GPU at work: streams for copies in, exchanges, multiplications and copies out, ordered by events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain, cycle
from typing import Any

from hybrid.core.problem import padded
from hybrid.core.spans import Span
from hybrid.core.text import readable
from hybrid.devices.base import Event, Work
from hybrid.devices.cuda_events import OpenedEvent, WorkDone
from hybrid.devices.cuda_gpus import Gpu
from hybrid.devices.cuda_kernels import OwnKernel, multiplication
from hybrid.devices.nccl import NcclCommunicator, unique_id
from hybrid.devices.nccl_library import load_nccl
from hybrid.devices.pinned_memory import pinned_memory
from hybrid.errors import DeviceUnavailable, DoesNotFit, one_line
from hybrid.kernels.catalogue import Kernel

_DONE, _NOT_READY = 0, 600  # what CUDA answers about an event
_REACHED_ALREADY = 704
# Strips overlap on two streams, so that the multiprocessors a strip's last tiles leave idle take up the next strip's.
_STREAMS = {"copy in": 1, "exchange": 4, "multiply": 2, "copy out": 1}
_URGENT = -1  # a stream's priority; others have 0


class CudaDevice:
    """One GPU; buffers are CuPy arrays."""

    name = "cuda"
    staged = True

    def __init__(self, gpu: Gpu) -> None:
        import cupy

        self.gpu = gpu
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._device = cupy.cuda.Device(gpu.index)
        with self._device:
            streams = {phase: [cupy.cuda.Stream(non_blocking=True) for _ in range(count)] for phase, count in _STREAMS.items()}
            # Before tiles that wait for a multiprocessor: the other ranks' GPUs wait for it as well.
            streams["gather rows"] = [cupy.cuda.Stream(non_blocking=True, priority=_URGENT)]
        self._all_streams = [*chain.from_iterable(streams.values())]
        self._streams = {phase: cycle(of_phase) for phase, of_phase in streams.items()}
        self._ipc_events: list[Any] = []
        self._multiplications: dict[tuple[str, str], Any] = {}
        self._multiply: Any = None
        self._timed: list[tuple[str, Any, Any]] = []
        self._awaited: dict[int, set[Event]] = {}  # by a stream's address: a strip depends on many marks, mostly on old ones
        self._begun: list[Any] = []  # when the last strip began
        self._host_zero = 0.0
        self._zero: Any = None

    def take_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        key = (kernel.name, dtype)
        with self._device:
            if key not in self._multiplications:
                self._multiplications[key] = multiplication(kernel, dtype, self.gpu.capability)
            self._multiply = self._multiplications[key]
            if adding and isinstance(self._multiply, OwnKernel):
                self._multiply.make_ready(adds=True)

    def reserve(self, size: int, *, shared: bool) -> Any:
        # Not from CuPy's pool: other processes can open only what CUDA itself handed out.
        make = self._cupy.cuda.Memory if shared else self._cupy.cuda.alloc
        with self._device:
            try:
                return make(max(1, size))
            except self._cupy.cuda.memory.OutOfMemoryError:
                self._cupy.get_default_memory_pool().free_all_blocks()
            try:
                return make(max(1, size))
            except self._cupy.cuda.memory.OutOfMemoryError:
                free = self._runtime.memGetInfo()[0]
        raise DoesNotFit(f"{readable(size)} were promised on {self.gpu.name} {self.gpu.uuid}, but only {readable(free)} are free")

    def matrix(self, memory: Any, offset: int, rows: int, columns: int, dtype: str) -> Any:
        width = padded(columns, self._cupy.dtype(dtype).itemsize)
        pooled = isinstance(memory, self._cupy.cuda.MemoryPointer)
        start = memory + offset if pooled else self._cupy.cuda.MemoryPointer(memory, offset)
        return self._cupy.ndarray((rows, width), dtype, start)[:, :columns]

    def copy_in(self, into: Any, source: Any, after: list[Event]) -> Event:
        return self._do("copy in", after, lambda stream: self._copy(into, source, stream))

    def exchange(self, into: Any, source: Any, after: list[Event]) -> Event:
        return self._do("exchange", after, lambda stream: self._copy(into, source, stream))

    def multiply(self, a: Any, b: Any, c: Any, after: list[Event], *, adding: bool = False) -> Event:
        def launch(stream: Any) -> None:
            with stream:
                self._multiply(a, b, c, adding)

        # Two strips that wait begin in their order: one that overtakes goes home no sooner, for copies keep theirs.
        event = self._do("multiply", [*self._begun, *after], launch)
        self._begun = [event.begin]
        return event

    def copy_out(self, into: Any, source: Any, after: list[Event]) -> Event:
        return self._do("copy out", after, lambda stream: self._copy(into, source, stream))

    def finish(self) -> Work:
        timed, zero, host_zero = self._timed, self._zero, self._host_zero
        self._timed, self._zero, self._begun = [], None, []  # also if the GPU fails now: the next product's are its own
        self._awaited.clear()
        for stream in self._all_streams:
            stream.synchronize()

        def seconds(event: Any) -> float:
            return host_zero + self._cupy.cuda.get_elapsed_time(zero, event) / 1e3

        return ((phase, seconds(begin), seconds(end)) for phase, begin, end in timed)

    def lock(self, array: Any) -> None:
        with self._device:
            if isinstance(array, self._cupy.ndarray):
                self._reach(array.device.id)
            else:
                pinned_memory().lock(array)

    def _reach(self, other: int) -> None:
        """Copy to and from another GPU of this process without a stop in the host's memory, where the wires allow it."""
        if other == self.gpu.index or not self._runtime.deviceCanAccessPeer(self.gpu.index, other):
            return
        try:
            self._runtime.deviceEnablePeerAccess(other)
        except self._runtime.CUDARuntimeError as error:
            if error.status != _REACHED_ALREADY:
                raise

    def poison(self, memory: Any) -> None:
        with self._device:
            self._runtime.memset(memory.ptr, 0xFF, memory.size if hasattr(memory, "size") else memory.mem.size)
            self._device.synchronize()

    def handle(self, memory: Any) -> Any:
        return self._runtime.ipcGetMemHandle(memory.ptr), memory.size

    def open(self, handle: Any) -> Any:
        key, size = handle
        try:
            with self._device:
                address = self._runtime.ipcOpenMemHandle(key)
        except self._runtime.CUDARuntimeError as error:
            raise DeviceUnavailable(f"the memory of another rank's GPU cannot be opened ({one_line(error)})") from None
        return self._cupy.cuda.UnownedMemory(address, size, self, self.gpu.index)

    def close(self, memory: Any) -> None:
        with self._device:
            self._runtime.ipcCloseMemHandle(memory.ptr)

    def make_ipc_events(self, count: int) -> Any:
        with self._device:
            self._ipc_events = [self._cupy.cuda.Event(disable_timing=True, interprocess=True) for _ in range(count)]
            return [self._runtime.ipcGetEventHandle(event.ptr) for event in self._ipc_events]

    def record_ipc_event(self, number: int, event: Event) -> None:
        # On the work's own stream: another would come late, where processes take turns on a GPU.
        with self._device:
            self._ipc_events[number].record(event.stream)

    def done(self, event: Event) -> bool:
        with self._device:
            status = self._runtime.eventQuery(event.ptr)
        if status not in (_DONE, _NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return status == _DONE

    def open_ipc_events(self, handle: Any) -> list[Event]:
        with self._device:
            return [OpenedEvent(self._runtime, key) for key in handle]

    def load_collectives(self) -> None:
        load_nccl()

    def unique_id(self) -> Any:
        with self._device:
            return unique_id()

    def init_communicator(self, unique_id: Any, rank: int, size: int) -> NcclCommunicator:
        with self._device:
            return NcclCommunicator(unique_id, rank, size)

    def gather_rows(self, joined: NcclCommunicator, matrix: Any, rows_of: Sequence[Span], after: list[Event]) -> Event:
        # All on one stream, so that they run in the order in which all ranks hand them over.
        def gather(stream: Any) -> None:
            joined.gather_rows(self._address(matrix), _row_bytes(matrix), rows_of, stream.ptr)

        return self._do("exchange", after, gather, on="gather rows")

    def _do(self, phase: str, after: list[Event], work: Callable[[Any], None], on: str = "") -> Event:
        """`on`: whose streams, if not the phase's."""
        with self._device:  # and the caller's again afterwards
            stream = next(self._streams[on or phase])
            if self._zero is None:
                # Not waited for, which takes longer than a small copy: nothing is under way, so it is reached within
                # microseconds, and only the trace wants to know.
                self._zero = stream.record()
                self._host_zero = time.perf_counter()
            awaited = self._awaited.setdefault(stream.ptr, set())
            for event in after:
                if event not in awaited:
                    stream.wait_event(event)
            awaited.update(after)
            begin = stream.record()
            work(stream)
            end = stream.record()
        self._timed.append((phase, begin, end))
        return WorkDone(begin, end, stream)

    def _copy(self, into: Any, source: Any, stream: Any) -> None:
        assert into.dtype == source.dtype, "copies do not convert"
        rows, columns = source.shape
        if not (rows and columns):
            return
        self._runtime.memcpy2DAsync(
            self._address(into),
            _row_bytes(into),
            self._address(source),
            _row_bytes(source),
            columns * source.itemsize,
            rows,
            self._runtime.memcpyDefault,
            stream.ptr,
        )

    def _address(self, array: Any) -> int:
        return array.data.ptr if isinstance(array, self._cupy.ndarray) else array.ctypes.data


def _row_bytes(array: Any) -> int:
    """From row to row; NumPy gives a matrix of one row any stride."""
    rows, columns = array.shape
    return array.strides[0] if rows > 1 else columns * array.itemsize
