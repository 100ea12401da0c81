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

from hybrid.core.spans import Span, block
from hybrid.core.text import readable
from hybrid.errors import DoesNotFit
from hybrid.host.row_view import RowView
from hybrid.ranks.supervisor import busy
from hybrid.ranks.team import Team

if TYPE_CHECKING:
    pass


def shared_memory_folder() -> Path:
    """Where shared mappings are made: memory where the system offers it, else the folder for temporary files."""
    memory = Path("/dev/shm")  # noqa: S108 (files there get unguessable names, made exclusively)
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def make_shared_matrices(team: Team, rows: dict[str, Span], columns: dict[str, int], dtype: str) -> dict[str, RowView]:
    """One window for each key, of the node's rows `rows[key]`. Every rank of the node reserves its share of them.

    Raises DoesNotFit on all ranks when the memory is not there.
    """
    import numpy as np

    from hybrid.host.pages import empty_matrix

    shapes = {key: (len(rows[key]), columns[key]) for key in rows}
    item = np.dtype(dtype).itemsize
    sizes = {key: max(mmap.PAGESIZE, height * width * item) for key, (height, width) in shapes.items()}
    shared = len(team.node_ranks) > 1
    created: dict[str, str] = {}
    opened: dict[str, int] = {}
    # Every rank goes through all phases, also one that is alone on its node.
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
            for path in created.values():  # soon, lest a killed job leaves its matrices behind
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
    """Make an empty file for each size, and note its path in `created` as soon as it exists."""
    for key, size in sizes.items():
        path = str(shared_memory_folder() / f"hybrid-{os.getpid()}-{secrets.token_hex(8)}")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        created[key] = path
        os.truncate(path, size)


def _map(descriptor: int, size: int, reserved: Span) -> mmap.mmap:
    """The whole file mapped, with the memory of its bytes `reserved` taken now."""
    try:
        if len(reserved) and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, reserved.lo, len(reserved))
        return mmap.mmap(descriptor, size)
    except OSError as error:
        raise DoesNotFit(
            f"no room for {readable(len(reserved))} of shared memory in {shared_memory_folder()} ({error.strerror})"
        ) from None
