# SPDX-License-Identifier: MIT
"""What MPI needs of the system before it starts. Where that is missing, MPI ends its process, or hangs, and says why in its own
terms."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from hybrid.core.text import readable
from hybrid.core.wall import launcher_above
from hybrid.errors import StartError
from hybrid.host.memory import free_bytes_in
from hybrid.ranks import hydra
from hybrid.ranks.launcher import Launch, launched

SHARED = Path("/dev/shm")  # noqa: S108 (no name in it is guessed)
_LEAST_FILES, _FILES = 48, 1024  # open files: with 32 two ranks of MPICH hang; what is asked for where the limit allows it
# Of MPICH 5.0.2 on a node: 1,057,344 bytes for each rank and 4 KiB; UCX, on which it may be built, has files of 4.3 MB besides.
_SHARED_OF_A_RANK = 1_061_440
_UCX_OF_A_RANK, _LEAST_OF_UCX = 4_400_000, 16 << 20  # UCX's files; and with less room than this it makes none
_LEAST_FILE_SIZE = 6 << 20


def refuse_too_little(launch: Launch) -> None:
    """StartError where MPI could not start."""
    if "PMI_FD" in os.environ and hydra.is_gone():
        error = StartError(
            f"{_variables(launch)} say that {launch.name} started {launch.size} ranks, but its connection to this process, "
            f"PMI_FD={os.environ['PMI_FD']}, is not open: the variables are left over from another job, or something in between "
            "has closed it",
            "unset them, or start with mpirun",
            code="stale-launcher",
        )
        error.on_all_ranks = True  # nobody waits for this process
        raise error
    _allow_files()
    where, ranks = f"on {os.uname().nodename}", int(os.environ.get("MPI_LOCALNRANKS", "0"))  # set by MPICH's launcher only
    if ranks < 2:
        return
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= size < _LEAST_FILE_SIZE:
        raise StartError(
            f"files may have {readable(size)} only {where} (ulimit -f): MPI's memory that ranks share needs "
            f"{readable(_LEAST_FILE_SIZE)}, matrices need more",
            "ulimit -f unlimited",
            code="file-limit",
        )
    if not os.access(SHARED, os.W_OK):
        why = "is read-only, or not writable for you" if SHARED.is_dir() else "is missing"
        raise StartError(
            f"{SHARED} {why}, {where}: MPI needs it for {ranks} ranks on one node",
            "mount -t tmpfs tmpfs /dev/shm (in a container: start it without --read-only, or with --tmpfs /dev/shm)",
            code="shared-memory",
        )
    need, free = ranks * _SHARED_OF_A_RANK, free_shared_bytes()
    if free is not None and free < need:
        raise StartError(
            f"MPI needs {readable(need)} of {SHARED} for {ranks} ranks {where}, {readable(free)} are free: "
            f"{readable(need - free)} are missing",
            "delete what ended programs left there, or enlarge it (mount -o remount,size=…; in a container --shm-size=…)",
            code="shared-memory",
        )
    if free is not None and free < need + ranks * _UCX_OF_A_RANK + _LEAST_OF_UCX:
        # UCX 1.20 looks at the room before each of its files. Where a rank finds enough for the first but not for the next, as
        # when other ranks have made theirs meanwhile, it uses one that it has not: SIGSEGV. It has other ways within a node.
        os.environ.setdefault("UCX_TLS", "^posix")


def _allow_files() -> None:
    """Raise the limit of open files to what MPI may want, as far as the hard limit allows. StartError where that is too
    little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _FILES and soft != hard:
        soft = _FILES if hard < 0 else min(_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if 0 <= soft < _LEAST_FILES:
        raise StartError(
            f"a process may open {soft} files only on {os.uname().nodename} (ulimit -n): MPI needs {_LEAST_FILES} or more",
            f"ulimit -n {_FILES}",
            code="open-files",
        )


def free_shared_bytes() -> int | None:
    """The free bytes of /dev/shm; None where there is none."""
    try:
        return free_bytes_in(SHARED)
    except OSError:
        return None


def left_over() -> str:
    """The launcher's variables, as a text, where no launcher is running above this process: then they are another job's. Empty
    elsewhere."""
    launch = launched()
    if launch is None or launcher_above() is not False:
        return ""
    return _variables(launch)


def _variables(launch: Launch) -> str:
    return f"{launch.variables[0]}={launch.rank} and {launch.variables[1]}={launch.size}"
