# SPDX-License-Identifier: MIT
"""Measures the GPUs of all ranks at the same time, by one proxy for each rank.

The argument is JSON: `rank`; `nodes`: for each node its ranks that have a GPU; `measuring`: for each node the ranks whose links
are measured, one for each GPU; `uuids`: of all ranks' GPUs; `size`: bytes of a copy; `index`: of this rank's GPU, null for a
CPU that stands for one.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hybrid.core.spans import Topology
from hybrid.devices.base import Device
from hybrid.diagnostics.probes.copy_rates import COLUMNS, ITEM, HostLink, copy_rate, pattern, rates_together
from hybrid.diagnostics.probes.protocol import report
from hybrid.diagnostics.probes.proxy_team import ProxyTeam
from hybrid.errors import DeviceUnavailable, code_of, one_line
from hybrid.transport.peers import probe
from hybrid.transport.rank_device import RankDevice

_FETCHES = 8  # of one rank's memory, one after the other, that are timed


def main(argument: str) -> None:
    task = json.loads(argument)
    team = ProxyTeam(task["rank"], Topology(tuple(tuple(node) for node in task["nodes"])))
    try:
        device = device_of(task["index"])
        report(stage="links")
        _measure_links(team, device, task)
        if any(len(node) > 1 for node in team.topology.nodes):
            report(stage="opening")
            probe(RankDevice(team, lambda gpu: device))
            report(stage="fetching")
            _fetch_from_all(team, device, task["uuids"], task["size"])
        report(stage="done")
    except Exception as error:  # whatever it is, the rank judges it
        report(failed=one_line(error), code=code_of(error))


def device_of(index: int | None) -> Any:
    """The GPU with this index; None: a CPU that copies as a GPU does."""
    if index is None:
        from hybrid.devices.cpu import CpuDevice

        return CpuDevice(staged=True)
    from hybrid.devices.cuda_device import CudaDevice
    from hybrid.devices.cuda_gpus import usable_gpus

    return CudaDevice(usable_gpus()[index])


def _measure_links(team: ProxyTeam, device: Device, task: dict[str, Any]) -> None:
    """Each GPU's link while the others of its node are idle, then all links of a node at once."""
    of_node: list[int] = task["measuring"][team.node]
    rates: dict[str, Any] = {}
    with team.phase("links", timed=False):
        links = [HostLink(device, task["size"])] if team.rank in of_node else []
    for turn in range(max(len(ranks) for ranks in task["measuring"])):
        with team.phase("links", timed=False):
            if links and of_node.index(team.rank) == turn:
                rates = {"uuid": task["uuids"][team.rank], "pinned": links[0].pinned, "alone": links[0].alone()}
                report(links=[rates])
    together = rates_together(links, lambda: _barrier(team, "links"))
    if together and len(of_node) > 1:
        report(links=[{**rates, "together": together[0]}])


def _fetch_from_all(team: ProxyTeam, device: Device, uuids: list[str], size: int) -> None:
    """In each round all ranks at the same time fetch data, each from another rank of its node, until each has fetched from all.
    Reports the rates. DeviceUnavailable if what arrives is not what the other rank's GPU holds."""
    node = team.node_ranks
    rows = size // (ITEM * COLUMNS)
    with team.phase("fetching", timed=False) as handles:
        memory = device.reserve(2 * size, shared=True)
        target = device.matrix(memory, size, rows, COLUMNS, "float64")
        own = pattern(team.rank, size)  # must live until it is copied
        device.copy_in(device.matrix(memory, 0, rows, COLUMNS, "float64"), own, [])
        device.finish()
        handles.mine = device.handle(memory)
    with team.phase("fetching", timed=False):
        opened = {rank: device.open(handles.all[rank]) for rank in node if rank != team.rank}
    copies = []
    for distance in range(1, max(map(len, team.topology.nodes))):
        source = node[(node.index(team.rank) + distance) % len(node)] if distance < len(node) else None
        memory_there = None if source is None else device.matrix(opened[source], 0, rows, COLUMNS, "float64")
        rate = 0.0
        for count in (1, _FETCHES):  # the first fetch is slower
            with team.phase("fetching", timed=False):
                if memory_there is not None:
                    rate = _fetch(device, target, memory_there, count, size)
        with team.phase("fetching", timed=False):
            if source is not None:
                _compare(device, target, source, size)
                if uuids[source] != uuids[team.rank]:
                    copies.append({"source": uuids[source], "target": uuids[team.rank], "rate": rate})
    report(peer_copies=copies)
    with team.phase("fetching", timed=False):
        for other in opened.values():
            device.close(other)
    _barrier(team, "fetching")  # memory may only be freed when no other process has it open


def _barrier(team: ProxyTeam, name: str) -> None:
    with team.phase(name, timed=False):
        pass


def _fetch(device: Device, target: Any, source: Any, count: int, size: int) -> float:
    for _ in range(count):
        device.exchange(target, source, [])
    return copy_rate(device, size, count)


def _compare(device: Device, target: Any, source: int, size: int) -> None:
    arrived = np.full(target.shape, np.nan)
    device.copy_out(arrived, target, [])
    device.finish()
    if not np.array_equal(arrived, pattern(source, size)):
        raise DeviceUnavailable(f"what was fetched from the GPU of rank {source} is not what lies there", code="gpu-data")
