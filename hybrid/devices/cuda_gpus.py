# SPDX-License-Identifier: MIT
"""The CUDA GPUs that a process can use: contexts in which a thread's calls work, free and pinned memory."""

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
    import numpy as np  # functions import it, since commands load it only when the number of threads is settled

_PEER_ACCESS_ALREADY_ENABLED, _ALREADY_REGISTERED = 704, 712  # of cudaError_t
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all GPUs, not only for the current one
# Two registered ranges must not share a page. Only larger blocks are sure to get whole pages from malloc, whose
# M_MMAP_THRESHOLD grows up to 32 MiB; memory mappings, such as the ranks' shared memory, always have whole pages.
LEAST_OWNER_BYTES = (32 << 20) + 1
_HEADER, _IS_MAPPED, _FLAGS = 16, 2, 7  # of a block of glibc's malloc: bytes before it, and bits of the size in their last 8
LEAST_PART = 0.5  # of its memory that an array takes, for all of it to be pinned


def usable_gpus() -> list[Gpu]:
    """The GPUs that this process can use. DeviceUnavailable, with the reason, when there is none.

    It creates no CUDA context, which would take memory of GPUs that are not used. Call it after MPI_Init.
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
    """The CUDA driver's library, or None. Cached: where there is none, each product would search the disk for it."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@cache
def _gpu(index: int) -> Gpu:
    """The GPU with this index. Cached: cudaGetDeviceProperties takes a millisecond, longer than a small product."""
    from cupy.cuda import runtime

    properties = runtime.getDeviceProperties(index)
    capability = 10 * properties["major"] + properties["minor"]
    return Gpu(index, _uuid(index), properties["name"].decode(), capability)


def _uuid(index: int) -> str:
    """From the driver. CuPy takes the one of cudaGetDeviceProperties for a string, which ends before its first zero byte."""
    driver, device, uuid = cuda_driver(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if status := driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetUuid_v2(uuid, device):
        raise DeviceUnavailable(
            f"the NVIDIA driver does not tell which GPU number {index} is (CUDA error {status})", code="gpu-failed"
        )
    digits = bytes(uuid).hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def enable_peer_access(gpu: int, peer: int) -> None:
    """Let the current device, of index `gpu`, copy from and to another GPU of this process over NVLink or PCIe directly, not
    through host memory."""
    from cupy.cuda import runtime

    if peer == gpu or not runtime.deviceCanAccessPeer(gpu, peer):
        return
    try:
        runtime.deviceEnablePeerAccess(peer)
    except runtime.CUDARuntimeError as error:
        if error.status != _PEER_ACCESS_ALREADY_ENABLED:
            raise


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

    driver, device, context = cuda_driver(), ctypes.c_int(), ctypes.c_void_p()
    status = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)
    if status := status or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        raise cupy.cuda.driver.CUDADriverError(status)
    return context.value or 0


@contextmanager
def callers_context() -> Iterator[None]:
    """A context manager: after it this thread's CUDA calls work where they did before, whatever `stay` was called within it.

    A thread that had no context stays where it is: without one, CuPy may take memory of GPU 0 for another GPU's.
    """
    before = _current_context()
    try:
        yield
    finally:
        if before and before != _current_context():
            cuda_driver().cuCtxSetCurrent(ctypes.c_void_p(before))


def _current_context() -> int:
    """0 where there is none, also because CUDA has not started or is not there."""
    context = ctypes.c_void_p()
    with suppress(AttributeError):  # no driver, or one that has not all functions, which `usable_gpus` reports
        cuda_driver().cuCtxGetCurrent(ctypes.byref(context))
    return context.value or 0


def free_bytes(gpu: Gpu) -> int:
    """The GPU's free memory, including what CuPy's memory pool in this process has cached."""
    import cupy

    with gpu_context(gpu.index):
        return int(cupy.cuda.runtime.memGetInfo()[0]) + pooled_bytes(gpu)


def where_there_is_room(array: np.ndarray, gpu: Gpu, room: int) -> Any:
    """A copy of the array on the GPU, if there is room; else the array itself."""
    import cupy

    with gpu_context(gpu.index):
        return cupy.asarray(array) if room <= free_bytes(gpu) else array


def pooled_bytes(gpu: Gpu) -> int:
    """The GPU's memory that CuPy's memory pool in this process has cached and no array uses."""
    import cupy

    with gpu_context(gpu.index):
        return int(cupy.get_default_memory_pool().free_bytes())


_awakening: threading.Thread | None = None
_awakened: list[tuple[int, ctypes.c_int]] = []  # the index and the device of the GPU whose context was created meanwhile


def wake_driver(settings: Settings, *, with_context: bool = True) -> None:
    """If the settings allow GPUs, call cuInit in the background, and create a CUDA context, which take a quarter of a second
    together, and more where several ranks do it: that of the GPU that this rank will have if each rank sees all GPUs. Meanwhile
    the GIL is free, which it is not where CuPy does it.

    cuInit reads a hundred environment variables. With glibc before 2.41 a process may die of that (SIGSEGV) while another thread
    adds one: MPI_Init does, and so does Python where CuPy is told a folder. So this comes after MPI_Init, and CuPy is told here.
    """
    global _awakening
    if not may_use_gpus(settings) or (driver := cuda_driver()) is None or _awakening is not None:
        return  # usable_gpus will report that there is no driver, or somebody was here before
    launch = launched()
    local_rank = None if not with_context else launch.local_rank if launch else 0
    from hybrid.devices.cuda_kernels import trust_own_cache_only

    def awaken() -> None:
        count, device, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        with suppress(AttributeError):  # a driver that has not all functions, which `usable_gpus` reports
            if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value or local_rank is None:
                return
            index = local_rank % count.value
            if not (
                driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            ):
                _awakened.append((index, device))

    trust_own_cache_only()
    awakening = threading.Thread(target=awaken, daemon=True)
    with suppress(RuntimeError):  # the limit of threads is reached: then the driver is started at first use
        awakening.start()
        _awakening = awakening


def use_context_of(gpu: Gpu | None) -> None:
    """Free the context that `wake_driver` created on another GPU than this one, on which the process multiplies; None: on none.
    It would only take memory."""
    if _awakening is not None:
        _awakening.join()
    while _awakened:
        index, device = _awakened.pop()
        if gpu is None or index != gpu.index:
            cuda_driver().cuDevicePrimaryCtxRelease_v2(device)


class PinnedMemory:
    """The arrays of a process that are pinned: page-locked by cudaHostRegister, until their memory is freed.

    Pinning takes about as long as a copy through slots (`SlotCopies`), and several times as long with contexts of several GPUs:
    it pays when the memory is used again. Copies by the driver from pageable memory run at a third of the link's rate or less.

    What is tracked is the array that owns the memory, of which others are views. When it is garbage-collected, its memory is
    unregistered: for memory mappings before the memory is freed, and up to NumPy 2.4 also for an array's own memory. A pinned
    array cannot be resized in place, because NumPy refuses that for arrays with weak references.

    CUDA refuses every copy, also the caller's own, of memory that is pinned in part. So all memory that the owner lies in is
    pinned, a whole mapping or buffer, or nothing: a view of less than `LEAST_PART` of it is copied through slots.
    """

    def __init__(self) -> None:
        self._registered: dict[int, tuple[int, int]] = {}  # addresses, by the owner's id: those of one buffer have the same
        self._lock = threading.RLock()  # any thread may free an array, and garbage collection may within these functions
        self._used: set[int] = set()  # owners that a product has used and that are not registered, by id
        self._watched: set[int] = set()  # owners that a finalizer has been made for, by id
        self._refused: set[int] = set()  # owners of memory that cannot be pinned, such as a file that may only be read
        self._trouble = ""  # why memory could not be registered
        self._gpu_of: dict[int, int] = {}  # by address, where it was registered
        self._runtime: Any = None  # CUDA's: nothing is imported while an array is freed

    def pin(self, array: np.ndarray) -> bool:
        """Pin the memory that `array` lies in. False where that is not possible, or too small to pay."""
        owner = owner_of(array)
        memory = _memory_of(owner)
        with self._lock:
            pinned = memory is not None and self._pin(owner, memory)
        self._tell()
        return pinned

    def pin_again(self, arrays: Sequence[np.ndarray], *, at_once: bool = False) -> list[np.ndarray]:
        """Pin the memory of those of a product's arrays that an earlier call of this was given as well, or of all `at_once`.
        Returns the arrays that are not pinned, such as those in a file that may only be read."""
        others = []
        with self._lock:
            for array in arrays:
                owner = owner_of(array)
                if id(owner) in self._registered:
                    continue
                memory = _memory_of(owner)
                if memory is not None and (memory in self._registered.values() or _most_of(array, memory)):
                    again = at_once or id(owner) in self._used or memory in self._registered.values()
                    if again and id(owner) not in self._refused:
                        if self._pin(owner, memory):
                            continue
                        self._refused.add(id(owner))
                    self._used.add(id(owner))
                    self._watch(owner)
                others.append(array)
            if not at_once:
                self._trouble = ""  # slots serve
        self._tell()
        return others

    def bytes_not_pinned(self, arrays: Sequence[Any]) -> int:
        """The bytes of those NumPy arrays among these that `pin_again` would not pin."""
        import numpy as np

        known = self._registered.keys() | self._used - self._refused
        return sum(each.nbytes for each in arrays if isinstance(each, np.ndarray) and id(owner_of(each)) not in known)

    def _tell(self) -> None:
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
        """Have its memory unregistered when the owner is garbage-collected."""
        if id(owner) not in self._watched:
            self._watched.add(id(owner))
            # NumPy 2.5 frees the memory before weak references are called back. The finalizer refers to the mapping, too, which
            # keeps it mapped until it is unregistered.
            weakref.finalize(owner, self._forget, id(owner), owner.base).atexit = False

    def _forget(self, key: int, mapping: object) -> None:
        with self._lock:
            for known in (self._used, self._watched, self._refused):
                known.discard(key)
            registered = self._registered.pop(key, None)
            if registered is not None and registered not in self._registered.values():
                self._unregister(registered[0])

    def _register(self, address: int, size: int) -> bool:
        """cudaHostRegister; returns whether it succeeded."""
        from cupy.cuda import runtime

        try:
            runtime.hostRegister(address, size, _PORTABLE)
        except runtime.CUDARuntimeError as error:
            if error.status == _ALREADY_REGISTERED:  # by the caller, which serves as well
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
    """The addresses of the memory that this array lies in, if it has pages of its own, its bounds are known, and it is large
    enough for pinning to pay."""
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
    """Whether glibc's malloc has given this block pages of its own: then it begins behind the header of the first one, which
    tells their size."""
    if lo % mmap.PAGESIZE != _HEADER or sys.byteorder != "little":
        return False
    told = ctypes.c_uint64.from_address(lo - 8).value
    pages = -(-(hi - lo + _HEADER) // mmap.PAGESIZE) * mmap.PAGESIZE
    return bool(told & _IS_MAPPED) and pages <= told & ~_FLAGS <= pages + mmap.PAGESIZE


def _most_of(array: np.ndarray, memory: tuple[int, int]) -> bool:
    import numpy as np

    lo, hi = np.lib.array_utils.byte_bounds(array)
    return int(hi - lo) >= LEAST_PART * (memory[1] - memory[0])


def owner_of(array: np.ndarray) -> np.ndarray:
    """The array that this one is a view of, over any number of views."""
    import numpy as np

    while True:
        if isinstance(array.base, np.ndarray):
            array = array.base
        elif isinstance(array.base, ResultMemory):
            array = array.base.memory
        else:
            return array
