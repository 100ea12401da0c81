# SPDX-License-Identifier: MIT
"""Host matrices in node-shared memory: a file in /dev/shm that every rank of the node maps.

MPI's shared-memory windows (MPI_Win_allocate_shared) are not used for three reasons. The memory of a file can be reserved
before it is touched, so that a full /dev/shm is an error and not a SIGBUS. Unmapping is not collective, as freeing a window
is, so no rank waits for a failed one. And a mapping lives as long as the arrays made from it, so that a result in it can be
given to the user without a copy.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from hybrid.core.spans import Span, block
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit
from hybrid.host.row_view import RowView
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.team import Team


def shared_memory_folder() -> Path:
    """The folder for the files that ranks map: /dev/shm, or the folder for temporary files where there is none."""
    memory = Path("/dev/shm")  # noqa: S108 (files there get unguessable names, made exclusively)
    if os.access(memory, os.W_OK):
        return memory
    import tempfile

    return Path(tempfile.gettempdir())


def make_shared_matrices(team: Team, rows: dict[str, Span], columns: dict[str, int], dtype: str) -> dict[str, RowView]:
    """For each key a matrix of the rows `rows[key]`, shared by the ranks of each node. All ranks of the team call it.

    Every rank reserves an equal part of the memory. DoesNotFit on all ranks if there is not enough of it.
    """
    import numpy as np

    from hybrid.host.page_memory import empty_matrix

    shapes = {key: (len(rows[key]), columns[key]) for key in rows}
    item = np.dtype(dtype).itemsize
    sizes = {key: max(mmap.PAGESIZE, height * width * item) for key, (height, width) in shapes.items()}
    shared = len(team.node_ranks) > 1
    created: dict[str, str] = {}
    opened: dict[str, int] = {}
    # All ranks go through all phases, also one that is alone on its node and shares nothing.
    try:
        try:
            with team.phase("scatter", timed=False) as naming:
                if shared and team.leads_node:
                    _create(sizes, created)
                naming.mine = created
            with team.phase("scatter", timed=False):
                for key, path in naming.all[team.node_ranks[0]].items():
                    opened[key] = os.open(path, os.O_RDWR)
        finally:
            for path in created.values():  # mapped memory outlives its name, and a killed job leaves no file behind
                os.unlink(path)
        with team.phase("scatter", timed=False), busy():
            own = {key: block(sizes[key], len(team.node_ranks), team.node_ranks.index(team.rank)) for key in opened}
            maps = {key: _map(descriptor, sizes[key], own[key]) for key, descriptor in opened.items()}
            arrays = {
                key: np.ndarray(shape, dtype, buffer=maps[key]) if shared else empty_matrix(*shape, dtype)
                for key, shape in shapes.items()
            }
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    return {key: RowView(array, rows[key]) for key, array in arrays.items()}


def _create(sizes: dict[str, int], created: dict[str, str]) -> None:
    """Create a file of each size; its path is in `created` as soon as it exists, so that the caller can remove it."""
    for key, size in sizes.items():
        path = str(shared_memory_folder() / f"hybrid-{os.getpid()}-{os.urandom(8).hex()}")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        created[key] = path
        os.truncate(path, size)


def _map(descriptor: int, size: int, reserved: Span) -> mmap.mmap:
    """Map the whole file, after memory for its bytes `reserved` has been allocated."""
    try:
        if len(reserved) and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, reserved.lo, len(reserved))
        return mmap.mmap(descriptor, size)
    except OSError as error:
        raise DoesNotFit(
            f"no room for {readable(len(reserved))} of shared memory in {shared_memory_folder()} ({error.strerror})"
        ) from None
