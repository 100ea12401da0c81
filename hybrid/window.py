"""Host matrices that the ranks of a node share: one mapping of the same memory in each of them.

MPI's own shared windows would do, but for three things that users feel. Space here is reserved rank by rank before it
is touched, so a full /dev/shm is an error and not a SIGBUS. A window has no collective end, so a failed rank keeps
nobody waiting. And a rank's mapping lives as long as the arrays made from it, so a result can be handed over as it is.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.errors import DoesNotFit
from hybrid.memory import readable
from hybrid.partition import Span
from hybrid.team import Team

if TYPE_CHECKING:
    import numpy as np


def window_folder() -> Path:
    """Where shared mappings are made: memory where the system offers it, else the folder for temporary files."""
    memory = Path("/dev/shm")  # noqa: S108 (files there get unguessable names, made exclusively)
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


class Window:
    """Rows `rows` of a matrix of `columns` columns, shared by this rank's node. `array` holds them from row 0 on."""

    def __init__(self, array: np.ndarray, rows: Span) -> None:
        self.array = array
        self.rows = rows

    def __getitem__(self, rows: Span) -> np.ndarray:
        """These rows of the whole matrix; they must lie on this node."""
        return self.array[rows.within(self.rows).slice]


def make_windows(
    team: Team, rows: dict[str, Span], columns: dict[str, int], own: dict[str, Span], dtype: str
) -> dict[str, Window]:
    """One window for each key; `rows` are the node's, `own` the rows this rank reserves and first touches.

    Raises DoesNotFit on all ranks when the memory is not there.
    """
    import numpy as np

    item = np.dtype(dtype).itemsize
    sizes = {key: len(rows[key]) * columns[key] * item for key in rows}
    if len(team.node_ranks) == 1:
        with team.phase("place", timed=False):
            arrays = {key: np.empty((len(rows[key]), columns[key]), dtype) for key in rows}
        return {key: Window(array, rows[key]) for key, array in arrays.items()}

    with team.phase("place", timed=False) as naming:
        naming.mine = _create(sizes) if team.leads_node else None
    paths = naming.all[team.node_ranks[0]]
    maps: dict[str, mmap.mmap] = {}
    try:
        with team.phase("place", timed=False):
            for key, path in paths.items():
                part = own[key].within(rows[key])
                stride = columns[key] * item
                maps[key] = _map(path, sizes[key], part.lo * stride, len(part) * stride)
    finally:
        if team.leads_node:  # every rank has its mapping, or never will: the name is not needed again
            for path in paths.values():
                os.unlink(path)
    shapes = {key: (len(rows[key]), columns[key]) for key in rows}
    return {key: Window(np.ndarray(shapes[key], dtype, buffer=memory), rows[key]) for key, memory in maps.items()}


def _create(sizes: dict[str, int]) -> dict[str, str]:
    folder = window_folder()
    paths: dict[str, str] = {}
    try:
        for key, size in sizes.items():
            path = str(folder / f"hybrid-{os.getpid()}-{secrets.token_hex(8)}")
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            paths[key] = path
            os.truncate(path, max(size, mmap.PAGESIZE))
    except OSError:
        for path in paths.values():
            os.unlink(path)
        raise
    return paths


def _map(path: str, size: int, offset: int, length: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        if length and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, offset, length)
        return mmap.mmap(descriptor, max(size, mmap.PAGESIZE))
    except OSError as error:
        raise DoesNotFit(
            f"no room for {readable(length)} of shared memory in {os.path.dirname(path)} ({error.strerror})"
        ) from None
    finally:
        os.close(descriptor)
