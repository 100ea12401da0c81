# SPDX-License-Identifier: MIT
"""Flags by which the ranks of a node signal each other without messages: numbers in memory that they share.

Each rank writes its own flags only, and reads those of all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count

from hybrid.core.spans import Span
from hybrid.ranks.heartbeat import heartbeat
from hybrid.ranks.polling import let_others_run
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team

_POLLS_BETWEEN_CHECKS = 100  # then a heartbeat is sent, and notices of failure are looked at
_POLLS_WITHOUT_PAUSE, _PAUSE = 10_000, 1e-4  # polls at full speed, and then the seconds between two of them


class NodeFlags:
    """`flag_count` flags for each rank of the node. Made by all ranks of the team together."""

    def __init__(self, team: Team, flag_count: int) -> None:
        self.flag_count = flag_count
        self.topology = team.topology
        self._team = team
        ranks = Span(0, len(team.node_ranks))
        self._table = make_shared_matrices(team, {"flags": ranks}, {"flags": flag_count}, {"flags": "int64"})["flags"].array
        self._own = self._table[team.node_ranks.index(team.rank)]
        self._own[:] = 0  # no round's number; memory that one rank has alone may hold anything
        self._round = 0
        self._barrier_lock = threading.Lock()

    def new_round(self) -> None:
        """Clear all flags: only those set from now on count. Called by all ranks, between two phases."""
        # A flag is set when it holds the round's number. This is the phase's, which is the same on all ranks: a counter of
        # this object would lag behind on a rank that raised before it came here.
        self._round = self._team.messages.serial if self._team.size > 1 else self._round + 1

    def set_flag(self, flag: int) -> None:
        """Set a flag of this rank. Ranks that see it set also see what this rank wrote to shared memory before."""
        self._memory_barrier()
        self._own[flag] = self._round

    def wait(self, rank: int, flag: int) -> None:
        """Wait until that rank has set the flag in this round. PhaseEnded if a rank fails meanwhile."""
        pause = self.pauses()
        while not self.is_set(rank, flag):
            next(pause)

    def is_set(self, rank: int, flag: int) -> bool:
        """Whether that rank has set the flag in this round; if so, what it wrote before is visible."""
        if self._table[self._team.node_ranks.index(rank)][flag] < self._round:
            return False
        self._memory_barrier()
        return True

    def pauses(self) -> Iterator[None]:
        """The function `pauses`, for this team."""
        return pauses(self._team)

    def _memory_barrier(self) -> None:
        """No load or store is moved across this call: taking a lock that was just released is a full barrier."""
        for _ in range(2):
            with self._barrier_lock:
                pass


def pauses(team: Team) -> Iterator[None]:
    """The pauses of a rank that polls for what other ranks do: it takes the next one after each poll. PhaseEnded if a rank fails
    meanwhile."""
    for polls in count(1):
        if polls % _POLLS_BETWEEN_CHECKS == 0:
            heartbeat()
            team.messages.end_if_others_failed()
        if polls < _POLLS_WITHOUT_PAUSE:
            let_others_run()
        else:  # the other rank computes: leave it the cores
            time.sleep(_PAUSE)
        yield
