"""Runs one rank's share of a plan on a device: each arrival of a chunk or panel releases a strip of C.

It knows no MPI call and no CUDA call: a device orders the work, a callback hears of its progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybrid.devices import Device
from hybrid.partition import Span
from hybrid.plan import Arrival, Problem, Share


@dataclass(frozen=True)
class HostRows:
    """What a rank's share reads and writes in host memory: its row-block of A, all of B, its row-block of C."""

    a: Any
    b: Any
    c: Any


def run_share(
    share: Share, problem: Problem, host: HostRows, device: Device, entering: Callable[[str], None]
) -> list[tuple[str, float, float]]:
    """Multiply the rank's row-block by B. Returns (phase, begin, end) of every piece of work, once all is done.

    `entering(phase)` is called before each piece is handed to the device.
    """
    if not len(share.rows):
        return []
    if not share.panels:  # C has no columns
        return []
    whole_b = Span(0, problem.l)
    if device.staged:
        a = device.buffer(len(share.rows), problem.l, problem.dtype)
        b = device.buffer(problem.l, problem.m, problem.dtype)
        c = device.buffer(len(share.rows), problem.m, problem.dtype)
    else:
        a, b, c = host.a, host.b, host.c
    there = []
    for arrival in share.arrivals():
        if device.staged:
            entering("copy in")
            there.append(_bring(arrival, a, b, host, device, whole_b))
        strip = arrival.releases
        if strip is None:
            continue
        rows, columns = strip.rows.slice, strip.columns.slice
        entering("multiply")
        multiplied = device.multiply(a[rows], b[:, columns], c[rows, columns], after=list(there))
        if device.staged:
            entering("copy out")
            device.copy_out(host.c[rows, columns], c[rows, columns], after=[multiplied])
    entering("multiply")
    return device.finish()


def _bring(arrival: Arrival, a: Any, b: Any, host: HostRows, device: Device, whole_b: Span) -> Any:
    part = arrival.span.slice
    if arrival.operand == "A":
        return device.copy_in(a[part], host.a[part])
    return device.copy_in(b[whole_b.slice, part], host.b[whole_b.slice, part])
