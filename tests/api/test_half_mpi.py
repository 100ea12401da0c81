# SPDX-License-Identifier: MIT
"""Operands of 16 bits by several ranks: as they are where the root copies them to the devices, converted elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
import hybrid.execution.root_call

pytestmark = [pytest.mark.mpi, pytest.mark.needs("compiler")]


@pytest.fixture
def decisions(monkeypatch):
    seen = []
    original = hybrid.execution.root_call.run_product

    def run(session, decision, *others):
        seen.append(decision)
        return original(session, decision, *others)

    monkeypatch.setattr(hybrid.execution.root_call, "run_product", run)
    return seen


PEERS = {"TRANSPORT": "peers"}  # B is too small for them to be chosen


@pytest.mark.parametrize(
    ("way", "stay"),
    [
        (PEERS, True),
        (PEERS | {"PANEL_ROWS": "30", "PANEL_COLUMNS": "64"}, True),
        (PEERS | {"SLAB_ROWS": "40"}, True),
        (PEERS | {"CHECK": "host"}, True),
        ({"TRANSPORT": "host"}, False),
        ({"RANKS_PER_NODE": "1"}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("bad", [False, True], ids=["", "NaN"])
def test_root_arrays(comm, monkeypatch, decisions, way, stay, bad):
    if comm.size == 1:
        way = {name: value for name, value in way.items() if name != "TRANSPORT"}  # there are no peers
    for name, value in way.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((150, 140), (140, 160)))
    if bad:
        a[100, 7] = np.nan
    c = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm, device="emulate", dtype="float32")
    (decision,) = decisions
    if comm.size > 1:
        assert decision.plan.problem.operand_dtype == ("float16" if stay else "float32")
    if comm.rank == 0:
        expected = a.astype(float) @ b.astype(float)
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


def test_row_blocks_are_converted(comm):
    random = np.random.default_rng(4)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((50, 40), (40, 60)))
    own_a, own_b = (np.array_split(matrix, comm.size)[comm.rank] for matrix in (a, b))
    c = hybrid.multiply(hybrid.RowBlock(own_a), hybrid.RowBlock(own_b), comm=comm, device="emulate")
    assert c.array.dtype == np.float16
    expected = np.array_split((a.astype(np.float32) @ b.astype(np.float32)), comm.size)[comm.rank]
    np.testing.assert_allclose(c.array, expected, rtol=2e-3, atol=2e-3)
