# SPDX-License-Identifier: MIT
"""How scripts/ordeal.py judges the end of a job to which something was done: success, or exactly one line."""

from __future__ import annotations

import signal

import pytest

from experiments.ordeal.trials import COMMANDS, LIBRARY, Fault, _is_launchers, _well, faults

KILL_WORKER, KILL_LAUNCHER = (Fault("SIGKILL", signal.SIGKILL, whom) for whom in ("worker", "launcher"))
CUT_LINK, STOP_RANK = Fault("cut link", None, "nobody"), Fault("SIGSTOP", signal.SIGSTOP, "rank")
LINE = "hybrid: rank 0 on n, fill: was killed by SIGKILL"


@pytest.mark.parametrize(
    ("fault", "code", "said", "out", "watched", "well"),
    [
        (KILL_WORKER, 137, [LINE], "", True, True),
        (KILL_WORKER, 137, [], "", True, False),
        (KILL_WORKER, 137, [LINE, LINE], "", True, False),
        (KILL_WORKER, 0, [], "check ok", True, True),
        (KILL_WORKER, 0, [], "", True, False),
        (KILL_WORKER, 0, [LINE], "check ok", True, False),
        (KILL_WORKER, None, [], "", True, False),  # it hangs
        (KILL_LAUNCHER, -9, [], "", True, True),  # nobody of ours is left to say a word
        (STOP_RANK, 1, [], "", True, False),
        (STOP_RANK, 143, [], "what was finished", True, True),
        (KILL_WORKER, 137, [], "", False, True),  # a program that no supervisor watches
        (KILL_WORKER, None, [], "", False, False),
        (KILL_WORKER, 0, [], "", False, False),
    ],
)
def test_an_end_is_well_if_it_succeeds_or_is_named_once(fault, code, said, out, watched, well):
    assert _well(fault, code, said, out, watched=watched) is well


@pytest.mark.parametrize(
    ("fault", "alone", "begun", "its"),
    [(CUT_LINK, True, False, True), (CUT_LINK, True, True, False), (CUT_LINK, False, False, False), (STOP_RANK, True, True, True),
     (STOP_RANK, False, True, False)],
)  # fmt: skip
def test_a_launcher_that_goes_on_alone_is_counted_apart_where_nobody_was_to_end_it(fault, alone, begun, its):
    assert _is_launchers(fault, alone=alone, begun=begun, starts=True, watched=True) is its


@pytest.mark.parametrize(
    ("command", "ranks", "whom", "taken"),
    [
        (COMMANDS[0], 0, {"worker", "supervisor", "rank", "all", "nobody"}, {"full /dev/shm"}),
        (COMMANDS[0], 2, {"worker", "supervisor", "rank", "all", "nobody", "launcher"}, {"full /dev/shm", "cut link"}),
        (COMMANDS[2], 1, {"worker", "supervisor", "rank", "all", "nobody", "launcher"}, {"full /dev/shm", "full disk"}),
        (LIBRARY, 2, {"rank", "all", "launcher"}, set()),
    ],
)
def test_only_what_a_job_has_is_hit_or_taken_away(command, ranks, whom, taken):
    offered = faults(ranks, command, ["full disk", "full /dev/shm", "cut link"])
    assert {fault.whom for fault in offered} == whom
    assert {fault.resource for fault in offered} - {""} == taken
