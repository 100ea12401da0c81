"""What the ranks of a node tell each other without messages: numbers in memory they share, written by one, read by all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count

from hybrid.core.spans import Span
from hybrid.ranks import supervisor
from hybrid.ranks.messages import let_others_run
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team

_POLLS_BETWEEN_LOOKS = 100
_POLLS_WITHOUT_PAUSE, _PAUSE = 10_000, 1e-4


class NodeFlags:
    """For each rank of the node `flag_count` notes. Made by all ranks of the team together."""

    def __init__(self, team: Team, flag_count: int) -> None:
        self.flag_count = flag_count
        self.topology = team.topology
        self._team = team
        members = Span(0, len(team.node_ranks))
        self._table = make_shared_matrices(team, {"board": members}, {"board": flag_count}, "int64")["board"].array
        self._own = self._table[team.node_ranks.index(team.rank)]
        self._round = 0
        self._order = threading.Lock()

    def new_round(self) -> None:
        """What was posted before counts no more. Called by all ranks, between two phases."""
        # Not counted here: a rank that fails before it comes to count would be behind the others for ever.
        self._round = self._team.messages.serial if self._team.size > 1 else self._round + 1

    def set_flag(self, flag: int) -> None:
        """Tell the others; what this rank wrote before is there when they see it."""
        self._keep_order()
        self._own[flag] = self._round

    def wait(self, rank: int, flag: int) -> None:
        """Until that rank has posted it in this round; PhaseEnded if a rank fails meanwhile."""
        pause = self.pauses()
        while not self.is_set(rank, flag):
            next(pause)

    def is_set(self, rank: int, flag: int) -> bool:
        """Whether that rank has posted it in this round; then what it wrote before is there."""
        if self._table[self._team.node_ranks.index(rank)][flag] < self._round:
            return False
        self._keep_order()
        return True

    def pauses(self) -> Iterator[None]:
        """One after each look for what has not come; PhaseEnded if a rank fails meanwhile."""
        return pauses(self._team)

    def _keep_order(self) -> None:
        """Let no processor move a write over this line: locking a lock that was just released is a full barrier."""
        for _ in range(2):
            with self._order:
                pass


def pauses(team: Team) -> Iterator[None]:
    """One after each look for what other ranks have not done yet; PhaseEnded if a rank fails meanwhile."""
    for polls in count(1):
        if polls % _POLLS_BETWEEN_LOOKS == 0:
            supervisor.heartbeat()
            team.messages.end_if_others_failed()
        if polls < _POLLS_WITHOUT_PAUSE:
            let_others_run()
        else:  # the other rank computes: leave it the cores
            time.sleep(_PAUSE)
        yield
