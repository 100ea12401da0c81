# SPDX-License-Identifier: MIT
"""How one process makes its launcher end all ranks of the job, without MPI, and with an exit code of its choice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from hybrid.ranks import hydra
from hybrid.ranks.launcher import OPEN_MPI, launched

DRAIN = 0.2  # seconds a launcher gets to read what was printed: at the first failure it may throw away the rest
_ABORT_TIME = 2.0  # seconds that Hydra gets to kill this process, as every other of the job


def let_launcher_read() -> None:
    """Wait before an exit that makes the launcher end the job: it gives no sign of having read what was printed."""
    time.sleep(DRAIN)


def exit_at_once(code: int) -> NoReturn:
    """As the parent of a fork may, which owns nothing that needs cleaning up."""
    if code and launched() is not None:
        let_launcher_read()
    os._exit(code)


def end_job(code: int, last: Callable[[], None] | None = None) -> NoReturn:
    """End this process and, where a launcher started it, the whole job, with this exit code if the launcher can have it.

    `last`: what is done before, as late as possible, of a job.

    What the launchers make of a rank's end differs. Open MPI's ends the job at the first exit code that is not 0, and takes it
    over. MPICH's (Hydra) ignores exit codes while MPI starts and on other nodes, but obeys an abort in the words of PMI, as
    MPI_Abort sends it. Others are told by a signal that this rank has died.
    """
    launch = launched()
    if launch is None:
        os._exit(code)
    let_launcher_read()
    if last is not None:
        last()
    if launch.name == OPEN_MPI:
        os._exit(code)
    if hydra.abort(code):
        time.sleep(_ABORT_TIME)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")
