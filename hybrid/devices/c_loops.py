"""The three loops of a sequential program, compiled from C: the CPU's slow kernels, to compare others with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np

from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.kernel import described
from hybrid.kernels.catalogue import C_TYPES
from hybrid.kernels.sources import KERNELS

# Each product and each sum is rounded, in the order of the loops: the same numbers on every machine.
_FLAGS = ("-std=c99", "-O3", "-ffp-contract=off")
_AT_ONCE = 100_000_000  # multiply-adds of one call, about a tenth of a second: between calls a signal is heard


@cache
def compiled_loops(name: str, dtype: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], None]:
    """What computes c = a · b by the function `name` of loops.c. DeviceUnavailable without a C compiler."""
    library = ctypes.CDLL(str(build_plain(c_compiler(), KERNELS / "loops.c", [*_FLAGS, f"-DELEMENT={C_TYPES[dtype]}"])))
    function = library[name]
    function.restype = None

    def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        rows = max(1, _AT_ONCE // max(1, b.size))
        for first in range(0, len(c), rows):
            here = slice(first, first + rows)
            function(*(ctypes.byref(described(matrix)) for matrix in (a[here], b, c[here])))

    return multiply
