# SPDX-License-Identifier: MIT
"""Memory of the host: how much of it, and of a disk, may still be taken; matrices in pages of their own, views of their rows,
and copies of them by several threads; what this machine is called.

Importing this module does not load NumPy, which must not be loaded before the number of threads is settled.
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

SECONDS_TO_LIVE = 0.1  # that a value is kept; to look it up anew takes as long as a small product

_Value = TypeVar("_Value")


def ttl_cached(look: Callable[[], _Value]) -> Callable[[], _Value]:
    """`look` with its result kept for SECONDS_TO_LIVE at most: for what is looked up before every product and changes slowly."""

    @lru_cache(maxsize=1)
    def value_at(tick: int) -> _Value:
        return look()

    return lambda: value_at(int(time.monotonic() / SECONDS_TO_LIVE))


def available_host_bytes(*, now: bool = False) -> int:
    """What `host_bytes_in` gives for this machine, from a short-lived cache; with `now`, looked up again."""
    return host_bytes_in() if now else _host_bytes_lately()


def host_bytes_in(root: Path = Path("/")) -> int:
    """The bytes that the system has available, or that this process's control groups still allow, whichever is less. `root`: the
    folder in which /proc and /sys are."""
    limits = []
    with suppress(OSError):  # not Linux
        _, name, after = (root / "proc/meminfo").read_text().partition("MemAvailable:")
        limits += [int(after.split(maxsplit=1)[0]) * 1024] if name else []
    limits += _allowed_by_control_groups(root)
    return min(limits) if limits else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_host_bytes_lately = ttl_cached(host_bytes_in)


def _allowed_by_control_groups(root: Path) -> list[int]:
    """The bytes that each control group above this process still allows."""
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
    """Bytes that this user may still write to the file system of `folder`; of /dev/shm these are memory."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


@cache
def kernel() -> str:
    """Eight digits that tell this run of the machine's kernel from that of another machine, and from the next one here."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        return os.urandom(4).hex()  # not Linux: as if no other process were of this kernel


@cache
def process_space() -> str:
    """Sixteen digits that tell the space in which a process number names one process: those of `kernel`, and those of this
    process's PID namespace, such as a container's. Containers may have a host's name and a folder in common."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = int.from_bytes(os.urandom(4), "big")
    return f"{kernel()}{namespace:08x}"


def processor() -> str:
    """The name of the model of this machine's processors, as far as the system knows it."""
    with suppress(OSError):  # no such file outside Linux
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


# Matrices lie in pages of their own, since memory is pinned by whole pages. The pages of a result serve the next one, too: the
# system hands out fresh memory page by page, at the speed of a slow disk, and a GPU's driver would have to pin it anew. For a
# large product both take longer than the product.

LEAST_BYTES = 1 << 20  # smaller arrays are ordinary ones: copying them costs less than pinning, and fresh memory nothing


def empty_matrix(rows: int, columns: int, dtype: str | np.dtype) -> np.ndarray:
    """A matrix of undefined contents that shares no page with another array. DoesNotFit if the system refuses the memory."""
    import numpy as np

    size = rows * columns * np.dtype(dtype).itemsize
    if size < LEAST_BYTES or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty((rows, columns), dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if _kept:  # in a batch system's limit of addresses
            _kept.clear()
            return empty_matrix(rows, columns, dtype)
        raise DoesNotFit(f"no room for {readable(size)} of host memory ({error.strerror})") from None
    with suppress(OSError, AttributeError):  # huge pages are fewer, hence allocated and pinned faster
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.ndarray((rows, columns), dtype, buffer=pages)


# The memory of results that became free, for next ones: by the bit length of its bytes, that of the last one of each, since
# programs have results of several shapes in turn.
_kept: dict[int, np.ndarray] = {}
_MOST_KEPT = 8  # memory of other sizes than the next result's is kept up to this part of what that leaves available


class ResultMemory:
    """The memory of a result, with NumPy's array interface. When the last array on it has gone, the memory is kept."""

    def __init__(self, memory: np.ndarray, interface: dict[str, Any]) -> None:
        self.memory, self._kept = memory, _kept
        self.__array_interface__ = interface

    def __del__(self) -> None:
        self._kept[self.memory.nbytes.bit_length()] = self.memory


def empty_result(rows: int, columns: int, dtype: str) -> np.ndarray:
    """An array of undefined contents for a result, in kept memory where that is of a fitting size. DoesNotFit as for
    `empty_matrix`."""
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
    """The bytes of kept memory that a result of `size` bytes can use."""
    memory = _take_kept(size)
    if memory is None:
        return 0
    _kept[memory.nbytes.bit_length()] = memory
    return memory.nbytes


def _take_kept(size: int) -> np.ndarray | None:
    """Kept memory of `size` to 2 * `size` bytes. What is too small for others of its bit length is given up.

    Each step is atomic: between any two of them another thread, or the garbage collector, may bring back memory of any size.
    """
    memory = _kept.pop(size.bit_length(), None)
    if sum(each.nbytes for each in _kept.copy().values()) > (available_host_bytes() - size) // _MOST_KEPT:
        _kept.clear()
    return memory if memory is not None and memory.nbytes >= size else None


class RowView:
    """Rows `rows` of a matrix, which `array` holds, in host or GPU memory; indexed by rows of the whole matrix."""

    def __init__(self, array: Any, rows: Span) -> None:
        self.array = array
        self.rows = rows

    def __getitem__(self, rows: Span) -> Any:
        """These rows of the whole matrix, which must lie in `self.rows`."""
        return self.array[rows.within(self.rows).slice]


def is_transpose(one: Any, other: Any) -> bool:
    """Whether `one` is the transpose of `other` in the same memory, of arrays of NumPy's or CuPy's."""
    if one.shape != other.shape[::-1] or one.strides != other.strides[::-1] or one.dtype != other.dtype:
        return False
    pair = one, other  # NumPy has no buffer of bfloat16, whose `data` it refuses
    first, second = (each.data.ptr if hasattr(each, "__cuda_array_interface__") else each.ctypes.data for each in pair)
    return bool(first == second)


# Rows and columns. Written row by row, a matrix whose columns are contiguous is read one element of each cache line at a time. In
# a tile of this size the lines are still in the cache when their next element is read.
_TILE = 256


def copy_rows(into: np.ndarray, source: np.ndarray | float, threads: int) -> None:
    """Do `into[...] = source`, with conversion, by several threads.

    One thread does not use all of the memory's bandwidth, least of all where fresh memory is written for the first time.
    """
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
    """The parts in which these rows of a matrix are best read, one after the other: all of them at once, unless the matrix is
    the transpose of one in row-major order."""
    width = source.shape[1]
    if abs(source.strides[0]) >= abs(source.strides[1]):
        return [(rows.slice, slice(0, width))]
    return [(down.slice, across.slice) for down in pieces(rows, _TILE) for across in pieces(Span(0, width), _TILE)]
