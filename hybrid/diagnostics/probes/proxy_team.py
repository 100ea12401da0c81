"""The team that a rank's deputy belongs to: words to the others go to its rank, which passes them on."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from typing import Any

from hybrid.core.spans import Topology
from hybrid.diagnostics.probes.protocol import say
from hybrid.ranks.team import Phase, Team


class _Unheard:
    """Stands for a team's messages."""

    def __init__(self) -> None:
        self.serial = 0

    def end_if_others_failed(self) -> None:
        pass  # this process is ended then


class DeputyTeam(Team):
    """Of the ranks in `topology`. A failure is raised by the phase it happened in, on its rank alone: the process has to say
    `failed` and end, and then the others are ended."""

    def __init__(self, rank: int, topology: Topology) -> None:
        super().__init__()
        self.rank = rank
        self.size = 1 + max(max(node) for node in topology.nodes)
        self.topology = self._real_topology = topology
        self._unheard = _Unheard()

    @property
    def messages(self) -> Any:
        return self._unheard

    def _end_phase(self, phase: Phase, failure: BaseException | None) -> None:
        if failure is not None:
            raise failure
        self._unheard.serial += 1
        say(to_others=base64.b64encode(pickle.dumps(phase.mine)).decode())
        answer = sys.stdin.readline()
        if not answer:
            sys.exit("the rank has gone")
        phase.all = [None if word is None else pickle.loads(base64.b64decode(word)) for word in json.loads(answer)]
