# SPDX-License-Identifier: MIT
"""Host memory: how much of it, and of a disk, is free; matrices in whole pages, views of their rows, and copies by several
threads; names of this machine.

Importing this module does not load NumPy, because the number of BLAS threads must be settled first.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hybrid.core.problem import Span, even_pieces, pieces
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit
from hybrid.host.threads import on_threads

if TYPE_CHECKING:
    import numpy as np

SECONDS_TO_LIVE = 0.1  # of a cached value: looking it up again takes as long as a small product

_Value = TypeVar("_Value")


def ttl_cached(look: Callable[[], _Value]) -> Callable[[], _Value]:
    """`look` with its result cached for up to SECONDS_TO_LIVE, for values that change slowly and every product needs."""

    @lru_cache(maxsize=1)
    def value_at(tick: int) -> _Value:
        return look()

    return lambda: value_at(int(time.monotonic() / SECONDS_TO_LIVE))


def available_host_bytes(*, now: bool = False) -> int:
    """`host_bytes_in` for this machine, cached for up to SECONDS_TO_LIVE unless `now`."""
    return host_bytes_in() if now else _host_bytes_lately()


def host_bytes_in(root: Path = Path("/")) -> int:
    """The bytes of memory that are available, on the system and in this process's control groups. `root`: the parent folder of
    proc and sys."""
    limits = []
    with suppress(OSError):  # not Linux
        _, name, after = (root / "proc/meminfo").read_text().partition("MemAvailable:")
        limits += [int(after.split(maxsplit=1)[0]) * 1024] if name else []
    limits += _allowed_by_control_groups(root)
    return min(limits) if limits else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_host_bytes_lately = ttl_cached(host_bytes_in)


def _allowed_by_control_groups(root: Path) -> list[int]:
    """The bytes left in each of this process's control groups (version 2) with a limit."""
    try:
        own = [line.split(":", 2)[2] for line in (root / "proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    except OSError:
        return []
    allowed = []
    mounted = root / "sys/fs/cgroup"
    for path in own:
        folder = mounted / path.strip().lstrip("/")
        for level in (folder, *folder.parents):
            with suppress(OSError):  # this level sets no limit, or is outside the container
                limit, used = (level / "memory.max").read_text().strip(), (level / "memory.current").read_text()
                if limit != "max":
                    allowed.append(max(0, int(limit) - int(used)))
            if level == mounted:
                break
    return allowed


def free_bytes_in(folder: Path) -> int:
    """The bytes that this user may still write to the file system of `folder`; in /dev/shm, memory."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


@cache
def kernel() -> str:
    """Eight hexadecimal digits that identify this machine since its last boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return os.urandom(4).hex()  # not Linux: no other process gets the same


@cache
def process_space() -> str:
    """`kernel()` and eight or more hexadecimal digits of the PID namespace, within which process numbers are unique: containers
    may share a host's name and folders."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = int.from_bytes(os.urandom(4), "big")
    return f"{kernel()}{namespace:08x}"


def processor() -> str:
    """The model name of this machine's processors, or else what Python knows of them."""
    with suppress(OSError):  # no such file outside Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# Matrices have whole pages, because memory is pinned by pages. The memory of a freed result is reused for the next one: fresh
# memory costs page faults, at the speed of a slow disk, and must be pinned again. For a large product, both take longer than
# the product.

LEAST_BYTES = 1 << 20  # smaller arrays are ordinary ones: copying them costs less than pinning, and page faults nothing


def empty_matrix(rows: int, columns: int, dtype: str | np.dtype) -> np.ndarray:
    """An uninitialized matrix; from LEAST_BYTES on, it shares no page with another array. DoesNotFit if the system refuses."""
    import numpy as np

    size = rows * columns * np.dtype(dtype).itemsize
    if size < LEAST_BYTES:
        return np.empty((rows, columns), dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if _kept:  # may count toward a limit of address space (ulimit -v)
            _kept.clear()
            return empty_matrix(rows, columns, dtype)
        raise DoesNotFit(f"no room for {readable(size)} of host memory ({error.strerror})") from None
    with suppress(OSError, AttributeError):  # huge pages are allocated and pinned faster
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray((rows, columns), dtype, buffer=pages)


# Memory of freed results for reuse, one for each bit length of sizes in bytes, since programs alternate between shapes.
_kept: dict[int, np.ndarray] = {}
_MOST_KEPT = 8  # memory of other bit lengths is kept up to 1/8 of what the next result leaves available


class ResultMemory:
    """A result's memory, with NumPy's array interface. When its last array is freed, the memory is kept for reuse."""

    def __init__(self, memory: np.ndarray, interface: dict[str, Any]) -> None:
        self.memory, self._kept = memory, _kept
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self._kept[self.memory.nbytes.bit_length()] = self.memory


def empty_result(rows: int, columns: int, dtype: str) -> np.ndarray:
    """An uninitialized array for a result, in reused memory if that has a fitting size. DoesNotFit as for `empty_matrix`."""
    import numpy as np

    size = rows * columns * np.dtype(dtype).itemsize
    if size < LEAST_BYTES:
        return np.empty((rows, columns), dtype)
    memory = _take_kept(size)
    if memory is None:
        memory = empty_matrix(1, size, "uint8")
    at = (memory.ctypes.data, False)
    interface = {"data": at, "shape": (rows, columns), "typestr": np.dtype(dtype).str, "version": 3}
    return np.asarray(ResultMemory(memory, interface))


def bytes_kept_for(size: int) -> int:
    """The bytes of kept memory that a result of `size` bytes can reuse, or 0."""
    memory = _take_kept(size)
    if memory is None:
        return 0
    _kept[memory.nbytes.bit_length()] = memory
    return memory.nbytes


def _take_kept(size: int) -> np.ndarray | None:
    """Kept memory of `size` to 2 * `size` bytes, or None. Memory of the same bit length that is too small is dropped.

    Each step is atomic, because between two steps another thread, or the garbage collector, may keep more memory.
    """
    memory = _kept.pop(size.bit_length(), None)
    if sum(each.nbytes for each in _kept.copy().values()) > (available_host_bytes() - size) // _MOST_KEPT:
        _kept.clear()
    return memory if memory is not None and memory.nbytes >= size else None


class RowView:
    """Rows `rows` of a matrix, in `array` in host or GPU memory; indexed by rows of the whole matrix."""

    def __init__(self, array: Any, rows: Span) -> None:
        self.array = array
        self.rows = rows

    def __getitem__(self, rows: Span) -> Any:
        """These rows of the whole matrix, all within `self.rows`."""
        return self.array[rows.within(self.rows).slice]


def is_transpose(one: Any, other: Any) -> bool:
    """Whether `one` is the transpose of `other` in the same memory, for NumPy and CuPy arrays."""
    if one.shape != other.shape[::-1] or one.strides != other.strides[::-1] or one.dtype != other.dtype:
        return False
    first, second = (  # not NumPy's `data`, which fails for bfloat16
        each.data.ptr if hasattr(each, "__cuda_array_interface__") else each.ctypes.data for each in (one, other)
    )
    return bool(first == second)


# Rows and columns. Reading a matrix with contiguous columns row by row uses one element of each cache line at a time. In a tile
# of this size, the line is still cached when its next element is read.
_TILE = 256


def copy_rows(into: np.ndarray, source: np.ndarray | float, threads: int) -> None:
    """`into[...] = source`, with conversion, by several threads: one does not reach the memory's bandwidth, least of all on fresh
    pages."""
    import numpy as np

    def copy(part: Span) -> None:
        if not isinstance(source, np.ndarray):
            into[part.slice] = source
            return
        for rows, columns in tiles_of(source, part):
            into[rows, columns] = source[rows, columns]

    rows = Span(0, len(into))
    on_threads(threads, copy, even_pieces(rows, -(-len(rows) // max(1, threads))))


def tiles_of(source: Any, rows: Span) -> Iterable[tuple[slice, slice]]:
    """The tiles in which to read these rows of a matrix: all rows at once, unless columns are contiguous."""
    width = source.shape[1]
    if abs(source.strides[0]) >= abs(source.strides[1]):
        return [(rows.slice, slice(0, width))]
    return [(down.slice, across.slice) for down in pieces(rows, _TILE) for across in pieces(Span(0, width), _TILE)]
