# SPDX-License-Identifier: MIT
"""The CUDA GPUs that a process can use, their contexts, free GPU memory and pinned host memory."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from hybrid.core.installation import install
from hybrid.core.settings import Settings
from hybrid.core.text import readable, warn
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.host.memory import LEAST_BYTES, ResultMemory
from hybrid.planning.decision import Gpu, may_use_gpus
from hybrid.ranks.launcher import launched

if TYPE_CHECKING:
    import numpy as np  # imported in functions: commands settle the number of BLAS threads first

_PEER_ACCESS_ALREADY_ENABLED, _ALREADY_REGISTERED = 704, 712  # of cudaError_t
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all GPUs, not only for the current one
# Two registered ranges must not share a page. malloc is sure to give whole pages only to blocks above 32 MiB, the maximum of its
# M_MMAP_THRESHOLD; memory mappings, such as the ranks' shared memory, always have whole pages.
LEAST_OWNER_BYTES = (32 << 20) + 1
# A block of glibc's malloc has a header of 16 bytes; the last 8 hold its size and three flags.
_HEADER, _IS_MAPPED, _FLAGS = 16, 2, 7
LEAST_PART = 0.5  # of its owner's memory that an array must cover for that memory to be pinned


def usable_gpus() -> list[Gpu]:
    """The GPUs that this process can use. DeviceUnavailable, with the reason, if there is none.

    Creates no CUDA context, which would take memory on unused GPUs. Call it after MPI_Init.
    """
    if cuda_driver() is None:
        raise DeviceUnavailable("no NVIDIA driver (libcuda.so.1) on this machine")
    from hybrid.devices.cuda_kernels import trust_own_cache_only

    trust_own_cache_only()
    try:
        import cupy
    except ImportError as error:
        raise DeviceUnavailable(
            f"CuPy cannot be used ({one_line(error)}): {install('cuda13')} (or cuda12)", code="package-missing"
        ) from None
    runtime = cupy.cuda.runtime
    try:
        gpus = [_gpu(index) for index in range(runtime.getDeviceCount())]
    except runtime.CUDARuntimeError as error:
        raise DeviceUnavailable(f"CUDA finds no usable GPU ({one_line(error)})") from None
    if not gpus:
        raise DeviceUnavailable("CUDA finds no GPU (is CUDA_VISIBLE_DEVICES empty?)")
    return gpus


@cache
def cuda_driver() -> Any:
    """The CUDA driver's library, or None. Cached, also None: each product would search the disk again."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@cache
def _gpu(index: int) -> Gpu:
    """Cached, since cudaGetDeviceProperties takes a millisecond, longer than a small product."""
    from cupy.cuda import runtime

    properties = runtime.getDeviceProperties(index)
    capability = 10 * properties["major"] + properties["minor"]
    return Gpu(index, _uuid(index), properties["name"].decode(), capability)


def _uuid(index: int) -> str:
    """From the driver: CuPy truncates the UUID of cudaGetDeviceProperties at its first zero byte."""
    driver, device, uuid = cuda_driver(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if status := driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid_v2(uuid, device):
        raise DeviceUnavailable(
            f"the NVIDIA driver does not tell which GPU number {index} is (CUDA error {status})", code="gpu-failed"
        )
    digits = bytes(uuid).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def enable_peer_access(gpu: int, peer: int) -> None:
    """Let the current device, of index `gpu`, copy directly from and to another GPU of this process, over NVLink or PCIe."""
    from cupy.cuda import runtime

    if peer == gpu or not runtime.deviceCanAccessPeer(gpu, peer):
        return
    try:
        runtime.deviceEnablePeerAccess(peer)
    except runtime.CUDARuntimeError as error:
        if error.status != _PEER_ACCESS_ALREADY_ENABLED:
            raise


class _PreviousContexts(threading.local):
    """A thread's stack of contexts to restore when it leaves a `GpuContext`."""

    def __init__(self) -> None:
        self.contexts: list[int] = []


class GpuContext:
    """A context manager that makes one GPU's CUDA context current for this thread, and restores the previous one, or none.
    Reentrant, for any thread.

    In a program that has used no GPU, CuPy's `with Device(1)` ends with cudaSetDevice(0), which since CUDA 12 creates a context
    on GPU 0: of eight ranks on a node, seven would take memory of that GPU, and a tenth of a second each.
    """

    def __init__(self, index: int) -> None:
        """Retains the GPU's primary context, which the CUDA runtime uses, creating it if needed."""
        from cupy.cuda import driver

        self._current, self._make_current = driver.ctxGetCurrent, driver.ctxSetCurrent
        self._context, self._before = _primary_context(index), _PreviousContexts()

    def __enter__(self) -> None:
        before = self._current()
        if before != self._context:
            self._make_current(self._context)
        self._before.contexts.append(before)  # last: if a line above raises, __exit__ is not called

    def __exit__(self, *error: object) -> None:
        before = self._before.contexts.pop()
        if before != self._context:
            self._make_current(before)

    def is_current(self) -> bool:
        return bool(self._current() == self._context)

    def stay(self) -> None:
        """Make the context current for this thread until something else changes that."""
        self._make_current(self._context)


@cache
def gpu_context(index: int) -> GpuContext:
    """This process's GpuContext for a GPU."""
    return GpuContext(index)


def _primary_context(index: int) -> int:
    import cupy

    driver, device, context = cuda_driver(), ctypes.c_int(), ctypes.c_void_p()
    status = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)
    if status := status or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        raise cupy.cuda.driver.CUDADriverError(status)
    return context.value or 0


@contextmanager
def callers_context() -> Iterator[None]:
    """A context manager that restores this thread's CUDA context after calls of `stay`.

    If the thread had none, it keeps the new one: without a context, CuPy may take GPU 0's memory for another GPU.
    """
    before = _current_context()
    try:
        yield
    finally:
        if before and before != _current_context():
            cuda_driver().cuCtxSetCurrent(ctypes.c_void_p(before))


def _current_context() -> int:
    """0 if there is none, also if CUDA is missing or not initialized."""
    context = ctypes.c_void_p()
    with suppress(AttributeError):  # no driver, or one without this function, which `usable_gpus` reports
        cuda_driver().cuCtxGetCurrent(ctypes.byref(context))
    return context.value or 0


def free_bytes(gpu: Gpu) -> int:
    """The GPU's free memory, including free blocks of this process's CuPy memory pool."""
    import cupy

    with gpu_context(gpu.index):
        return int(cupy.cuda.runtime.memGetInfo()[0]) + pooled_bytes(gpu)


def where_there_is_room(array: np.ndarray, gpu: Gpu, room: int) -> Any:
    """A copy of the array on the GPU, if `room` bytes are free there; else the array itself."""
    import cupy

    with gpu_context(gpu.index):
        return cupy.asarray(array) if room <= free_bytes(gpu) else array


def pooled_bytes(gpu: Gpu) -> int:
    """The bytes of free blocks in this process's CuPy memory pool on the GPU."""
    import cupy

    with gpu_context(gpu.index):
        return int(cupy.get_default_memory_pool().free_bytes())


_awakening: threading.Thread | None = None
_background_contexts: list[tuple[int, ctypes.c_int]] = []  # index and device of the GPU with a context made in the background


def wake_driver(settings: Settings, *, with_context: bool = True) -> None:
    """If the settings allow GPUs, call cuInit and create a CUDA context in the background, without the GIL, which CuPy would
    hold. Both take a quarter of a second, more if several ranks do it. The context is on the GPU that this rank will get if each
    rank sees all GPUs.

    cuInit reads a hundred environment variables. With glibc before 2.41 that may crash (SIGSEGV) while another thread sets one,
    as MPI_Init and the setting of CuPy's cache folder do. So call this after MPI_Init; the folder is set here, before the thread.
    """
    global _awakening
    if not may_use_gpus(settings) or (driver := cuda_driver()) is None or _awakening is not None:
        return  # a missing driver is reported by usable_gpus
    launch = launched()
    local_rank = None if not with_context else launch.local_rank if launch else 0
    from hybrid.devices.cuda_kernels import trust_own_cache_only

    def awaken() -> None:
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        with suppress(AttributeError):  # a driver without these functions, which `usable_gpus` reports
            if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value or local_rank is None:
                return
            index = local_rank % count.value
            if not (
                driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            ):
                _background_contexts.append((index, device))

    trust_own_cache_only()
    awakening = threading.Thread(target=awaken, daemon=True)
    with suppress(RuntimeError):  # the limit of threads is reached: cuInit is called at first use
        awakening.start()
        _awakening = awakening


def use_context_of(gpu: Gpu | None) -> None:
    """Free the context that `wake_driver` created, unless it is on this GPU, the one that the process uses. None: it uses
    none."""
    if _awakening is not None:
        _awakening.join()
    while _background_contexts:
        index, device = _background_contexts.pop()
        if gpu is None or index != gpu.index:
            cuda_driver().cuDevicePrimaryCtxRelease_v2(device)


class PinnedMemory:
    """A process's pinned arrays: page-locked by cudaHostRegister, until their memory is freed.

    Pinning takes about as long as a copy through slots (`SlotCopies`), and several times as long with contexts on several GPUs:
    it pays when the memory is used again. The driver copies pageable memory at a third of the link's rate or less.

    An array is tracked by its owner, the array whose memory it is a view of. Memory is unregistered when the owner is garbage-
    collected: before it is freed if it is a memory mapping, or with NumPy up to 2.4; else after. A pinned array cannot be resized
    in place, because NumPy refuses that for arrays with weak references.

    CUDA refuses every copy, also the caller's own, that spans pinned and pageable memory. So the owner's whole mapping or buffer
    is pinned, or nothing: a view of less than `LEAST_PART` of it is copied through slots.
    """

    def __init__(self) -> None:
        self._registered: dict[int, tuple[int, int]] = {}  # address range by the owner's id; owners may share a buffer
        self._lock = threading.RLock()  # reentrant: the garbage collector may call `_forget` within these methods
        self._used: set[int] = set()  # ids of owners that a product has used and that are not registered
        self._watched: set[int] = set()  # ids of owners with a finalizer
        self._refused: set[int] = set()  # ids of owners that cannot be pinned, such as read-only files
        self._trouble = ""  # why memory could not be registered
        self._gpu_of: dict[int, int] = {}  # by address, the GPU in whose context it was registered
        self._runtime: Any = None  # CUDA's, kept so that freeing an array imports nothing

    def pin(self, array: np.ndarray) -> bool:
        """Pin the memory of an array. False if that is impossible, or the memory is too small for it to pay."""
        owner = owner_of(array)
        memory = _memory_of(owner)
        with self._lock:
            pinned = memory is not None and self._pin(owner, memory)
        self._warn_once()
        return pinned

    def pin_again(self, arrays: Sequence[np.ndarray], *, at_once: bool = False) -> list[np.ndarray]:
        """Pin those of a product's arrays that an earlier call was given as well; all of them with `at_once`. Returns the arrays
        that are not pinned."""
        others = []
        with self._lock:
            for array in arrays:
                owner = owner_of(array)
                if id(owner) in self._registered:
                    continue
                memory = _memory_of(owner)
                if memory is not None and (memory in self._registered.values() or _covers_most(array, memory)):
                    again = at_once or id(owner) in self._used or memory in self._registered.values()
                    if again and id(owner) not in self._refused:
                        if self._pin(owner, memory):
                            continue
                        self._refused.add(id(owner))
                    self._used.add(id(owner))
                    self._watch(owner)
                others.append(array)
            if not at_once:
                self._trouble = ""  # no warning: they are copied through slots
        self._warn_once()
        return others

    def bytes_not_pinned(self, arrays: Sequence[Any]) -> int:
        """The bytes of the NumPy arrays among these that `pin_again` would not pin."""
        import numpy as np

        known = self._registered.keys() | self._used - self._refused
        return sum(each.nbytes for each in arrays if isinstance(each, np.ndarray) and id(owner_of(each)) not in known)

    def _warn_once(self) -> None:
        trouble, self._trouble = self._trouble, ""
        if trouble:
            warn(trouble)

    def _pin(self, owner: np.ndarray, memory: tuple[int, int]) -> bool:
        if memory not in self._registered.values() and not self._register(memory[0], memory[1] - memory[0]):
            return False
        self._registered[id(owner)] = memory
        self._used.discard(id(owner))
        self._watch(owner)
        return True

    def _watch(self, owner: np.ndarray) -> None:
        """Unregister the memory when the owner is garbage-collected."""
        if id(owner) not in self._watched:
            self._watched.add(id(owner))
            # The finalizer keeps a mapping alive until it is unregistered: NumPy 2.5 drops `base` before weakref callbacks.
            weakref.finalize(owner, self._forget, id(owner), owner.base).atexit = False

    def _forget(self, key: int, mapping: object) -> None:
        with self._lock:
            for known in (self._used, self._watched, self._refused):
                known.discard(key)
            registered = self._registered.pop(key, None)
            if registered is not None and registered not in self._registered.values():
                self._unregister(registered[0])

    def _register(self, address: int, size: int) -> bool:
        """Returns whether cudaHostRegister succeeded."""
        from cupy.cuda import runtime

        try:
            runtime.hostRegister(address, size, _PORTABLE)
        except runtime.CUDARuntimeError as error:
            if error.status == _ALREADY_REGISTERED:  # by the caller
                return True
            self._trouble = (
                f"{readable(size)} of host memory cannot be page-locked ({one_line(error)}): they are copied at a third "
                "of the link's speed or less; python -m hybrid.doctor tells the limit"
            )
            return False
        self._runtime, self._gpu_of[address] = runtime, runtime.getDevice()
        return True

    def _unregister(self, address: int) -> None:
        gpu = self._gpu_of.pop(address, None)
        if gpu is not None:  # else the caller has registered it
            with gpu_context(gpu):
                self._runtime.hostUnregister(address)


pinned_memory = PinnedMemory()  # of this process


def _memory_of(owner: np.ndarray) -> tuple[int, int] | None:
    """The address range of the owner's memory, if it is known, has pages of its own, and is large enough for pinning to pay."""
    import numpy as np

    base = owner.base.obj if isinstance(owner.base, memoryview) else owner.base
    try:
        whole = owner if base is None else np.frombuffer(base, np.uint8)
    except (TypeError, ValueError, BufferError):
        return None  # another library's memory
    if whole.nbytes < LEAST_BYTES:
        return None
    lo, hi = map(int, np.lib.array_utils.byte_bounds(whole))
    has_pages = isinstance(base, mmap.mmap) or hi - lo >= LEAST_OWNER_BYTES or (base is None and _is_mapped(lo, hi))
    return (lo, hi) if has_pages else None


def _is_mapped(lo: int, hi: int) -> bool:
    """Whether glibc's malloc made a mapping for this block: then it begins after a header at a page's start."""
    if lo % mmap.PAGESIZE != _HEADER or sys.byteorder != "little":
        return False
    size = ctypes.c_uint64.from_address(lo - 8).value
    pages = -(-(hi - lo + _HEADER) // mmap.PAGESIZE) * mmap.PAGESIZE
    return bool(size & _IS_MAPPED) and pages <= size & ~_FLAGS <= pages + mmap.PAGESIZE


def _covers_most(array: np.ndarray, memory: tuple[int, int]) -> bool:
    import numpy as np

    lo, hi = np.lib.array_utils.byte_bounds(array)
    return int(hi - lo) >= LEAST_PART * (memory[1] - memory[0])


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array that owns this one's memory, through any number of views."""
    import numpy as np

    while True:
        if isinstance(array.base, np.ndarray):
            array = array.base
        elif isinstance(array.base, ResultMemory):
            array = array.base.memory
        else:
            return array
