# SPDX-License-Identifier: MIT
"""Bandwidths between GPUs and host memory, and from GPU to GPU. Child processes measure them, since a fault may end these."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hybrid.core.problem import record
from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics.probe_process import ProbeResult, probe_command, run_probe
from hybrid.diagnostics.proxy_ranks import run_proxies
from hybrid.ranks.team import Team

SIZE = 64 << 20  # bytes of a copy
_LIMIT = 45  # seconds for all copies


@record
class Rates:
    """Bytes per second of copies from host memory to a GPU and back."""

    to_gpu: float
    to_host: float


@record
class Link:
    """A GPU's link to its host."""

    uuid: str  # of the GPU
    rank: int
    host: str
    pinned: bool  # the host memory could be pinned
    alone: Rates
    together: Rates | None = None  # while the node's other GPUs copy, too; None where there are no others


@record
class PeerCopy:
    """Copies from one GPU to another."""

    source: str  # the UUID of the GPU
    target: str
    rate: float  # bytes a second
    direct: bool = True  # not through host memory
    correct: bool = True  # the data arrived unchanged


@record
class Failure:
    """What ended a measurement early."""

    rank: str  # its name, for messages
    stage: str  # of the measurement
    text: str
    died: bool  # the process that measured was ended by it
    code: str = "probe-failed"  # of `hybrid.errors.CODES`


@record
class Isolation:
    """What decides whether a rank can open memory of another rank's GPU."""

    namespaces: tuple[tuple[str, str], ...]  # kinds of Linux's namespaces, and the process's: containers have their own
    visible: tuple[str, ...]  # UUIDs of the GPUs that the rank sees


@record
class Measurements:
    """All that was measured."""

    links: tuple[Link, ...] = ()
    peer_copies: tuple[PeerCopy, ...] = ()
    failure: Failure | None = None
    nodes: tuple[tuple[int, ...], ...] = ()  # for each node the ranks that took part
    one_process: bool = False  # one process measured all GPUs that it sees; else each rank measured its own

    @property
    def without_links(self) -> bool:
        """Whether a failure came before the end of the first stage, which measures the links."""
        return self.failure is not None and self.failure.stage in ("starting", "links")

    @property
    def links_by_host(self) -> list[list[Link]]:
        """The links of each host."""
        hosts: dict[str, list[Link]] = {}
        for link in self.links:
            hosts.setdefault(link.host, []).append(link)
        return list(hosts.values())


def measure(team: Team, chosen: Sequence[Gpu | None]) -> Measurements:
    """Measure the GPUs of all ranks. `chosen[rank]`: the rank's GPU; None where there is none that works. Every rank calls it."""
    nodes = tuple(ranks for node in team.topology.nodes if (ranks := tuple(rank for rank in node if chosen[rank])))
    if not nodes:
        return Measurements()
    if team.size == 1:
        return collect([run_probe("gpu_pairs", str(SIZE), limit=_LIMIT)], [team.host], nodes, one_process=True)
    gpu = chosen[team.rank]
    task = {
        "rank": team.rank,
        "nodes": nodes,
        "measuring": first_rank_of_each_gpu(nodes, chosen),
        "uuids": [None if gpu is None else gpu.uuid for gpu in chosen],
        "size": SIZE,
    }
    command = probe_command("all_ranks", _LIMIT, json.dumps({**task, "index": gpu.index})) if gpu else None
    result = run_proxies(team, command, _LIMIT)
    with team.phase("bandwidths", timed=False) as exchange:
        exchange.mine = (result, team.host)
    results, hosts = zip(*exchange.all, strict=True)
    return collect(results, hosts, nodes)


def first_rank_of_each_gpu(nodes: Sequence[Sequence[int]], chosen: Sequence[Gpu | None]) -> list[list[int]]:
    """For each node, the ranks that are the first to use their GPU. Ranks may share a GPU, whose link is measured once."""
    measuring = []
    for node in nodes:
        first: dict[str, int] = {}
        for rank in node:
            if (gpu := chosen[rank]) is not None:
                first.setdefault(gpu.uuid, rank)
        measuring.append(list(first.values()))
    return measuring


def collect(
    results: Sequence[ProbeResult | None], hosts: Sequence[str], nodes: tuple[tuple[int, ...], ...], *, one_process: bool = False
) -> Measurements:
    """All that was measured, from what the probes reported. `results[rank]`: None where there was no probe."""
    ran = [(rank, result) for rank, result in enumerate(results) if result is not None]
    links = [_link(rank, hosts[rank], link) for rank, result in ran for link in result.report.get("links", [])]
    copies = [PeerCopy(**copy) for _, result in ran for copy in result.report.get("peer_copies", [])]
    return Measurements(tuple(links), tuple(copies), _first_failure(ran, hosts), nodes, one_process)


def _link(rank: int, host: str, link: Mapping[str, Any]) -> Link:
    together = link.get("together")
    return Link(link["uuid"], rank, host, link["pinned"], Rates(**link["alone"]), Rates(**together) if together else None)


def _first_failure(ran: Sequence[tuple[int, ProbeResult]], hosts: Sequence[str]) -> Failure | None:
    """The failure of a probe that failed by itself, if there is one, since the others were killed because of it."""
    for rank, result in ran:
        if result.ended or "failed" in result.report:
            return _failure(rank, hosts, result, result.ended or str(result.report["failed"]))
    for rank, result in ran:
        if result.report.get("stage") != "done":
            return _failure(rank, hosts, result, "was ended before it was done")
    return None


def _failure(rank: int, hosts: Sequence[str], result: ProbeResult, text: str) -> Failure:
    code = "probe-failed" if result.ended else str(result.report.get("code", "probe-failed"))
    return Failure(f"rank {rank} on {hosts[rank]}", str(result.report.get("stage", "starting")), text, bool(result.ended), code)


def isolation(visible: Sequence[Gpu]) -> Isolation:
    """The isolation of this process, which sees these GPUs."""
    namespaces = []
    for kind in ("ipc", "pid"):
        with suppress(OSError):  # only Linux has them
            namespaces.append((kind, os.readlink(f"/proc/self/ns/{kind}")))
    return Isolation(tuple(namespaces), tuple(gpu.uuid for gpu in visible))
