# SPDX-License-Identifier: MIT
"""Jobs of several ranks as users start them, which tests and scripts/ordeal.py hit; and namespaces that stand for nodes."""

from collections.abc import Callable

from experiments.bench.nodes import SLOW, Network, why_not
from experiments.ordeal.job import End, Job, may_mount, open_mpi
from hybrid.testing import mpirun

__all__ = ["SLOW", "End", "Job", "Network", "Start", "may_mount", "mpirun", "open_mpi", "why_not"]

Start = Callable[..., Job]
