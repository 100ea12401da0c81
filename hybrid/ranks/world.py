# SPDX-License-Identifier: MIT
"""The team of all ranks that a launcher started, or of a user's communicator."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from hybrid.core.forks import Turn, forked_from_rank
from hybrid.errors import RankMissing, StartError, UsageError, one_line
from hybrid.ranks import heartbeat
from hybrid.ranks.arrival import Limits, unusable
from hybrid.ranks.launcher import launched
from hybrid.ranks.leftovers import remove_files_of, segments_of, unname_files
from hybrid.ranks.mpi_library import library_name
from hybrid.ranks.preflight import left_over, refuse_too_little
from hybrid.ranks.session_folders import remove_own
from hybrid.ranks.team import Team

if TYPE_CHECKING:
    from mpi4py import MPI

_keyval: int | None = None  # the key under which MPI keeps what is known of a communicator as its attribute
_noting = threading.Lock()


class _Known:
    """What is known of a communicator: its team, or why it has none."""

    def __init__(self) -> None:
        self.team: Team | None = None
        self.unusable = ""
        self.turn = Turn()  # for making the team, in which ranks wait for each other


def team_of(comm: Any, stall: Any = None) -> Team:
    """The team of a user's communicator, made at the first call and freed with the communicator.

    `stall`: the seconds after which this call names ranks that have not called; None: as HYBRID_STALL says.
    """
    if comm is None:
        return _team_of_one()
    from mpi4py import MPI

    if isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL:
        raise UsageError(
            "comm is MPI.COMM_NULL: a communicator that was freed, or to which this process does not belong", code="communicator"
        )
    if not isinstance(comm, MPI.Intracomm):
        raise UsageError(f"comm must be an mpi4py intracommunicator or None, not {type(comm).__name__}", code="communicator")
    if MPI.Is_finalized():
        raise UsageError("MPI has been finalized: comm cannot be used any more", code="communicator")
    if forked_from_rank():
        raise UsageError(
            "this process was forked from a rank, and MPI does not work in it: leave out comm to compute here alone",
            code="communicator",
        )
    if MPI.Comm.Compare(comm, MPI.COMM_WORLD) == MPI.IDENT:
        _refuse_foreign_launcher(comm)
    if comm.Get_size() == 1:
        return _team_of_one()
    known = _known_of(comm)
    with known.turn:
        if known.team is None and not known.unusable:
            try:
                known.team = Team(comm, limits=Limits.of(stall))
            except RankMissing as missing:
                known.unusable = str(missing)
    if known.team is None:
        raise unusable(known.unusable)
    known.team.messages.limits = Limits.of(stall)
    return known.team


def _known_of(comm: MPI.Comm) -> _Known:
    """What this rank knows of the communicator. Other ranks are not asked."""
    global _keyval
    from mpi4py import MPI

    with _noting:
        if _keyval is None:
            _keyval = MPI.Comm.Create_keyval(delete_fn=_free_team)
        known: Any = comm.Get_attr(_keyval)
        if known is None:
            known = _Known()
            comm.Set_attr(_keyval, known)
        return known


@cache
def _team_of_one() -> Team:
    """One for all calls of this process, since a team keeps its device from call to call."""
    return Team()


def _free_team(comm: MPI.Comm, keyval: int, known: _Known) -> None:
    if known.team is not None:
        known.team.free()


def start_world(*, patience: float | None = None) -> Team:
    """The team of all ranks of this job. MPI is started only if a launcher started this process.

    Raises StartError if MPI cannot be started, or if it sees another number of processes than the launcher started.
    """
    launch = launched()
    if launch is None:
        return Team()
    refuse_too_little(launch)
    try:
        with _signals_kept():
            MPI = start_mpi()
    except (ImportError, RuntimeError) as error:
        raise StartError(
            f"started by {launch.name}, but mpi4py cannot start MPI ({one_line(error)}): install an MPI, "
            "for example with pip install mpich",
            code="mpi-missing",
        ) from error
    _refuse_foreign_launcher(MPI.COMM_WORLD)
    team = Team(MPI.COMM_WORLD, patience=patience)
    if team.leads_node:
        unname_files()
    return team


@contextmanager
def _signals_kept() -> Iterator[None]:
    """A context after which signals mean what they did before, so that they end a rank under every MPI, or under none. Signals
    that come meanwhile are handled then.

    MPICH sets a handler for SIGUSR1, which its launcher sends only where it leaves a job with a dead rank alone; and UCX, below
    both MPIs, sets one for SIGHUP, for debugging. Neither lets a user see that the signal came.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGHUP, signal.SIGUSR1)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            if handler is not None:  # Python's own record of it, which these libraries do not change
                signal.signal(signum, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_mpi() -> ModuleType:
    """Start MPI in this process, with the thread level that hybrid-runner needs; mpi4py's module."""
    import mpi4py

    mpi4py.rc(thread_level="funneled")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")  # is looked at, and said in one line
        from mpi4py import MPI

    if MPI.COMM_WORLD.Get_size() == 1:  # nobody else opens them, and Open MPI does not remove its own even at an orderly end
        remove_own(segments_of("self"))
        remove_files_of("self")
    return MPI


def leave() -> NoReturn:
    """Finalize MPI where it has started, and end the process with code 0. Output must have been flushed, and no thread may
    compute.

    Python's own end would take longer, since it tears down every module. It is C's `exit` and not `_exit`, which would leave out
    what MPICH does at the very end: its launcher then ends the job as one that failed.
    """
    heartbeat.wake_supervisor()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and not mpi.Is_finalized():
        mpi.Finalize()
        heartbeat.wake_supervisor()  # if it was stopped meanwhile: nobody else would
    ctypes.PyDLL(None).exit(0)  # holds the interpreter's lock, so that no other thread runs Python meanwhile
    raise AssertionError("exit has returned")


def world_communicator(team: Team) -> MPI.Comm | None:
    """The communicator of `start_world`'s team, as `hybrid.multiply` takes it; None for a process alone."""
    if team.size == 1:
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD


def all_processes() -> MPI.Comm:
    """The communicator of everything that the launcher has started, for programs that watch over themselves."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def abort(code: int) -> None:
    """End all ranks of the job with this exit code, whatever they are doing."""
    from mpi4py import MPI

    MPI.COMM_WORLD.Abort(code)


def _refuse_foreign_launcher(world: MPI.Comm) -> None:
    """StartError if MPI does not see all processes that the launcher started.

    With the launcher of another MPI every process takes itself for rank 0 of 1, and would do all the work again.
    """
    launch, size = launched(), world.Get_size()
    if launch is None or size == launch.size:
        return
    from mpi4py import MPI

    if variables := left_over():
        error = StartError(
            f"{variables} say that {launch.name} started {launch.size} ranks, but no launcher is running above this process, and "
            "MPI sees it alone: they are left over from another job",
            "unset them, or start with mpirun",
            code="stale-launcher",
        )
        error.on_all_ranks = True  # nobody waits for this process
        raise error
    raise StartError(
        f"{launch.name} started {launch.size} processes, but {library_name(MPI)} sees {size}: they belong to "
        "different MPIs; use the mpirun of the MPI that mpi4py uses, or srun with the --mpi= it was built for",
        code="wrong-mpirun",
    )
