# SPDX-License-Identifier: MIT
"""A simulation of how long a rank's product takes on a GPU that copies panels in, multiplies, and copies C out at the same
time."""

from __future__ import annotations

from collections.abc import Iterable

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.plan.machine_model import MachineModel
from hybrid.plan.schedule import Arrival

# Bytes that the link copies while a tile's kernels are launched. A native product's take 0.02 ms, which is estimated. From
# remainders, where panels are measured, too, they take 0.2 ms: then in float32 at 4000 panels of 1024 rows are better than those
# of 640, as measured on an H200.
_NATIVE_LAUNCH_BYTES, _MODULAR_LAUNCH_BYTES = 1 << 20, 10 << 20


@record
class Forecast:
    """When the last panel is copied in, the last tile multiplied, and the last one copied out. The unit of time is that in which
    the link copies a byte."""

    copied_in: float
    multiplied: float
    copied_out: float


def forecast(
    problem: Problem,
    arrivals: Iterable[Arrival],
    model: MachineModel,
    speed: float,
    links: int = 1,
    *,
    moduli: int = 0,
) -> Forecast:
    """Simulate the arrivals one after the other; copies in, kernels and copies out each work on one thing at a time.

    `speed`: of the kernels, relative to the model's native ones. `links`: the number of links that bring B together. Where slabs
    say which rows each of them brings, the first link counts.
    """
    rate = model.multiply_adds_per_byte(problem.operand_dtype) * speed
    launching = _MODULAR_LAUNCH_BYTES if moduli else _NATIVE_LAUNCH_BYTES
    copied_in = multiplied = copied_out = 0.0
    for arrival in arrivals:
        lines = len(arrival.span)
        if arrival.operand == "A":
            copied_in += problem.operand_bytes(lines, problem.l)
        else:
            rows = len(arrival.slab[0]) if arrival.slab else problem.l / links
            gaps = 0 if lines == problem.m else 2 * model.panel_row_overhead_bytes  # twice, while kernels and copies out run
            copied_in += rows * (problem.operand_bytes(1, lines) + gaps)
        for tile in arrival.releases:
            elements, depth = len(tile.rows) * len(tile.columns), problem.l if tile.inner is None else len(tile.inner)
            adding = model.adding_speed if tile.adds else 1.0
            multiplied = max(multiplied, copied_in) + launching + elements * depth / (rate * adding)
            if tile.completes:
                gaps = 0 if len(tile.columns) == problem.m else model.panel_row_overhead_bytes
                copied_out = (
                    max(copied_out, multiplied) + elements * problem.item_size + len(tile.rows) * 2 * gaps
                )  # twice, as measured
    return Forecast(copied_in, multiplied, copied_out)
