"""Data between GPUs and the host, and from GPU to GPU: moved, by processes that may die, and compared."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hybrid.devices.cuda_gpus import Gpu
from hybrid.diagnostics.finding import Unknown, attempt
from hybrid.diagnostics.probe_process import Told, ask, program
from hybrid.diagnostics.proxy_ranks import send
from hybrid.ranks.team import Team

SIZE = 64 << 20  # bytes of a copy
_LIMIT = 45  # seconds for all copies


@dataclass(frozen=True)
class Rates:
    """Bytes a second, from the host to a GPU and back."""

    into: float
    out: float


@dataclass(frozen=True)
class Link:
    """Of one GPU to its host. `together`: while the node's other GPUs do the same; None where there are none."""

    uuid: str
    rank: int
    host: str
    locked: bool
    alone: Rates
    together: Rates | None = None


@dataclass(frozen=True)
class Passage:
    """From one GPU to another, by their UUIDs. `direct`: not through the host's memory."""

    source: str
    into: str
    rate: float
    direct: bool = True
    right: bool = True


@dataclass(frozen=True)
class Failure:
    """What kept a measurement from its end. `died`: it took the process with it. `stage`: the one that was not finished."""

    who: str
    stage: str
    text: str
    died: bool


@dataclass(frozen=True)
class Surroundings:
    """What decides whether a rank can open what another offers."""

    namespaces: tuple[tuple[str, str], ...]  # of the kernel, by their kinds
    visible: tuple[str, ...]  # UUIDs


@dataclass(frozen=True)
class Traffic:
    """All that was measured. `alone`: by one process, for all GPUs it sees."""

    links: tuple[Link, ...] = ()
    passages: tuple[Passage, ...] = ()
    failure: Failure | None = None
    alone: bool = False
    nodes: tuple[tuple[int, ...], ...] = ()  # the ranks of each that took part


def look(team: Team, chosen: Sequence[Gpu | None], visible: Sequence[Sequence[Gpu]]) -> Traffic:
    """`chosen[rank]`: the rank's GPU, where it works; `visible[rank]`: all that it sees. Every rank calls it."""
    if team.size == 1:
        told = attempt(lambda: ask("pairs", str(SIZE), limit=_LIMIT)) if chosen[0] else None
        return Traffic() if told is None else of_process(told, visible[0], team.host)
    nodes = tuple(ranks for node in team.topology.nodes if (ranks := tuple(rank for rank in node if chosen[rank])))
    if not nodes:
        return Traffic()
    with team.phase("hosts", timed=False) as naming:
        naming.mine = team.host
    mine = chosen[team.rank]
    task = {"rank": team.rank, "nodes": nodes, "measuring": _one_a_gpu(nodes, chosen), "size": SIZE}
    command = program("together", _LIMIT, json.dumps({**task, "index": mine.index})) if mine else None
    told_here = send(team, command, _LIMIT)
    with team.phase("gpus together", timed=False) as telling:
        telling.mine = told_here
    return of_ranks(telling.all, chosen, naming.all, nodes)


def _one_a_gpu(nodes: Sequence[Sequence[int]], chosen: Sequence[Gpu | None]) -> list[list[int]]:
    """Of each node the first rank on each GPU."""
    measuring = []
    for node in nodes:
        first: dict[str, int] = {}
        for rank in node:
            if (gpu := chosen[rank]) is not None:
                first.setdefault(gpu.uuid, rank)
        measuring.append(list(first.values()))
    return measuring


def of_ranks(
    told: Sequence[Told | None], chosen: Sequence[Gpu | None], hosts: Sequence[str], nodes: tuple[tuple[int, ...], ...]
) -> Traffic:
    """What the ranks' deputies said, `told[rank]`."""
    links, passages = [], []
    for rank, one in enumerate(told):
        gpu = chosen[rank]
        if one is None or gpu is None:
            continue
        if "alone" in one.said:
            links.append(_link(gpu.uuid, rank, hosts[rank], one.said, one.said.get("together")))
        for other, rate in one.said.get("fetched", {}).items():
            theirs = chosen[int(other)]
            if theirs is not None and theirs.uuid != gpu.uuid:
                passages.append(Passage(theirs.uuid, gpu.uuid, rate))
    return Traffic(tuple(links), tuple(passages), _first_failure(told, hosts), nodes=nodes)


def _first_failure(told: Sequence[Told | None], hosts: Sequence[str]) -> Failure | None:
    """The others' deputies were ended because of it, so they say nothing of their end."""
    sent = [(f"rank {rank} on {hosts[rank]}", one) for rank, one in enumerate(told) if one is not None]
    for who, one in sent:
        if one.ended or "failed" in one.said:
            return _failure(who, one)
    for who, one in sent:
        if one.said.get("stage") != "done":
            return Failure(who, str(one.said.get("stage", "starting")), "was ended before it was done", died=False)
    return None


def of_process(told: Told | Unknown, visible: Sequence[Gpu], host: str) -> Traffic:
    """What one process said, which looked at all its GPUs."""
    if isinstance(told, Unknown):
        return Traffic(failure=Failure("the process", "", told.reason, died=False), alone=True)
    said = told.said
    measured = said.get("links", [])
    together = said.get("together", [None] * len(measured))
    links = [_link(one["uuid"], 0, host, one, at_once) for one, at_once in zip(measured, together, strict=True)]
    uuid = {gpu.index: gpu.uuid for gpu in visible}
    passages = [
        Passage(uuid[pair["source"]], uuid[pair["into"]], pair["rate"], pair["direct"], pair["right"])
        for pair in said.get("pairs", [])
    ]
    failed = bool(told.ended) or "failed" in said
    return Traffic(tuple(links), tuple(passages), _failure("the process", told) if failed else None, alone=True)


def _failure(who: str, told: Told) -> Failure:
    return Failure(who, str(told.said.get("stage", "starting")), told.ended or str(told.said["failed"]), bool(told.ended))


def _link(uuid: str, rank: int, host: str, said: Mapping[str, Any], together: Mapping[str, float] | None) -> Link:
    return Link(uuid, rank, host, said["locked"], _rates(said["alone"]), _rates(together) if together else None)


def _rates(said: Mapping[str, float]) -> Rates:
    return Rates(said["copy in"], said["copy out"])


def surroundings(visible: Sequence[Gpu]) -> Surroundings:
    namespaces = []
    for kind in ("ipc", "pid"):
        with suppress(OSError):  # not Linux: nothing is known of it
            namespaces.append((kind, os.readlink(f"/proc/self/ns/{kind}")))
    return Surroundings(tuple(namespaces), tuple(gpu.uuid for gpu in visible))


def nodes_of(traffic: Traffic) -> list[list[Link]]:
    """Links by the host they lead to."""
    hosts: dict[str, list[Link]] = {}
    for link in traffic.links:
        hosts.setdefault(link.host, []).append(link)
    return list(hosts.values())
