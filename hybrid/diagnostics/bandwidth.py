# SPDX-License-Identifier: MIT
"""Bandwidths between GPUs and host memory, and from GPU to GPU, measured by child processes, which may die of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics.probe_process import ProbeResult, probe_command, run_probe
from hybrid.diagnostics.proxy_ranks import run_proxies
from hybrid.ranks.team import Team

SIZE = 64 << 20  # bytes of a copy
_LIMIT = 45  # seconds for all copies


@dataclass(frozen=True)
class Rates:
    """Bytes per second of copies from host memory to a GPU and back."""

    to_gpu: float
    to_host: float


@dataclass(frozen=True)
class Link:
    """A GPU's link to its host. `together`: the rates while the node's other GPUs copy, too; None where there are none.

    `pinned`: the host memory could be pinned.
    """

    uuid: str
    rank: int
    host: str
    pinned: bool
    alone: Rates
    together: Rates | None = None


@dataclass(frozen=True)
class PeerCopy:
    """From one GPU to another, by their UUIDs. `direct`: not through host memory; `correct`: the data arrived unchanged."""

    source: str
    target: str
    rate: float
    direct: bool = True
    correct: bool = True


@dataclass(frozen=True)
class Failure:
    """What ended a measurement early, in its stage `stage`. `died`: it ended the process that measured."""

    rank: str
    stage: str
    text: str
    died: bool


@dataclass(frozen=True)
class Isolation:
    """What decides whether a rank can open memory of another rank's GPU."""

    namespaces: tuple[tuple[str, str], ...]  # of the kernel, by their kinds: containers have their own
    visible: tuple[str, ...]  # UUIDs of the GPUs that the rank sees


@dataclass(frozen=True)
class Measurements:
    """All that was measured. `one_process`: by this process alone, for all GPUs it sees."""

    links: tuple[Link, ...] = ()
    peer_copies: tuple[PeerCopy, ...] = ()
    failure: Failure | None = None
    nodes: tuple[tuple[int, ...], ...] = ()  # of each node the ranks that took part
    one_process: bool = False

    @property
    def without_links(self) -> bool:
        """A failure came before the end of the first stage, which measures the links."""
        return self.failure is not None and self.failure.stage in ("starting", "links")

    @property
    def links_by_host(self) -> list[list[Link]]:
        hosts: dict[str, list[Link]] = {}
        for link in self.links:
            hosts.setdefault(link.host, []).append(link)
        return list(hosts.values())


def measure(team: Team, chosen: Sequence[Gpu | None]) -> Measurements:
    """`chosen[rank]`: the rank's GPU, where it works. Every rank calls it."""
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
    """For each node: ranks may share a GPU, and its link is measured once."""
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
    """What the probes reported, `results[rank]`."""
    ran = [(rank, result) for rank, result in enumerate(results) if result is not None]
    links = [_link(rank, hosts[rank], link) for rank, result in ran for link in result.report.get("links", [])]
    copies = [PeerCopy(**copy) for _, result in ran for copy in result.report.get("peer_copies", [])]
    return Measurements(tuple(links), tuple(copies), _first_failure(ran, hosts), nodes, one_process)


def _link(rank: int, host: str, link: Mapping[str, Any]) -> Link:
    together = link.get("together")
    return Link(link["uuid"], rank, host, link["pinned"], Rates(**link["alone"]), Rates(**together) if together else None)


def _first_failure(ran: Sequence[tuple[int, ProbeResult]], hosts: Sequence[str]) -> Failure | None:
    """Of a probe that failed by itself, if there is one: the others were killed because of it."""
    for rank, result in ran:
        if result.ended or "failed" in result.report:
            return _failure(rank, hosts, result, result.ended or str(result.report["failed"]))
    for rank, result in ran:
        if result.report.get("stage") != "done":
            return _failure(rank, hosts, result, "was ended before it was done")
    return None


def _failure(rank: int, hosts: Sequence[str], result: ProbeResult, text: str) -> Failure:
    return Failure(f"rank {rank} on {hosts[rank]}", str(result.report.get("stage", "starting")), text, bool(result.ended))


def isolation(visible: Sequence[Gpu]) -> Isolation:
    """Of this process, which sees these GPUs."""
    namespaces = []
    for kind in ("ipc", "pid"):
        with suppress(OSError):  # only Linux has them
            namespaces.append((kind, os.readlink(f"/proc/self/ns/{kind}")))
    return Isolation(tuple(namespaces), tuple(gpu.uuid for gpu in visible))
