# SPDX-License-Identifier: MIT
"""hybrid.matmul with a planted failure: failing_rank.py RANK PHASE KIND arguments…"""

from __future__ import annotations

import os
import resource
import signal
import sys

from hybrid.commands import cli, matmul
from hybrid.ranks.launcher import rank_by_launcher
from hybrid.ranks.team import Team

rank, phase, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
del sys.argv[1:4]


def fail() -> None:
    if kind == "exception":
        raise ValueError("planted")
    if kind == "exit 0":
        sys.exit(0)
    if kind == "exit 5":
        sys.exit(5)
    if kind == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    if kind == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "out of memory":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
        bytearray(1 << 40)


enter, start_world = Team.enter, cli.start_world


def failing_enter(team: Team, activity: str) -> None:
    enter(team, activity)
    if activity == phase and team.rank == rank:
        fail()


def failing_start(**options: object) -> Team:
    if phase == "start" and rank_by_launcher() == rank:
        fail()
    return start_world(**options)


Team.enter = failing_enter
cli.start_world = failing_start
sys.exit(matmul.main())
