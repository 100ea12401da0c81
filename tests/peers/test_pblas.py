# SPDX-License-Identifier: MIT
"""PBLAS' own test problems for pdgemm: the sizes, block sizes, grids and flags of PDBLAS3TST.dat (Debian: scalapack-test-common).

Of each problem the whole matrices are multiplied: a Block2D has no submatrix that begins at IA, JA, nor alpha and beta
(docs/python.md#blocks-of-a-grid).
"""

from pathlib import Path

import numpy as np
import pytest
from support.peers import alike

import hybrid
from hybrid.errors import UsageError

PEER = "PBLAS, PDBLAS3TST.dat"
PROBLEMS = Path("/usr/share/scalapack/PBLAS/PDBLAS3TST.dat")
KEYS = {"TRANSA", "TRANSB", "M", "N", "K", "MB_A", "NB_A", "MB_B", "NB_B", "P", "Q"}


def problems():
    """Columns of the file: each a dict of its values."""
    values = {}
    for line in PROBLEMS.read_text().splitlines():
        told, _, name = line.partition("values of ")
        if name.strip() in KEYS:
            values[name.strip()] = told.replace("'", "").split()
    return [dict(zip(values, column, strict=True)) for column in zip(*values.values(), strict=True)]


def dealt(matrix, blocks, grid, place):
    """This process's Block2D of a matrix that ScaLAPACK deals block-cyclically, from process 0, 0 on."""
    index = [
        [i for i in range(size) if i // block % processes == at]
        for size, block, processes, at in zip(matrix.shape, blocks, grid, place, strict=True)
    ]
    local = np.asfortranarray(matrix[np.ix_(*index)])
    descriptor = [1, 0, *matrix.shape, *blocks, 0, 0, max(1, len(local))]
    return hybrid.Block2D.from_scalapack(local, descriptor, grid, place), index


@pytest.mark.needs("scalapack")
@pytest.mark.mpi(min_size=2)
def test_pdgemm_problems(comm, rng, ledger):
    for problem in problems():
        grid = int(problem["P"]), int(problem["Q"])
        if grid[0] * grid[1] > comm.size:
            grid = (1, comm.size)
        here = comm.Split(0 if comm.rank < grid[0] * grid[1] else 1)
        place = divmod(comm.rank, grid[1])
        n, m, l = (int(problem[key]) for key in "MNK")
        a, b = rng.standard_normal((n, l)), rng.standard_normal((l, m))
        flags = {f"transpose_{each.lower()}": problem[f"TRANS{each}"] == "T" for each in "AB"}
        if comm.rank < grid[0] * grid[1]:
            of_a = dealt(a.T.copy() if flags["transpose_a"] else a, (int(problem["MB_A"]), int(problem["NB_A"])), grid, place)[0]
            of_b = dealt(b.T.copy() if flags["transpose_b"] else b, (int(problem["MB_B"]), int(problem["NB_B"])), grid, place)[0]
            try:
                c = hybrid.multiply(of_a.T if flags["transpose_a"] else of_a, of_b.T if flags["transpose_b"] else of_b, comm=here)
            except UsageError as refusal:
                ledger.refused[refusal.code] += 1
            else:
                rows, columns = ([i for span in spans for i in range(*span)] for spans in (c.rows, c.columns))
                ledger.right += 1
                if not alike(c.array, (a @ b)[np.ix_(rows, columns)]):
                    ledger.wrong.append(str(problem))
        here.Free()
    assert ledger.right
