# SPDX-License-Identifier: MIT
"""Matrix rows between nodes: MPI messages from host memory to host memory, pipelined along a chain of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.ranks.team import Team


def chain_broadcast(
    team: Team,
    chain: Sequence[int],
    rows: Span,
    rows_to_send: Callable[[Span], np.ndarray],
    rows_to_fill: Callable[[Span], np.ndarray],
    row_bytes: int,
    message_bytes: int,
) -> None:
    """Broadcast rows from the first rank of `chain` to all others: each forwards every message to the next as it receives it.

    `rows_to_send(rows)` gives these rows, of `row_bytes` bytes each, on the first rank; `rows_to_fill(rows)` gives where they
    go on the others. Parts of wider rows are packed into contiguous messages. Ranks outside the chain return at once.
    """
    if team.rank not in chain or not row_bytes:
        return
    position = list(chain).index(team.rank)
    for group in pieces(rows, max(1, message_bytes // row_bytes)):
        matrix = rows_to_send(group) if position == 0 else rows_to_fill(group)
        block = (
            matrix
            if matrix.flags.c_contiguous
            else matrix.copy()
            if position == 0
            else np.empty_like(matrix, order="C", subok=False)
        )
        flat = block.reshape(-1).view("uint8")
        for part in pieces(Span(0, flat.size), message_bytes):  # a single row may be longer than a message
            if position > 0:
                team.messages.receive(flat[part.slice], chain[position - 1])
            if position + 1 < len(chain):
                team.messages.send(flat[part.slice], chain[position + 1])
        if position > 0 and block is not matrix:
            matrix[...] = block
