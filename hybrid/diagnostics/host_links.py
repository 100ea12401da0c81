"""The GPUs' links to their hosts: compared with those of the node's other GPUs, and with themselves when all are in use.

What is much or little is a judgement: a link is called slow below SLOW of the node's fastest, and the links of a node are
said to get in each other's way when together they move less than SHARED of the sum of what each moves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from hybrid.diagnostics.bandwidth import Link, Rates, Traffic, nodes_of
from hybrid.diagnostics.finding import Finding, counted

SLOW = 0.5
SHARED = 0.7
_SUBJECT = "gpu links"
_DIRECTIONS: tuple[tuple[str, Callable[[Rates], float]], ...] = (
    ("host to GPU", lambda rates: rates.into),
    ("GPU to host", lambda rates: rates.out),
)


def judge(traffic: Traffic) -> Finding:
    """One line for all nodes: the worst that is to be said of any."""
    failure = traffic.failure
    if not traffic.links or (failure is not None and failure.stage in ("", "starting", "links")):
        if failure is None:
            return Finding(_SUBJECT, "ok", "not measured: no GPU that works")
        return Finding(_SUBJECT, "unknown", f"{failure.who}, {failure.stage or 'starting'}: {failure.text}")
    if not all(map(_measured, traffic.links)):
        return Finding(_SUBJECT, "unknown", "the copies took no time that could be measured")
    nodes = nodes_of(traffic)
    text = f"{counted(len(traffic.links), 'GPU')}, copies {_memory(traffic.links)}: {_summary(traffic.links, nodes)}"
    slow = [(link, best, name, of) for node in nodes for name, of in _DIRECTIONS for link, best in _slow(node, of)]
    if slow:
        link, best, name, of = slow[0]
        whose = link.uuid if traffic.alone else f"{link.uuid} of rank {link.rank}"
        more = f", and {len(slow) - 1} more such" if len(slow) > 1 else ""
        return Finding(
            _SUBJECT, "note",
            f"{text}; {whose} on {link.host} has {_gigabytes(of(link.alone))} {name}, less than half of the "
            f"{_gigabytes(best)} of the fastest there{more}",
            "its link may be x4 or x8 or of an old generation (nvidia-smi -q shows its width), or the rank's memory far from it "
            "(nvidia-smi topo -m shows which cores are near)",
        )  # fmt: skip
    crowded = [(node, name, sums) for node in nodes for name, of in _DIRECTIONS if (sums := _crowded(node, of))]
    if crowded:
        node, name, (at_once, alone) = crowded[0]
        return Finding(
            _SUBJECT, "note",
            f"{text}; {name} on {node[0].host} that is {100 * at_once / alone:.0f} % only of what each alone adds up to",
            "a PCIe switch, or one NUMA node's memory, is shared (nvidia-smi topo -m): bind ranks to the cores near their GPUs, "
            "or expect copies to take as much longer",
        )  # fmt: skip
    if not all(link.locked for link in traffic.links):
        return Finding(_SUBJECT, "note", f"{text}; page-locked memory would be faster: see the line on page-lock")
    return Finding(_SUBJECT, "ok", text)


def _measured(link: Link) -> bool:
    rates = [link.alone, *([link.together] if link.together else [])]
    return all(isfinite(rate) and rate > 0 for one in rates for rate in (one.into, one.out))


def _memory(links: Sequence[Link]) -> str:
    return "of page-locked memory" if all(link.locked for link in links) else "of memory that could not be page-locked"


def _summary(links: Sequence[Link], nodes: Sequence[Sequence[Link]]) -> str:
    parts = []
    for name, of in _DIRECTIONS:
        parts.append(f"{name} {span([of(link.alone) for link in links])}")
    text = f"{', '.join(parts)}{' alone' if len(links) > 1 else ''}"
    together = [node for node in nodes if all(link.together for link in node)]
    if together:
        sums = [span([sum(of(link.together) for link in node if link.together) for node in together]) for _, of in _DIRECTIONS]
        text += f"; all of a node at once {sums[0]} and {sums[1]}"
    return text


def _slow(node: Sequence[Link], of: Callable[[Rates], float]) -> list[tuple[Link, float]]:
    best = max(of(link.alone) for link in node)
    return [(link, best) for link in node if of(link.alone) < SLOW * best]


def _crowded(node: Sequence[Link], of: Callable[[Rates], float]) -> tuple[float, float] | None:
    """All rates at once and the sum of those alone, where the one is far below the other."""
    if not all(link.together for link in node):
        return None
    at_once, alone = sum(of(link.together) for link in node if link.together), sum(of(link.alone) for link in node)
    return (at_once, alone) if at_once < SHARED * alone else None


def span(rates: Sequence[float]) -> str:
    """From the least to the most."""
    least, most = min(rates), max(rates)
    return _gigabytes(most) if f"{least / 1e9:.1f}" == f"{most / 1e9:.1f}" else f"{least / 1e9:.1f} to {_gigabytes(most)}"


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"
