# SPDX-License-Identifier: MIT
"""How far a product has come: what its caller and the rank's supervisor are told while it is computed."""

from __future__ import annotations

from collections.abc import Callable

from hybrid.plan.rank_share import RankShare
from hybrid.ranks.team import Team

# Told what is being done, how much of it is done, and of how much; on every rank.
Progress = Callable[[str, int, int], None]
Entering = Callable[[str], None]  # told the phase of each copy and multiplication before that is submitted


class TileProgress:
    """What a rank tells of its share while it submits it: the phase, and how many of the tiles have been submitted."""

    def __init__(self, team: Team, share: RankShare, progress: Progress) -> None:
        self._team, self._progress = team, progress
        self._tiles = sum(len(arrival.releases) for arrival in share.order)
        self._submitted = 0

    def begin(self) -> None:
        """A product begins: no tile is submitted."""
        self._submitted = 0

    def __call__(self, phase: str) -> None:
        """Tell the phase of the next copy or multiplication: see `Entering`."""
        self._team.enter(phase)
        if phase == "multiply":
            self._progress("multiply", self._submitted, self._tiles)
            self._submitted += 1
