# SPDX-License-Identifier: MIT
"""What a rank says to Hydra, MPICH's launcher, in the protocol PMI 1: lines of text through a descriptor that it inherits."""

from __future__ import annotations

import os
import select
import stat
from contextlib import suppress

_ANSWER = 0.2  # seconds


def descriptor() -> int | None:
    """The descriptor at which Hydra listens; None under another launcher. Slurm's PMI-2 sets PMI_FD as well, but has another
    protocol."""
    return None if is_gone() or "PMI_HOSTNAME" not in os.environ else int(os.environ["PMI_FD"])


def is_gone() -> bool:
    """Whether the descriptor PMI_FD is no socket: the launcher that set it is not this process's, or the socket was closed."""
    number = os.environ.get("PMI_FD", "")
    with suppress(OSError, OverflowError):
        return not (number.isdecimal() and stat.S_ISSOCK(os.fstat(int(number)).st_mode))
    return True


def abort(code: int) -> bool:
    """Have Hydra end all processes of the job and exit with `code`, as MPI_Abort does. False where there is no Hydra to tell."""
    there = descriptor()
    if there is None:
        return False
    with suppress(OSError):  # it is gone
        os.write(there, b"cmd=abort exitcode=%d\n" % code)
        return True
    return False


def topology_file() -> str | None:
    """The file in which Hydra's part on this node describes the node's cores; None where it does not say.

    To be called only while no call of MPI is under way.
    """
    there = descriptor()
    if there is None:
        return None
    with suppress(OSError):
        space = _asked(there, "get_my_kvsname", "kvsname")
        return _asked(there, f"get kvsname={space} key=PMI_hwloc_xmlfile", "value") if space else None
    return None


def _asked(there: int, question: str, wanted: str) -> str | None:
    """The value that Hydra's answer gives for `wanted`; None without an answer. An answer to a process that has died may come
    first."""
    os.write(there, f"cmd={question}\n".encode())
    while select.select([there], [], [], _ANSWER)[0] and (words := os.read(there, 4096).decode(errors="replace").split()):
        found = [word.partition("=")[2] for word in words if word.startswith(f"{wanted}=")]
        if found:
            return found[-1]
    return None
