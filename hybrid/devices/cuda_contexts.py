# SPDX-License-Identifier: MIT
"""CUDA contexts: in which one a thread's calls work, and one that is created while modules are loaded."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from hybrid.devices.cuda_gpus import Gpu, load_driver


class _Before(threading.local):
    """The contexts that were current where a thread has entered a `GpuContext`, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[int] = []


class GpuContext:
    """A context manager: within it this thread's CUDA calls work on one GPU, and afterwards where they did before. Any thread may
    enter it, any number of times.

    CuPy's `with Device(1)` ends with cudaSetDevice(0) where the program has used no GPU before, and since CUDA 12 that creates a
    context on GPU 0: on a node with eight ranks seven of them would take memory of that GPU, and a tenth of a second each. Here
    the thread's CUDA context is restored, which may be none.
    """

    def __init__(self, index: int) -> None:
        """Creates the GPU's primary context, which CUDA's runtime uses, where there is none yet."""
        from cupy.cuda import driver

        self._current, self._make_current = driver.ctxGetCurrent, driver.ctxSetCurrent
        self._context, self._before = _primary_context(index), _Before()

    def __enter__(self) -> None:
        before = self._current()
        if before != self._context:
            self._make_current(self._context)
        self._before.contexts.append(before)  # last: where the lines before fail there is no exit that would take it away

    def __exit__(self, *error: object) -> None:
        before = self._before.contexts.pop()
        if before != self._context:
            self._make_current(before)

    def is_current(self) -> bool:
        """Whether this thread's CUDA calls work on the GPU now."""
        return bool(self._current() == self._context)

    def stay(self) -> None:
        """Have this thread's CUDA calls work on the GPU from now on."""
        self._make_current(self._context)


@cache
def gpu_context(index: int) -> GpuContext:
    """The one of this process for a GPU."""
    return GpuContext(index)


def _primary_context(index: int) -> int:
    import cupy

    driver, device, context = load_driver(), ctypes.c_int(), ctypes.c_void_p()
    status = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)
    if status := status or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        raise cupy.cuda.driver.CUDADriverError(status)
    return context.value or 0


@contextmanager
def callers_context() -> Iterator[None]:
    """A context manager: after it this thread's CUDA calls work where they did before, whatever `stay` was called within it."""
    before = _current_context()
    try:
        yield
    finally:
        if before != _current_context():
            load_driver().cuCtxSetCurrent(ctypes.c_void_p(before))


def _current_context() -> int:
    """0 where there is none, also because CUDA has not started or is not there."""
    context = ctypes.c_void_p()
    with suppress(OSError, AttributeError):  # the second: of a library that has not all functions, which `usable_gpus` reports
        load_driver().cuCtxGetCurrent(ctypes.byref(context))
    return context.value or 0


def free_bytes(gpu: Gpu) -> int:
    """The GPU's free memory, including what CuPy's memory pool in this process has cached."""
    import cupy

    with gpu_context(gpu.index):
        return int(cupy.cuda.runtime.memGetInfo()[0]) + pooled_bytes(gpu)


def pooled_bytes(gpu: Gpu) -> int:
    """The GPU's memory that CuPy's memory pool in this process has cached and no array uses."""
    import cupy

    with gpu_context(gpu.index):
        return int(cupy.get_default_memory_pool().free_bytes())


class _Awakening(threading.Thread):
    """Starts the driver and creates the primary context of a GPU. Meanwhile the GIL is free, which it is not where CuPy does
    it."""

    def __init__(self, local_rank: int | None) -> None:
        super().__init__(daemon=True)
        self._local_rank = local_rank
        self.made: tuple[int, ctypes.c_int] | None = None  # the index and the device of the GPU whose context was created

    def run(self) -> None:
        driver = load_driver()
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value or self._local_rank is None:
            return
        index = self._local_rank % count.value
        if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            return
        self.made = index, device


_awakening: _Awakening | None = None


def wake_driver(local_rank: int | None) -> None:
    """In the background, call cuInit and create a CUDA context, which take a quarter of a second together, and more where several
    ranks do it: that of the GPU that this rank will have if each rank sees all GPUs.

    cuInit reads a hundred environment variables. With glibc before 2.41 a process may die of that (SIGSEGV) while another thread
    adds one: MPI_Init does, and so does Python where CuPy is told a folder. So this comes after MPI_Init, and CuPy is told here.

    `local_rank`: None for no context.
    """
    global _awakening
    try:
        load_driver()
    except OSError:
        return  # usable_gpus will report it
    from hybrid.devices.kernel_cache import trust_own_cache_only

    trust_own_cache_only()
    with suppress(RuntimeError):  # the limit of threads is reached: then the driver is started at first use
        awakening = _Awakening(local_rank)
        awakening.start()
        _awakening = awakening


def use_context_of(gpu: Gpu | None) -> None:
    """Free the context that `wake_driver` created on another GPU than this one, on which the process multiplies; None: on none.
    It would only take memory."""
    if _awakening is None:
        return
    _awakening.join()
    if _awakening.made is not None and (gpu is None or _awakening.made[0] != gpu.index):
        load_driver().cuDevicePrimaryCtxRelease_v2(_awakening.made[1])
    _awakening.made = None
