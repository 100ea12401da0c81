"""What the program that started this process says, read from the environment: known before MPI starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """A launcher's word on this process: its number, how many there are, and the launcher's name."""

    name: str
    rank: int
    size: int


# A step of srun may itself hold MPICH's or Open MPI's helpers, so theirs come first.
_VARIABLES = (
    ("mpirun (MPICH or another PMI launcher)", "PMI_RANK", "PMI_SIZE"),
    ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """The launch this process belongs to, or None when it was started alone."""
    for name, rank, size in _VARIABLES:
        if environment.get(rank, "").isdigit() and environment.get(size, "").isdigit():
            return Launch(name, int(environment[rank]), int(environment[size]))
    return None


def rank_by_launcher() -> int:
    """This process's rank as the launcher counts; 0 when started alone."""
    launch = launched()
    return launch.rank if launch else 0
