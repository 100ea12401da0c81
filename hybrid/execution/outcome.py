# SPDX-License-Identifier: MIT
"""What is asked of a product beside its operands, and what it came to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hybrid.core.timeline import Interval, Spread
from hybrid.execution.host_matrices import Progress
from hybrid.host.row_view import RowView
from hybrid.plan.arithmetic import Computed
from hybrid.selection.decision import Decision
from hybrid.verification.check import Check


@dataclass(frozen=True)
class RunOptions:
    """How often, and what is told meanwhile.

    `out` may become C: the root's array, or with shared operands the same shared array on all ranks. `measured`: how long
    the phases took is wanted.
    """

    repeat: int = 1
    warmup: int = 0
    out: np.ndarray | None = None
    progress: Progress = lambda phase, done, of: None
    measured: bool = True


@dataclass(frozen=True)
class Outcome:
    """What a product came to. `a`, `b` and `c` are this node's rows; C is whole on the root's node."""

    decision: Decision
    a: RowView
    b: RowView
    c: RowView
    phases: dict[str, Spread]
    total: Spread  # of one product, operands in host memory to C at the root: scatter to gather
    check: Check | None
    intervals: list[list[Interval]] = field(default_factory=list)  # of every rank, at the root
    arithmetic: Computed = field(default_factory=dict)  # empty where all is native
    repeats: int = 1  # products finished: fewer than asked for where a signal asked the job to end
