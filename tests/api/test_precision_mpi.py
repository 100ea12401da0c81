# SPDX-License-Identifier: MIT
"""Products from remainders by several ranks: the same bits as by one, however the operands reach the devices."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.errors import UsageError

pytestmark = [pytest.mark.mpi, pytest.mark.needs("compiler")]
FAST = {"device": "emulate", "precision": "fast"}


def operands(dtype):
    random = np.random.default_rng(11)
    return random.standard_normal((150, 140)).astype(dtype), random.standard_normal((140, 160)).astype(dtype)


@pytest.mark.parametrize(
    "way", [{}, {"TRANSPORT": "host"}, {"RANKS_PER_NODE": "1"}, {"PANEL_COLUMNS": "128", "POISON": "1"}], ids=str
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_bits_do_not_depend_on_the_ranks(comm, monkeypatch, dtype, way):
    a, b = operands(dtype)
    alone = hybrid.multiply(a, b, **FAST)
    assert not np.array_equal(alone, a @ b), "so it is not native"
    for name, value in way.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    c = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm, **FAST)
    if comm.rank == 0:
        np.testing.assert_array_equal(c, alone)


def test_row_blocks_get_the_same_bits(comm):
    a, b = operands("float64")
    own_a, own_b = (np.array_split(matrix, comm.size)[comm.rank] for matrix in (a, b))
    c = hybrid.multiply(hybrid.RowBlock(own_a), hybrid.RowBlock(own_b), comm=comm, **FAST)
    np.testing.assert_array_equal(c.array, np.array_split(hybrid.multiply(a, b, **FAST), comm.size)[comm.rank])


@pytest.mark.mpi(min_size=2)
def test_what_one_rank_asks_for_alone_is_refused_on_all(comm):
    a, b = operands("float64")
    with pytest.raises(UsageError):
        hybrid.multiply(a, b, comm=comm, device="emulate", precision="fast" if comm.rank else "native")
    with pytest.raises(UsageError, match="unknown precision"):
        hybrid.multiply(a, b, comm=comm, precision="double")


def test_what_one_rank_writes_to_its_rows_of_b_is_noticed_by_all(comm):
    """What is made of B is kept on every rank; each has all of it."""
    a, b = operands("float64")
    own_a, own_b = (np.array_split(matrix, comm.size)[comm.rank].copy() for matrix in (a, b))
    rows = len(np.array_split(b, comm.size)[0])  # of rank 0, which writes

    def product():
        return hybrid.multiply(hybrid.RowBlock(own_a), hybrid.RowBlock(own_b), comm=comm, **FAST).array

    found = [product()]
    for value in (3.0, 3.0, -4.0):
        if comm.rank == 0:
            own_b[1, 2:5] = value
        found.append(product())
    np.testing.assert_array_equal(found[1], found[2])
    for value, c in ((3.0, found[2]), (-4.0, found[3])):
        b[:rows][1, 2:5] = value
        np.testing.assert_array_equal(c, np.array_split(hybrid.multiply(a, b, **FAST), comm.size)[comm.rank])
