# SPDX-License-Identifier: MIT
"""The check by several ranks, of one node or of several: the same result on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.host.row_view import RowView
from hybrid.ranks.team import Team
from hybrid.verification.freivalds import verify

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["one node", "a node for each rank"])
def check(request, comm):
    team = Team(comm)
    ranks = tuple(range(team.size))
    topology = Topology((ranks,) if request.param == "one node" else tuple((rank,) for rank in ranks))

    def checked(a, b, c):
        plan = planned(Problem(a.shape[0], a.shape[1], b.shape[1], c.dtype.name), topology)
        found = verify(team, plan, *(RowView(matrix, Span(0, len(matrix))) for matrix in (a, b, c)))
        assert comm.allgather(found) == [found] * comm.size
        return found

    return checked


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fault_is_found_and_named_wherever_it_is(rng, check, dtype):
    a, b = rng.standard_normal((100, 150), dtype), rng.standard_normal((150, 200), dtype)
    c = a @ b
    assert check(a, b, c).ok
    for row, column in ((0, 0), (57, 130), (99, 199)):
        wrong = c.copy()
        wrong[row, column] += 1
        found = check(a, b, wrong)
        assert not found.ok
        assert found.faults == (f"row {row} of C, columns {column}: wrong by 1.00e+00",)


@pytest.mark.parametrize("largest", [9, 2**22])
def test_integers_are_exact(rng, check, largest):
    a, b = rng.integers(-largest, largest + 1, (60, 100)) * 1.0, rng.integers(-largest, largest + 1, (100, 70)) * 1.0
    c = a @ b
    found = check(a, b, c)
    assert (found.kind, found.ok) == ("exact", True)
    for row in (0, 31, 59):
        wrong = c.copy()
        wrong[row, 69] += 1
        found = check(a, b, wrong)
        assert (found.kind, found.error) == ("exact", 1)
        assert found.faults[0].startswith(f"row {row} of C")


def test_rounding_that_is_not_as_usual_is_noted(check):
    a, b = np.ones((8, 20_000), np.float32), np.ones((20_000, 1), np.float32)  # of several, some would cancel by chance
    b[0] = 2**24
    found = check(a, b, np.full((8, 1), 2**24, np.float32))
    assert found.ok
    assert found.note
