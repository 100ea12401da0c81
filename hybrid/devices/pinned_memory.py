# SPDX-License-Identifier: MIT
"""Pinned host memory: arrays are page-locked by cudaHostRegister at first use, until their memory is freed.

Copies from pageable memory are staged through a small pinned buffer of the driver, at a third of the link's speed or less.
Pinning costs about as much as one such copy, so it pays when the memory is used again.

What is tracked is the array that owns the memory, of which others are views. When it is garbage-collected, its memory is
unregistered: for memory mappings before the memory is freed, and up to NumPy 2.4 also for an array's own memory. A pinned array
cannot be resized in place, because NumPy refuses that for arrays with weak references.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from hybrid.core.text import readable, warn
from hybrid.devices.cuda_gpus import gpu_context
from hybrid.errors import one_line
from hybrid.host.memory import LEAST_BYTES, Block

_ALREADY_REGISTERED = 712  # cudaErrorHostMemoryAlreadyRegistered
# Two registered ranges must not share a page. Only larger blocks are sure to get whole pages from malloc, whose
# M_MMAP_THRESHOLD grows up to 32 MiB; memory mappings, such as the ranks' shared memory, always have whole pages.
LEAST_OWNER_BYTES = (32 << 20) + 1


@dataclass
class _Registered:
    """A range of addresses."""

    lo: int
    hi: int


class PinnedMemory:
    """The arrays of a process that are pinned."""

    def __init__(self, register: Callable[[int, int], bool], unregister: Callable[[int], None]) -> None:
        """`register(address, size)`: cudaHostRegister; returns whether it succeeded. `unregister(address)`:
        cudaHostUnregister."""
        self._register, self._unregister = register, unregister
        self._registered: dict[int, _Registered] = {}  # by the owner's id

    def pin(self, array: np.ndarray) -> bool:
        """Pin the memory of `array`, from its first byte to its last. False where that is not possible, or too small to pay."""
        owner = _owner(array)
        lo, hi = _range(array)
        known = self._registered.get(id(owner))
        if known is not None and known.lo <= lo and hi <= known.hi:
            return True
        has_own_pages = owner.nbytes >= LEAST_OWNER_BYTES or isinstance(owner.base, mmap.mmap)
        if not has_own_pages or hi - lo < LEAST_BYTES:
            return False
        if known is not None:
            self._unregister_owner(id(owner))
            lo, hi = min(lo, known.lo), max(hi, known.hi)
        if not self._register(lo, hi - lo):
            return False
        self._registered[id(owner)] = _Registered(lo, hi)
        if known is None:
            # NumPy 2.5 frees the memory before weak references are called back. The finalizer refers to the mapping, too, which
            # keeps it mapped until it is unregistered.
            weakref.finalize(owner, self._unregister_owner, id(owner), owner.base).atexit = False
        return True

    def _unregister_owner(self, key: int, mapping: object = None) -> None:
        registered = self._registered.pop(key, None)
        if registered is not None:
            self._unregister(registered.lo)


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that this one is a view of, over any number of views."""
    while True:
        if isinstance(array.base, np.ndarray):
            array = array.base
        elif isinstance(array.base, Block):
            array = array.base.memory
        else:
            return array


def _range(array: np.ndarray) -> tuple[int, int]:
    lo, hi = np.lib.array_utils.byte_bounds(array)
    return int(lo), int(hi)


@cache
def pinned_memory() -> PinnedMemory:
    """The pinned memory of this process."""
    from cupy.cuda import runtime

    gpu_of: dict[int, int] = {}  # by address, where it was registered

    portable = 1  # cudaHostRegisterPortable: pinned for all GPUs, not only for the current one

    def register(address: int, size: int) -> bool:
        try:
            runtime.hostRegister(address, size, portable)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_REGISTERED:  # by the caller, which serves as well
                warn(
                    f"{readable(size)} of host memory cannot be page-locked ({one_line(error)}): they are copied at a third "
                    "of the link's speed or less; python -m hybrid.doctor tells the limit"
                )
            return False
        gpu_of[address] = runtime.getDevice()
        return True

    def unregister(address: int) -> None:
        with gpu_context(gpu_of.pop(address)):
            runtime.hostUnregister(address)

    return PinnedMemory(register, unregister)
