# SPDX-License-Identifier: MIT
"""Bandwidths between host and GPU, between GPUs, and between nodes; and a GPU's rates for the machine model. Child processes
measure GPUs, since a fault may kill them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from hybrid.core.problem import record
from hybrid.core.text import counted, rate_in_units
from hybrid.core.timeline import Spread
from hybrid.diagnostics.finding import Finding, note, ok, unknown, wrong
from hybrid.diagnostics.probe_process import ProbeResult, run_probe, run_proxies
from hybrid.errors import HybridError
from hybrid.planning.decision import Gpu, RankPlacement
from hybrid.planning.machine_model import RECORD_KEY, MachineModel
from hybrid.planning.schedule import KERNEL_TILE
from hybrid.ranks.messages import Series, Start, broadcast, exchange
from hybrid.ranks.team import Team
from hybrid.reporting.run_report import placement_record

K = TypeVar("K")


def reference_times(times: Mapping[K, float]) -> dict[K, float]:
    """The reference time for each: the median of all, or of two, the other's."""
    if len(times) == 2:
        (one, first), (other, second) = times.items()
        return {one: second, other: first}
    return dict.fromkeys(times, Spread.of(list(times.values())).median if times else 0.0)


def slow_links(rates: Mapping[str, float], kind: str, limit: float) -> Iterator[str]:
    """A text for each link that takes more than `limit` times its reference. `rates[link]`: bytes a second."""
    times = {name: 1 / rate for name, rate in rates.items() if rate > 0}
    which = "the other one" if len(times) == 2 else "the median"
    for name, reference in reference_times(times).items():
        if times[name] > limit * reference:
            own, others = (rate_in_units(1 / seconds, "B") for seconds in (times[name], reference))
            yield f"{name}: slow, {own}{kind}; {which} has {others}"


_MESSAGE = 16 << 20  # bytes: a millisecond at 100 Gbit/s, a tenth of a second at 1 Gbit/s: fast also for hundreds of nodes
_REPEATS = 3
_KIND = "links"


@record
class NodeLink:
    """The network from one host to another."""

    source: str
    target: str
    rates: tuple[float, ...]  # bytes a second, of each message

    def __str__(self) -> str:
        return f"{self.source} to {self.target}"


def _measure_node_links(team: Team, hosts: Sequence[str]) -> tuple[NodeLink, ...]:
    """Measure the links around the ring of nodes, except between pretended nodes on one host. Every rank calls it and gets the
    same result."""
    first, measured = [node[0] for node in team.topology.nodes], []
    for pair in zip(first, [*first[1:], first[0]], strict=True):
        source, target = pair
        if hosts[source] != hosts[target]:
            team.connect(_KIND, pair)
            with team.phase("links", timed=False):
                series = team.messages.series(_KIND, pair, _messages(sends=team.rank == source))
            with team.phase("links", timed=False) as measuring:
                if series is not None:
                    measuring.mine = _measured(series)
            measured.append(NodeLink(hosts[source], hosts[target], measuring.all[source]))
    return tuple(measured)


def _messages(*, sends: bool) -> Iterator[Start]:
    """Messages and their answers."""
    message, answer = np.ones((1, _MESSAGE), np.uint8), np.zeros((1, 1))
    for _ in range(1 + _REPEATS):
        yield exchange({1: [message]}, {}, 0) if sends else exchange({}, {0: [message]}, 1)
        yield broadcast(answer, 1)


def _measured(series: Series) -> tuple[float, ...]:
    """The rates of the messages, without the first, which opens the connection."""
    rates = []
    for number in range(1 + _REPEATS):
        began = time.perf_counter()
        for part in (0, 1):
            series.wait_for(2 * number + part)
        rates.append(_MESSAGE / (time.perf_counter() - began))
    return tuple(rates[1:])


def median_rates(measured: Sequence[NodeLink]) -> Mapping[str, float]:
    return {str(link): Spread.of(list(link.rates)).median for link in measured}


def judge_node_links(measured: Sequence[NodeLink], limit: float) -> list[Finding]:
    """A finding for each link that takes more than `limit` times its reference, else one for all; none for a single node."""
    remedy = "see the port's speed and errors (ethtool, ibstat), the cable, and who else uses it"
    medians = median_rates(measured)
    found = [wrong("node links", text, remedy, code="slow-link") for text in slow_links(medians, "", limit)]
    if found or not medians:
        return found
    return [ok("node links", f"{counted(len(medians), 'link')} around the ring of nodes: {rate_range(medians.values())}")]


CONTENDED = 0.7  # of the sum of the rates alone: below, links that copy at once share a bottleneck
_LINKS = "gpu links"
Rates = Mapping[str, float]  # bytes a second of copies between host memory and a GPU, "to_gpu" and "to_host"
_DIRECTIONS = {"host to GPU": "to_gpu", "GPU to host": "to_host"}


def judge_host_links(measured: Measurements) -> Finding:
    """One finding for all nodes: the rates of the links alone, and of all links of a node at once."""
    links, failure = measured.links, measured.failure
    if failure is not None and (measured.without_links or not links):
        return unknown(_LINKS, f"{failure.rank}, {failure.stage}: {failure.text}")
    if not links:
        return ok(_LINKS, "not measured: no GPU that works")
    rates = [rate for link in links for rate in (*link.alone.values(), *(link.together or {}).values())]
    if not all(isfinite(rate) and rate > 0 for rate in rates):
        return unknown(_LINKS, "the copies took no time that could be measured")
    pinned = all(link.pinned for link in links)
    parts = [f"{name} {rate_range([link.alone[way] for link in links])}" for name, way in _DIRECTIONS.items()]
    memory = "of pinned memory" if pinned else "of memory that could not be pinned"
    text = f"{counted(len(links), 'GPU')}, copies {memory}: {', '.join(parts)}{' alone' if len(links) > 1 else ''}"
    nodes = [[link for link in links if link.host == host] for host in dict.fromkeys(link.host for link in links)]
    nodes = [node for node in nodes if all(link.together for link in node)]
    for name, way in _DIRECTIONS.items() if nodes else ():
        at_once = [sum(link.together[way] for link in node if link.together) for node in nodes]
        text += f"; all of a node at once {rate_range(at_once)} {name}"
        for node, whole in zip(nodes, at_once, strict=True):
            alone = sum(link.alone[way] for link in node)
            if whole < CONTENDED * alone:
                text += f"; on {node[0].host} only {100 * whole / alone:.0f} % of the sum of each alone"
                remedy = "a PCIe switch or a NUMA node is shared (nvidia-smi topo -m): bind ranks to cores near their GPUs"
                return note(_LINKS, text, remedy, code="slow-link")
    if not pinned:
        return note(_LINKS, f"{text}; pinned memory would be faster: see the line on it", code="pinned-limit")
    return ok(_LINKS, text)


def rate_range(rates: Collection[float]) -> str:
    least, most = (rate_in_units(rate, "B") for rate in (min(rates), max(rates)))
    return most if least == most else f"{least} to {most}"


def judge(measured: Measurements, limit: float, told: Callable[..., Finding] = wrong) -> list[Finding]:
    """The findings on measured GPUs: one on host links, one on peer copies, and one for each direction of a link and each pair of
    GPUs that takes more than `limit` times as long as the others. `told`: makes the latter."""
    remedy = "see the link's width and generation (nvidia-smi -q), nvidia-smi topo -m, and nvidia-smi nvlink -e"

    def slow(subject: str, kind: str, rates: Mapping[str, float]) -> list[Finding]:
        return [told(subject, text, remedy, code="slow-link") for text in slow_links(rates, f" {kind}", limit)]

    found = [judge_host_links(measured)]
    for kind, way in _DIRECTIONS.items():
        names = {f"{link.uuid} of rank {link.rank} on {link.host}": link.alone[way] for link in measured.links}
        found += slow(_LINKS, kind, names)
    between = {f"{copy.source} to {copy.target}": copy.rate for copy in measured.peer_copies}
    return [*found, judge_peers(measured), *slow(_PEERS, "GPU to GPU", between)]


_PEERS = "gpu peers"
_USE_HOST = "--transport host, or HYBRID_TRANSPORT=host"
_UNREACHED = (
    "see nvidia-smi topo -p2p r for which GPUs can; let every rank see all GPUs of its node (the same CUDA_VISIBLE_DEVICES, srun "
    "--gpu-bind=none); ranks in containers of their own need --ipc=host and --pid=host; slices of MIG cannot"
)
_CORRUPTED = "switch off ACS and the IOMMU for the GPUs (BIOS, intel_iommu=off, amd_iommu=off), or NVIDIA's peer access"


def judge_peers(measured: Measurements) -> Finding:
    """One finding for all nodes: whether GPUs could read each other's memory, and how fast."""
    failure, copies = measured.failure, measured.peer_copies
    largest = max(measured.nodes, key=len, default=())
    if not (measured.links or failure):
        return ok(_PEERS, "not tried: no GPU that works")
    if measured.without_links:
        return unknown(_PEERS, "not tried, since the links could not be measured")
    if len(largest) < 2:
        return ok(_PEERS, "not tried: one rank with a GPU on each node")
    if failure is None:
        text = "ranks of a node fetched data from each other's GPUs, and it was correct"
        if not copies:
            return ok(_PEERS, f"{text} (they share one); the transport peers works")
        if not all(isfinite(copy.rate) and copy.rate > 0 for copy in copies):
            return unknown(_PEERS, f"{text}; but the copies took no time that could be measured")
        rates = rate_range([copy.rate for copy in copies])
        return ok(_PEERS, f"{text}: {rates}, all at the same time; the transport peers works")
    cost = f"the transport host is used: each of {len(largest)} ranks loads all of B over its own link"
    what = f"{failure.rank}: {failure.text}"
    if failure.died:
        return wrong(_PEERS, f"{what}, while GPUs opened each other's memory", f"{_USE_HOST} ({cost})", code="gpu-peers")
    if failure.stage == "fetching":  # the small test that precedes each product has passed
        passed = f"{what}; the transport peers is used nevertheless, since the little data that it tests with arrived"
        if failure.code == "gpu-data":
            return wrong(_PEERS, passed, f"{_USE_HOST}; {_CORRUPTED}", code="gpu-data")
        return unknown(_PEERS, passed)
    if failure.code == "gpu-data":
        return wrong(_PEERS, f"{what}; {cost}", _CORRUPTED, code="gpu-data")
    return note(_PEERS, f"{what}; {cost}", _UNREACHED, code="gpu-peers")


_LIMIT = 45  # seconds for all copies


@record
class Link:
    """A GPU's link to its host."""

    uuid: str  # of the GPU
    rank: int
    host: str
    pinned: bool  # the host memory could be pinned
    alone: Rates
    together: Rates | None = None  # while the node's other GPUs copy, too; None without others


@record
class PeerCopy:
    """Copies from one GPU to another."""

    source: str  # the UUID of the GPU
    target: str
    rate: float  # bytes a second


@record
class Failure:
    """What ended a measurement early."""

    rank: str  # its name, for messages
    stage: str  # of the measurement
    text: str
    died: bool  # the measuring process died
    code: str = "probe-failed"  # of `hybrid.errors.CODES`


@record
class Measurements:
    """All measurements of links."""

    links: tuple[Link, ...] = ()
    peer_copies: tuple[PeerCopy, ...] = ()
    failure: Failure | None = None
    nodes: tuple[tuple[int, ...], ...] = ()  # for each node the ranks with a GPU
    node_links: tuple[NodeLink, ...] = ()

    @property
    def without_links(self) -> bool:
        """Whether a failure came before all links were measured."""
        return self.failure is not None and self.failure.stage in ("starting", "links")


def measure(team: Team, chosen: Sequence[Gpu | None], hosts: Sequence[str]) -> Measurements:
    """Measure the links between nodes, and those of all ranks' GPUs. Every rank calls it and gets the same result.

    `chosen[rank]`: the rank's GPU, None without one that works; `hosts[rank]`: its host.
    """
    node_links = _measure_node_links(team, hosts)
    nodes = tuple(ranks for node in team.topology.nodes if (ranks := tuple(rank for rank in node if chosen[rank])))
    if not nodes:
        return Measurements(node_links=node_links)
    gpu, uuids = chosen[team.rank], [gpu and gpu.uuid for gpu in chosen]
    # The first of the ranks that share a GPU measures its link.
    first = [[rank for rank in node if uuids[rank] not in [uuids[each] for each in node if each < rank]] for node in nodes]
    task = {"rank": team.rank, "nodes": nodes, "measuring": first, "uuids": uuids}
    result = run_proxies(team, "probe_rates.all_ranks", json.dumps({**task, "index": gpu.index}) if gpu else None, _LIMIT)
    with team.phase("bandwidths", timed=False) as exchange:
        exchange.mine = result
    ran = [(rank, each) for rank, each in enumerate(exchange.all) if each is not None]
    links = [Link(rank=rank, host=hosts[rank], **link) for rank, each in ran for link in each.report.get("links", [])]
    copies = [PeerCopy(**copy) for _, each in ran for copy in each.report.get("peer_copies", [])]
    failure = None
    # First those that failed by themselves: the others were killed because of them.
    for rank, each in sorted(ran, key=lambda one: not (one[1].ended or "failed" in one[1].report)):
        report, stage = each.report, str(each.report.get("stage", "starting"))
        if each.ended or stage != "done":
            text = each.ended or str(report.get("failed", "was ended before it was done"))
            code = "probe-failed" if each.ended else str(report.get("code", "probe-failed"))
            failure = Failure(f"rank {rank} on {hosts[rank]}", stage, text, bool(each.ended), code)
            break
    return Measurements(tuple(links), tuple(copies), failure, nodes, node_links)


def as_record(findings: Sequence[Finding], placements: Sequence[RankPlacement], measured: Measurements) -> dict[str, Any]:
    """The common part of the JSON lines of the doctor and the acceptance test."""
    return {
        "ranks": len(placements),
        "ok": all(finding.verdict != "wrong" for finding in findings),
        "findings": [vars(finding) for finding in findings],
        "placements": [placement_record(placement) for placement in placements],
        "links": [asdict(link) for link in measured.links],
        "node_links": [asdict(link) for link in measured.node_links],
        "peer_copies": [asdict(copy) for copy in measured.peer_copies],
    }


_RATES = ("link", "multiply_adds", "byte_multiply_adds", "memory", "multiprocessors")


def measure_machine(team: Team, chosen: Sequence[Gpu | None], measured: Measurements) -> dict[str, Any]:
    """Measure the machine model, as HYBRID_MACHINE reads it from the doctor's JSON line: by the first rank with a link,
    while the others are idle. The slowest link counts, since the others wait for it. Every rank calls it."""
    rates, why = dict[str, Any](), "no GPU that works"
    medians = median_rates(measured.node_links)
    model = {"network_bytes_per_second": min(medians.values())} if medians else dict[str, Any]()
    if measured.links:
        with team.phase("machine", timed=False) as phase:
            mine, measuring = chosen[team.rank], measured.links[0].rank
            if team.rank == measuring and mine is not None:
                phase.mine = run_probe("probe_rates.machine_rates", str(mine.index), limit=60)
        result: ProbeResult = phase.all[measuring]
        found = result.report
        why = f"{found.get('stage', 'starting')}: {result.ended or 'it ended early'}"
        if found.get("stage") == "done" and not result.ended:
            try:
                of_gpu = _machine_model(found, min(link.alone["to_gpu"] for link in measured.links))
                model, rates, why = {**of_gpu, **model}, {name: found[name] for name in _RATES if name in found}, ""
            except (ArithmeticError, HybridError) as error:
                why = f"the measured rates make no sense: {error}"
    return {RECORD_KEY: model or None, "machine_rates": rates or None, "no_machine_model": why}


def _machine_model(found: Mapping[str, Any], link: float) -> dict[str, Any]:
    """Fields of MachineModel from the probe's report. `link`: bytes a second to a GPU."""
    link = min(found["link"]["to_gpu"], link)
    model: dict[str, Any] = {"link_bytes_per_second": link}
    model |= {f"{dtype}_multiply_adds_per_byte": rate / link for dtype, rate in found["multiply_adds"].items()}
    if "memory" in found:
        model["byte_multiply_adds_per_byte"] = found["byte_multiply_adds"] / link
        model["memory_bytes_per_byte"] = found["memory"] / link
    if found["multiprocessors"]:
        model["least_tile_elements"] = found["multiprocessors"] * KERNEL_TILE**2
    MachineModel(**model)  # refuses numbers that make no sense
    return model
