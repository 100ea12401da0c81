# SPDX-License-Identifier: MIT
"""What one rank, the root, asks the others to do: they wait for it at next to no cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from hybrid.ranks.team import team_of

if TYPE_CHECKING:
    from mpi4py import MPI

_EAGER = 200  # polls without a pause after a request
# A pause between two polls is this part of the time since the last request, and so long at most: an idle rank takes less than
# 1 % of a core.
_PART, _LONGEST = 0.01, 5e-3


class Requests:
    """The requests of a communicator's root. Every rank makes and frees them."""

    def __init__(self, comm: MPI.Comm, root: int) -> None:
        self._team, self._comm, self._root = team_of(comm), comm.Dup(), root

    def send(self, request: Any) -> None:
        """At the root: send a request to all others."""
        for rank in range(self._team.size):
            if rank != self._root:
                self._comm.send(request, rank)

    def receive(self) -> Any:
        """On the others: wait for the next request."""
        began = time.monotonic()
        self._team.enter("wait for requests")
        pauses = self._team.messages.pauses(_EAGER, lambda: min(_LONGEST, _PART * (time.monotonic() - began)), lambda: None)
        while not self._comm.Iprobe(self._root):
            next(pauses)
        return self._comm.recv(source=self._root)

    def free(self) -> None:
        self._comm.Free()
