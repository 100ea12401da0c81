"""Rows between nodes, as messages from host memory straight into their final place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hybrid.core.spans import Span, pieces
from hybrid.ranks.team import Team


def chain_broadcast(
    team: Team,
    chain: Sequence[int],
    rows: Span,
    take: Callable[[Span], np.ndarray],
    put: Callable[[Span], np.ndarray],
    row_bytes: int,
    message_bytes: int,
) -> None:
    """Bring rows from the first rank of `chain` to all others, message by message, each passing on what it received.

    `take(rows)` gives rows of `row_bytes` bytes on the first rank, `put(rows)` the place for them on the others; where these
    are parts of wider rows they are packed. Ranks outside the chain return at once.
    """
    if team.rank not in chain or not row_bytes:
        return
    position = list(chain).index(team.rank)
    for group in pieces(rows, max(1, message_bytes // row_bytes)):
        place = take(group) if position == 0 else put(group)
        block = place if place.flags.c_contiguous else place.copy() if position == 0 else np.empty(place.shape, place.dtype)
        flat = block.reshape(-1).view("uint8")
        for part in pieces(Span(0, flat.size), message_bytes):  # a single row may be longer than a message
            if position > 0:
                team.messages.receive(flat[part.slice], chain[position - 1])
            if position + 1 < len(chain):
                team.messages.send(flat[part.slice], chain[position + 1])
        if position > 0 and block is not place:
            place[...] = block
