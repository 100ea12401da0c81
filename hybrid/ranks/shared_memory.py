# SPDX-License-Identifier: MIT
"""Host matrices and flags in node-shared memory: a file in /dev/shm that every rank of the node maps.

MPI's shared-memory windows (MPI_Win_allocate_shared) are not used for three reasons. The memory of a file can be reserved
before it is touched, so that a full /dev/shm is an error and not a SIGBUS. Unmapping is not collective, as freeing a window
is, so no rank waits for a failed one. And a mapping lives as long as the arrays made from it, so that a result in it can be
given to the user without a copy.

On Linux the file never has a name: the node's other ranks open it by its maker's descriptor, which /proc shows. So nothing stays,
however the job ends. Elsewhere, and where ranks do not see each other's processes, it has one until all have opened it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

from hybrid.core.spans import Span, block
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit
from hybrid.host.memory import RowView, empty_matrix, free_bytes_in, process_space
from hybrid.host.threads import on_threads
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.mpi import SHARED
from hybrid.ranks.team import Team


def shared_memory_folder() -> Path:
    """The folder for the files that ranks map: /dev/shm, or the folder for temporary files where there is none."""
    if os.access(SHARED, os.W_OK):  # files there get unguessable names, made exclusively
        return SHARED
    import tempfile

    return Path(tempfile.gettempdir())


def make_shared_matrices(
    team: Team, rows: Mapping[str, Span], columns: Mapping[str, int], dtypes: Mapping[str, Any]
) -> dict[str, RowView]:
    """For each key a matrix of the rows `rows[key]`, shared by the ranks of each node. All ranks of the team call it.

    Every rank reserves an equal part of the memory. DoesNotFit on all ranks if there is not enough of it.
    """
    import numpy as np

    shapes = {key: (len(rows[key]), columns[key]) for key in rows}
    sizes = {key: max(mmap.PAGESIZE, height * width * np.dtype(dtypes[key]).itemsize) for key, (height, width) in shapes.items()}
    shared = len(team.node_ranks) > 1
    opened: dict[str, int] = {}
    # All ranks go through all phases, also one that is alone on its node and shares nothing.
    try:
        if not _opened(team, sizes if shared else {}, opened, named=False):
            _opened(team, sizes if shared else {}, opened, named=True)
        with team.phase("scatter", timed=False), busy():
            own = {key: block(sizes[key], len(team.node_ranks), team.node_ranks.index(team.rank)) for key in opened}
            # Each file has a lock, for which ranks wait, so that one thread a file is what the system makes use of.
            mapped = on_threads(len(opened), lambda key: _map(opened[key], sizes[key], own[key], sum(sizes.values())), opened)
            maps = dict(zip(opened, mapped, strict=True))
            arrays = {
                key: np.ndarray(shape, dtypes[key], buffer=maps[key]) if shared else empty_matrix(*shape, dtypes[key])
                for key, shape in shapes.items()
            }
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    return {key: RowView(array, rows[key]) for key, array in arrays.items()}


def _opened(team: Team, sizes: dict[str, int], opened: dict[str, int], *, named: bool) -> bool:
    """Whether all ranks have opened a file of each size, which their node's first rank makes. The descriptors are in `opened`.
    Every rank calls it."""
    made: dict[str, tuple[str, int]] = {}
    try:
        with team.phase("scatter", timed=False) as making:
            if team.leads_node:
                making.mine = _make_files(sizes, made, named=named)
        with team.phase("scatter", timed=False) as opening:
            files = making.all[team.node_ranks[0]]
            opening.mine = files is not None
            for key, (path, identity) in (files or {}).items():
                try:
                    opened[key] = os.open(path, os.O_RDWR | os.O_NOFOLLOW * named)
                    # In another PID namespace the same number is another process'.
                    opening.mine = opening.mine and _identity(opened[key]) == identity
                except OSError:
                    if named:
                        raise
                    opening.mine = False
    finally:
        for path, descriptor in made.values():  # memory that is mapped stays
            os.close(descriptor)
            if named:
                os.unlink(path)
    succeeded = False not in opening.all  # a rank that takes no part has said nothing
    while opened and not succeeded:
        os.close(opened.popitem()[1])
    return succeeded


def _make_files(
    sizes: dict[str, int], made: dict[str, tuple[str, int]], *, named: bool
) -> dict[str, tuple[str, tuple[int, int]]] | None:
    """The path and identity of each new file; None where files without a name cannot be made, or other processes could not open
    them. The path and descriptor of a file are in `made` as soon as it exists."""
    folder = shared_memory_folder()
    for key, size in sizes.items():
        if named:
            path = str(folder / f"hybrid-{process_space()}-{os.getpid()}-{os.urandom(8).hex()}")
            made[key] = path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        else:
            try:
                descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
            except (OSError, AttributeError):  # AttributeError: not Linux
                return None
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            made[key] = path, descriptor
            if not os.access(path, os.R_OK | os.W_OK):
                return None
        try:
            os.truncate(made[key][1], size)
        except OSError as error:
            why = "it is beyond the limit of ulimit -f" if error.errno == errno.EFBIG else os.strerror(error.errno or 0)
            raise DoesNotFit(f"no file of {readable(size)} can be made in {folder}: {why}", code="shared-memory") from None
    return {key: (path, _identity(descriptor)) for key, (path, descriptor) in made.items()}


def _identity(descriptor: int) -> tuple[int, int]:
    """What tells a file from any other of this machine."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _map(descriptor: int, size: int, reserved: Span, whole: int) -> mmap.mmap:
    """Map the whole file, after memory for its bytes `reserved` has been allocated. `whole`: bytes of all files of the node."""
    try:
        if len(reserved) and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, reserved.lo, len(reserved))
        mapped = mmap.mmap(descriptor, size)
    except OSError as error:
        folder = shared_memory_folder()
        free = free_bytes_in(folder)
        raise DoesNotFit(
            f"matrices need {readable(whole)} of {folder}, for the next {readable(len(reserved))} of them too little was free "
            f"({error.strerror}; {readable(free)} are now): delete what ended programs left there, or enlarge it",
            code="shared-memory",
        ) from None
    _reserved[mapped] = reserved
    return mapped


_reserved: WeakKeyDictionary[mmap.mmap, Span] = WeakKeyDictionary()  # the part of each mapping that this rank has reserved


def give_back() -> list[Thread]:
    """Have threads give back what this rank has reserved, all at once, while the process ends otherwise: else the last rank that
    ends would do all of it alone, a tenth of a second for each GB. No rank may use shared matrices any more. Returns the
    threads."""
    parts = list(_reserved.items()) if hasattr(mmap, "MADV_REMOVE") else []  # Linux has it
    threads = [Thread(target=_free, args=each, daemon=True) for each in parts]
    with suppress(RuntimeError):  # the limit of threads is reached: then the end of the process does it
        for thread in threads:
            thread.start()
    return threads


def _free(mapped: mmap.mmap, part: Span) -> None:
    """Free the memory behind a part of a mapping. Of pages that two parts share the one that ends there frees it."""
    first = -(-part.lo // mmap.PAGESIZE) * mmap.PAGESIZE
    if first < part.hi:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped)) + first
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(part.hi - first), mmap.MADV_REMOVE)


_FLAG_POLLS, _FLAG_PAUSE = 10_000, 1e-4  # polls at full speed, and then the seconds between two of them


class NodeFlags:
    """Flags by which the ranks of a node signal each other without messages: numbers in memory that they share, `flag_count` for
    each rank. A rank sets its own flags only, and reads those of all. Made by all ranks of the team together."""

    def __init__(self, team: Team, flag_count: int) -> None:
        self.flag_count = flag_count
        self.topology = team.topology
        self._team = team
        ranks = Span(0, len(team.node_ranks))
        self._table = make_shared_matrices(team, {"flags": ranks}, {"flags": flag_count}, {"flags": "int64"})["flags"].array
        self._own = self._table[team.node_ranks.index(team.rank)]
        self._own[:] = 0  # no round's number; memory that one rank has alone may hold anything
        self._round = 0
        self._barrier_lock = threading.Lock()

    def new_round(self) -> None:
        """Clear all flags: only those set from now on count. Called by all ranks, between two phases."""
        # A flag is set when it holds the round's number. This is the phase's, which is the same on all ranks: a counter of
        # this object would lag behind on a rank that raised before it came here.
        self._round = self._team.messages.serial if self._team.size > 1 else self._round + 1

    def set_flag(self, flag: int) -> None:
        """Set a flag of this rank. Ranks that see it set also see what this rank wrote to shared memory before."""
        self._memory_barrier()
        self._own[flag] = self._round

    def place_of(self, flag: int) -> tuple[int, int]:
        """The address of a flag of this rank, a number of 64 bits, and the number that sets it in this round."""
        return self._own.ctypes.data + flag * self._own.itemsize, self._round

    def wait(self, rank: int, flag: int) -> None:
        """Wait until that rank has set the flag in this round. PhaseEnded if a rank fails meanwhile."""
        pause = self.pauses()
        while not self.is_set(rank, flag):
            next(pause)

    def is_set(self, rank: int, flag: int) -> bool:
        """Whether that rank has set the flag in this round; if so, what it wrote before is visible."""
        if self._table[self._team.node_ranks.index(rank)][flag] < self._round:
            return False
        self._memory_barrier()
        return True

    def pauses(self) -> Iterator[None]:
        """The function `pauses`, for this team."""
        return pauses(self._team)

    def _memory_barrier(self) -> None:
        """No load or store is moved across this call: taking a lock that was just released is a full barrier."""
        for _ in range(2):
            with self._barrier_lock:
                pass


def pauses(team: Team) -> Iterator[None]:
    """The pauses of a rank that polls for what other ranks of its node, or devices, do: it takes the next one after each poll.
    PhaseEnded if a rank fails meanwhile."""
    yield from team.messages.pauses(_FLAG_POLLS, lambda: _FLAG_PAUSE)
