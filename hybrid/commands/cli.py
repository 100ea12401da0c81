# SPDX-License-Identifier: MIT
"""Runs a command: one-line errors, exit codes, and a job that ends when one of its ranks fails."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from hybrid.commands.streams import file_of_json, name_foreign_variables, open_streams, print_line, say_warnings_in_a_line
from hybrid.core.settings import SWITCHES, Settings, switched_on
from hybrid.core.timeline import wall
from hybrid.emulation.loaded_soon import wait_until_loaded
from hybrid.errors import HybridError, StartError, UsageError, code_of, one_line, with_code
from hybrid.host.files import refuse_unwritable
from hybrid.host.threads import Threads, announce_threads
from hybrid.ranks import heartbeat, supervisor
from hybrid.ranks.launcher import handle, has_come, heed, launched, let_launcher_read, rank_by_launcher, speak
from hybrid.ranks.mpi import abort, leave
from hybrid.ranks.team import Team, start_world

REPORT_TIME = 15.0  # seconds that other processes wait for rank 0's report of `unstarted`; its exit usually ends the job
PATIENCE = 4.0  # seconds that a failed rank waits for the others to learn of it, before it ends the job alone


def answer_failed(name: str, error: Exception) -> int:
    """Print an error from before MPI starts; returns the exit code. Only rank 0 fails: the launcher ends all ranks at a failure,
    and rank 0 must have printed by then."""
    if rank_by_launcher() != 0:
        return 0
    show_traceback()
    code = print_error(name, error)
    if launched() is not None:
        let_launcher_read()
    return code


def fail(name: str, team: Team, error: BaseException) -> int:
    """Print an error once and end: together with the other ranks if all have raised it, else by MPI_Abort."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If SIGINT interrupts an `exec` of text, which many modules use, Python kills itself with SIGINT at exit. Another `exec`
    # clears that.
    exec("")  # noqa: S102
    if was_interrupted := has_come(signal.SIGINT) or isinstance(error, KeyboardInterrupt):
        error = error if isinstance(error, HybridError) else KeyboardInterrupt()
    agreed = team.size == 1 or (isinstance(error, HybridError) and error.on_all_ranks)
    code = getattr(error, "exit_code", 1)
    # A terminal interrupts all ranks: one reports it and ends the job. An error on this rank alone may follow from a killed rank.
    if (team.rank == 0 or not agreed) and speak(shared=was_interrupted, follows=not (agreed or was_interrupted)):
        print_error(name, error, f"rank {team.rank} on {team.host}, {team.doing}: ")
    if agreed:
        team.leave_together(PATIENCE)  # no rank ends before rank 0 has printed: the first one to end may end the others
    heartbeat.report_exit_code(code, agreed=agreed)
    if not agreed:
        let_launcher_read()
        abort(code)
    return code


def fail_before_start(name: str, error: BaseException) -> int:
    """Print an error that came before MPI had started, and exit. The ranks cannot communicate: rank 0 prints first, and its exit
    usually ends the job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = getattr(error, "exit_code", 1)
    if has_come(signal.SIGINT):
        error = KeyboardInterrupt()
    if speak(shared=True, follows=not (isinstance(error, HybridError) or has_come(signal.SIGINT))):
        print_error(name, error, f"rank {rank_by_launcher()} on {os.uname().nodename}, start: ")
    heartbeat.report_exit_code(code, agreed=isinstance(error, HybridError) and error.on_all_ranks)
    sys.stdout.flush()
    os._exit(code)


def is_switched_on(switch: str) -> bool:
    """Whether this environment variable is on; its default if its value is invalid."""
    try:
        return switched_on(switch)
    except UsageError:  # the command reports it when it reads all settings
        return SWITCHES[switch]


def show_traceback() -> None:
    """With HYBRID_DEBUG=1, print the traceback of the error that is being handled."""
    if is_switched_on("HYBRID_DEBUG"):
        import traceback

        traceback.print_exc()


def print_error(name: str, error: BaseException, where: str = "") -> int:
    """Print an error; returns its exit code. `where`: prefix for errors that are no HybridError."""
    said = error if isinstance(error, HybridError) else f"{where}{one_line(error)}"
    print_line(name, with_code(said, code_of(error)))
    return getattr(error, "exit_code", 1)


def agree_on_options(team: Team, options: argparse.Namespace, settings: Settings) -> None:
    """Raise UsageError on all ranks if one has other options or settings than rank 0, or cannot write the file of --json. Every
    rank calls it."""
    from hybrid.planning.decision import same_on_all_ranks

    with team.phase("agree", timed=False) as asked:
        asked.mine = {**vars(options), **settings.as_dict()}
        if file := file_of_json(getattr(options, "json", None)):
            refuse_unwritable(file)
    same_on_all_ranks(asked.all)


def settle_threads(team: Team, settings: Settings) -> list[Threads]:
    """Decide every rank's number of threads. Call it before NumPy is loaded if possible, so that BLAS starts no more."""
    from hybrid.planning.decision import this_processor, threads_of_ranks

    with team.phase("agree", timed=False) as counting:
        counting.mine = this_processor()
    chosen = threads_of_ranks(team.topology, settings, counting.all)
    announce_threads(chosen[team.rank].count)
    return chosen


def agree(team: Team, options: argparse.Namespace, settings: Settings) -> Sequence[Threads]:
    """Begin a command that multiplies: compare options and settings, set up the nodes, and return each rank's threads. Afterwards
    NumPy may be loaded: BLAS reads the number of threads from the environment."""
    from hybrid.devices.cuda_gpus import wake_driver

    agree_on_options(team, options, settings)
    team.pretend_nodes(settings.ranks_per_node)
    threads = settle_threads(team, settings)
    wake_driver(settings)
    return threads


def run_alone(name: str, work: Callable[[], int]) -> int:
    """Run a command that uses no MPI; returns its exit code."""
    open_streams()
    say_warnings_in_a_line(name)
    try:
        launch = launched()
        if launch is not None and launch.size > 1:
            raise UsageError("this command runs alone, without mpirun", code="usage")
        # SIGINT, SIGTERM and SIGHUP unwind the stack, so that files and child processes are cleaned up.
        handle(signal.SIGINT, signal.default_int_handler)
        for each in _ENDS:
            handle(each, _unwind)
        name_foreign_variables(name)
        code = work()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return print_error(name, HybridError("interrupted", code="interrupted"))
    except _AskedToEnd as asked:
        print_error(name, HybridError(f"asked to end by {asked.args[0].name}", code="terminated"))
        return 128 + int(asked.args[0])
    except Exception as error:
        return answer_failed(name, error)


_ENDS = (signal.SIGTERM, signal.SIGHUP)


class _AskedToEnd(BaseException):
    """A signal of _ENDS has arrived."""


def _unwind(signum: int, frame: FrameType | None) -> None:
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)  # nothing interrupts the cleanup
    raise _AskedToEnd(signal.Signals(signum))


@dataclass
class Command:
    """A command of all ranks. `parse`: returns options and settings, or exits if no ranks are needed. `work`: does one rank's
    part; returns the exit code. `unstarted`: what rank 0 does instead of failing if the launcher's processes are not the ranks of
    one job, or if starting MPI ended its process."""

    name: str
    parse: Callable[[], tuple[Any, Settings]]
    work: Callable[[Team, Any, Settings], int]
    unstarted: Callable[[StartError, Any, Settings], int] | None = None

    def run(self) -> int:
        """Run it and return the exit code. Wrong usage on one rank is raised on all ranks."""
        self._options: Any = None
        self._settings = Settings()
        self._usage: UsageError | None = None  # what is wrong with the options
        open_streams()
        say_warnings_in_a_line(self.name)
        try:
            name_foreign_variables(self.name)
            self._options, self._settings = self.parse()
        except UsageError as error:
            if launched() is None:
                return print_error(self.name, error)
            self._usage = error
        except Exception as error:  # such as help that could not be written
            return answer_failed(self.name, error)
        if not is_switched_on("HYBRID_GUARD"):  # without a supervisor: debuggers want one process
            return self._run_as_rank()
        may_start_fail = self.unstarted and self._usage is None and launched() is not None
        after_failure = self._after_failed_start if may_start_fail else None
        # Only the worker returns from this call. After success `leave` exits; after a failure Python does, which waits for
        # threads that still compute.
        return supervisor.supervised(self._run_as_rank, self._settings.stall, after_failure) or leave()

    def _run_as_rank(self) -> int:
        """Start MPI and do this rank's part; returns the exit code."""
        team: Team | None = None
        try:
            heed(signal.SIGINT)
            wall.enter("MPI start")
            try:
                team = start_world(patience=PATIENCE)
            except StartError as error:
                code = self._run_unstarted(error)
            else:
                heartbeat.mpi_started()
                with team.phase("start", timed=False):
                    team.refuse_other_code()
                    if self._usage is not None:  # refused on all ranks
                        raise self._usage
                with team.together():
                    code = self.work(team, self._options, self._settings)
                wait_until_loaded()  # a compiler that outlives this process would not put its library into the cache
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # there is nothing left to interrupt
        except BaseException as error:
            show_traceback()
            return fail_before_start(self.name, self._usage or error) if team is None else fail(self.name, team, error)
        sys.stdout.flush()
        heartbeat.report_exit_code(code)
        return code

    def _run_unstarted(self, error: StartError) -> int:
        """Handle launched processes that are not the ranks of one job: only the one that the launcher numbers 0 reports. Returns
        the exit code."""
        if self._usage is not None or self.unstarted is None:
            raise error
        if rank_by_launcher() == 0:
            return self.unstarted(error, self._options, self._settings)
        if "mpi4py.MPI" in sys.modules:
            return 0  # MPI has started, with this process as its only rank: nobody waits for it, and rank 0 reports
        time.sleep(REPORT_TIME)
        raise error

    def _after_failed_start(self, happened: str) -> int | None:
        """Called by the supervisor if the worker ended while it started MPI. `happened`: how it ended. Returns the exit code, or
        None to treat it like any other worker that has ended."""
        launch = launched()
        assert launch is not None and self.unstarted is not None  # noqa: PT018
        if launch.rank != 0:
            time.sleep(REPORT_TIME)
            return None
        error = StartError(f"started by {launch.name}, but when it started MPI rank 0 {happened}")
        try:
            code = self.unstarted(error, self._options, self._settings)
            sys.stdout.flush()
            return code
        except Exception as other:
            return print_error(self.name, other)
