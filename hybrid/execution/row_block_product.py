# SPDX-License-Identifier: MIT
"""A product of row blocks: every rank's rows of A and B stay where they are, and so do its rows of C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybrid.arrays.interop import as_rows, await_callers_work, copy_back, empty_like, on_host, to_device_of
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.core.timeline import Timeline
from hybrid.execution.rank_run import RankRun
from hybrid.execution.scatter_gather import broadcast_to_nodes
from hybrid.host.row_view import RowView
from hybrid.host.threads import limited_threads
from hybrid.plan.plan import Plan
from hybrid.ranks.heartbeat import busy
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team
from hybrid.selection.decision import Decision
from hybrid.selection.session import Session
from hybrid.transport.base import RankMatrices
from hybrid.verification.check import Check, settled
from hybrid.verification.freivalds import verify
from hybrid.verification.transfers import verify_gathered

if TYPE_CHECKING:
    from hybrid.verification.recompute import Recomputed


def run_row_block_product(session: Session, decision: Decision, a: Any, b: Any, settings: Settings) -> tuple[Any, Check | None]:
    """This rank's rows of C, on the device where its rows of A lie, and what the check found. Every rank calls it."""
    team, plan = session.team, decision.plan
    share, threads = plan.shares[team.rank], decision.placements[team.rank].threads.count
    team.timeline = Timeline()
    with limited_threads(threads):
        with team.phase("scatter"), busy():
            own_a, own_b = (as_rows(array, plan.problem.dtype, device=plan.device) for array in (a, b))
            c = empty_like(own_a, len(share.rows), plan.problem.m)
            await_callers_work(own_a, own_b, c)
        view_b = RowView(own_b, share.b_rows) if plan.own_rows_suffice else _all_of_b(team, plan, own_b, settings)
        read_and_written = [own_a, view_b.array, c]
        run = RankRun(session, decision, RankMatrices(own_a, view_b, c), read_and_written, settings, lambda *_: None)
        try:
            with team.phase("scatter", timed=False):
                run.make_ready()
            run.multiply()
            check = run.check() if plan.check == "device" else None
        except BaseException:
            run.abandon()
            raise
        if plan.check == "device" and not plan.own_rows_suffice:
            verify_gathered(team, share.b_rows, on_host(own_b), view_b, threads)
        check = _checked_by_host(session, decision, settings, run, check, (own_a, own_b, c))
        if plan.device != "cuda":
            with team.phase("scatter"):
                c = to_device_of(a, c)
        return c, check


def _checked_by_host(
    session: Session, decision: Decision, settings: Settings, run: RankRun, check: Check | None, matrices: tuple[Any, Any, Any]
) -> Check | None:
    """What the host's check says, where there is no other, or that of the devices needs it; and what there is to say of a
    repaired product. `check`: by the devices. `matrices`: this rank's rows."""
    team, plan = session.team, decision.plan
    share, threads = plan.shares[team.rank], decision.placements[team.rank].threads.count
    if plan.check == "off":
        return None
    wrong = None
    if settings.on_fault == "repair":
        from hybrid.verification.wrong_parts import WrongParts  # which most products need not load

        wrong = WrongParts(plan.problem.n, plan.problem.m)
    needs_host = run.needs_host(check, wrong)
    if not needs_host and check is not None and (check.ok or wrong is None):
        return check

    def views() -> list[RowView]:
        with team.phase("check", timed=False), busy():
            spans = share.rows, share.b_rows, share.rows
            return [RowView(on_host(array), span) for array, span in zip(matrices, spans, strict=True)]

    def look() -> Check:
        a, b, c = views()
        return verify(team, plan, a, b, c, threads, wrong)

    result = settled(check, look() if needs_host else None)
    if result.ok or wrong is None:
        return result
    from hybrid.execution.repair import repaired
    from hybrid.verification.recompute import recompute

    def compute() -> list[Recomputed]:
        a, b, c = views()
        done = recompute(team, plan, a, b, c, wrong, threads)
        with team.phase("repair"):
            copy_back(c.array, matrices[2])
        return done

    return repaired(session, decision, settings, run, result, wrong, compute, look)


def _all_of_b(team: Team, plan: Plan, own_b: Any, settings: Settings) -> RowView:
    """B gathered in memory that the node's ranks share."""
    b = make_shared_matrices(team, {"B": Span(0, plan.problem.l)}, {"B": plan.problem.m}, plan.problem.dtype)["B"]
    with team.phase("scatter"), busy():
        b[plan.shares[team.rank].b_rows][...] = on_host(own_b)
    with team.phase("scatter"):
        for share in plan.shares:
            broadcast_to_nodes(team, plan, b, share.b_rows, share.node, settings)
    return b
