# SPDX-License-Identifier: MIT
"""Judges what the acceptance test measured: wrong products, and ranks and links that are slower than the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hybrid.core.text import counted, ranges
from hybrid.core.timeline import Spread
from hybrid.diagnostics import gpu_watch, links
from hybrid.diagnostics.acceptance import Case, Outcome, WrongProduct
from hybrid.diagnostics.finding import Finding, Unknown, note, ok, wrong
from hybrid.diagnostics.links import Measurements, beside, slow_links
from hybrid.reporting.run_report import placement_record

SLOW = 1.1  # times the median of all
SHORTEST = 0.005  # seconds: of shorter multiplications the operating system's interruptions are too large a part


def judge(outcome: Outcome, expected_gpus: Sequence[int]) -> list[Finding]:
    """The findings: one for each trouble with a product, rank, link or GPU, and one for each subject without any.

    `expected_gpus`: how many each node has to use.
    """
    return [
        *_of_unused_gpus(outcome, expected_gpus),
        *judge_products(outcome.wrong, outcome.names, outcome.products),
        *_of_left_out(outcome.left_out),
        *judge_speeds(outcome.seconds, outcome.names),
        *_of_links(outcome),
        *gpu_watch.judge(outcome.watched, outcome.names, f"no GPU is used ({outcome.decision.device_reason})"),
    ]


def spreads(outcome: Outcome) -> dict[Case, list[Spread]]:
    """Each rank's seconds of a multiplication, by case; cases that were not finished are left out."""
    finished = {case: of_ranks for case, of_ranks in outcome.seconds.items() if all(of_ranks)}
    return {case: [Spread.of(seconds) for seconds in of_ranks] for case, of_ranks in finished.items()}


def judge_products(refused: Sequence[WrongProduct], names: Sequence[str], products: int) -> list[Finding]:
    """One line for each rank that was wrong, with its row blocks, and one for the products of which no rank can be blamed."""
    if not refused:
        return [ok("products", f"{counted(products, 'product')} checked, all right")]
    found = []
    for rank in sorted({each.rank for each in refused}, key=lambda rank: -1 if rank is None else rank):
        own = [each for each in refused if each.rank == rank]
        blocks = sorted({each.block for each in own if each.block is not None})
        where = f"{counted(len(own), 'wrong product')} of {products}" + (f", with row block {ranges(blocks)}" if blocks else "")
        who = "no single rank" if rank is None else names[rank]
        code, remedy = "wrong-device", "take its device, or its host's memory, out of use and test again"
        if all(each.code == "check-exchange" for each in own):
            code, remedy = "check-exchange", "what ranks sent did not arrive: look at the network between the nodes, and at MPI"
        elif rank is None or (len(blocks) == 1 and len({each.rank for each in refused if each.block in blocks}) > 1):
            code = "wrong-rows"
            remedy = "the same rows are wrong on several ranks: look at the host's memory and at the link first"
        found.append(wrong("products", f"{who}: {where}; first of {own[0].case}: {own[0].text}", remedy, code=code))
    return found


def _of_unused_gpus(outcome: Outcome, expected: Sequence[int]) -> list[Finding]:
    decision, found = outcome.decision, []
    for node, wanted in zip(decision.plan.topology.nodes, expected, strict=True):
        gpus = [decision.placements[rank].gpu for rank in node]
        used = len({gpu.uuid for gpu in gpus if gpu is not None})
        if used < wanted:
            why = "" if used else f" ({decision.device_reason})"
            text = f"{decision.placements[node[0]].host}: {used} of {counted(wanted, 'GPU')} used{why}"
            remedy = "start a rank for each; python -m hybrid.doctor tells why a rank cannot use one"
            found.append(wrong("gpus", text, remedy, code="gpus-unused"))
    if not found and any(expected):
        found = [ok("gpus", f"all {counted(sum(expected), 'GPU')} used")]
    return found


def _of_left_out(dtypes: Sequence[str]) -> list[Finding]:
    text = f"no large {' and '.join(dtypes)}: neither time nor memory was left for more than the other sizes: more --minutes"
    return [note("products", text, code="left-out")] if dtypes else []


def judge_speeds(seconds: Mapping[Case, Sequence[Sequence[float]]], names: Sequence[str]) -> list[Finding]:
    """One line for each slow rank. `seconds[case][rank]`: of each of its products.

    A rank is slow with a type if at least half of all its products of that type, of whatever size, took more than SLOW times what
    they are compared with. So what disturbs a rank for a moment, which is with one size only, does not count.
    """
    if len(names) == 1:
        return [ok("speed", "not compared: there is one rank")]
    ratios: dict[str, list[list[float]]] = {}  # by type and rank
    for case, of_ranks in seconds.items():
        medians = {rank: Spread.of(own).median for rank, own in enumerate(of_ranks) if own}
        if len(medians) == len(names) and max(medians.values()) >= SHORTEST:
            references = beside(medians)
            of_type = ratios.setdefault(case.dtype, [[] for _ in names])
            for rank, own in enumerate(of_ranks):
                of_type[rank] += [each / references[rank] for each in own]
    if not ratios:
        text = f"not compared: no multiplication took {1000 * SHORTEST:.0f} ms (a higher --level has longer ones)"
        return [note("speed", text, code="too-short")]
    than = "the median of all ranks" if len(names) > 2 else "the other rank, the only one to compare it with"
    found = []
    for rank, name in enumerate(names):
        medians_of_types = {dtype: Spread.of(of_type[rank]).median for dtype, of_type in ratios.items()}
        if slow := {dtype: ratio for dtype, ratio in medians_of_types.items() if ratio > SLOW}:
            by = ", ".join(f"{100 * (ratio - 1):.0f} % with {dtype}" for dtype, ratio in slow.items())
            count = sum(len(of_type[rank]) for of_type in ratios.values())
            text = f"{name}: slow, takes longer than {than}, by {by} (median of {counted(count, 'product')})"
            remedy = "see its clock, temperature and power, its threads and cores, and what else runs there"
            found.append(wrong("speed", text, remedy, code="slow-rank"))
    limit = f"no rank takes {100 * (SLOW - 1):.0f} % longer than {than.partition(',')[0]}"
    return found or [ok("speed", f"{limit} ({', '.join(ratios)})")]


def _of_links(outcome: Outcome) -> list[Finding]:
    between_nodes = links.judge_node_links(outcome.node_links, SLOW)
    if not outcome.links:
        return [*between_nodes, note("gpu links", "not measured: no GPU is used", code="no-gpu")]
    gpus = [placement.gpu for placement in outcome.decision.placements]
    order = ("ok", "note", "unknown", "wrong")
    judged = [
        [links.judge_host_links(one) for one in outcome.links],
        [links.judge_peers(one, gpus, outcome.isolation) for one in outcome.links],
    ]
    worst = [max(findings, key=lambda finding: order.index(finding.verdict)) for findings in judged]
    return between_nodes + worst + judge_links(outcome.links)


def judge_links(measured: Sequence[Measurements]) -> list[Finding]:
    """One line for each direction of a link, and for each pair of GPUs, that is slow. Direct copies between GPUs are compared
    with direct ones, those through host memory with their like."""
    rates: dict[str, dict[str, list[float]]] = {}
    for one in measured:
        for link in one.links:
            name = f"{link.uuid} of rank {link.rank} on {link.host}"
            rates.setdefault("host to GPU", {}).setdefault(name, []).append(link.alone.to_gpu)
            rates.setdefault("GPU to host", {}).setdefault(name, []).append(link.alone.to_host)
        for copy in one.peer_copies:
            kind = f"GPU to GPU, {'direct' if copy.direct else 'through host memory'}"
            rates.setdefault(kind, {}).setdefault(f"{copy.source} to {copy.target}", []).append(copy.rate)
    remedy = "see the link's width and generation (nvidia-smi -q), nvidia-smi topo -m, and nvidia-smi nvlink -e"
    return [
        wrong("gpu links", text, remedy, code="slow-link")
        for kind, of_links in rates.items()
        for text in slow_links(of_links, f" {kind}", SLOW)
    ]


def as_record(outcome: Outcome, findings: Sequence[Finding]) -> dict[str, Any]:
    """What `--json` writes, and what the page shows."""
    of_cases = spreads(outcome)
    return {
        "command": "accept",
        "ranks": len(outcome.names),
        "level": outcome.level.number,
        "device": outcome.decision.plan.device,
        "ok": all(finding.verdict != "wrong" for finding in findings),
        "products": outcome.products,
        "rotations": outcome.rotations,
        "left_out": outcome.left_out,
        "seconds": outcome.elapsed,
        "seed": outcome.seed,
        "findings": [vars(finding) for finding in findings],
        "wrong": [asdict(each) for each in outcome.wrong],
        "placements": [placement_record(placement) for placement in outcome.decision.placements],
        "multiply": [{**asdict(case), "ranks": [vars(spread) for spread in ranks]} for case, ranks in of_cases.items()],
        "node_links": [asdict(link) for link in outcome.node_links],
        "links": [[asdict(link) for link in one.links] for one in outcome.links],
        "peer_copies": [[asdict(copy) for copy in one.peer_copies] for one in outcome.links],
        "watched": [
            None if each is None else {"why_not": each.reason} if isinstance(each, Unknown) else asdict(each)
            for each in outcome.watched
        ],
    }
