# SPDX-License-Identifier: MIT
"""Can the ranks of a node fetch data from each other's devices? They try it before a plan relies on it."""

from __future__ import annotations

import numpy as np

from hybrid.core.spans import Topology
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.ranks.team import Team
from hybrid.transport.device_group import pattern_of
from hybrid.transport.ipc_links import LinkRequest
from hybrid.transport.node_peers import flags_needed
from hybrid.transport.rank_device import RankDevice

_SIZE = 64  # rows and columns of the matrix that every rank fetches from every other
_BYTES = _SIZE * _SIZE * 8


class PeerAccess:
    """The trial and its outcome. Every rank of the team calls its methods."""

    def __init__(self, rank_device: RankDevice) -> None:
        self._rank_device = rank_device
        self._passed: Topology | None = None
        self._refusals: dict[Topology, str] = {}

    def refusal(self, team: Team, *, again: bool = False) -> str:
        """Why ranks of a node cannot fetch from each other's devices, the same on all ranks; empty where they can.

        The outcome is remembered for the topology. With `again`, a failure is not.
        """
        if again or team.topology not in self._refusals:
            self._refusals.pop(team.topology, None)
            try:
                self.probe(team)
            except HybridError as error:  # the same on all ranks
                self._refusals[team.topology] = str(error)
        return self._refusals.get(team.topology, "")

    def probe(self, team: Team) -> None:
        """Let every rank fetch a matrix from every other of its node.

        DeviceUnavailable on all ranks, with the reason, if one of them cannot, or does not get what was sent.
        """
        if self._passed == team.topology:
            return
        wanted = LinkRequest(team.topology, (2 * _BYTES,) * team.size, events=1)
        self._rank_device.connect(team, wanted, flags_needed(len(team.node_ranks), 1, 1))
        flags, links, device = self._rank_device.flags, self._rank_device.links, self._rank_device.device
        assert flags is not None
        flags.new_round()
        with team.phase("prepare", timed=False):
            written = device.matrix(self._rank_device.memory, 0, _SIZE, _SIZE, "float64")
            fetched = device.matrix(self._rank_device.memory, _BYTES, _SIZE, _SIZE, "float64")
            own = pattern_of(team.rank, _SIZE, _SIZE)  # referred to until it has been copied
            device.record_ipc_event(0, device.copy_in(written, own, []))
            flags.set_flag(0)
            for rank, memory in links.opened.items():
                flags.wait(rank, 0)
                theirs = device.matrix(memory, 0, _SIZE, _SIZE, "float64")
                seen = np.full((_SIZE, _SIZE), np.nan)
                device.copy_out(seen, fetched, [device.exchange(fetched, theirs, [links.loaded[rank][0]])])
                device.finish()
                if not np.array_equal(seen, pattern_of(rank, _SIZE, _SIZE)):
                    raise DeviceUnavailable(
                        f"what was fetched from the GPU of rank {rank} is not what lies there", code="gpu-data"
                    )
            device.finish()
        self._passed = team.topology
