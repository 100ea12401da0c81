# SPDX-License-Identifier: MIT
"""A fake `cupy` built on NumPy: kernels run on the emulated GPU, and NCCL's messages go through MPI.

Work that `CudaDevice` enqueues runs at once, so a missing event shows only in copies through staging slots, which threads make.
It refuses mixtures of NumPy and CuPy arrays, calls without a CUDA context (for which CUDA would create one on GPU 0), pinning
memory twice, and copies of partly pinned memory. It cannot be uninstalled: use it in a process of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

CAPABILITY = 89  # kernels need no thread block clusters
_BYTES = 1 << 30  # of a GPU's memory
contexts: set[int] = set()  # GPUs whose contexts were used


class _Here(threading.local):
    gpu: int | None = None  # its context is current


_here = _Here()
_gpu_of_thread: dict[int, int | None] = {}  # likewise, for threads that are not Python's


def _in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that needs a context."""

    def called(*given: Any, **how: Any) -> Any:
        if _here.gpu is None:
            raise RuntimeError(f"{function.__name__} without a CUDA context: CUDA would create one on GPU 0")
        contexts.add(_here.gpu)
        return function(*given, **how)

    return called


class ndarray(np.ndarray):
    def __new__(cls, shape: Any, dtype: Any, memory: Any) -> Any:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if not 0 <= memory.offset <= memory.offset + size <= memory.mem.size:
            raise RuntimeError("a matrix reaches over its memory")
        if memory.offset % np.dtype(dtype).itemsize:
            raise RuntimeError("cudaErrorMisalignedAddress")
        return super().__new__(cls, shape, dtype, memory.mem.array, memory.offset)

    data: Any = property(lambda self: SimpleNamespace(ptr=self.ctypes.data))
    device: Any = property(lambda self: Device(0))
    __cuda_array_interface__ = property(lambda self: self.__array_interface__)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **how: Any) -> Any:
        into = how.pop("out", ())
        if method == "__call__":  # checksums are summed as those of NumPy's arrays
            _refuse_mixture(*inputs, *into)
        if into:
            how["out"] = tuple(map(np.asarray, into))
        made = getattr(ufunc, method)(*(np.asarray(each) if isinstance(each, ndarray) else each for each in inputs), **how)
        return into[0] if into else made.view(ndarray) if isinstance(made, np.ndarray) else made

    def __setitem__(self, places: Any, values: Any) -> None:
        _refuse_mixture(values)
        super().__setitem__(places, values)

    def get(self, out: Any = None) -> Any:
        return np.array(self, subok=False) if out is None else np.copyto(_copied(out), self)

    def set(self, values: Any) -> None:
        np.asarray(self)[...] = _copied(values)


def _refuse_mixture(*arrays: Any) -> None:
    if not all(isinstance(each, ndarray) or np.ndim(each) == 0 for each in arrays):
        raise TypeError("a mixture of NumPy and CuPy")


def _on_gpu(array: Any) -> Any:
    return array if isinstance(array, ndarray) else np.array(_copied(array), subok=False).view(ndarray)


def _copied(array: Any) -> Any:
    """Check a host array that the driver reads or writes directly if it is contiguous."""
    if isinstance(array, np.ndarray) and array.flags.forc:
        _refuse_partly_pinned(array.ctypes.data, array.nbytes)
    return array


class Device:
    attributes: ClassVar[dict[str, int]] = {"MultiProcessorCount": 4}

    def __init__(self, index: int) -> None:
        self.id = index

    def __enter__(self) -> None:
        self._before, _here.gpu = _here.gpu, self.id

    def __exit__(self, *error: object) -> None:
        _here.gpu = self._before

    def synchronize(self) -> None:
        pass


class Event:
    made = 0

    @_in_context
    def __init__(self, **how: Any) -> None:
        Event.made += 2  # no event has an odd address
        self.ptr = Event.made

    @_in_context
    def record(self, stream: Any = None) -> None:
        pass

    @_in_context
    def synchronize(self) -> None:
        pass


class Stream(nullcontext[None]):
    of_ptr: ClassVar[WeakValueDictionary[int, Stream]] = WeakValueDictionary()

    @_in_context
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.ptr = id(self)
        self.captured: list[Callable[[], object]] | None = None
        self.of_ptr[self.ptr] = self

    def record(self) -> Event:
        event = Event()
        event.record(self)
        return event

    @_in_context
    def wait_event(self, event: Event) -> None:
        assert event.ptr

    @_in_context
    def synchronize(self) -> None:
        pass

    def begin_capture(self) -> None:
        self.captured = []

    def end_capture(self) -> Any:
        work, self.captured = self.captured or [], None
        return SimpleNamespace(launch=lambda stream: [each() for each in work])


def _enqueue(stream: int, work: Callable[[], object]) -> None:
    captured = Stream.of_ptr[stream].captured
    if captured is None:
        work()
    else:
        captured.append(work)


class Memory:
    """Memory of cudaMalloc: an anonymous file, which other ranks open by its path."""

    of_ptr: ClassVar[WeakValueDictionary[int, Memory]] = WeakValueDictionary()

    @_in_context
    def __init__(self, size: int, path: str = "") -> None:
        self._file = os.open(path, os.O_RDWR) if path else os.memfd_create("gpu")
        self.path = path or f"/proc/{os.getpid()}/fd/{self._file}"
        os.ftruncate(self._file, max(1, size, os.fstat(self._file).st_size))
        self.size = size or os.fstat(self._file).st_size
        self.array = np.frombuffer(mmap.mmap(self._file, max(1, self.size)), np.uint8)
        self.ptr = self.array.ctypes.data
        self.of_ptr[self.ptr] = self

    def __del__(self) -> None:
        os.close(self._file)


class MemoryPointer:
    def __init__(self, memory: Any, offset: int) -> None:
        self.mem, self.offset, self.ptr = memory, offset, memory.ptr + offset

    def __add__(self, more: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.offset + more)


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


pinned: dict[int, int] = {}  # registered host memory: sizes by address


def _pin(address: int, size: int, flags: int) -> None:
    lo, hi = address & -mmap.PAGESIZE, address + size
    if any(lo < place + held and (place & -mmap.PAGESIZE) < hi for place, held in list(pinned.items())):
        raise CUDARuntimeError(712, "cudaErrorHostMemoryAlreadyRegistered")
    pinned[address] = size


def _unpin(address: int) -> None:
    if pinned.pop(address, None) is None:
        raise CUDARuntimeError(713, "cudaErrorHostMemoryNotRegistered")


def _refuse_partly_pinned(address: int, size: int) -> None:
    for place, held in list(pinned.items()):
        shared = min(address + size, place + held) - max(address, place)
        if 0 < shared < size:
            raise CUDARuntimeError(1, f"cudaErrorInvalidValue: {shared} of {size} bytes are pinned")


def _runtime(gpus: int) -> SimpleNamespace:
    """cupy.cuda.runtime."""
    opened: dict[int, Memory] = {}

    def copy_2d(into: int, stride: int, source: int, other_stride: int, width: int, rows: int, kind: int, stream: int) -> None:
        def copy() -> None:
            for row in range(rows):
                ctypes.memmove(into + row * stride, source + row * other_stride, width)

        if rows * width:
            _refuse_partly_pinned(into, (rows - 1) * stride + width)
            _refuse_partly_pinned(source, (rows - 1) * other_stride + width)
        _enqueue(stream, copy)

    def open_memory(path: str) -> int:
        memory = Memory(0, path)
        opened[memory.ptr] = memory
        return memory.ptr

    properties = dict(zip(("major", "minor", "name"), (*divmod(CAPABILITY, 10), b"NumPy"), strict=True))
    of_context: dict[str, Callable[..., Any]] = {
        "memcpy2DAsync": copy_2d,
        "memcpyAsync": lambda into, source, size, kind, stream: _enqueue(stream, lambda: ctypes.memmove(into, source, size)),
        "memsetAsync": lambda place, byte, size, stream: _enqueue(stream, lambda: ctypes.memset(place, byte, size)),
        "memset": lambda *given: ctypes.memset(*given),
        "eventQuery": lambda event: 0,
        "eventDestroy": lambda event: None,
        "deviceSynchronize": lambda: None,
        "memGetInfo": lambda: (_BYTES, _BYTES),
        "hostRegister": _pin,
        "hostUnregister": _unpin,
        "ipcGetMemHandle": lambda place: Memory.of_ptr[place].path,
        "ipcOpenMemHandle": open_memory,
        "ipcCloseMemHandle": lambda place: opened.pop(place),
        "ipcGetEventHandle": lambda event: event,
        "ipcOpenEventHandle": lambda event: event,
    }
    return SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        memcpyDefault=4,
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        getDevice=lambda: _here.gpu or 0,
        getDeviceCount=lambda: gpus,
        getDeviceProperties=lambda index: properties,
        deviceCanAccessPeer=lambda gpu, peer: 0,
        **{name: _in_context(function) for name, function in of_context.items()},
    )


@cache
def _driver_functions() -> dict[str, Any]:
    """The driver's functions for C threads; all are synchronous."""

    class Side(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_size_t) for name in ("x", "y")), ("kind", ctypes.c_uint), ("host", ctypes.c_void_p),
            ("device", ctypes.c_void_p), ("array", ctypes.c_void_p), ("pitch", ctypes.c_size_t),
        ]  # fmt: skip

    class Copy(ctypes.Structure):
        _fields_ = [("source", Side), ("into", Side), ("width", ctypes.c_size_t), ("rows", ctypes.c_size_t)]

    def copy(address: int, stream: int) -> None:
        of = Copy.from_address(address)
        assert {1: of.source.host, 2: of.source.device}[of.source.kind]
        source, into = ((each.device if each.kind == 2 else each.host) for each in (of.source, of.into))
        for row in range(of.rows):
            ctypes.memmove(into + row * of.into.pitch, source + row * of.source.pitch, of.width)

    def called(function: Callable[..., None], arguments: int) -> Any:
        def with_status(*given: Any) -> int:
            try:
                _here.gpu = _gpu_of_thread.get(threading.get_ident(), _here.gpu)  # a C thread has a new `_here` in each call
                function(*given)
            except Exception:  # C gets a CUDA error, which fails the product
                traceback.print_exc()
                return 1
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * arguments)(with_status)

    def nothing(*given: Any) -> None:
        pass

    in_context = {"copy": (copy, 2), "record": (nothing, 2), "follow": (nothing, 3), "wait": (nothing, 1)}
    functions = {"enter": called(lambda context: _gpu_of_thread.update({threading.get_ident(): _index(context)}), 1)}
    return functions | {name: called(_in_context(each), arguments) for name, (each, arguments) in in_context.items()}


class _Communicator:
    """An NCCL communicator built on MPI; all operations are synchronous."""

    def __init__(self, size: int, unique_id: Any, rank: int) -> None:
        from hybrid.ranks.mpi import all_processes

        self._comm = all_processes().Dup()
        assert (size, rank) == (self._comm.size, self._comm.rank), "NumPy's NCCL is for all ranks of the job"
        self.check_async_error = self.abort = self.destroy = lambda: None

    def bcast(self, address: int, size: int, datatype: int, root: int, stream: int) -> None:
        self._comm.Bcast(_at(address, size), root)

    def send(self, address: int, size: int, datatype: int, peer: int, stream: int) -> None:
        self._comm.Ssend(_at(address, size), peer)

    def recv(self, address: int, size: int, datatype: int, peer: int, stream: int) -> None:
        self._comm.Recv(_at(address, size), peer)


def _at(address: int, size: int) -> np.ndarray:
    """The bytes at an address. ctypes would keep a type for each size."""
    interface = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=interface))


class _Argument:
    """A kernel's matrix argument: an address, which keeps no memory alive."""

    def __init__(self, matrix: Any, packed: Any) -> None:
        given = packed["data"], packed["rows"], packed["columns"], packed["stride"] * matrix.itemsize
        assert given == (matrix.ctypes.data, *matrix.shape, matrix.strides[0]), "a kernel is given another matrix"
        span = sum((count - 1) * step for count, step in zip(matrix.shape, matrix.strides, strict=True)) + matrix.itemsize
        there = _at(matrix.ctypes.data, max(0, span) if matrix.size else 0)
        self.matrix = np.ndarray(matrix.shape, matrix.dtype, there, strides=matrix.strides)


def _set(name: str, value: Any) -> Callable[..., None]:
    return lambda *given: setattr(_here, name, value(*given))


def _kernel_of_cupy(*given: Any, **how: Any) -> Callable[..., Any]:
    """`ElementwiseKernel` and `ReductionKernel` of the package's own kernels, known by their names."""
    return next(_OF_CUPY[name] for name in given if name in _OF_CUPY)


def _times_words(matrix: Any, x: Any, axis: int) -> Any:
    with np.errstate(invalid="ignore"):
        return (np.asarray(matrix).astype(np.int64) * np.asarray(x)).sum(axis=axis).view(ndarray)


def _combine(product: Any, c: Any, alpha: float, beta: float, into: Any) -> None:
    np.asarray(into)[...] = alpha * np.asarray(product, np.float64) + beta * np.asarray(c)


_OF_CUPY: dict[str, Callable[..., Any]] = {"times_words": _times_words, "combine": _combine}


def install(gpus: int = 1) -> None:
    """Install the fake CuPy with `gpus` GPUs in this process. Call it before hybrid looks for GPUs."""
    from hybrid.devices import cuda_device, cuda_gpus, cuda_kernels, staging
    from hybrid.emulation.kernel import EmulatedKernel
    from hybrid.emulation.loaded_soon import wait_until_loaded
    from hybrid.kernels.catalogue import KERNELS
    from hybrid.transport import nccl

    staging.copier()
    wait_until_loaded(60)  # so that the first product already uses it
    with Device(0):
        default_stream = Stream()
    contexts.clear()
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    pool = SimpleNamespace(free_bytes=lambda: 0, free_all_blocks=lambda: None)
    vars(cuda).update(
        Device=Device,
        Event=Event,
        Stream=Stream,
        Memory=Memory,
        MemoryPointer=MemoryPointer,
        UnownedMemory=lambda place, size, owner, gpu: Memory.of_ptr[place],
        runtime=_runtime(gpus),
        driver=SimpleNamespace(ctxGetCurrent=lambda: _number(_here.gpu), ctxSetCurrent=_set("gpu", _index)),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        alloc=lambda size: MemoryPointer(Memory(size), 0),
        alloc_pinned_memory=_in_context(lambda size: bytearray(size)),
        get_current_stream=lambda: default_stream,
        get_elapsed_time=_in_context(lambda begin, end: 1.0),
    )
    vars(cupy).update(
        cuda=cuda,
        ndarray=ndarray,
        dtype=np.dtype,
        copyto=np.errstate(all="ignore")(np.copyto),
        arange=lambda count: np.arange(count).view(ndarray),
        matmul=np.matmul,
        ElementwiseKernel=_kernel_of_cupy,
        ReductionKernel=_kernel_of_cupy,
        broadcast_to=lambda array, shape: np.broadcast_to(array, shape, subok=True),
        asarray=_on_gpu,
        from_dlpack=lambda array: _on_gpu(np.from_dlpack(array)),
        asnumpy=lambda array: array.get() if isinstance(array, ndarray) else np.array(array),
        ascontiguousarray=lambda array, dtype: np.ascontiguousarray(array, dtype).view(ndarray),
        empty=lambda shape, dtype: np.empty(shape, dtype).view(ndarray),
        get_default_memory_pool=lambda: pool,
    )
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.runtime": vars(cuda)["runtime"]})
    inside: dict[Any, dict[str, Any]] = {
        cuda_gpus: {
            "LEAST_BYTES": 1 << 14,  # pinned
            "cuda_driver": lambda: SimpleNamespace(
                cuInit=lambda flags: 1,  # fails, so that nothing warms up the driver
                cuCtxGetCurrent=lambda context: setattr(context._obj, "value", _number(_here.gpu)),
                cuCtxSetCurrent=_set("gpu", lambda context: _index(context.value or 0)),
            ),
            "_uuid": lambda index: f"GPU-{index}",
            "_primary_context": _number,
        },
    }
    by_mpi = SimpleNamespace(
        NCCL_UINT8=1,
        NcclError=type("NcclError", (RuntimeError,), {}),
        NcclCommunicator=_Communicator,
        get_unique_id=lambda: (1,),
        groupStart=lambda: None,
        groupEnd=lambda: None,
    )
    inside[nccl] = {"load_nccl": lambda: by_mpi}
    kernels: dict[tuple[str, str], EmulatedKernel] = {}
    packed = cuda_kernels.matrix_argument

    class Launch:
        def __init__(self, function: tuple[str, str], grid: Any, block: Any, arguments: Any, shared_bytes: int = 0) -> None:
            self._function, self._how = function, (grid, block, shared_bytes)
            self._matrices = [each.matrix if isinstance(each, _Argument) else np.array([[each]]) for each in arguments]

        def __call__(self, stream: Stream) -> None:
            _enqueue(stream.ptr, self._run)

        def _run(self) -> None:
            if self._function not in kernels:
                source, expression = self._function
                kernels[self._function] = EmulatedKernel(KERNELS / source, expression, CAPABILITY)
            kernels[self._function](*self._how, self._matrices)

    launching = {
        "matrix_argument": lambda matrix: _Argument(matrix, packed(matrix)),
        "PreparedLaunch": Launch,
        "load_kernels": lambda source, expressions, architecture: {each: (source, each) for each in expressions},
        "allow_shared_memory": lambda function, size: None,
        "prefer_shared_memory": lambda function: None,
    }
    functions = {name: ctypes.cast(function, ctypes.c_void_p) for name, function in _driver_functions().items()}
    staged: dict[str, Any] = {"SLOT_BYTES": 1 << 12, "LEAST_STAGED": 1 << 10, "LEAST_THREADS": 1}
    staged["driver_in_context"] = lambda: staging.Driver(context=_number(_here.gpu), **functions)
    inside |= {cuda_kernels: launching, cuda_device: {"event_wait": lambda: None}, staging: staged}
    for module, values in inside.items():
        for name, value in values.items():
            setattr(module, name, value)


def _number(gpu: int | None) -> int:
    """A context's handle; 0 for none."""
    return 0 if gpu is None else gpu + 1


def _index(context: int) -> int | None:
    return context - 1 if context else None
