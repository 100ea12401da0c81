# SPDX-License-Identifier: MIT
"""Judges the GPUs' links to their hosts, by comparing each with the node's others, and all at once with each alone.

A link is slow if it has less than SLOW of the rate of the node's fastest. The links of a node are contended if the sum of their
rates, when all are in use, is less than CONTENDED of the sum when each is used alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from hybrid.core.text import counted
from hybrid.diagnostics.bandwidth import Link, Measurements, Rates
from hybrid.diagnostics.finding import Finding

SLOW = 0.5
CONTENDED = 0.7
_SUBJECT = "gpu links"
_DIRECTIONS: tuple[tuple[str, Callable[[Rates], float]], ...] = (
    ("host to GPU", lambda rates: rates.to_gpu),
    ("GPU to host", lambda rates: rates.to_host),
)


def judge(measured: Measurements) -> Finding:
    """One finding for all nodes: the worst that any of them has."""
    links, failure = measured.links, measured.failure
    if failure is not None and (measured.without_links or not links):
        return Finding(_SUBJECT, "unknown", f"{failure.rank}, {failure.stage}: {failure.text}")
    if not links:
        return Finding(_SUBJECT, "ok", "not measured: no GPU that works")
    if not all(map(_is_measured, links)):
        return Finding(_SUBJECT, "unknown", "the copies took no time that could be measured")
    nodes = measured.links_by_host
    pinned = all(link.pinned for link in links)
    memory = "of pinned memory" if pinned else "of memory that could not be pinned"
    text = f"{counted(len(links), 'GPU')}, copies {memory}: {_summary(links, nodes)}"
    if finding := _slow(text, nodes, measured.one_process) or _contended(text, nodes):
        return finding
    if not pinned:
        return Finding(
            _SUBJECT,
            "note",
            f"{text}; copies of pinned memory would be faster: see the line on pinned memory",
            code="pinned-limit",
        )
    return Finding(_SUBJECT, "ok", text)


def _is_measured(link: Link) -> bool:
    rates = [link.alone, *([link.together] if link.together else [])]
    return all(isfinite(rate) and rate > 0 for one in rates for rate in (one.to_gpu, one.to_host))


def _summary(links: Sequence[Link], nodes: Sequence[Sequence[Link]]) -> str:
    parts = [f"{name} {rate_range([of(link.alone) for link in links])}" for name, of in _DIRECTIONS]
    text = f"{', '.join(parts)}{' alone' if len(links) > 1 else ''}"
    sums = [
        rate_range(of_nodes)
        for _, of in _DIRECTIONS
        if (of_nodes := [together for node in nodes if (together := _sum_together(node, of)) is not None])
    ]
    return f"{text}; all of a node at once {' and '.join(sums)}" if sums else text


def _sum_together(node: Sequence[Link], of: Callable[[Rates], float]) -> float | None:
    """The sum of the rates of a node's links while all are in use; None where that was not measured."""
    rates = [of(link.together) for link in node if link.together]
    return sum(rates) if len(rates) == len(node) else None


def _slow(text: str, nodes: Sequence[Sequence[Link]], one_process: bool) -> Finding | None:
    slow = [
        (link, name, of(link.alone), best)
        for node in nodes
        for name, of in _DIRECTIONS
        for best in [max(of(link.alone) for link in node)]
        for link in node
        if of(link.alone) < SLOW * best
    ]
    if not slow:
        return None
    link, name, rate, best = slow[0]
    whose = link.uuid if one_process else f"{link.uuid} of rank {link.rank}"
    more = f", and {len(slow) - 1} more such" if len(slow) > 1 else ""
    return Finding(
        _SUBJECT, "note",
        f"{text}; {whose} on {link.host} has {_gigabytes(rate)} {name}, less than half of the {_gigabytes(best)} of the fastest "
        f"there{more}",
        "its link may be x4 or x8 or of an old PCIe generation (nvidia-smi -q shows its width), or the rank's memory on another "
        "NUMA node (nvidia-smi topo -m shows which cores are near)",
        code="slow-link",
    )  # fmt: skip


def _contended(text: str, nodes: Sequence[Sequence[Link]]) -> Finding | None:
    for node in nodes:
        for name, of in _DIRECTIONS:
            together, alone = _sum_together(node, of), sum(of(link.alone) for link in node)
            if together is not None and together < CONTENDED * alone:
                percent = f"{100 * together / alone:.0f} %"
                return Finding(
                    _SUBJECT,
                    "note",
                    f"{text}; {name} on {node[0].host}: all at once reach only {percent} of the sum of each alone",
                    "a PCIe switch, or one NUMA node's memory, is shared (nvidia-smi topo -m): bind ranks to the cores near "
                    "their GPUs, or expect copies to take as much longer",
                    code="slow-link",
                )
    return None


def rate_range(rates: Sequence[float]) -> str:
    """The range of these rates, in GB/s."""
    least, most = min(rates), max(rates)
    return _gigabytes(most) if f"{least / 1e9:.1f}" == f"{most / 1e9:.1f}" else f"{least / 1e9:.1f} to {_gigabytes(most)}"


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"
