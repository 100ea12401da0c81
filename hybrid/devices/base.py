# SPDX-License-Identifier: MIT
"""The interface of a compute device (memory, asynchronous copies, multiplications, events), the CPU, the emulated GPU, and a
rank's buffers on a device."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hybrid.core.problem import WIDEST_COPY, Problem, Span, copy_width, is_aligned, padded
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.host.blas import add_by_blas, blas
from hybrid.host.memory import copy_rows
from hybrid.host.threads import threads_allowed
from hybrid.kernels.catalogue import C_TYPES, EMULATED_CAPABILITY, KERNELS, OPERAND_SIZES, Kernel, Launch, launch_of, storage
from hybrid.planning.schedule import Arrival, RankShare, Region, Tile
from hybrid.ranks.shared_memory import NodeFlags

if TYPE_CHECKING:
    from hybrid.emulation.kernel import EmulatedKernel

# (phase, begin, end) of each operation, in seconds of this process's perf_counter. On a GPU, iterating reads the times from
# events, so iterate outside of timed sections.
Timings = Iterable[tuple[str, float, float]]
# Marks the end of an operation, as a CUDA event does: operations that get it in `after` start only then.
Event = Any
# Enqueues one kernel, memset or small copy on the given stream. It may be called any number of times.
KernelCall = Callable[[Any], None]


class EventWait(ctypes.Structure):
    """C functions by which threads of our C libraries wait for events of a device; they return 0 or an error (pool.h).

    `enter(context)` is called first, then `wait(event.ptr)`, which returns when the event is complete.
    """

    _fields_: ClassVar[Any] = [(name, ctypes.c_void_p) for name in ("enter", "context", "wait")]


# Without fused multiply-adds, every product and every sum is rounded, so the result is the same on all machines.
_FLAGS = ("-std=c99", "-O3", "-ffp-contract=off")
_AT_ONCE = 100_000_000  # multiply-adds per call, about a tenth of a second: Python handles signals only between calls


@cache
def compiled_loops(name: str, dtype: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """The function `name` of kernels/loops.c, which computes c = a · b by three loops on one thread, as a baseline.
    DeviceUnavailable without a C compiler."""
    from hybrid.emulation.kernel import as_c_array  # most products do not need it

    library = ctypes.CDLL(str(build_plain(c_compiler(), KERNELS / "loops.c", [*_FLAGS, f"-DELEMENT={C_TYPES[dtype]}"])))
    function = library[name]
    function.restype = None

    def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        rows = max(1, _AT_ONCE // max(1, b.size))
        for first in range(0, len(c), rows):
            block = slice(first, first + rows)
            function(*(ctypes.byref(as_c_array(matrix)) for matrix in (a[block], b, c[block])))

    return multiply


class Device:
    """One rank's GPU, or its share of the CPU. This class is the CPU: operations are complete when the call returns, and events
    are None. GPU classes override the methods.

    GPU operations are asynchronous: a call enqueues one and returns its event. H2D copies (`copy_in`) run in the order of the
    calls, and so do D2H copies (`copy_out`), on a stream each; other operations are ordered only by the events in `after`. A
    matrix has contiguous rows and any row stride; copies accept host and device memory.

    With `staged` the CPU copies operands into buffers and checks products as a GPU does, so that tests need no GPU.
    """

    name = "cpu"  # "cuda", "emulate"
    timed: bool = True  # whether `finish` must return times
    event_wait: EventWait | None = None  # None: every operation is complete when its call returns
    capability: int  # of GPUs: compute capability, times ten, for which kernels outside the catalogue are compiled
    multiprocessors: int  # of GPUs

    def __init__(self, staged: bool = False) -> None:
        """`staged`: copy operands into device buffers, instead of multiplying host matrices in place."""
        self.staged = staged
        self._timings: list[tuple[str, float, float]] = []
        self._product: Callable[[np.ndarray, np.ndarray, np.ndarray], None] = blas

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        """Let `multiply` use this kernel for operands of this type. Compiles it if needed; with `adding` also the instance for
        c += a · b."""
        self._product = blas if kernel.name == "blas" else compiled_loops(kernel.name, dtype)

    def holds(self, array: Any) -> bool:
        """Whether kernels can use this contiguous matrix in place, as fast as one of the device's own buffers."""
        return False  # a staged CPU stands in for a GPU with separate memory

    def reserve(self, size: int, *, shared: bool) -> Any:
        """Allocate `size` bytes of device memory, uninitialized. `shared`: other processes can open it by an IPC handle."""
        if shared and not hasattr(os, "memfd_create"):
            raise DeviceUnavailable(
                "this system has no memory that processes can open of each other (memfd_create)", code="gpu-peers"
            )
        return _Memory(size, os.memfd_create("hybrid") if shared else -1)

    def matrix(self, memory: Any, offset: int, rows: int, columns: int, dtype: str) -> Any:
        """A matrix view of allocated or opened memory, from byte `offset` on. A GPU's row stride is a multiple of 16 bytes."""
        width = self._width(columns, dtype)
        size = rows * width * np.dtype(dtype).itemsize
        return memory.bytes[offset : offset + size].view(dtype).reshape(rows, width)[:, :columns]

    def _width(self, columns: int, dtype: str) -> int:
        return columns

    def poison(self, memory: Any) -> None:
        """Fill memory with NaN, so that reads of unwritten elements show in C."""
        memory.bytes[:] = 0xFF  # a NaN as float32 and as float64

    def pin(self, array: Any) -> None:
        """Let copies from and to this array run at the link's full rate: pin host memory (cudaHostRegister), or enable access to
        the peer GPU that holds it. It lasts as long as the array's memory."""

    def pin_again(self, arrays: Sequence[np.ndarray], threads: int) -> list[np.ndarray]:
        """Pin the host arrays that an earlier product has used; all arrays if there are too few threads for slots. Returns the
        unpinned arrays that are large enough for `use_slots`."""
        return []

    def use_slots(self, arrays: Sequence[np.ndarray], threads: int, links: int) -> bool:
        """Until the next call, copy from and to these arrays through small pinned staging buffers (slots), by up to `threads`
        threads. `links`: the number of GPUs that the node's ranks copy to. Returns False if no memory can be pinned."""
        return False

    def populate(self, array: np.ndarray) -> None:
        """Prefault the pages of this array, which will be written through slots, in the background."""

    def copy_in(self, into: Any, source: Any, after: list[Event]) -> Event:
        """Copy rows of an operand into a buffer."""
        return self._do("copy in", lambda: np.copyto(into, source))

    def exchange(self, into: Any, source: Any, after: list[Event]) -> Event:
        """Copy from another rank's buffer, opened here, into this rank's."""
        return self._do("exchange", lambda: np.copyto(into, source))

    def multiply(self, a: Any, b: Any, c: Any, after: list[Event], *, adding: bool = False) -> Event:
        """c = a · b; with `adding`, if the kernel supports it, c += a · b (beta = 1)."""
        assert not adding or self._product is blas, "loops do not add"
        product = add_by_blas if adding else self._product
        return self._do("multiply", lambda: product(a, b, c))

    def mirror(self, into: Any, source: Any, after: list[Event]) -> Event:
        """into = sourceᵀ. If both are the same matrix, the transpose of its lower triangle overwrites the upper one."""

        def work() -> None:
            if into is source:
                np.copyto(into, into.T, where=~np.tri(len(into), dtype=bool))
            else:
                copy_rows(into, source.T, threads_allowed())

        return self._do("multiply", work)

    def copy_out(self, into: Any, source: Any, after: list[Event]) -> Event:
        """Copy from a buffer to C."""
        return self._do("copy out", lambda: np.copyto(into, source))

    def _do(self, phase: str, work: Callable[[], None]) -> Event:
        began = time.perf_counter()
        work()
        self._timings.append((phase, began, time.perf_counter()))
        return None

    def wait(self, event: Event) -> None:
        """Wait until the operation is complete. Any thread may call it."""

    def done(self, event: Event) -> bool:
        """Whether the operation is complete, without waiting (cudaEventQuery); the event may be another process's."""
        return True

    def give_up(self) -> None:
        """Cancel copies through slots. When this returns, no thread reads or writes host memory."""

    def finish(self) -> Timings:
        """Wait until all operations are complete (cudaDeviceSynchronize). Returns the times of those enqueued since the last
        call."""
        timings, self._timings = self._timings, []
        return timings

    # For staged devices: operations beside the product's copies and multiplications.

    def empty(self, shape: tuple[int, int], dtype: str) -> Any:
        """A new contiguous matrix of the device, uninitialized."""
        return np.empty(shape, dtype)

    def write(self, into: Any, values: np.ndarray) -> None:
        """Copy from host memory; complete when this returns."""
        into[...] = values

    def read(self, matrix: Any) -> np.ndarray:
        """A copy in host memory. Call it when all operations are complete."""
        return matrix  # type: ignore[no-any-return]

    def host_memory(self, shape: tuple[int, int], dtype: str) -> np.ndarray:
        """A NumPy array in pinned host memory, which kernels can access."""
        return np.empty(shape, dtype)

    def clearing(self, matrix: Any, byte: int) -> KernelCall:
        """A call that fills a contiguous matrix with this byte."""
        return lambda stream: matrix.view(np.uint8).fill(byte)

    def uploading(self, matrix: Any, host: np.ndarray) -> KernelCall:
        """A call that copies `host_memory` to a contiguous matrix."""
        return lambda stream: np.copyto(matrix, host)

    def downloading(self, matrix: Any, host: np.ndarray) -> KernelCall:
        """A call that copies a contiguous matrix to `host_memory`."""
        return lambda stream: np.copyto(host, matrix)

    def together(self, calls: Sequence[KernelCall]) -> KernelCall:
        """One call that makes these calls in order, cheaper to repeat (a CUDA graph)."""

        def call(stream: Any) -> None:
            for each in calls:
                each(stream)

        return call

    def launch(self, calls: Sequence[KernelCall], after: list[Event], queue: str) -> Event:
        """Enqueue these calls, one after the other, on the queue "prepare", "products", "check" or "check beside". Returns the
        event that marks their end."""
        return self._do(phase_of(queue), lambda: self.together(calls)(None))

    # Memory and events shared with other processes of the node, as by CUDA IPC.

    def handle(self, memory: Any) -> Any:
        """The IPC handle of memory reserved as `shared`; it can be pickled."""
        return os.getpid(), memory.descriptor, len(memory.bytes)

    def open(self, handle: Any) -> Any:
        """Map another process's memory. DeviceUnavailable if that fails."""
        process, descriptor, size = handle
        try:
            # Unmapped with its last view.
            return _Memory(size, os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR))
        except OSError as error:
            raise DeviceUnavailable(
                f"the memory of process {process} cannot be opened ({one_line(error)})", code="gpu-peers"
            ) from None

    def close(self, memory: Any) -> None:
        """Unmap opened memory. Its owner must not free it before."""

    def make_ipc_events(self, count: int) -> Any:
        """Create this device's interprocess events, instead of earlier ones. Returns their handles."""
        return count

    def record_ipc_event(self, number: int, event: Event, flags: NodeFlags, flag: int) -> None:
        """Record interprocess event `number` after the operation of `event`, the last one on its stream. Then set the flag.

        Other processes must see the flag before they wait for the event: CUDA treats an unrecorded event as complete.
        """
        flags.set_flag(flag)  # the operation is complete already

    def open_ipc_events(self, handle: Any) -> list[Event]:
        """Another process's events, from the result of its `make_ipc_events`."""
        return [None] * handle

    # For GPUs, also emulated: kernels outside the catalogue.

    def compile_ahead(self, launches: Sequence[Launch]) -> None:
        """Compile these kernels. Those of one source are compiled together, which is faster."""

    def kernel(self, launch: Launch, arguments: Sequence[Any]) -> KernelCall:
        """A launch with these matrices and NumPy scalars. Compiles the kernel if needed."""
        raise NotImplementedError("a CPU launches no kernels")


class _Memory:
    """A block of memory, aligned for the widest copies. With a `descriptor`, which it owns, it maps that memfd, which other
    processes can open."""

    def __init__(self, size: int, descriptor: int = -1) -> None:
        self.descriptor = descriptor
        if descriptor < 0:
            memory = np.empty(size + WIDEST_COPY, np.uint8)
            start = -memory.ctypes.data % WIDEST_COPY
            self.bytes = memory[start : start + size]
            return
        os.ftruncate(descriptor, max(1, size))  # another process's has this size already
        self.bytes = np.frombuffer(mmap.mmap(descriptor, max(1, size)), np.uint8)[:size]

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class EmulatedDevice(Device):
    """The emulated GPU: CUDA kernels compiled for the CPU, with a GPU's schedule. Slow: for tests and teaching.

    Multiplies by a kernel of the catalogue, compiled for EMULATED_CAPABILITY. Operations are synchronous, as the CPU's.
    """

    name = "emulate"
    capability = 89  # for the other kernels: with mma.sync for bytes, as on most GPUs (90 would use wgmma)
    multiprocessors = 4  # few, so that persistent blocks process several tiles

    def __init__(self, kernel: Kernel, dtype: str) -> None:
        super().__init__(staged=True)
        self._kernels: dict[tuple[str, int], EmulatedKernel] = {}  # by expression and compute capability
        self.use_kernel(kernel, dtype)

    def use_kernel(self, kernel: Kernel, dtype: str, *, adding: bool = False) -> None:
        self._entry, self._dtype = kernel, dtype
        width = WIDEST_COPY // OPERAND_SIZES[dtype]
        for adds in (False, True)[: 1 + adding]:  # not at the first launch, which is timed
            self._instance(launch_of(kernel, dtype, 1, 1, EMULATED_CAPABILITY, width, adds=adds), EMULATED_CAPABILITY)

    def holds(self, array: Any) -> bool:
        return isinstance(array, np.ndarray) and is_aligned(*place_of(array))

    def multiply(self, a: np.ndarray, b: np.ndarray, c: np.ndarray, after: list[Event], *, adding: bool = False) -> Event:
        def work() -> None:
            if c.size:
                rows, columns = c.shape
                width = copy_width(a.itemsize, [number for matrix in (a, b, c) for number in place_of(matrix)])
                launch = launch_of(self._entry, self._dtype, rows, columns, EMULATED_CAPABILITY, width, adds=adding)
                self._instance(launch, EMULATED_CAPABILITY)(launch.grid, launch.block, launch.shared_bytes, (a, b, c))

        return self._do("multiply", work)

    def kernel(self, launch: Launch, arguments: Sequence[Any]) -> KernelCall:
        instance = self._instance(launch, self.capability)
        matrices = [np.array([[each]]) if isinstance(each, np.generic) else each for each in arguments]
        return lambda stream: instance(launch.grid, launch.block, launch.shared_bytes, matrices, cluster=launch.cluster)

    def _width(self, columns: int, dtype: str) -> int:
        return padded(columns, np.dtype(dtype).itemsize)

    def _instance(self, launch: Launch, capability: int) -> EmulatedKernel:
        from hybrid.emulation.kernel import EmulatedKernel

        key = launch.expression, capability
        if key not in self._kernels:
            self._kernels[key] = EmulatedKernel(KERNELS / launch.source, launch.expression, capability)
        return self._kernels[key]


_MOST_CACHED_TILES = 10_000
# Addresses of a matrix used in place for which prepared operations are cached: a loop of products alternates between two results.
MOST_PLACES = 8

Place = tuple[int, int]  # address and row stride in bytes: with the shape, all that kernels get of a matrix


def place_of(matrix: Any) -> Place:
    """The place of a CuPy array in device memory, or of a NumPy array in host memory."""
    return matrix.ctypes.data if isinstance(matrix, np.ndarray) else matrix.data.ptr, matrix.strides[0]


def row_stride(matrix: Any) -> int:
    """The row stride in bytes (CUDA's pitch). A single row's, which NumPy and CuPy may set to any value, is its length."""
    rows, columns = matrix.shape
    stride: int = matrix.strides[0] if rows > 1 else columns * matrix.itemsize
    return stride


def phase_of(queue: str) -> str:
    """The phase to which the time of a queue's calls counts."""
    return "check" if queue.startswith("check") else "multiply"


class Buffers:
    """A device's views of a share's buffers, in its own memory or in another rank's, opened by IPC.

    `in_place`: by operand, matrices that are used in place of buffers.
    """

    def __init__(
        self, device: Device, memory: Any, share: RankShare, problem: Problem, in_place: Mapping[str, Any] | None = None
    ) -> None:
        layout, there, of_operands = share.layout, in_place or {}, storage(problem.operand_dtype).name

        def matrices(operand: str, region: Region, rows: int, dtype: str) -> list[Any]:
            if operand in there:
                return [there[operand]]
            return [device.matrix(memory, region.offset_of(slot), rows, layout.width, dtype) for slot in range(layout.slots)]

        self._a = there["A"] if "A" in there else device.matrix(memory, 0, layout.rows, problem.l, of_operands)
        self._b = matrices("B", layout.b, problem.l, of_operands)
        self._c = matrices("C", layout.c, layout.rows, problem.dtype)
        self.in_place = frozenset(there)
        self.places = tuple(place_of(each) for each in (self._a, *self._b, *self._c))
        self._operands: dict[Tile, tuple[Any, Any, Any]] = {}  # cached: slicing a CuPy array takes microseconds

    def destination(self, arrival: Arrival) -> Any:
        """The buffer of a panel. A k-slab gets that of all its panel's rows, and is copied to the rows that it has in B."""
        return (
            self._a[arrival.buffer_span.slice] if arrival.operand == "A" else self._b[arrival.slot][:, arrival.buffer_span.slice]
        )

    def rows_of_a(self, buffer_rows: Span) -> Any:
        return self._a[buffer_rows.slice]

    def columns_of_b(self, buffer_columns: Span) -> Any:
        """These columns of B, which must have a single buffer."""
        return self._b[0][:, buffer_columns.slice]

    def operands(self, tile: Tile) -> tuple[Any, Any, Any]:
        """The parts of A, B and C of one multiplication."""
        if tile not in self._operands:
            if len(self._operands) >= _MOST_CACHED_TILES:
                self._operands.clear()
            rows, columns = tile.buffer_rows.slice, tile.buffer_columns.slice
            inner = tile.inner.slice if tile.inner else slice(None)
            self._operands[tile] = self._a[rows, inner], self._b[tile.slot][inner, columns], self._c[tile.slot][rows, columns]
        return self._operands[tile]
