# SPDX-License-Identifier: MIT
"""One call of `empty`: a matrix in memory that the ranks of the root's node share."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from hybrid.arrays.product_type import numpy_type, type_name
from hybrid.core.problem import LARGEST_SIZE
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.execution.calls import asked_for, refuse_no_rank
from hybrid.host.page_memory import empty_matrix
from hybrid.plan.capacity import shortage_of_matrix
from hybrid.selection.inventory import free_memory_of, same_on_all_ranks
from hybrid.selection.session import Session


def empty_shared(session: Session, shape: tuple[int, int], dtype: Any, root: int, stall: float | None) -> np.ndarray | None:
    """A matrix of undefined contents: the same on all ranks of the root's node, None on other nodes. Every rank calls it."""
    team, shared = session.team, session.shared_arrays
    with team.phase("agree", timed=False) as looking:
        settings = Settings.gather({"stall": stall})
        shape = _of_matrix(shape)
        refuse_no_rank(team, root)
        element = numpy_type(type_name(np.float64 if dtype is None else dtype))  # None means float64, as for NumPy
        asked = asked_for(settings, kind="an empty matrix", shape=shape, dtype=element.name, root=root)
        looking.mine = (asked, shared.gone, free_memory_of(session, settings, None, now=True))
    same_on_all_ranks([said[0] for said in looking.all])
    team.pretend_nodes(settings.ranks_per_node)
    shared.drop(said[1] for said in looking.all)
    rows, columns = shape
    free = [looking.all[rank][2] for rank in team.topology.nodes[team.topology.node_of(root)]]
    missing = shortage_of_matrix(rows * columns * element.itemsize, free, shared=len(free) > 1)
    if missing:
        with team.phase("allocate", timed=False):
            raise missing.error()
    if team.size == 1:
        return empty_matrix(rows, columns, element)
    return shared.make(team, (rows, columns), element, root)


def _of_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """The shape, as NumPy takes it. UsageError for any other but that of a matrix."""
    try:
        rows, columns = (index(each) for each in shape if not isinstance(each, bool))
    except (TypeError, ValueError):
        raise UsageError(f"shape {shape!r} is not that of a matrix: two whole numbers are", code="shapes") from None
    if not (0 <= rows <= LARGEST_SIZE and 0 <= columns <= LARGEST_SIZE):
        raise UsageError(f"shape {shape!r} is not that of a matrix: its sizes are 0 to {LARGEST_SIZE}", code="shapes")
    return rows, columns
