# SPDX-License-Identifier: MIT
"""row_checksums.c, which sums rows of matrices by threads of its own: compiled, loaded, and its functions' types."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any, ClassVar

from hybrid.emulation.build import build_plain, c_compiler

SOURCE = Path(__file__).resolve().parent / "row_checksums.c"
_FLAGS = ("-std=c11", "-O3", "-pthread")


class EventWaitInC(ctypes.Structure):
    """EventWait of row_pool.h."""

    _fields_: ClassVar[Any] = [("enter", ctypes.c_void_p), ("context", ctypes.c_void_p), ("wait", ctypes.c_void_p)]


def load() -> Any:
    """Compile and load row_checksums.c. None where bytes have another order than it expects.

    Raises HybridError if there is no C compiler, or if it does not compile.
    """
    if sys.byteorder != "little":
        return None
    path = str(build_plain(c_compiler(), SOURCE, _FLAGS))
    library: Any = ctypes.CDLL(path)
    address, number = ctypes.c_void_p, ctypes.c_int64
    library.put = ctypes.PyDLL(path).put  # with the GIL: to get it back would take longer than the call
    library.new_pool.restype = address
    library.new_batch.argtypes, library.new_batch.restype = [address, ctypes.c_int], address
    matrix: list[Any] = [address, number, number, number, number]
    after_event: list[Any] = [address, address, ctypes.c_int]
    library.put.argtypes = [address, address, *matrix, address, address, ctypes.c_uint64, address, ctypes.c_int, *after_event]
    for function in (library.complete, library.wait_for, library.drop):
        function.argtypes, function.restype = [address, address], None
    library.wait_for.restype = ctypes.c_int
    return library
