# SPDX-License-Identifier: MIT
"""How long a rank's product takes on a GPU that copies panels in, multiplies and copies C out at the same time: a simulation."""

from __future__ import annotations

from collections.abc import Iterable

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.plan.machine_model import MachineModel
from hybrid.plan.schedule import Arrival

# What the link copies while a tile's panels are measured and its small kernels run: 0.1 ms, estimated.
_LAUNCH_BYTES = 5 << 20


@record
class Forecast:
    """When the last of each is done, in bytes that the link could have copied by then."""

    copied_in: float
    multiplied: float
    copied_out: float


def forecast(problem: Problem, arrivals: Iterable[Arrival], model: MachineModel, speed: float, links: int = 1) -> Forecast:
    """`speed`: of the kernels, beside what the model says of native ones. `links`: how many bring B together. Each of the three
    works on one thing at a time."""
    item, rate = problem.item_size, model.multiply_adds_per_byte(problem.dtype) * speed
    copied_in = multiplied = copied_out = 0.0
    for arrival in arrivals:
        lines = len(arrival.span)
        if arrival.operand == "A":
            copied_in += problem.bytes(lines, problem.l)
        else:
            gaps = 0 if lines == problem.m else 2 * model.panel_row_overhead_bytes
            copied_in += problem.l * (lines * item + gaps) / links
        for tile in arrival.releases:
            elements = len(tile.rows) * len(tile.columns)
            multiplied = max(multiplied, copied_in) + _LAUNCH_BYTES + elements * problem.l / rate
            gaps = 0 if len(tile.columns) == problem.m else model.panel_row_overhead_bytes
            copied_out = max(copied_out, multiplied) + elements * item + len(tile.rows) * 2 * gaps  # twice, as measured
    return Forecast(copied_in, multiplied, copied_out)
