# SPDX-License-Identifier: MIT
"""C as a file that several ranks write: whole or not at all, in every format, whichever rank cannot write its rows."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.errors import HybridError
from hybrid.execution.product_file import product_output, write_product
from hybrid.host.matrix_file import open_matrix
from hybrid.ranks.team import Team

pytestmark = pytest.mark.mpi

ALL = [pytest.param("h5", marks=pytest.mark.needs("h5py")), "npy", pytest.param("mtx", marks=pytest.mark.needs("scipy")),
       pytest.param("zarr", marks=pytest.mark.needs("zarr"))]  # fmt: skip
PROBLEM = Problem(40, 3, 11, "float64")


@pytest.fixture
def folder(comm, tmp_path):
    """The same on all ranks."""
    return Path(comm.bcast(str(tmp_path)))


@pytest.fixture
def team(comm):
    return Team(comm)


@pytest.fixture
def plan(team):
    return planned(PROBLEM, Topology((tuple(range(team.size)),)))


@pytest.mark.parametrize("form", ALL)
def test_every_rank_writes_its_rows(rng, comm, team, plan, folder, form):
    c = rng.standard_normal((40, 11))
    name = str(folder / f"C.{form}")
    for _ in range(1 if form == "zarr" else 2):  # a file is replaced
        write_product(team, plan, c, product_output(team, (40, 11), np.dtype("float64"), name))
    comm.barrier()
    assert [path.name for path in folder.iterdir()] == [f"C.{form}"]
    into = np.empty((40, 11))
    open_matrix(name).read(Span(0, 40), into)
    np.testing.assert_array_equal(into, c)


@pytest.mark.parametrize("form", ALL)
def test_a_rank_that_cannot_write_its_rows_leaves_nothing(rng, comm, team, plan, folder, monkeypatch, form):
    output = product_output(team, (40, 11), np.dtype("float64"), str(folder / f"C.{form}"))
    write, last = output.write, comm.size - 1

    def full(*arguments):
        if comm.rank == last:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(output, "write", full)
    with pytest.raises(HybridError, match=rf"C\.{form} cannot be written: No space left on device: it takes .* are free in "):
        write_product(team, plan, rng.standard_normal((40, 11)), output)
    comm.barrier()
    assert not list(folder.iterdir())
