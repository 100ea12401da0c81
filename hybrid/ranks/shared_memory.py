# SPDX-License-Identifier: MIT
"""Host matrices and flags in node-shared memory: anonymous files (memfd) that every rank of the node maps.

They have three advantages over MPI's shared-memory windows (MPI_Win_allocate_shared). Memory can be reserved before it is
touched, so that a shortage is an error and not a SIGBUS. Unmapping is not collective like freeing a window, so that no rank waits
for a failed one. A mapping lives as long as its arrays, so that the user gets a result in it without a copy.

A memfd has no path: the size of /dev/shm does not limit it, no other process can open it, and it vanishes with the job. The first
rank of a node creates it and sends the descriptor to the others over a socket, which works across containers.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

from hybrid.core.problem import Span, block
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit
from hybrid.host.memory import RowView, empty_matrix
from hybrid.host.threads import on_threads
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team


def make_shared_matrices(
    team: Team, rows: Mapping[str, Span], columns: Mapping[str, int], dtypes: Mapping[str, Any]
) -> dict[str, RowView]:
    """For each key, a matrix with rows `rows[key]`, shared by the ranks of each node. Collective.

    Every rank reserves an equal part of the memory. DoesNotFit on all ranks if memory is short.
    """
    import socket  # takes milliseconds; a process alone needs none

    import numpy as np

    shapes = {key: (len(rows[key]), columns[key]) for key in rows}
    sizes = {key: max(mmap.PAGESIZE, height * width * np.dtype(dtypes[key]).itemsize) for key, (height, width) in shapes.items()}
    leader, *others = team.node_ranks
    files: list[int] = []
    mailbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    # Phases are collective: a rank alone on its node, which shares nothing, takes part in all of them.
    try:
        with team.phase("scatter", timed=False) as making:
            if team.rank != leader:
                mailbox.bind("")  # to a new name
                making.mine = mailbox.getsockname()
            elif others:
                with _allocating(sum(sizes.values())):
                    for size in sizes.values():
                        files.append(os.memfd_create("hybrid"))
                        os.truncate(files[-1], size)
                making.mine = [_identity(file) for file in files]
        with team.phase("scatter", timed=False):
            for rank in others if team.rank == leader else ():
                mailbox.connect(making.all[rank])
                socket.send_fds(mailbox, [b"files"], files)
        with team.phase("scatter", timed=False), busy():
            if team.rank != leader:
                files += socket.recv_fds(mailbox, len(b"files"), len(sizes), socket.MSG_DONTWAIT)[1]
                if [_identity(file) for file in files] != making.all[leader]:
                    raise PermissionError(errno.EPERM, "another process has sent files in place of this node's first rank")

            def mapped(key: str, file: int) -> mmap.mmap:
                own = block(sizes[key], len(team.node_ranks), team.node_ranks.index(team.rank))
                if len(own):
                    os.posix_fallocate(file, own.lo, len(own))
                there = mmap.mmap(file, sizes[key])
                _reserved[there] = own
                return there

            # The kernel locks a file while it allocates, so more than one thread per file gains nothing.
            with _allocating(sum(sizes.values())):
                maps = on_threads(len(files), lambda each: mapped(*each), list(zip(sizes, files, strict=False)))
            arrays = (
                [np.ndarray(shapes[key], dtypes[key], buffer=there) for key, there in zip(sizes, maps, strict=True)]
                if others
                else [empty_matrix(*shapes[key], dtypes[key]) for key in sizes]
            )
    finally:
        mailbox.close()
        for file in files:  # mappings stay valid
            os.close(file)
    return {key: RowView(array, rows[key]) for key, array in zip(sizes, arrays, strict=True)}


@contextmanager
def _allocating(size: int) -> Iterator[None]:
    """A context that allocates files of `size` bytes in all. DoesNotFit if the system refuses."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise DoesNotFit(f"ranks of a node cannot share {readable(size)}: {why}", code="host-memory") from None


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


_reserved: WeakKeyDictionary[mmap.mmap, Span] = WeakKeyDictionary()  # the part of each mapping that this rank has reserved


def give_back() -> None:
    """Start threads that free this rank's reserved parts while the process ends. Otherwise the last rank to end would free
    everything alone, at 0.1 s per GB. No rank may use shared matrices any more."""
    with suppress(RuntimeError):  # no more threads: the process's end frees the memory
        for mapped, part in _reserved.items():
            Thread(target=_free, args=(mapped, part), daemon=True).start()


def _free(mapped: mmap.mmap, part: Span) -> None:
    """Free the memory behind a part of a mapping. A page shared by two parts belongs to the first."""
    first = -(-part.lo // mmap.PAGESIZE) * mmap.PAGESIZE
    if first < part.hi:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped)) + first
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(part.hi - first), mmap.MADV_REMOVE)


class NodeFlags:
    """Flags in shared memory by which the ranks of a node signal each other, `flag_count` a rank. A rank sets only its own.
    Construction is collective."""

    def __init__(self, team: Team, flag_count: int) -> None:
        self.flag_count = flag_count
        self.team, self.topology = team, team.topology
        ranks = Span(0, len(team.node_ranks))
        self._table = make_shared_matrices(team, {"flags": ranks}, {"flags": flag_count}, {"flags": "int64"})["flags"].array
        self._own = self._table[team.node_ranks.index(team.rank)]
        self._own[:] = 0  # no round's number; the memory of a rank alone is not zeroed
        self._round = 0
        self._barrier_lock = threading.Lock()

    def new_round(self) -> None:
        """Clear all flags. Called by all ranks, between two phases."""
        # The number of the phase, equal on all ranks: a counter here would lag behind on a rank that raised before this call.
        self._round = self.team.serial

    def set_flag(self, flag: int) -> None:
        """Set a flag of this rank, with release semantics: ranks that see it set also see this rank's earlier writes."""
        self._memory_barrier()
        self._own[flag] = self._round

    def place_of(self, flag: int) -> tuple[int, int]:
        """The address of a flag of this rank, a 64-bit number, and the value that sets it in this round."""
        return self._own.ctypes.data + flag * self._own.itemsize, self._round

    def wait(self, rank: int, flag: int) -> None:
        """Wait until that rank has set the flag in this round. PhaseEnded if a rank fails meanwhile."""
        self.team.messages.wait_until(lambda: self.is_set(rank, flag))

    def is_set(self, rank: int, flag: int) -> bool:
        """Whether that rank has set the flag in this round; if so, its earlier writes are visible (acquire)."""
        if self._table[self.team.node_ranks.index(rank)][flag] < self._round:
            return False
        self._memory_barrier()
        return True

    def _memory_barrier(self) -> None:
        """A full memory barrier, by taking a lock that was just released."""
        for _ in range(2):
            with self._barrier_lock:
                pass
