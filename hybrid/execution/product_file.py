# SPDX-License-Identifier: MIT
"""C as a file: written by all ranks of the root's node, each of which writes its rows, and named when it is whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybrid.host.files import discard, publish, temporary_name, written_to
from hybrid.host.matrix_file import new_matrix
from hybrid.host.matrix_output import MatrixOutput
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team


def product_output(team: Team, shape: tuple[int, int], dtype: np.dtype, name: str) -> MatrixOutput:
    """What writes C under this name. UsageError or DoesNotFit where that cannot be. Whether there is room, rank 0 says."""
    output = new_matrix(name, shape, dtype)
    output.refuse(output.size if team.rank == 0 else 0)
    return output


def write_product(team: Team, plan: Plan, c: np.ndarray, output: MatrixOutput) -> None:
    """Write C. Every rank calls it; `c` is the gathered C on the root's node."""
    path = output.path
    with team.phase("write", timed=False) as naming:
        naming.mine = temporary_name(path) if team.rank == plan.root else None
    beside: Path = naming.all[plan.root]
    try:
        with team.phase("write", timed=False) as beginning, written_to(path, beside, output.size):
            beginning.mine = output.begin(beside) if team.rank == plan.root else 0
        with team.phase("write", timed=False), written_to(path, beside, output.size):
            if team.node == plan.root_node:
                rows = plan.c_rows_at_the_end(team.rank)
                output.write(beside, beginning.all[plan.root], c, rows, lambda: team.enter("write"))
        with team.phase("write", timed=False), written_to(path, beside, output.size):
            if team.rank == plan.root:
                publish(beside, path)
    except BaseException:
        if team.rank == plan.root:
            discard(beside)
        raise
