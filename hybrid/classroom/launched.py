# SPDX-License-Identifier: MIT
"""Carries out a kernel's launches in child processes, since they may crash or hang; in the same process as long as no fault is
found."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hybrid.classroom.elements import compared, decoded, operands
from hybrid.classroom.mistakes import mistake_in
from hybrid.classroom.trial import Outcome, Task
from hybrid.emulation.child import Ended, run_child

_CHILD = "hybrid.classroom.trial"
_START = 10  # seconds that a child may take besides its launches

Run = tuple[Ended, list[dict[str, Any]]]


def launched(groups: Sequence[Sequence[Task]], checks: str, seconds: float) -> list[Run]:
    """For each group of launches on one shape: how it ended, with status None where a launch took longer than `seconds`, and the
    outcomes, which are fewer than launches where one ended its process.

    C is compared here, and only lines with the child's secret mark count, so that nothing that a kernel writes is taken for an
    outcome. Starting a process takes longer than most launches, so groups share one. But none follows a group in which a fault
    was found, which may have harmed the process: see `main` of trial.py.
    """
    runs: list[Run] = []
    while len(runs) < len(groups):
        pending = groups[len(runs) :]
        mark = secrets.token_hex(16)
        tasks = [asdict(replace(task, mark=mark)) for group in pending for task in group]
        libraries = [Path(library) for library in dict.fromkeys(task["shared_object"] for task in tasks)]
        ended = run_child(_CHILD, tasks, checks, (seconds + 1) * len(tasks) + _START, limited=True, reads=libraries)
        if ended.status == -signal.SIGALRM:  # sent by the child's own clock
            ended = Ended(ended.out, ended.err, None)
        runs += _by_group(ended, pending, mark)
    return runs


def with_mark(out: str, mark: str) -> list[str]:
    """The rests of the lines that begin with this mark."""
    return [text for begins, _, text in (line.partition(" ") for line in out.splitlines()) if begins == mark]


def _by_group(ended: Ended, groups: Sequence[Sequence[Task]], mark: str) -> Iterator[Run]:
    """The runs of the groups that a child has begun, of the first one in any case, from what it wrote."""
    lines = with_mark(ended.out, mark)
    for number, group in enumerate(groups):
        of_group: list[str] = []
        outcomes: list[dict[str, Any]] = []
        while lines and len(outcomes) < len(group):
            of_group.append(lines.pop(0))
            line = json.loads(of_group[-1])
            if "outcome" in line:
                outcomes.append(_judged(group[len(outcomes)], line["outcome"]))
        if number and not of_group:
            return
        is_complete = len(outcomes) == len(group)
        yield Ended("\n".join(of_group), ended.err, 0 if is_complete else ended.status), outcomes
        if not is_complete:
            return


def _judged(task: Task, outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome, with what is wrong with the C that was handed over."""
    if outcome["stopped"] or task.checks == "trace":
        return outcome
    try:
        c = decoded(outcome["c"], task.sizes, task.dtype)
    except ValueError:
        return asdict(Outcome("report", "its process reported what is no C of this shape"))
    a, b, before, right = operands(task.sizes, task.dtype, task.seed, task.scales)
    found, (alpha, beta) = compared(c, right), task.scales
    is_now, should_be = ((each.astype("float64") - (beta * before if beta else 0)) / alpha for each in (c, right))
    return {**outcome, "c": "", **asdict(found), "mistake": mistake_in(is_now, should_be, a, b) if found.wrong else None}
