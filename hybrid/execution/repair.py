# SPDX-License-Identifier: MIT
"""A product that has failed its check, and `on_fault` says repair: what is wrong of C is computed again, and who was wrong is
named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.execution.rank_run import RankRun
from hybrid.selection.decision import Decision
from hybrid.selection.session import TOO_OFTEN, Session
from hybrid.selection.transport import may_leave_out
from hybrid.verification.check import Check
from hybrid.verification.recompute import Recomputed
from hybrid.verification.rounding import THRESHOLD
from hybrid.verification.wrong_parts import WrongParts

_NOTE = "repaired"


def repaired(
    session: Session,
    decision: Decision,
    settings: Settings,
    run: RankRun,
    failed: Check,
    by_host: Check | None,
    wrong: WrongParts,
    compute: Callable[[WrongParts], list[Recomputed]],
    check_again: Callable[[], Check] | None = None,
) -> Check:
    """What is to be said of the product once it is right; `failed` where it cannot be repaired. Every rank calls it.

    `by_host`: what the check on the host says, which `wrong` is of; None where it need not look. `compute(wrong)` computes
    again what is wrong, `check_again` checks all of C, where parts of it were sent to other ranks.
    """
    plan, copies = decision.plan, run.wrong_copies()
    if any(copy.rank is None for copy, _ in copies):
        return failed  # rows differ between nodes, or were written meanwhile: which values are right, nobody can tell
    blamed = {copy.rank: copy.text for copy, _ in reversed(copies) if copy.rank is not None}
    for copy, rows in copies:
        operand, _, columns = copy.place
        assert copy.rank is not None
        if operand == "B":
            wrong.add_of_b(plan.shares[copy.rank].rows, columns, rows)
        else:
            wrong.add(rows, columns if operand == "C" else Span(0, plan.problem.m))
    cause = "multiplied wrong" if plan.check == "device" else "its rows of C are wrong"
    blamed |= {share.rank: cause for share in plan.shares if share.rank not in blamed and wrong.in_rows(share.rows)}
    done = compute(wrong)
    again = [f"rows {each.rows}, columns {each.columns} of C are wrong again: {each.check.refusal()}" for each in _wrong_of(done)]
    if not again and check_again is not None and not (checked := check_again()).ok:
        again = [f"C is still wrong: {checked.refusal()}"]
    if again or not (done or by_host is None or by_host.ok):
        return replace(failed, faults=failed.faults + tuple(again), undecided=False)
    session.note_wrong(blamed)
    may = may_leave_out(settings) and not plan.has_row_blocks
    left_out = plan.topology.left_out(session.left_out) if may else frozenset()
    lines = [
        _line(decision, rank, cause, done) + _consequence(session.times_wrong(rank), leaves=rank in left_out)
        for rank, cause in sorted(blamed.items())
    ] or [f"{fault}; but C passes the check from host memory" for fault in failed.faults]
    error = max((each.check.error for each in done), default=(by_host or failed).error)
    kind = "exact" if failed.kind == "exact" else "freivalds"
    return Check(kind, error, 0.0 if kind == "exact" else THRESHOLD, True, note=_NOTE, repaired=tuple(lines))


def _wrong_of(done: Sequence[Recomputed]) -> list[Recomputed]:
    return [each for each in done if not each.check.ok]


def _line(decision: Decision, rank: int, cause: str, done: Sequence[Recomputed]) -> str:
    who = f"{decision.placements[rank].name}, kernel {decision.kernel.name}: {cause}"
    own = [each for each in done if each.rows.meets(decision.plan.shares[rank].rows)]
    if not own:
        return f"{who}; no element of C was changed by more than rounding errors"
    rows, columns = (
        Span(min(each.lo for each in spans), max(each.hi for each in spans))
        for spans in ([each.rows for each in own], [each.columns for each in own])
    )
    by, change = ", ".join(map(str, sorted({each.by for each in own}))), max(each.change for each in own)
    return f"{who}; rows {rows}, columns {columns} of C were computed again on the CPU of rank {by}, largest change {change:.2e}"


def _consequence(times: int, *, leaves: bool) -> str:
    if times < TOO_OFTEN:
        return ""
    then = "from the next call on it gets no rows" if leaves else "no other device can take its rows"
    return f"; it was wrong in {times} products: {then}"
