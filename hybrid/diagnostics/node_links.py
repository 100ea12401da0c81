# SPDX-License-Identifier: MIT
"""The bandwidth between nodes: the first rank of each node sends to that of the next, around the ring, one pair at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hybrid.core.problem import record
from hybrid.core.text import counted, rate_in_units
from hybrid.core.timeline import Spread
from hybrid.diagnostics.finding import Finding
from hybrid.diagnostics.slow_ones import slow_links
from hybrid.ranks.messages import Series, Start, broadcast, exchange
from hybrid.ranks.team import Team

if TYPE_CHECKING:  # NumPy is loaded when the number of threads is settled
    import numpy as np

_SECONDS = 0.05  # that one message should take: long enough to be measured, short enough for hundreds of nodes
_REPEATS = 3
_LEAST, _MOST = 1 << 20, 1 << 28  # bytes of a message
_KIND = "links"


@record
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
    import numpy as np

    first = [node[0] for node in team.topology.nodes]
    measured = []
    for pair in zip(first, [*first[1:], first[0]], strict=True):
        source, target = pair
        if hosts[source] != hosts[target]:
            size = np.full((1, 1), _LEAST)
            team.connect(_KIND, pair)
            with team.phase("links", timed=False):
                series = team.messages.series(_KIND, pair, _messages(size, sends=team.rank == source))
            with team.phase("links", timed=False) as measuring:
                if series is not None:
                    measuring.mine = _measured(series, size)
            measured.append(NodeLink(hosts[source], hosts[target], measuring.all[source]))
    return measured


def _messages(size: np.ndarray, *, sends: bool) -> Iterator[Start]:
    """For each message a broadcast of its size, the message, and an answer. `size`: is set at the source before each."""
    import numpy as np

    answer = np.zeros((1, 1))
    for _ in range(2 + _REPEATS):
        message = np.ones((1, int(size[0, 0]) if sends else 0), np.uint8)
        yield broadcast(size, 0)
        if sends:
            yield exchange({1: [message]}, {}, 0)
        else:
            yield exchange({}, {0: [np.ones((1, int(size[0, 0])), np.uint8)]}, 1)
        yield broadcast(answer, 1)


def _measured(series: Series, size: np.ndarray) -> tuple[float, ...]:
    """The rates of the messages. The first message opens the connection, the second tells how large the others are to be: these
    two do not count."""
    rates = []
    for number in range(2 + _REPEATS):
        series.wait_for(3 * number)
        began = time.perf_counter()
        for part in (1, 2):
            series.wait_for(3 * number + part)
        rates.append(int(size[0, 0]) / (time.perf_counter() - began))
        if number == 1:
            size[:] = min(_MOST, max(_LEAST, int(rates[-1] * _SECONDS)))  # the target gets the source's
    return tuple(rates[2:])


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
