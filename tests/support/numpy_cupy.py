# SPDX-License-Identifier: MIT
"""A `cupy` made of NumPy, whose GPU is the CPU: what `CudaDevice` enqueues is done at once, by kernels of the emulated GPU.

Ranks open each other's memory as files. It is for programs of their own, since it stays installed. It cannot show all that
NumPy's arrays allow and CuPy's do not, nor a missing event. It does tell what was called in a thread without a CUDA context,
for which CUDA would create one on GPU 0.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

CAPABILITY = 89  # whose kernels need no thread block clusters
calls: Counter[str] = Counter()  # of kernels, by expression, and of "copies" and "graphs"; and "elements to the host"
without_context: Counter[str] = Counter()  # calls, by name, of threads that had no CUDA context
contexts: set[int] = set()  # in which there were calls: 1 is that of GPU 0


class Here(threading.local):
    """The calling thread's CUDA context; 0: none."""

    context = 0


here = Here()


def needs_context(what: str) -> None:
    contexts.add(here.context)
    if not here.context:
        without_context[what] += 1


def in_context(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, noted where it is called without a context."""
    return lambda *given, **how: (needs_context(name), function(*given, **how))[1]


class ndarray(np.ndarray):
    def __new__(cls, shape, dtype, memory):
        place = memory.offset, int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert 0 <= place[0] <= sum(place) <= memory.mem.size, "a matrix reaches over its memory"
        return super().__new__(cls, shape, dtype, memory.mem.array, place[0])

    data = property(lambda self: SimpleNamespace(ptr=self.ctypes.data))
    device = property(lambda self: Device(0))
    __cuda_array_interface__ = property(lambda self: self.__array_interface__)

    def __array_ufunc__(self, ufunc, method, *inputs, **how):
        """As CuPy has it: no array in host memory beside one on a GPU. (But checksums are summed as of NumPy's arrays.)"""
        into = how.pop("out", ())
        there = [isinstance(each, ndarray) or np.ndim(each) == 0 for each in (*inputs, *into)]
        assert method != "__call__" or all(there), "a mixture of NumPy and CuPy"
        if into:
            how["out"] = tuple(map(np.asarray, into))
        made = getattr(ufunc, method)(*(np.asarray(each) if isinstance(each, ndarray) else each for each in inputs), **how)
        return into[0] if into else made.view(ndarray) if isinstance(made, np.ndarray) else made

    def __setitem__(self, places, values):
        assert isinstance(values, ndarray) or np.ndim(values) == 0, "a mixture of NumPy and CuPy"
        super().__setitem__(places, values)

    def get(self, out=None):
        calls["elements to the host"] += self.size
        return np.array(self, subok=False) if out is None else np.copyto(out, self)

    def set(self, values):
        np.asarray(self)[...] = values


def on_gpu(array: Any) -> ndarray:
    return np.array(array, subok=False).view(ndarray)


class Device:
    attributes: ClassVar[dict[str, int]] = {"MultiProcessorCount": 4}

    def __init__(self, index):
        self.id = index

    def __enter__(self):
        self.before, here.context = here.context, self.id + 1

    def __exit__(self, *error):
        here.context = self.before

    def synchronize(self):
        pass


class Event:
    made = 0

    def __init__(self, **how):
        needs_context("eventCreate")
        Event.made += 1
        self.ptr = Event.made

    def record(self, stream=None):
        needs_context("eventRecord")

    def synchronize(self):
        needs_context("eventSynchronize")

    def __del__(self):
        needs_context("eventDestroy")


class Stream(nullcontext):
    made = 0
    of_ptr: ClassVar[WeakValueDictionary[int, Stream]] = WeakValueDictionary()

    def __init__(self, **how):
        super().__init__()
        needs_context("streamCreate")
        Stream.made += 1
        self.ptr, self.captured = Stream.made, None
        Stream.of_ptr[self.ptr] = self

    def __del__(self):
        needs_context("streamDestroy")

    def record(self):
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event):
        needs_context("streamWaitEvent")
        assert event.ptr

    def synchronize(self):
        needs_context("streamSynchronize")

    def begin_capture(self):
        self.captured = []

    def end_capture(self):
        work, self.captured = self.captured, None
        return SimpleNamespace(launch=lambda stream: (calls.update(["graphs"]), [each() for each in work]))


def enqueue(stream, work):
    captured = Stream.of_ptr[stream].captured
    work() if captured is None else captured.append(work)


class Memory:
    """As cudaMalloc gives it. `path`: of the file that it is."""

    folder, made = Path(), 0
    of_ptr: ClassVar[WeakValueDictionary[int, Memory]] = WeakValueDictionary()

    def __init__(self, size, path=None):
        needs_context("malloc")
        Memory.made += 1
        self.size, self.path = size, path or self.folder / f"{os.getpid()}-{Memory.made}"
        with open(self.path, "r+b" if path else "w+b") as file:
            os.truncate(file.fileno(), max(size, os.fstat(file.fileno()).st_size))
            self.array = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        self.ptr = self.array.ctypes.data
        self.of_ptr[self.ptr] = self

    def __del__(self):
        needs_context("free")


class MemoryPointer:
    def __init__(self, memory, offset):
        self.mem, self.offset, self.ptr = memory, offset, memory.ptr + offset

    def __add__(self, more):
        return MemoryPointer(self.mem, self.offset + more)


def copy_2d(into, into_stride, source, source_stride, width, rows, kind, stream):
    def copy():
        for row in range(rows):
            ctypes.memmove(into + row * into_stride, source + row * source_stride, width)

    calls["copies"] += 1
    enqueue(stream, copy)


def runtime(gpus: int) -> SimpleNamespace:
    """CUDA's runtime, as CuPy has it."""
    opened: dict[int, Memory] = {}

    def open_memory(path):
        memory = Memory(os.path.getsize(path), path)
        opened[memory.ptr] = memory
        return memory.ptr

    anywhere = {
        "getDevice": lambda: 0,
        "getDeviceCount": lambda: gpus,
        "getDeviceProperties": lambda index: dict(
            zip(("major", "minor", "name"), (*divmod(CAPABILITY, 10), b"NumPy"), strict=True)
        ),
        "deviceCanAccessPeer": lambda gpu, peer: 0,
    }
    of_context: dict[str, Callable[..., Any]] = {
        "memcpy2DAsync": copy_2d,
        "memcpyAsync": lambda into, source, size, kind, stream: enqueue(stream, lambda: ctypes.memmove(into, source, size)),
        "memsetAsync": lambda place, byte, size, stream: enqueue(stream, lambda: ctypes.memset(place, byte, size)),
        "memset": ctypes.memset,
        "eventQuery": lambda event: 0,
        "eventDestroy": lambda event: None,
        "deviceSynchronize": lambda: None,
        "memGetInfo": lambda: (1 << 30, 1 << 30),
        "hostRegister": lambda *place: None,
        "hostUnregister": lambda place: None,
        "ipcGetMemHandle": lambda place: Memory.of_ptr[place].path,
        "ipcOpenMemHandle": open_memory,
        "ipcCloseMemHandle": opened.pop,
        "ipcGetEventHandle": lambda event: event,
        "ipcOpenEventHandle": lambda event: event,
    }
    return SimpleNamespace(
        CUDARuntimeError=type("CUDARuntimeError", (RuntimeError,), {}),
        memcpyDefault=4,
        memcpyDeviceToHost=2,
        **anywhere,
        **{name: in_context(name, function) for name, function in of_context.items()},
    )


class Argument:
    """A matrix that a kernel gets, with what the kernel is really given."""

    def __init__(self, matrix, packed):
        given = packed["data"], packed["rows"], packed["columns"], packed["stride"] * matrix.itemsize
        assert given == (matrix.ctypes.data, *matrix.shape, matrix.strides[0])
        self.matrix = np.asarray(matrix)


def install(folder: Path, gpus: int = 1) -> None:
    """To be called before hybrid looks for GPUs. `folder`: for memory."""
    from hybrid.devices import cuda_check, cuda_contexts, cuda_device, cuda_gpus, cuda_kernels, cuda_queues
    from hybrid.emulation.kernel import EmulatedKernel
    from hybrid.kernels.sources import KERNELS

    here.context = 1
    Memory.folder, default_stream = folder, Stream()
    here.context = 0
    cuda = ModuleType("cupy.cuda")
    cuda.__dict__.update(Device=Device, Event=Event, Stream=Stream, Memory=Memory, MemoryPointer=MemoryPointer)
    cuda.__dict__.update(runtime=runtime(gpus), get_current_stream=lambda: default_stream)
    cuda.__dict__.update(alloc=lambda size: MemoryPointer(Memory(size), 0), memory=SimpleNamespace(OutOfMemoryError=MemoryError))
    cuda.__dict__.update(alloc_pinned_memory=in_context("hostAlloc", bytearray))
    cuda.__dict__.update(get_elapsed_time=in_context("eventElapsedTime", lambda begin, end: 1.0))
    cuda.__dict__.update(UnownedMemory=lambda place, size, owner, gpu: Memory.of_ptr[place])
    cupy = ModuleType("cupy")
    cupy.__dict__.update(cuda=cuda, ndarray=ndarray, dtype=np.dtype, copyto=np.copyto)
    cupy.__dict__.update(asarray=lambda array: array if isinstance(array, ndarray) else on_gpu(array))
    cupy.__dict__.update(asnumpy=lambda array: array.get() if isinstance(array, ndarray) else np.array(array))
    cupy.__dict__.update(ascontiguousarray=lambda array, dtype: np.ascontiguousarray(array, dtype).view(ndarray))
    cupy.__dict__.update(empty=lambda shape, dtype: np.empty(shape, dtype).view(ndarray))
    cupy.__dict__.update(get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None))
    set_current = partial(setattr, here, "context")
    cuda.driver = SimpleNamespace(ctxGetCurrent=lambda: here.context, ctxSetCurrent=set_current)  # type: ignore[attr-defined]
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": cuda.runtime})
    cuda_gpus._driver = lambda: SimpleNamespace(  # type: ignore[return-value]
        cuCtxGetCurrent=lambda context: setattr(context._obj, "value", here.context),
        cuCtxSetCurrent=lambda context: set_current(context.value or 0),
    )
    cuda_contexts._primary_context = lambda index: index + 1
    cuda_device.event_wait = lambda: None
    cuda_gpus._uuid = lambda index: f"GPU-{index}"

    kernels: dict[tuple[str, str], EmulatedKernel] = {}
    packed = cuda_kernels.matrix_argument

    class Launch:
        def __init__(self, function, grid, block, arguments, shared_bytes=0):
            self._function, self._how = function, (grid, block, shared_bytes)
            self._matrices = [each.matrix if isinstance(each, Argument) else np.array([[each]]) for each in arguments]

        def __call__(self, stream):
            enqueue(stream, self._run)

        def _run(self):
            source, expression = self._function
            if self._function not in kernels:
                kernels[self._function] = EmulatedKernel(KERNELS / source, expression, CAPABILITY)
            calls[expression] += 1
            kernels[self._function](*self._how, self._matrices)

    for module in (cuda_kernels, cuda_check, cuda_queues):
        module.matrix_argument = lambda matrix: Argument(matrix, packed(matrix))
        module.PreparedLaunch = Launch
        module.compiled_functions = lambda source, expressions, architecture="": {each: (source, each) for each in expressions}
        module.allow_shared_memory = lambda function, size: None
        module.prefer_shared_memory = lambda function: None
