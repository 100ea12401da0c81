# SPDX-License-Identifier: MIT
"""A product of matrices that are distributed in two dimensions: every rank keeps its part of C."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybrid.arrays.interop import as_rows
from hybrid.core.settings import Settings
from hybrid.core.timeline import Timeline
from hybrid.execution.grid_run import GridRun
from hybrid.host.threads import limited_threads
from hybrid.ranks.heartbeat import busy
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.verification.check import Check


def run_block_2d_product(
    session: Session, decision: Decision, a: Any, b: Any, settings: Settings
) -> tuple[np.ndarray, Check | None]:
    """This rank's part of C, and what the check found; None where nothing is checked. Every rank calls it."""
    team, plan = session.team, decision.plan
    team.timeline = Timeline()
    assert plan.grid_layout is not None
    threads = decision.placements[team.rank].threads.count
    with limited_threads(threads):
        with team.phase("scatter"), busy():
            kept = {key: as_rows(array, plan.problem.dtype, device="cpu") for key, array in (("A", a), ("B", b))}
            kept["C"] = np.empty(plan.grid_layout.placement.c[team.rank].shape, plan.problem.dtype)
        run = GridRun(session, decision, kept, settings, lambda phase, done, of: None)
        with team.phase("scatter", timed=False):
            run.make_ready()
        run.multiply()
        run.gather()
        return kept["C"], None if plan.check == "off" else run.check_parts(threads)
