# SPDX-License-Identifier: MIT
"""HYBRID_MACHINE: the same numbers on all ranks, or none."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.errors import UsageError
from hybrid.plan.machine_model import MachineModel


@pytest.mark.mpi(min_size=2)
def test_ranks_whose_files_differ_are_told_by_name(comm, monkeypatch):
    monkeypatch.setenv("HYBRID_MACHINE", "machine.json")  # of a folder that each node has for itself
    monkeypatch.setattr(MachineModel, "read", lambda path: MachineModel(most_slabs=4 + (comm.rank == 1)))
    matrix = np.ones((9, 9)) if comm.rank == 0 else None
    with pytest.raises(UsageError, match="HYBRID_MACHINE gives most_slabs 5 on rank 1, 4 on rank 0"):
        hybrid.multiply(matrix, matrix, comm=comm, device="cpu")


@pytest.mark.mpi(min_size=2)
def test_a_file_that_one_rank_cannot_read_stops_all(comm, monkeypatch, tmp_path):
    path = comm.bcast(str(tmp_path / "machine.json"))
    monkeypatch.setenv("HYBRID_MACHINE", path)
    matrix = np.ones((9, 9)) if comm.rank == 0 else None
    with pytest.raises(UsageError, match=r"the machine model .* cannot be read: No such file or directory"):
        hybrid.multiply(matrix, matrix, comm=comm, device="cpu")
    if comm.rank == 0:
        MachineModel(most_slabs=4).write(path)
    comm.Barrier()
    product = hybrid.multiply(matrix, matrix, comm=comm, device="cpu")
    assert comm.rank != 0 or (product == 9).all()
