"""The GPUs of a node's ranks at the same time: python -m hybrid.diagnostics.probes.all_ranks LIMIT TASK

A deputy: one process a rank, all of them together. TASK is JSON: `rank`, `nodes` (their ranks that have a GPU), `measuring`
(of each node the ranks whose links are measured, one a GPU), `index` of the GPU, null for a CPU that copies like one, and
`size`, the bytes of a copy.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from hybrid.core.spans import Topology
from hybrid.devices.base import PeerDevice
from hybrid.diagnostics.probes.copy_rates import COLUMNS, ITEM, Link, pattern, rate_of, together
from hybrid.diagnostics.probes.protocol import begin, say
from hybrid.diagnostics.probes.proxy_team import DeputyTeam
from hybrid.errors import DeviceUnavailable, one_line
from hybrid.transport.peer_access import PeerAccess
from hybrid.transport.rank_device import RankDevice

_FETCHES = 8  # of one rank's memory, one after the other


def main() -> None:
    begin(int(sys.argv[1]))
    task = json.loads(sys.argv[2])
    team = DeputyTeam(task["rank"], Topology(tuple(tuple(node) for node in task["nodes"])))
    try:
        device = device_of(task["index"])
        say(stage="links")
        measure_links(team, device, task["measuring"], task["size"])
        if any(len(node) > 1 for node in team.topology.nodes):
            say(stage="reaching")
            PeerAccess(RankDevice(None, device)).probe(team)
            say(stage="fetching")
            fetch_from_all(team, device, task["size"])
        say(stage="done")
    except Exception as error:  # the rank's to judge, whatever it is
        say(failed=one_line(error))


def device_of(index: int | None) -> Any:
    if index is None:
        from hybrid.devices.cpu import CpuDevice

        return CpuDevice(staged=True)
    from hybrid.devices.cuda_device import CudaDevice
    from hybrid.devices.cuda_gpus import usable_gpus

    return CudaDevice(usable_gpus()[index])


def measure_links(team: DeputyTeam, device: PeerDevice, measuring: list[list[int]], size: int) -> None:
    """Each GPU's link to the host while the others of its node rest, then all of a node's at once."""
    own = measuring[team.node]
    with team.phase("links", timed=False):
        links = [Link(device, size)] if team.rank in own else []
    for turn in range(max(len(ranks) for ranks in measuring)):
        with team.phase("links", timed=False):
            if links and own.index(team.rank) == turn:
                say(locked=links[0].locked, alone=links[0].alone())

    def meet() -> None:
        with team.phase("links", timed=False):
            pass

    rates = together(links, meet)
    if rates and len(own) > 1:
        say(together=rates[0])


def fetch_from_all(team: DeputyTeam, device: PeerDevice, size: int) -> None:
    """All ranks at the same time, each from another one of its node, round by round. Say how fast that was; DeviceUnavailable
    if something else arrived than lies there."""
    node = team.node_ranks
    place = node.index(team.rank)
    with team.phase("fetching", timed=False) as offering:
        memory = device.reserve(2 * size, shared=True)
        rows = size // (ITEM * COLUMNS)
        landing = device.matrix(memory, size, rows, COLUMNS, "float64")
        own = pattern(team.rank, size)  # as long as it is copied
        device.copy_in(device.matrix(memory, 0, rows, COLUMNS, "float64"), own, [])
        device.finish()
        offering.mine = device.handle(memory)
    with team.phase("fetching", timed=False):
        opened = {rank: device.open(offering.all[rank]) for rank in node if rank != team.rank}
    rates = {}
    for shift in range(1, max(map(len, team.topology.nodes))):
        source = node[(place + shift) % len(node)]
        with team.phase("fetching", timed=False):
            if shift < len(node):
                theirs = device.matrix(opened[source], 0, rows, COLUMNS, "float64")
                _fetch(device, landing, theirs, 1, size)
        with team.phase("fetching", timed=False):
            if shift < len(node):
                rates[str(source)] = _fetch(device, landing, theirs, _FETCHES, size)
        with team.phase("fetching", timed=False):
            if shift < len(node):
                _compare(device, landing, source, size)
    say(fetched=rates)
    with team.phase("fetching", timed=False):
        for other in opened.values():
            device.close(other)
    with team.phase("fetching", timed=False):
        pass  # no owner gives back what others have open


def _fetch(device: PeerDevice, landing: Any, theirs: Any, count: int, size: int) -> float:
    for _ in range(count):
        device.exchange(landing, theirs, [])
    return rate_of(device, size, count)


def _compare(device: PeerDevice, landing: Any, source: int, size: int) -> None:
    seen = np.full(landing.shape, np.nan)
    device.copy_out(seen, landing, [])
    device.finish()
    if not np.array_equal(seen, pattern(source, size)):
        raise DeviceUnavailable(f"what was fetched from the GPU of rank {source} is not what lies there")


if __name__ == "__main__":
    main()
