# SPDX-License-Identifier: MIT
"""Times of what a device does, by its own clock: of several ways in turns, and of each alone without a pause."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from experiments.common import records
from hybrid.devices.base import Event, KernelCall, KernelDevice

Way = Callable[[list[Event]], Event]  # enqueues one product behind these events

TIMED = 0.02  # seconds of products between two readings of the clock
_MOST = 200


def enqueued(device: KernelDevice, call: KernelCall) -> Way:
    return lambda after: device.launch([call], after, "products")


def seconds_of(device: KernelDevice, way: Way, times: int = 1) -> float:
    """Of one of so many, each behind the one before."""
    after: list[Event] = []
    for _ in range(times):
        after = [way(after)]
    spans = [(begin, end) for _, begin, end in device.finish()]
    return (max(end for _, end in spans) - min(begin for begin, _ in spans)) / times


def in_turns(device: KernelDevice, ways: Mapping[str, Way], rounds: int) -> dict[str, dict[str, float]]:
    """The spread of each way's seconds. The first two launches, which load code and make graphs, are not timed."""
    times = {}
    for name, way in ways.items():
        seconds_of(device, way, 2)
        times[name] = min(_MOST, max(1, math.ceil(TIMED / seconds_of(device, way))))
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        order = list(ways.items())[:: -1 if number % 2 else 1]
        for name, way in order:
            found[name].append(seconds_of(device, way, times[name]))
    return {name: records.spread(seconds) for name, seconds in found.items()}


def alone(device: KernelDevice, way: Way, seconds: float) -> float:
    """Of one product while nothing else is done for so many seconds, of which the first half is not counted: until then the GPU
    warms up."""
    times = min(_MOST, max(1, math.ceil(TIMED / seconds_of(device, way))))
    began, found = time.perf_counter(), []
    while not found or time.perf_counter() - began < seconds:
        found.append(seconds_of(device, way, times))
    half = found[len(found) // 2 :]
    return sum(half) / len(half)
