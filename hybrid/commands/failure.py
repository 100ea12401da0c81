# SPDX-License-Identifier: MIT
"""How a command prints an error once, and ends: together with the other ranks, alone, or before MPI has started."""

from __future__ import annotations

import os
import signal
import sys

from hybrid.commands.streams import print_line
from hybrid.core.settings import SWITCHES, switched_on
from hybrid.errors import HybridError, UsageError, code_of, one_line, with_code
from hybrid.ranks import heartbeat
from hybrid.ranks.job_end import interrupted, let_launcher_read, speak
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.ranks.mpi import abort
from hybrid.ranks.team import Team

PATIENCE = 4.0  # seconds a failed rank waits until the others know of it, before it ends the job alone


def answer_failed(name: str, error: Exception) -> int:
    """Print an error of what a command does without MPI; returns the exit code. Only rank 0 fails: the launcher ends all ranks at
    the first failure, and rank 0 must print before."""
    if rank_by_launcher() != 0:
        return 0
    show_traceback()
    code = print_error(name, error if isinstance(error, HybridError) else HybridError(one_line(error), code=code_of(error)))
    if launched() is not None:
        let_launcher_read()
    return code


def fail(name: str, team: Team, error: BaseException) -> int:
    """Print an error once and end: together with the other ranks if they know of it, else by ending the job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # After an interrupt within an `exec` of text, which many modules have, Python kills itself at its end. Another `exec` makes
    # it forget the interrupt.
    exec("")  # noqa: S102
    was_interrupted = interrupted() or isinstance(error, KeyboardInterrupt)
    if was_interrupted:
        error = error if isinstance(error, HybridError) else KeyboardInterrupt()
    agreed = team.size == 1 or (isinstance(error, HybridError) and error.on_all_ranks)
    code = getattr(error, "exit_code", 1)
    # A terminal interrupts all ranks: one says so, and ends the job. And who cannot reach the others may have lost a killed rank.
    if (team.rank == 0 or not agreed) and speak(shared=was_interrupted, follows=not (agreed or was_interrupted)):
        if not isinstance(error, HybridError):
            error = HybridError(f"rank {team.rank} on {team.host}, {team.doing}: {one_line(error)}", code=code_of(error))
        print_error(name, error)
    if agreed:
        team.leave_together(PATIENCE)  # no rank ends before rank 0 has printed: the first one to end may end the others
    heartbeat.report_exit_code(code, agreed=agreed)
    if not agreed:
        let_launcher_read()
        abort(code)
    return code


def fail_before_start(name: str, error: BaseException) -> int:
    """Print an error where MPI did not start, and end. The ranks cannot agree on anything then: rank 0 prints first, and its end
    usually ends the job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = getattr(error, "exit_code", 1)
    if interrupted():
        error = KeyboardInterrupt()
    if speak(shared=True, follows=not (isinstance(error, HybridError) or interrupted())):
        if not isinstance(error, HybridError):
            error = HybridError(
                f"rank {rank_by_launcher()} on {os.uname().nodename}, start: {one_line(error)}", code=code_of(error)
            )
        print_error(name, error)
    heartbeat.report_exit_code(code, agreed=isinstance(error, HybridError) and error.on_all_ranks)
    sys.stdout.flush()
    os._exit(code)


def is_switched_on(switch: str) -> bool:
    """Whether this environment variable is; its default where its value is refused."""
    try:
        return switched_on(switch)
    except UsageError:  # which the command says when it reads all settings
        return SWITCHES[switch]


def show_traceback() -> None:
    """Print the traceback of the error that is being handled, for those who debug (HYBRID_DEBUG=1)."""
    if is_switched_on("HYBRID_DEBUG"):
        import traceback

        traceback.print_exc()


def print_error(name: str, error: BaseException) -> int:
    """Print an error; returns its exit code."""
    print_line(name, with_code(error, code_of(error)))
    return getattr(error, "exit_code", 1)
