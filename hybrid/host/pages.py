"""Memory in pages of its own: a GPU's link locks whole pages, which two arrays must not share."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

from hybrid.core.text import readable
from hybrid.errors import DoesNotFit

LEAST_BYTES = 1 << 20  # less is copied sooner than locked


def empty_matrix(rows: int, columns: int, dtype: str) -> np.ndarray:
    """A matrix of undefined contents. DoesNotFit where the system has no room for it."""
    size = rows * columns * np.dtype(dtype).itemsize
    if size < LEAST_BYTES or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty((rows, columns), dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DoesNotFit(f"no room for {readable(size)} of memory ({error.strerror})") from None
    with suppress(OSError, AttributeError):  # fewer and larger pages are found and locked sooner
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray((rows, columns), dtype, buffer=pages)
