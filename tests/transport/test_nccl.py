# SPDX-License-Identifier: MIT
"""The transport nccl, on CPUs that copy like GPUs and are joined by files: mpirun -n P, P from 2 on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.fake_nccl import Joint, stand_in
from support.selection import pairs_first

import hybrid
from hybrid.arrays.sources import GeneratedMatrix, RootMatrix
from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.devices.cpu import CpuDevice
from hybrid.errors import CheckFailed, DeviceUnavailable, RankFailed
from hybrid.execution import product as product_module
from hybrid.execution.outcome import RunOptions
from hybrid.execution.product import run_product
from hybrid.ranks.world import team_of
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest
from hybrid.selection.inventory import take_inventory
from hybrid.selection.session import session_of
from hybrid.transport.nccl import NcclTransport

pytestmark = pytest.mark.mpi(min_size=2)
NODES = pytest.mark.parametrize("nodes", ["0", "1", "2"], ids=["one node", "a node a rank", "nodes of two"])


@pytest.fixture
def log(monkeypatch):
    for name, value in {"STAGED": "1", "POISON": "1", "TRANSPORT": "nccl"}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    return stand_in(monkeypatch)


def case(comm, rng, dtype="float64"):
    """As few rows of B as may be, of A one for each rank at least."""
    n, m = (int(size) for size in rng.integers(comm.size, 60, 2))
    l = int(rng.integers(1, 60))
    return rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)


def product(comm, a, b, root=0, **more):
    return hybrid.multiply(*((a, b) if comm.rank == root else (None, None)), comm=comm, root=root, **more)


def check_product(comm, a, b, root=0):
    c = product(comm, a, b, root)
    accuracy = 1e-4 if a.dtype == "float32" else 1e-12
    assert comm.rank != root or np.allclose(c, a @ b, rtol=accuracy, atol=accuracy), (a.shape, b.shape)


# Pieces: rows and columns of panels, "0" if they are chosen. Nodes: ranks of each, "0" if there is one.
@pytest.mark.parametrize(
    ("dtype", "pieces", "nodes"), pairs_first(["float64", "float32"], [("0", "0"), ("3", "5")], ["0", "1", "2"])
)
def test_arrays_of_the_root(own, rng, monkeypatch, log, dtype, nodes, pieces):
    for name, value in {"RANKS_PER_NODE": nodes, "PANEL_ROWS": pieces[0], "PANEL_COLUMNS": pieces[1]}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    for number in range(5):
        a, b = case(own, rng, dtype)
        if number == 0:  # of which all ranks but one have nothing
            a, b = a[:, :1], b[:1]
        log.clear()
        check_product(own, a, b, int(rng.integers(own.size)))
        assert sum(entry[0] == "gather" for entry in log) >= -(-b.shape[1] // int(pieces[1] if pieces[1] != "0" else b.shape[1]))


def test_without_anything_between_the_operands_c_is_zero(own, log):
    check_product(own, np.ones((own.size, 0)), np.ones((0, 3)))


@NODES
def test_made_operands_lie_only_where_they_are_loaded(own, rng, monkeypatch, log, nodes):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "16")
    settings, team = Settings.gather({}), team_of(own)
    n, l, m = (int(size) for size in rng.integers(own.size, 60, 3))
    a, b = GeneratedMatrix((n, l), "normal", 1, "A"), GeneratedMatrix((l, m), "normal", 1, "B")
    team.pretend_nodes(settings.ranks_per_node)
    with team.phase("agree", timed=False) as looking:
        looking.mine = take_inventory(session_of(team), settings)
    decision = agree(session_of(team), ProductRequest(Problem(n, l, m)), settings, looking.all)
    outcome = run_product(session_of(team), decision, a, b, settings, RunOptions(repeat=2))
    nodes_made = [rows for rank, rows in enumerate(own.allgather(len(outcome.b.array))) if rank in leaders(team)]
    assert sum(nodes_made) == l
    whole_a, whole_b = np.empty((n, l)), np.empty((l, m))
    for operand, whole in ((a, whole_a), (b, whole_b)):
        operand.rows(Span(0, len(whole)), whole, 1, lambda done: None)
    assert own.rank != 0 or np.allclose(outcome.c.array, whole_a @ whole_b, rtol=1e-12, atol=1e-12)


def leaders(team):
    return [ranks[0] for ranks in team.topology.nodes]


@NODES
def test_row_blocks_of_any_size(own, rng, monkeypatch, log, nodes):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "7")
    for _ in range(5):
        a, b = case(own, rng)
        blocks = []
        for matrix, least in ((a, 1), (b, 0)):
            free = len(matrix) - least * own.size
            cuts = sorted(int(row) for row in rng.integers(0, free + 1, own.size - 1))
            sizes = np.diff([0, *cuts, free]) + least
            first = int(sum(sizes[: own.rank]))
            blocks.append(hybrid.RowBlock(matrix[first : first + sizes[own.rank]]))
        c = hybrid.multiply(*blocks, comm=own)
        np.testing.assert_allclose(np.concatenate(own.allgather(c.array)), a @ b, rtol=1e-12, atol=1e-12)


def test_shared_arrays(own, rng, log):
    a, b = case(own, rng)
    shared_a, shared_b = (hybrid.empty(matrix.shape, comm=own) for matrix in (a, b))
    if own.rank == 0:
        shared_a[...], shared_b[...] = a, b
    own.Barrier()
    check_product(own, shared_a, shared_b)
    assert ("gather", 1) in log  # after the one that tried it out


def test_panels_are_loaded_at_once_and_tiles_copied_back_when_their_panel_is_there(own, rng, monkeypatch, log):
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "4")
    a, b = rng.standard_normal((3 * own.size, 5)), rng.standard_normal((5, 12))
    check_product(own, a, b)  # the ranks are joined
    copy_in, copy_out, asked = CpuDevice.copy_in, CpuDevice.copy_out, []

    def done(device, event):
        asked.append(event)
        if asked.count(event) < 3:
            return False
        log.append(event)
        return True

    monkeypatch.setattr(CpuDevice, "done", done)
    monkeypatch.setattr(CpuDevice, "copy_in", lambda *these: (log.append("in"), copy_in(*these))[1])
    monkeypatch.setattr(CpuDevice, "copy_out", lambda *these: (log.append("out"), copy_out(*these))[1])
    log.clear()
    check_product(own, a, b)
    gathered = [entry for entry in log if entry[0] == "gather"]
    first = gathered[0][1]  # after those of the product before
    tiles = [step for column_panel in range(3) for step in ("check", "check", ("gathered", first + column_panel), "out")]
    loads = ["in", *(step for column_panel in range(3) for step in ("in", ("gather", first + column_panel)))]
    assert log == loads + tiles


def test_ranks_stay_joined_until_the_communicator_is_freed(comm, rng, log):
    copy = comm.Dup()
    for _ in range(3):
        check_product(copy, *case(copy, rng))
    assert [entry for entry in log if entry in ("prepare", "join", "leave", "abort")] == ["prepare", "join"]
    copy.Free()
    assert [entry for entry in log if entry in ("join", "leave", "abort")] == ["join", "leave"]


def broken(*arguments, **more):
    raise RuntimeError("planted")


@pytest.mark.parametrize("work", ["copy_in", "allgather_rows", "multiply", "copy_out", "finish"])
def test_a_failure_on_the_way_is_raised_on_all_ranks_and_the_next_product_is_right(own, rng, monkeypatch, log, work):
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "9")
    a, b = case(own, rng)
    check_product(own, a, b)
    failing, calls, original = own.size - 1, [], getattr(CpuDevice, work)

    def second(*arguments, **more):
        calls.append(work)
        return broken() if len(calls) == 2 or work == "finish" else original(*arguments, **more)

    with monkeypatch.context() as patch:
        if own.rank == failing:
            patch.setattr(CpuDevice, work, second)
        with pytest.raises(RankFailed, match=rf"rank {failing} .*planted"):
            product(own, rng.standard_normal((5 * own.size, 6)), rng.standard_normal((6, 30)))
    check_product(own, a, b)
    assert own.allgather(log.count("join")) == [2] * own.size
    assert own.allgather(log.count("abort")) == [1] * own.size


def test_a_rank_without_nccl_is_named_and_nobody_waits_for_it(own, rng, monkeypatch, log):
    def missing(device):
        raise DeviceUnavailable("no such library: install it")

    with monkeypatch.context() as patch:
        if own.rank == 1:
            patch.setattr(CpuDevice, "load_collectives", missing)
        with pytest.raises(DeviceUnavailable, match=r"rank 1 on .*no such library: install it"):
            product(own, *case(own, rng))
    assert "join" not in log
    check_product(own, *case(own, rng))


def test_without_nccl_on_any_rank_nobody_is_named(own, rng, monkeypatch, log):
    def missing(device):
        raise DeviceUnavailable("no such library: install it")

    monkeypatch.setattr(CpuDevice, "load_collectives", missing)
    with pytest.raises(DeviceUnavailable, match=r"^the transport nccl cannot be used: no such library: install it$"):
        product(own, *case(own, rng))


def test_who_could_join_gives_that_back_when_another_could_not(own, rng, monkeypatch, log):
    def closed(*arguments):
        raise DeviceUnavailable("closed doors")

    with monkeypatch.context() as patch:
        if own.rank == 1:
            patch.setattr(CpuDevice, "init_communicator", closed)
        with pytest.raises(DeviceUnavailable, match=r"rank 1 on .*closed doors"):
            product(own, *case(own, rng))
    assert log.count("abort") == log.count("join") == (own.rank != 1)
    check_product(own, *case(own, rng))


def test_what_is_brought_must_be_what_lies_there(own, rng, monkeypatch, log):
    original = Joint.allgather_rows

    def disturbed(joint, matrix, rows_of):
        event = original(joint, matrix, rows_of)
        matrix[rows_of[1].slice] += 1
        return event

    with monkeypatch.context() as patch:
        if own.rank == 0:
            patch.setattr(Joint, "allgather_rows", disturbed)
        with pytest.raises(DeviceUnavailable, match=r"rank 0 .*brought from the GPU of rank 1 is not what lies there"):
            product(own, *case(own, rng))
    check_product(own, *case(own, rng))


def test_with_too_little_memory_for_everything_it_is_refused(own, rng, monkeypatch, log):
    monkeypatch.setenv("HYBRID_GPU_MEMORY", "6k")
    with pytest.raises(DeviceUnavailable, match="the transport nccl cannot be used: not everything fits"):
        product(own, rng.random((50, 30)), rng.random((30, 40)))
    assert log == []


def test_panels_in_another_order_are_no_product(own, rng, monkeypatch, log):
    original = NcclTransport.load

    def load(transport, arrival, into, after):
        return original(transport, arrival if arrival.operand == "A" else replace(arrival, index=arrival.index + 1), into, after)

    monkeypatch.setattr(NcclTransport, "load", load)
    with pytest.raises(RankFailed, match="mix them up"):
        product(own, *case(own, rng))


@pytest.mark.parametrize("key", ["A", "B"])
def test_the_check_sees_what_did_not_reach_another_node(own, rng, monkeypatch, log, key):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    original = RootMatrix.contiguous
    a, b = rng.standard_normal((3 * own.size, 2 * own.size)), rng.standard_normal((2 * own.size, 7))

    def disturbed(operand, rows, dtype):
        sent = original(operand, rows, dtype).copy()
        sent[0, 0] += operand.shape == {"A": a, "B": b}[key].shape
        return sent

    monkeypatch.setattr(RootMatrix, "contiguous", disturbed)
    with pytest.raises(CheckFailed, match=rf"of {key} did not reach rank"):
        product(own, a, b)


@pytest.mark.parametrize("transport", ["nccl", "host"])
@pytest.mark.parametrize("check", ["on", "host"])
def test_the_check_sees_what_did_not_come_back_from_another_node(own, rng, monkeypatch, log, transport, check):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    monkeypatch.setenv("HYBRID_TRANSPORT", transport)
    original = product_module._Product._multiply

    def disturbed(a_product, run):
        seconds = original(a_product, run)
        if own.rank == 0:
            a_product._views["C"].array[-1, 0] += 1
        return seconds

    monkeypatch.setattr(product_module._Product, "_multiply", disturbed)
    a, b = rng.standard_normal((3 * own.size, 20)), rng.standard_normal((20, 7))
    found = {
        "host": f"of C did not reach rank 0 on .* as they are on rank {own.size - 1}",
        "nccl": f"of C left the device of rank {own.size - 1} on .* with other values than they have in memory",
    }
    message = found[transport] if check == "on" else "the product is wrong"
    with pytest.raises(CheckFailed, match=message):
        product(own, a, b, check=check)
