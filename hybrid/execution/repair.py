# SPDX-License-Identifier: MIT
"""The repair of a product that has failed its check, where `on_fault` asks for it.

After a wrong copy the product is computed once more; else the part of C that is wrong is computed again on the CPU. Whose device
was wrong is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.execution.rank_run import RankRun
from hybrid.plan.plan import Plan
from hybrid.selection.decision import Decision, may_leave_out
from hybrid.selection.session import TOO_OFTEN, Session
from hybrid.verification.check import Check, Fault, WrongCopy
from hybrid.verification.freivalds import ExpectedSums
from hybrid.verification.recompute import Recomputed
from hybrid.verification.second_look import WrongParts

_NOTE = "repaired"


@dataclass(frozen=True)
class Means:
    """What a repair does with a product. Every rank calls each of these."""

    multiply_again: Callable[[], tuple[Check, WrongParts]]  # the whole product; its check, and what that found wrong
    compute: Callable[[WrongParts, Sequence[ExpectedSums]], list[Recomputed]]  # these parts, on a CPU, checked by these sums
    check: Callable[[WrongParts], Check]  # all of C, on the host; adds what it finds wrong


def repaired(
    session: Session,
    decision: Decision,
    settings: Settings,
    run: RankRun,
    failed: Check,
    wrong: WrongParts,
    means: Means,
) -> Check:
    """What is to be said of the product when it is right; `failed` where it cannot be made so. Every rank calls it.

    `wrong`: the parts that the check has found wrong.
    """
    plan, copies, checked = decision.plan, run.wrong_copies(), failed
    blamed: dict[int, str] = {}
    done: list[Recomputed] = []
    again: frozenset[int] = frozenset()  # the ranks for which the product was computed once more
    if copies:
        if not _blame(copies, blamed):
            return failed
        again = frozenset(blamed)
        checked, wrong = means.multiply_again()  # a device does that sooner than a CPU
        copies = [] if checked.ok else run.wrong_copies()
    if not checked.ok:
        if not _blame(copies, blamed):
            return failed
        _add_what_copies_spoilt(wrong, plan, copies)
        expected = [] if copies else run.expected_sums(wrong)  # the devices' sums of wrong operands are wrong, too
        done, checked = _computed_again(wrong, means, expected, whole=bool(copies))
    if not checked.ok:
        return replace(failed, faults=(*failed.faults, Fault(f"C is still wrong: {checked.refusal()}")), undecided=False)
    cause = "multiplied wrong" if plan.check == "device" else "its rows of C are wrong"
    for share in plan.shares:
        if any(each.was_wrong and each.rows.meets(share.rows) for each in done):
            blamed.setdefault(share.rank, cause)
    if not blamed:
        return failed.settled(checked)
    session.note_wrong(blamed)
    may = may_leave_out(settings) and not plan.has_row_blocks
    left_out = plan.topology.left_out(session.left_out) if may else frozenset()
    lines = [
        _line(decision, rank, cause, done, once_more=rank in again)
        + _consequence(session.times_wrong(rank), leaves=rank in left_out)
        for rank, cause in sorted(blamed.items())
    ]
    return replace(checked, note=f"{_NOTE}; {checked.note}" if checked.note else _NOTE, repaired=tuple(lines))


def _blame(copies: Sequence[tuple[WrongCopy, np.ndarray]], blamed: dict[int, str]) -> bool:
    """Note the ranks whose copies were wrong. False where rows differ between nodes, or were written meanwhile: then nobody can
    tell which values are right."""
    for copy, _ in copies:
        if copy.rank is None:
            return False
        blamed.setdefault(copy.rank, copy.text)
    return True


def _add_what_copies_spoilt(wrong: WrongParts, plan: Plan, copies: Sequence[tuple[WrongCopy, np.ndarray]]) -> None:
    """Add to `wrong` the parts of C that were computed from what these copies brought, or copied wrong themselves."""
    for copy, rows in copies:
        operand, _, columns = copy.place
        assert copy.rank is not None
        if operand == "B":
            # All that was computed with it. No sample of rows tells how much that has changed in which column of C, for A may be
            # sparse, or its rows may have different scales.
            of_rank = plan.shares[copy.rank].rows
            wrong.add(np.arange(of_rank.lo, of_rank.hi), columns)
        else:
            wrong.add(rows, columns if operand == "C" else Span(0, plan.problem.m))


def _computed_again(
    wrong: WrongParts, means: Means, expected: Sequence[ExpectedSums], *, whole: bool
) -> tuple[list[Recomputed], Check]:
    """Compute the wrong parts until they are right, but not for ever: the last time in all columns. Returns what was computed,
    and its check.

    `whole`: all of C is to be checked in any case, since for a wrong copy the checksums do not tell every row that is wrong.
    """
    done = means.compute(wrong, expected)
    checked = _of_parts(done)
    if whole or not checked.ok:
        checked = means.check(wrong)  # more may be wrong than was found
    for last in (False, True):
        if checked.ok:
            break
        if last:
            wrong.in_all_columns()
        done += means.compute(wrong, [])
        checked = means.check(wrong)
    return done, checked


def _of_parts(parts: Sequence[Recomputed]) -> Check:
    """The check of parts that were computed again. All others have passed it before."""
    if not parts:
        return Check("none", 0.0, 0.0, False)
    worst = max((each.check for each in parts), key=lambda check: (check.kind, check.error))  # exact before freivalds
    return replace(worst, ok=all(each.check.ok and each.check.kind != "none" for each in parts))


def _line(decision: Decision, rank: int, cause: str, done: Sequence[Recomputed], *, once_more: bool) -> str:
    """What is said of a rank whose device was wrong."""
    who = f"{decision.device_of(rank)}: {cause}"
    if once_more:
        who += "; the product was computed once more"
    own = [each for each in done if each.rows.meets(decision.plan.shares[rank].rows)]
    if not own:
        return who if once_more else f"{who}; no element of C was changed by more than rounding errors"
    rows, columns = (
        Span(min(each.lo for each in spans), max(each.hi for each in spans))
        for spans in ([each.rows for each in own], [each.columns for each in own])
    )
    by, change = ", ".join(map(str, sorted({each.by for each in own}))), max(each.change for each in own)
    return f"{who}; rows {rows}, columns {columns} of C were computed again on the CPU of rank {by}, largest change {change:.2e}"


def _consequence(times: int, *, leaves: bool) -> str:
    """What follows, where a rank's device was wrong too often; else nothing."""
    if times < TOO_OFTEN:
        return ""
    then = "from the next call on it gets no rows" if leaves else "no other device can take its rows"
    return f"; it was wrong in {times} products: {then}"
