"""Host memory that the GPUs' links reach directly: locked once, for as long as the memory lives.

Copies from ordinary memory go through a small buffer of the driver's, at a third of the link's speed or less. Locking
costs as much as such a copy, so it pays when the memory is used again. The owner of an array is the array its views are
made from; when it goes, its memory is unlocked: before it is given back where NumPy lets us, that is mappings always, an
array's own memory up to NumPy 2.4. An array that is locked cannot be resized in place: NumPy refuses that for arrays that
others refer to.
"""

from __future__ import annotations

import mmap
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from hybrid.core.text import readable
from hybrid.errors import one_line
from hybrid.host.page_memory import LEAST_BYTES, Block

_ALREADY_LOCKED = 712  # in CUDA's numbers
# Two locks must not meet in one page. The C library gives only larger memory pages of its own (its M_MMAP_THRESHOLD grows
# up to 32 MiB); mappings, such as windows, begin and end with pages.
LEAST_OWNER_BYTES = (32 << 20) + 1


@dataclass
class _Locked:
    lo: int
    hi: int


class PinnedMemory:
    """`register(address, size)` locks memory and says whether it could; `unregister(address)` undoes that."""

    def __init__(self, register: Callable[[int, int], bool], unregister: Callable[[int], None]) -> None:
        self._register, self._unregister = register, unregister
        self._locked: dict[int, _Locked] = {}  # by the owner's id

    def lock(self, array: np.ndarray) -> bool:
        """Whether the memory of `array` is locked now, from its first byte to its last."""
        owner = _owner(array)
        lo, hi = _range(array)
        known = self._locked.get(id(owner))
        if known is not None and known.lo <= lo and hi <= known.hi:
            return True
        has_own_pages = owner.nbytes >= LEAST_OWNER_BYTES or isinstance(owner.base, mmap.mmap)
        if not has_own_pages or hi - lo < LEAST_BYTES:
            return False
        if known is not None:
            self._forget(id(owner))
            lo, hi = min(lo, known.lo), max(hi, known.hi)
        if not self._register(lo, hi - lo):
            return False
        self._locked[id(owner)] = _Locked(lo, hi)
        if known is None:
            # NumPy 2.5 gives memory back before it tells that the array has gone: a mapping is kept until it is unlocked.
            weakref.finalize(owner, self._forget, id(owner), owner.base).atexit = False
        return True

    def _forget(self, key: int, kept: object = None) -> None:
        locked = self._locked.pop(key, None)
        if locked is not None:
            self._unregister(locked.lo)


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory this one shows a part of."""
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
    """This process's."""
    from cupy.cuda import runtime

    portable = 1  # for the GPUs of all contexts of this process

    def register(address: int, size: int) -> bool:
        try:
            runtime.hostRegister(address, size, portable)
        except runtime.CUDARuntimeError as error:
            if error.status != _ALREADY_LOCKED:  # by the caller: as fast
                warnings.warn(
                    f"{readable(size)} of host memory cannot be page-locked ({one_line(error)}): they are copied at a third "
                    "of the link's speed or less; python -m hybrid.doctor tells the limit",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return False
        return True

    return PinnedMemory(register, runtime.hostUnregister)
