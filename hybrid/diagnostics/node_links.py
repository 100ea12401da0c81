# SPDX-License-Identifier: MIT
"""The bandwidth between nodes: the first rank of each node sends to that of the next, around the ring, one pair at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hybrid.core.text import counted, rate_in_units
from hybrid.core.timeline import Spread
from hybrid.diagnostics.finding import Finding
from hybrid.diagnostics.slow_ones import slow_links
from hybrid.ranks.messages import Messages
from hybrid.ranks.team import Team

_SECONDS = 0.05  # that one message should take: long enough to be measured, short enough for hundreds of nodes
_REPEATS = 3
_LEAST, _MOST = 1 << 20, 1 << 28  # bytes of a message
_ACKNOWLEDGED = bytes(8)


@dataclass(frozen=True)
class NodeLink:
    """The network from one host to another."""

    source: str
    target: str
    rates: tuple[float, ...]  # bytes a second, of each message

    def __str__(self) -> str:
        return f"{self.source} to {self.target}"


def measure(team: Team, hosts: Sequence[str]) -> list[NodeLink]:
    """Measure the links around the ring of nodes, but not between pretended nodes, which are on one host. `hosts[rank]`: the
    rank's host. Every rank calls it, and gets the same."""
    first = [node[0] for node in team.topology.nodes]
    measured = []
    for source, target in zip(first, [*first[1:], first[0]], strict=True):
        if hosts[source] != hosts[target]:
            with team.phase("links", timed=False) as measuring:
                if team.rank == source:
                    measuring.mine = _send(team.messages, target)
                elif team.rank == target:
                    _receive(team.messages, source)
            measured.append(NodeLink(hosts[source], hosts[target], measuring.all[source]))
    return measured


def median_rates(measured: Sequence[NodeLink]) -> Mapping[str, float]:
    """The median rate of each link, which may have been measured several times."""
    return {name: Spread.of(rates).median for name, rates in _rates(measured).items()}


def judge(measured: Sequence[NodeLink], limit: float) -> list[Finding]:
    """A finding for each slow link, or one for all if none is slow; none at all where there is one node. A link is slow if it
    takes more than `limit` times as long as the others."""
    remedy = "see the port's speed and errors (ethtool, ibstat), the cable, and who else uses it"
    found = [Finding("node links", "wrong", text, remedy, code="slow-link") for text in slow_links(_rates(measured), "", limit)]
    medians = median_rates(measured).values()
    if found or not medians:
        return found
    least, most = (rate_in_units(rate, "B") for rate in (min(medians), max(medians)))
    return [Finding("node links", "ok", f"{counted(len(medians), 'link')} around the ring of nodes: {least} to {most}")]


def _rates(measured: Sequence[NodeLink]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {}
    for link in measured:
        rates.setdefault(str(link), []).extend(link.rates)
    return rates


def _send(messages: Messages, to: int) -> tuple[float, ...]:
    """Send messages, and return their rates. The first message opens the connection, the second tells how large the others are to
    be, so these two do not count."""
    size, rates = _LEAST, []
    for number in range(2 + _REPEATS):
        messages.send(size.to_bytes(8, "little"), to)
        message, answer = bytearray(size), bytearray(len(_ACKNOWLEDGED))
        began = time.perf_counter()
        messages.send(message, to)
        messages.receive(answer, to)
        rates.append(size / (time.perf_counter() - began))
        if number == 1:
            size = min(_MOST, max(_LEAST, int(rates[-1] * _SECONDS)))
    return tuple(rates[2:])


def _receive(messages: Messages, source: int) -> None:
    for _ in range(2 + _REPEATS):
        size = bytearray(8)
        messages.receive(size, source)
        messages.receive(bytearray(int.from_bytes(size, "little")), source)
        messages.send(_ACKNOWLEDGED, source)
