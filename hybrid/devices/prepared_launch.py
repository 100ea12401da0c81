# SPDX-License-Identifier: MIT
"""Launches of CUDA kernels whose arguments are packed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_DEFAULT_DYNAMIC_SHARED = 48 * 1024  # bytes
# Of CUfunction_attribute.
_SHARED_SIZE_BYTES, _LOCAL_SIZE_BYTES, _NUM_REGS = 1, 3, 4
_MAX_DYNAMIC_SHARED_SIZE_BYTES, _PREFERRED_SHARED_MEMORY_CARVEOUT = 8, 9


class PreparedLaunch:
    """A launch, to be called with a stream's pointer as often as wanted.

    CuPy would convert the arguments at each launch. That takes ten microseconds for each matrix, longer than the launch itself,
    and holds the GIL, which threads of the check want, too.
    """

    def __init__(
        self, function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """`function`: CuPy's, loaded on the current GPU. `arguments`: NumPy arrays or scalars, passed by value."""
        from cupy_backends.cuda.api import driver

        self._launch = driver.launchKernel
        self._function = function  # keeps its module loaded
        whole = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        self._arguments = [np.array(each) for each in arguments]
        self._addresses = np.array([each.ctypes.data for each in self._arguments], np.uintp)
        self._before, self._after = (function.ptr, *whole, shared_bytes), (self._addresses.ctypes.data, 0)

    def __call__(self, stream: int) -> None:
        self._launch(*self._before, stream, *self._after)


def allow_shared_memory(function: Any, dynamic_bytes: int) -> None:
    """Allow launches of this function to ask for so many bytes of dynamic shared memory, which CUDA requires above 48 KB."""
    from cupy_backends.cuda.api import driver

    if dynamic_bytes > _DEFAULT_DYNAMIC_SHARED:
        driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_bytes)


def prefer_shared_memory(function: Any) -> None:
    """Have an SM use as much as possible of its memory, which it divides into L1 cache and shared memory, as the latter."""
    from cupy_backends.cuda.api import driver

    driver.funcSetAttribute(function.ptr, _PREFERRED_SHARED_MEMORY_CARVEOUT, 100)


def resources(function: Any) -> tuple[int, int, int]:
    """Registers of a thread, bytes of static shared memory, and bytes of local memory, into which registers are spilled."""
    from cupy_backends.cuda.api import driver

    registers, shared, local = (
        driver.funcGetAttribute(attribute, function.ptr) for attribute in (_NUM_REGS, _SHARED_SIZE_BYTES, _LOCAL_SIZE_BYTES)
    )
    return registers, shared, local
