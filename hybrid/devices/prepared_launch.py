# SPDX-License-Identifier: MIT
"""Launches of CUDA kernels whose arguments are packed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class PreparedLaunch:
    """To be called with a stream's pointer, as often as wanted. CuPy would convert the arguments at each launch, ten microseconds
    for each matrix: longer than the launch itself, and with the GIL, which threads of the check want, too."""

    def __init__(
        self, function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared_bytes: int = 0
    ) -> None:
        """`function`: a CuPy kernel, compiled for the current GPU. `arguments`: as NumPy has them, by value."""
        from cupy_backends.cuda.api import driver

        self._launch = driver.launchKernel
        self._kernel = function.kernel  # keeps its module loaded
        whole = [*grid, 1, 1][:3] + [*block, 1, 1][:3]
        self._arguments = [np.array(each) for each in arguments]
        self._addresses = np.array([each.ctypes.data for each in self._arguments], np.uintp)
        self._before, self._after = (self._kernel.ptr, *whole, shared_bytes), (self._addresses.ctypes.data, 0)

    def __call__(self, stream: int) -> None:
        self._launch(*self._before, stream, *self._after)
