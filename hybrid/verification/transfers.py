# SPDX-License-Identifier: MIT
"""Checksums of operands' rows that were sent between nodes. The check of the product uses the rows as they arrived, so it cannot
find an error of sending them."""

from __future__ import annotations

import numpy as np

from hybrid.arrays.sources import RootMatrix
from hybrid.core.spans import Span
from hybrid.errors import CheckFailed
from hybrid.host.row_view import RowView
from hybrid.host.thread_map import CALL_BYTES, on_threads, rows_of_about
from hybrid.plan.plan import Plan
from hybrid.ranks.team import Team


def verify_transfer(team: Team, plan: Plan, key: str, operand: RootMatrix, view: RowView, threads: int) -> None:
    """Raise CheckFailed on all ranks if a rank's rows of the operand, in `view`, differ from the root's.

    `key`: "A" or "B".
    """

    def rows_of(rank: int) -> Span:
        share = plan.shares[rank]
        return share.rows if key == "A" else share.b_rows

    with team.phase("check") as received:
        received.mine = checksums(view[rows_of(team.rank)], plan.problem.dtype, threads)
    with team.phase("check") as comparing:
        if team.rank == plan.root:
            sent = checksums(operand.array, plan.problem.dtype, threads)
            comparing.mine = [rank for rank, sums in enumerate(received.all) if (sums != sent[rows_of(rank).slice]).any()]
    for rank in comparing.all[plan.root]:
        raise CheckFailed(
            f"rows {rows_of(rank)} of {key} did not reach rank {rank} as they are at the root: check the network and MPI",
            code="check-exchange",
        )


def verify_gathered(team: Team, rows: Span, own: np.ndarray, view: RowView, threads: int) -> None:
    """Raise CheckFailed on all ranks if some rank's `own` rows of B differ from those in its node's shared memory."""
    with team.phase("check") as comparing:
        sums = (checksums(matrix, own.dtype.name, threads) for matrix in (own, view[rows]))
        comparing.mine = rows if np.not_equal(*sums).any() else None
    for rank, wrong in enumerate(comparing.all):
        if wrong is not None:
            raise CheckFailed(
                f"rows {wrong} of B did not reach the memory of its node as rank {rank} has them", code="check-exchange"
            )


def checksums(matrix: np.ndarray, dtype: str, threads: int) -> np.ndarray:
    """For each row, of its elements converted to `dtype`, the sum of their bits, weighted with odd numbers, modulo 2^64."""
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[np.dtype(dtype).itemsize]
    weights = 2 * np.arange(matrix.shape[1], dtype=np.uint64) + 1
    sums = np.empty(len(matrix), np.uint64)

    def add(rows: Span) -> None:
        part = np.ascontiguousarray(matrix[rows.slice], dtype).view(bits)
        np.sum(part * weights, axis=1, out=sums[rows.slice])

    for _ in on_threads(threads, add, rows_of_about(CALL_BYTES, Span(0, len(matrix)), 8 * matrix.shape[1])):
        pass
    return sums
