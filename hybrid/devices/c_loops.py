# SPDX-License-Identifier: MIT
"""The CPU's slow kernels, for comparison: a sequential program's three loops, compiled from kernels/loops.c."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.kernel import as_c_array
from hybrid.kernels.catalogue import C_TYPES
from hybrid.kernels.sources import KERNELS

# No fused multiply-add and no reordering: every product and every sum is rounded, so the result is the same on all machines.
_FLAGS = ("-std=c99", "-O3", "-ffp-contract=off")
_AT_ONCE = 100_000_000  # multiply-adds per call, about a tenth of a second: Python handles signals only between calls


@cache
def compiled_loops(name: str, dtype: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """The function `name` of loops.c, as one that computes c = a · b. DeviceUnavailable without a C compiler."""
    library = ctypes.CDLL(str(build_plain(c_compiler(), KERNELS / "loops.c", [*_FLAGS, f"-DELEMENT={C_TYPES[dtype]}"])))
    function = library[name]
    function.restype = None

    def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        rows = max(1, _AT_ONCE // max(1, b.size))
        for first in range(0, len(c), rows):
            block = slice(first, first + rows)
            function(*(ctypes.byref(as_c_array(matrix)) for matrix in (a[block], b, c[block])))

    return multiply
