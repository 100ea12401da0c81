# SPDX-License-Identifier: MIT
"""Checksums of matrices that ranks have exchanged: the check of what was computed with them would not find a wrong one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybrid.errors import CheckFailed
from hybrid.ranks.team import Team
from hybrid.verification.transfers import checksums


def verify_exchange(
    team: Team, name: str, sent: Mapping[int, Sequence[np.ndarray]], received: Mapping[int, Sequence[np.ndarray]], threads: int
) -> None:
    """Raise CheckFailed on all ranks if what one has received differs from what another has sent. Both by the other rank."""
    with team.phase("check") as comparing:
        comparing.mine = _sums(sent, threads), _sums(received, threads)
    for to, (_, of_receiver) in enumerate(comparing.all):
        for source, total in of_receiver.items():
            if comparing.all[source][0].get(to) != total:
                raise CheckFailed(f"what rank {source} sent of {name} did not reach rank {to}: check the network and MPI")


def _sums(matrices: Mapping[int, Sequence[np.ndarray]], threads: int) -> dict[int, int]:
    """One for each rank: the same elements in another order give another one."""
    return {rank: _sum(of_rank, threads) for rank, of_rank in matrices.items() if of_rank}


def _sum(matrices: Sequence[np.ndarray], threads: int) -> int:
    total = 0
    for matrix in matrices:
        of_rows = checksums(matrix, matrix.dtype.name, threads)
        weights = 2 * np.arange(len(of_rows), dtype=np.uint64) + 1
        total = (3 * total + int(np.sum(of_rows * weights))) % (1 << 64)
    return total
