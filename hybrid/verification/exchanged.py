# SPDX-License-Identifier: MIT
"""Checksums of matrices that ranks have exchanged. A later check of the product uses the matrices as they arrived, so it cannot
find an error of the exchange itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hybrid.errors import CheckFailed
from hybrid.ranks.team import Team
from hybrid.verification.transfers import checksums


def verify_exchange(
    team: Team, name: str, sent: Mapping[int, Sequence[np.ndarray]], received: Mapping[int, Sequence[np.ndarray]], threads: int
) -> None:
    """Raise CheckFailed on all ranks if what a rank has received differs from what another rank has sent it.

    `name`: of the matrix, for the message. `sent`, `received`: by the number of the other rank, the blocks in the order in which
    they were sent.
    """
    with team.phase("check") as comparing:
        comparing.mine = _checksums_by_rank(sent, threads), _checksums_by_rank(received, threads)
    for to, (_, of_receiver) in enumerate(comparing.all):
        for source, checksum in of_receiver.items():
            if comparing.all[source][0].get(to) != checksum:
                raise CheckFailed(
                    f"what rank {source} sent of {name} did not reach rank {to}: check the network and MPI", code="check-exchange"
                )


def _checksums_by_rank(matrices: Mapping[int, Sequence[np.ndarray]], threads: int) -> dict[int, int]:
    return {rank: _checksum(of_rank, threads) for rank, of_rank in matrices.items() if of_rank}


def _checksum(matrices: Sequence[np.ndarray], threads: int) -> int:
    """One checksum of all matrices, which is another one where the same elements come in another order."""
    total = 0
    for matrix in matrices:
        of_rows = checksums(matrix, matrix.dtype.name, threads)
        weights = 2 * np.arange(len(of_rows), dtype=np.uint64) + 1
        total = (3 * total + int(np.sum(of_rows * weights))) % (1 << 64)
    return total
