# SPDX-License-Identifier: MIT
"""The team that a rank's proxy belongs to: a phase's results go to the other proxies through the ranks."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from typing import Any

from hybrid.core.spans import Topology
from hybrid.diagnostics.probes.protocol import report
from hybrid.ranks.team import Phase, Team


class _NoMessages:
    """Stands for the messages of a team, which a proxy cannot send."""

    def __init__(self) -> None:
        self.serial = 0

    def end_if_others_failed(self) -> None:
        pass  # this process is killed then


class ProxyTeam(Team):
    """The team of the proxies of the ranks in `topology`.

    A failure is raised only in the proxy where it happened: that must report `failed` and end, and then the ranks kill the
    others.
    """

    def __init__(self, rank: int, topology: Topology) -> None:
        super().__init__()
        self.rank = rank
        self.size = 1 + max(max(node) for node in topology.nodes)
        self.topology = self._real_topology = topology
        self._no_messages = _NoMessages()

    @property
    def alone(self) -> bool:
        return False  # also where there is one proxy: the rank passes its results on

    @property
    def messages(self) -> Any:
        return self._no_messages

    def _end_phase(self, phase: Phase, failure: BaseException | None) -> None:
        if failure is not None:
            raise failure
        self._no_messages.serial += 1
        report(to_others=base64.b64encode(pickle.dumps(phase.mine)).decode())
        answer = sys.stdin.readline()
        if not answer:
            sys.exit("the rank has ended")
        phase.all = [None if part is None else pickle.loads(base64.b64decode(part)) for part in json.loads(answer)]
