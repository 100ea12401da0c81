# SPDX-License-Identifier: MIT
"""Operands of 16 bits by several ranks: as they are on one node, converted where they go to other nodes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.faults import Planted, element

import hybrid
from hybrid.devices.emulated import EmulatedDevice
from hybrid.errors import CheckFailed

pytestmark = [pytest.mark.mpi, pytest.mark.needs("compiler")]
PEERS, HOST = {"TRANSPORT": "peers"}, {"TRANSPORT": "host"}  # B is too small for peers to be chosen
WAYS = [
    PEERS,
    PEERS | {"PANEL_ROWS": "30", "PANEL_COLUMNS": "64"},
    PEERS | {"SLAB_ROWS": "40"},
    PEERS | {"CHECK": "host"},
    HOST,
    HOST | {"PANEL_ROWS": "30", "PANEL_COLUMNS": "64"},
    HOST | {"CHECK": "host"},
    {"RANKS_PER_NODE": "1"},
]


def use(monkeypatch, way, size):
    for name, value in way.items():
        if size > 1 or name != "TRANSPORT":  # one rank has no peers
            monkeypatch.setenv(f"HYBRID_{name}", value)
    monkeypatch.setenv("HYBRID_POISON", "1")


def case(half):
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(shape).astype(half) for shape in ((150, 140), (140, 160)))
    return a, b, a.astype(float) @ b.astype(float)


def stays(decision, half, way):
    """Whether the operands were multiplied as they are, as they should."""
    converted = "RANKS_PER_NODE" in way and len(decision.plan.topology.nodes) > 1
    return decision.plan.problem.operand_dtype == ("float32" if converted else half.name)


def blocks(comm, a, b):
    return [hybrid.RowBlock(np.array_split(matrix, comm.size)[comm.rank]) for matrix in (a, b)]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("bad", [False, True], ids=["", "NaN"])
def test_root_arrays(comm, monkeypatch, decisions, half, way, bad):
    use(monkeypatch, way, comm.size)
    a, b, expected = case(half)
    if bad:
        a[100, 7] = np.nan
        expected[100] = np.nan
    c = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm, device="emulate", dtype="float32")
    assert all(stays(decision, half, way) for decision in decisions)
    if comm.rank == 0:
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_row_blocks(comm, monkeypatch, decisions, half, way):
    use(monkeypatch, way, comm.size)
    a, b, expected = case(half)
    c = hybrid.multiply(*blocks(comm, a, b), comm=comm, device="emulate", dtype="float32")
    rounded = hybrid.multiply(*blocks(comm, a, b), comm=comm, device="emulate")
    assert [stays(decision, half, way) for decision in decisions] == [True, True]
    np.testing.assert_allclose(c.array, np.array_split(expected, comm.size)[comm.rank], rtol=1e-4, atol=1e-4)
    assert rounded.array.dtype == half
    np.testing.assert_array_equal(rounded.array, c.array.astype(half))


@pytest.mark.parametrize("kind", ["arrays of the root", "RowBlocks"])
@pytest.mark.parametrize("check", ["on", "host"])
def test_what_is_wrong_is_found_and_repaired(comm, monkeypatch, half, kind, check):
    use(monkeypatch, HOST | {"CHECK": check}, comm.size)
    a, b, expected = case(half)
    multiply = EmulatedDevice.multiply

    def wrong(device, a, b, c, after, **how):
        event = multiply(device, a, b, c, after, **how)
        c[len(c) // 2, c.shape[1] // 3] += 1
        return event

    monkeypatch.setattr(EmulatedDevice, "multiply", wrong)
    operands = blocks(comm, a, b) if kind == "RowBlocks" else (a, b) if comm.rank == 0 else (None, None)
    with pytest.raises(CheckFailed):
        hybrid.multiply(*operands, comm=comm, device="emulate", dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # which says what was repaired
        c = hybrid.multiply(*operands, comm=comm, device="emulate", dtype="float32", on_fault="repair")
    if kind == "RowBlocks":
        c, expected = c.array, np.array_split(expected, comm.size)[comm.rank]
    if c is not None:
        np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "method"), [("arrays of the root", "copy_in"), ("arrays of the root", "copy_out"), ("RowBlocks", "copy_in")]
)
def test_a_wrong_copy_is_found(comm, monkeypatch, kind, method):
    use(monkeypatch, HOST, comm.size)
    a, b, _ = case(np.float16)
    Planted(monkeypatch, method, element, 0)
    operands = blocks(comm, a, b) if kind == "RowBlocks" else (a, b) if comm.rank == 0 else (None, None)
    with pytest.raises(CheckFailed):
        hybrid.multiply(*operands, comm=comm, device="emulate")
