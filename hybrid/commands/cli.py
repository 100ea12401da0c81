"""What the commands share: one-line errors, exit codes, the guard, and a job that ends when one of its ranks fails."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hybrid.core.settings import Settings
from hybrid.errors import HybridError, StartError, UsageError, one_line
from hybrid.ranks import supervisor
from hybrid.ranks.launcher import launched, rank_by_launcher
from hybrid.ranks.team import Team
from hybrid.ranks.world import abort, start_world

FIRST_WORD = 1.0  # seconds rank 0 gets to report what keeps all ranks from starting, before the others do
WHOLE_WORD = 15.0  # the same where it has more to say than one line; its end usually ends the job
PATIENCE = 4.0  # seconds a failed rank waits for the others to hear of it before it ends the job alone


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError, suggests the option that was meant, and prints help on rank 0 only."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        unknown = [word for word in message.removeprefix("unrecognized arguments: ").split() if word.startswith("--")]
        if message.startswith("unrecognized arguments") and unknown:
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[0].split("=")[0], known, 1, 0.5)
            message = f"unknown option {unknown[0]}" + (f": did you mean {near[0]}?" if near else "; --help lists them")
        raise UsageError(message)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # argparse replaces the text of a ValueError by one that names the conversion function.
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, UsageError):
                raise argparse.ArgumentError(action, str(error.__context__)) from None
            raise

    def print_help(self, file: Any = None) -> None:
        _open_streams()
        if rank_by_launcher() == 0:
            super().print_help(file)


def at_least(least: int) -> Callable[[str], int]:
    """An option's type: a whole number of at least this."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise UsageError(f"{text!r} is not a whole number") from None
        if value < least:
            raise UsageError(f"{text} is too small: at least {least}")
        return value

    return number


def run(
    name: str,
    parse: Callable[[], tuple[Any, Settings]],
    answer: Callable[[Any, Settings], bool],
    work: Callable[[Team, Any, Settings], int],
    unstarted: Callable[[StartError, Any, Settings], int] | None = None,
    meanwhile: Callable[[Settings], None] = lambda settings: None,
) -> int:
    """Run a command: `parse` its options, `answer` what needs no job (True if that was all), or `work` on every rank.

    `meanwhile`: begins what goes on in the background while MPI starts, and does not fail.
    `unstarted`: what rank 0 does instead of failing where the ranks were not started together; also where MPI's start ended
    the process, when it runs in the guard.
    Returns the exit code. Wrong usage is agreed on by all ranks like any other error, so that a rank started differently
    keeps nobody waiting; answers come without MPI, the same on every rank and shown by rank 0.
    """
    _open_streams()
    usage: UsageError | None = None
    options, settings = None, Settings()
    try:
        options, settings = parse()
    except UsageError as error:
        if launched() is None:
            return _say(name, error)
        usage = error
    if usage is None:
        try:
            if answer(options, settings):
                sys.stdout.flush()
                return 0
        except Exception as error:
            return _answer_failed(name, error)

    def worker() -> int:
        meanwhile(settings)
        return _work(name, usage, options, settings, work, unstarted)

    if os.environ.get("HYBRID_GUARD") == "0":  # for debuggers, which want one process
        return worker()
    instead = partial(_stillborn, name, options, settings, unstarted) if unstarted and usage is None and launched() else None
    return supervisor.supervised(worker, settings.stall, instead)


def _open_streams() -> None:
    """Closed streams become silent ones, and characters that the user's locale lacks become question marks."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # else the next file opened would take its number, and what C code prints
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _answer_failed(name: str, error: Exception) -> int:
    """The exit code. Rank 0 alone fails: the first rank to do so may have the launcher end it before it has spoken."""
    if rank_by_launcher() != 0:
        return 0
    if isinstance(error, BrokenPipeError):  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if os.environ.get("HYBRID_DEBUG") == "1":
        traceback.print_exc()
    code = _say(name, error if isinstance(error, HybridError) else HybridError(one_line(error)))
    if launched() is not None:
        supervisor.let_launcher_read()
    return code


def _work(
    name: str,
    usage: UsageError | None,
    options: Any,
    settings: Settings,
    work: Callable[[Team, Any, Settings], int],
    unstarted: Callable[[StartError, Any, Settings], int] | None,
) -> int:
    team: Team | None = None
    try:
        try:
            team = start_world(patience=PATIENCE)
        except StartError as error:
            if usage is not None or unstarted is None:
                raise
            if rank_by_launcher() == 0:
                code = unstarted(error, options, settings)
            elif "mpi4py.MPI" in sys.modules:
                code = 0  # an MPI of this process's own has started, so nobody waits for it, and rank 0 speaks
            else:
                time.sleep(WHOLE_WORD)
                raise
        else:
            supervisor.mpi_started()
            with team.phase("start", timed=False):
                if usage is not None:
                    raise usage
            code = work(team, options, settings)
    except BaseException as error:
        if os.environ.get("HYBRID_DEBUG") == "1":
            traceback.print_exc()
        return _fail_before_start(name, usage or error) if team is None else _fail(name, team, error)
    sys.stdout.flush()
    supervisor.settle(code)
    return code


def _stillborn(
    name: str, options: Any, settings: Settings, unstarted: Callable[[StartError, Any, Settings], int], happened: str
) -> int | None:
    launch = launched()
    assert launch is not None
    if launch.rank != 0:
        time.sleep(WHOLE_WORD)
        return None
    error = StartError(f"started by {launch.name}, but when it started MPI rank 0 {happened}")
    try:
        code = unstarted(error, options, settings)
        sys.stdout.flush()
    except Exception as other:
        return _say(name, other if isinstance(other, HybridError) else HybridError(one_line(other)))
    return code


def _fail(name: str, team: Team, error: BaseException) -> int:
    """Report an error once and leave: together with the other ranks if they know of it, else by ending the job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The project's own errors are raised on all ranks alike; anything else happened here alone.
    agreed = team.size == 1 or (isinstance(error, HybridError) and not team.alone)
    code = getattr(error, "exit_code", 1)
    if team.rank == 0 or not agreed:
        if not isinstance(error, HybridError):
            error = HybridError(f"rank {team.rank} on {team.host}, {team.doing}: {one_line(error)}")
        _say(name, error)
    if agreed:
        team.part(PATIENCE)  # not before rank 0 has spoken: the first rank to leave may end the others
    supervisor.settle(code, agreed=agreed)
    if not agreed:
        supervisor.let_launcher_read()
        abort(code)
    return code


def _fail_before_start(name: str, error: BaseException) -> int:
    """MPI did not start, so nothing can be agreed on. Rank 0 speaks first; its end usually ends the job."""
    code = getattr(error, "exit_code", 1)
    if rank_by_launcher() != 0:
        time.sleep(FIRST_WORD)
    if not isinstance(error, HybridError):
        error = HybridError(f"rank {rank_by_launcher()} on {socket.gethostname()}, start: {one_line(error)}")
    _say(name, error)
    supervisor.settle(code, agreed=False)
    sys.stdout.flush()
    os._exit(code)


def _say(name: str, error: BaseException) -> int:
    with suppress(OSError):  # what cannot be shown must not hide the error itself
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, f"{name}: {error}\n".encode())
    return getattr(error, "exit_code", 1)
