# SPDX-License-Identifier: MIT
"""C that goes from device to device to the root's node, on CPUs that copy like GPUs and are joined by files: mpirun -n P, P from
2 on. Each rank is a node, or each two are."""

from __future__ import annotations

import time
import warnings
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
from hybrid.execution.outcome import RunOptions
from hybrid.execution.product import run_product
from hybrid.plan import gather_layout
from hybrid.plan.gather_layout import SLOTS, receivers, senders_to
from hybrid.ranks.world import team_of
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest
from hybrid.selection.inventory import take_inventory
from hybrid.selection.session import session_of
from hybrid.transport.device_group import DeviceGroup

pytestmark = pytest.mark.mpi(min_size=2)
PIECE_BYTES = 800  # some rows of a tile: so there are more pieces than slots


@pytest.fixture
def log(monkeypatch):
    settings = {"STAGED": "1", "POISON": "1", "TRANSPORT": "nccl", "RANKS_PER_NODE": "1", "PANEL_COLUMNS": "16"}
    for name, value in settings.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    monkeypatch.setattr(gather_layout, "PIECE_BYTES", PIECE_BYTES)
    return stand_in(monkeypatch)


def product(comm, a, b, root=0, **more):
    return hybrid.multiply(*((a, b) if comm.rank == root else (None, None)), comm=comm, root=root, **more)


def check_product(comm, a, b, root=0, **more):
    c, accuracy = product(comm, a, b, root, **more), 1e-4 if a.dtype == "float32" else 1e-12
    assert comm.rank != root or np.allclose(c, a @ b, rtol=accuracy, atol=accuracy), (a.shape, b.shape)


def case(comm, rng, dtype="float64", least=20):
    """Whose rows are seldom the same for all ranks."""
    n, m = (int(size) for size in rng.integers(least * comm.size, 40 * comm.size, 2))
    l = int(rng.integers(1, 60))
    return rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)


def moved(log, what):
    return [entry for entry in log if entry[0] == what]


def outcome_of(comm, n, l, m, root=0, **options):
    """Of a product of matrices that the ranks make themselves."""
    settings, team = Settings.gather({}), team_of(comm)
    team.pretend_nodes(settings.ranks_per_node)
    with team.phase("agree", timed=False) as looking:
        looking.mine = take_inventory(session_of(team), settings)
    decision = agree(session_of(team), ProductRequest(Problem(n, l, m), root=root), settings, looking.all)
    a, b = GeneratedMatrix((n, l), "normal", 1, "A"), GeneratedMatrix((l, m), "normal", 1, "B")
    return run_product(session_of(team), decision, a, b, settings, RunOptions(**options))


@pytest.mark.parametrize(
    ("dtype", "nodes", "rows", "piece"), pairs_first(["float64", "float32"], ["1", "2"], ["0", "7"], [1, 800, 1 << 24])
)
def test_products_whatever_the_pieces(own, rng, monkeypatch, log, dtype, nodes, rows, piece):
    for name, value in {"RANKS_PER_NODE": nodes, "PANEL_ROWS": rows}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    monkeypatch.setattr(gather_layout, "PIECE_BYTES", piece)
    for _ in range(4):
        root = int(rng.integers(own.size))
        log.clear()
        check_product(own, *case(own, rng, dtype, least=1), root)
        several = own.size > int(nodes)
        sent, received = (sum(own.allgather(len(moved(log, what)))) for what in ("send", "receive"))
        assert sent == received
        assert bool(sent) == several


def test_each_rank_sends_or_receives_behind_all_collectives_of_b(own, rng, monkeypatch, log):
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "2")  # tiles are computed before all panels are loaded
    a, b = case(own, rng)
    check_product(own, a, b)
    log.clear()
    check_product(own, a, b)
    steps = [entry[0] for entry in log if entry[0] in ("gather", "send", "receive")]
    panels = -(-b.shape[1] // 2)
    assert steps[:panels] == ["gather"] * panels
    assert set(steps[panels:]) == {"send" if own.rank else "receive"}
    assert len(steps) - panels > SLOTS
    if not own.rank:
        assert {entry[1] for entry in moved(log, "receive")} == set(range(1, own.size))


def test_several_products_in_a_row_and_no_c_in_other_nodes_memory(own, log):
    n, l, m = 37 * own.size + 1, 50, 70
    outcome = outcome_of(own, n, l, m, warmup=1, repeat=3)
    plan = outcome.decision.plan
    assert plan.c_between_devices
    assert len(outcome.c.array) == (n if own.rank == 0 else 0)
    assert {"gather", "multiply", "copy out"} <= outcome.phases.keys()
    received = moved(log, "receive")
    of_a_product = len(gather_layout.pieces_received(plan, own.rank))
    assert len(received) == 4 * of_a_product + len(senders_to(plan, own.rank)), "and each sender was tried out once"
    whole_a, whole_b = np.empty((n, l)), np.empty((l, m))
    for name, whole in (("A", whole_a), ("B", whole_b)):
        GeneratedMatrix(whole.shape, "normal", 1, name).rows(Span(0, len(whole)), whole, 1, lambda done: None)
    assert own.rank != 0 or np.allclose(outcome.c.array, whole_a @ whole_b, rtol=1e-12, atol=1e-12)


def test_the_time_after_a_ranks_own_tiles_is_the_gathers(own, monkeypatch, log):
    """The last piece is received when all own tiles are multiplied."""
    original = CpuDevice.copy_received

    def slow(*these):
        time.sleep(0.02)
        return original(*these)

    if own.rank == 0:
        monkeypatch.setattr(CpuDevice, "copy_received", slow)
    assert outcome_of(own, 20 * own.size, 30, 40, repeat=2).phases["gather"].min >= 0.02


def test_with_nccl_no_rank_can_be_without_rows(own, rng, log):
    with pytest.raises(DeviceUnavailable, match="nccl cannot be used: some ranks have nothing to multiply"):
        product(own, rng.random((own.size - 1, 5)), rng.random((5, 20)))


def test_a_receiver_has_no_more_under_way_than_slots(own, rng, monkeypatch, log):
    under_way, most = [], []
    receive, copy = CpuDevice.receive, CpuDevice.copy_received

    def receiving(device, joint, into, source, after):
        under_way.append((event := receive(device, joint, into, source, after), into))
        places = [other.ctypes.data for _, other in under_way]
        assert len({*places}) == len(places), "two pieces have one slot"
        most.append(len(under_way))
        return event

    def copying(device, into, source, after):
        (event,) = after
        under_way[:] = [(other, there) for other, there in under_way if other is not event]
        return copy(device, into, source, after)

    monkeypatch.setattr(CpuDevice, "receive", receiving)
    monkeypatch.setattr(CpuDevice, "copy_received", copying)
    check_product(own, *case(own, rng))
    assert max(most, default=0) <= SLOTS
    assert under_way == []


def test_a_piece_is_received_when_as_many_of_the_own_tiles_are_computed(own, rng, monkeypatch, log):
    """So that the kernel that waits for it does not wait long."""
    check_product(own, *case(own, rng))
    original = CpuDevice.multiply
    monkeypatch.setattr(CpuDevice, "multiply", lambda *these, **more: (log.append(("tile",)), original(*these, **more))[1])
    log.clear()
    check_product(own, *case(own, rng))
    tiles = len(moved(log, "tile"))
    own_before = [len(moved(log[:index], "tile")) for index, entry in enumerate(log) if entry[0] == "receive"]
    assert own.rank or own_before[0] >= 1
    assert own.rank or own_before[-1] == tiles
    assert all(tiles_then >= number * tiles // len(own_before) for number, tiles_then in enumerate(own_before))


def test_devices_are_connected_once_for_each_node_of_a_root(own, rng, log):
    for root, tried in ((0, 1), (0, 0), (1, 1), (0, 0), (1, 0)):
        log.clear()
        check_product(own, *case(own, rng), root)
        pattern = [entry for entry in log if entry[0] == "send" and entry[2] == (64, 1024)]
        assert len(pattern) == (tried if own.rank != root else 0)
    assert own.allgather(log.count("join")) == [0] * own.size


def test_what_arrives_while_devices_are_connected_must_be_what_was_sent(own, rng, monkeypatch, log):
    original = Joint.send

    def disturbed(joint, matrix, to):
        changed = matrix.copy()
        changed[-1, -1] += 1
        return original(joint, changed, to)

    with monkeypatch.context() as patch:
        if own.rank == own.size - 1:
            patch.setattr(Joint, "send", disturbed)
        with pytest.raises(DeviceUnavailable, match=rf"rank 0 .*what the GPU of rank {own.size - 1} sent is not what arrived"):
            product(own, *case(own, rng))
    check_product(own, *case(own, rng))


@pytest.mark.parametrize("failing", [0, 1], ids=["the root's rank", "another node's"])
@pytest.mark.parametrize("work", ["copy_in", "allgather_rows", "multiply", "move", "copy", "done", "finish"])
def test_a_rank_that_fails_keeps_nobody_waiting_and_the_next_product_is_right(own, rng, monkeypatch, log, work, failing):
    a, b = case(own, rng)
    check_product(own, a, b)
    name = {"move": ("receive", "send")[failing], "copy": ("copy_received", "multiply")[failing]}.get(work, work)
    calls, original = [], getattr(CpuDevice, name)

    def later(*arguments, **more):
        calls.append(name)
        if len(calls) == 3 or name == "finish":
            raise RuntimeError("planted")
        return original(*arguments, **more)

    with monkeypatch.context() as patch:
        if own.rank == failing:
            patch.setattr(CpuDevice, name, later)
        with pytest.raises(RankFailed, match=rf"rank {failing} .*planted"):
            product(own, a, b)
    failed = len(log)
    check_product(own, a, b)
    assert own.allgather(log.count("join")) == [2] * own.size
    assert own.allgather(log.count("abort")) == [1] * own.size
    tried = [entry for entry in log[failed:] if entry[0] == "send" and entry[2] == (64, 1024)]
    assert len(tried) == (own.rank != 0), "else NCCL would connect the devices during a product"


@pytest.mark.parametrize("failing", [0, 1], ids=["the root's rank", "another node's"])
@pytest.mark.parametrize("work", ["reserve", "poison", "move", "done", "finish"])
def test_where_devices_cannot_be_connected_each_product_says_why_until_they_can(own, rng, monkeypatch, log, work, failing):
    """Also where the decision is remembered: an earlier failure has ended the communicator."""
    (a, b), connect, connecting = case(own, rng), DeviceGroup._connect, []
    name = ("receive", "send")[failing] if work == "move" else work
    original = getattr(CpuDevice, name)

    def connected(*these):
        connecting.append(name)
        try:
            connect(*these)
        finally:
            connecting.clear()

    def fails(*arguments, **more):
        if connecting:
            raise RuntimeError("planted")
        return original(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(DeviceGroup, "_connect", connected)
        if own.rank == failing:
            patch.setattr(CpuDevice, name, fails)
        for _ in range(3):
            with pytest.raises(RankFailed, match=rf"rank {failing} .*planted"):
                product(own, a, b)
    check_product(own, a, b)


def one_bit(matrix):
    matrix.view("uint64")[len(matrix) // 2, -1] ^= 1


def spoil_second(monkeypatch, place):
    """On this rank, change one bit of the second piece that arrives, on the device, or of its copy in host memory."""
    calls, copy = [], CpuDevice.copy_received

    def copying(device, into, source, after):
        if source.shape != (64, 1024):
            calls.append(place)
        if place == "on the device" and len(calls) == 2:
            one_bit(source)
        event = copy(device, into, source, after)
        if place == "in memory" and len(calls) == 2:
            one_bit(into)
        return event

    monkeypatch.setattr(CpuDevice, "copy_received", copying)


@pytest.mark.parametrize("place", ["on the device", "in memory"])
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_the_check_sees_one_wrong_bit_of_what_arrives(own, rng, monkeypatch, log, place, nodes):
    if own.size <= int(nodes):
        pytest.skip("one node")
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    a, b = case(own, rng)
    with monkeypatch.context() as patch:
        if own.rank == 0:
            spoil_second(patch, place)
        with pytest.raises(
            CheckFailed, match=r"of C left the device of rank \d on .* with other values than they have in memory"
        ):
            product(own, a, b)
    check_product(own, a, b)


def test_what_never_arrives_is_seen(own, rng, monkeypatch, log):
    """Poison, and not the product before, is in memory where nothing was copied to."""
    a, b = case(own, rng)
    copy, calls = CpuDevice.copy_received, []

    def copying(device, into, source, after):
        calls.append(source.shape)
        if source.shape != (64, 1024) and len(calls) % 7 == 5:
            return None
        return copy(device, into, source, after)

    with monkeypatch.context() as patch:
        if own.rank == 0:
            patch.setattr(CpuDevice, "copy_received", copying)
        with pytest.raises(CheckFailed, match="of C left the device of rank"):
            product(own, a, b)


def test_a_wrong_piece_is_repaired(own, rng, monkeypatch, log):
    a, b = case(own, rng)
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if own.rank == 0:
            spoil_second(patch, "in memory")
        check_product(own, a, b, on_fault="repair")
    lines = [str(each.message) for each in said if str(each.message).startswith("repaired: ")]
    assert len(lines) == (own.rank == 0)
    assert all("the product was computed once more" in line for line in lines)


@pytest.mark.parametrize("check", ["on", "host"])
def test_what_a_device_multiplied_wrong_is_computed_again_at_the_root(own, rng, monkeypatch, log, check):
    """Where the rank whose part it is has no C in host memory."""
    a, b = case(own, rng)
    original = CpuDevice.multiply

    def wrong(device, *these, **more):
        event = original(device, *these, **more)
        these[2][0, 0] += 1
        return event

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if own.rank == own.size - 1:
            patch.setattr(CpuDevice, "multiply", wrong)
        check_product(own, a, b, on_fault="repair", check=check)
    lines = [str(each.message) for each in said if str(each.message).startswith("repaired: ")]
    assert len(lines) == (own.rank == 0)
    assert all(f"rank {own.size - 1} " in line and "were computed again" in line for line in lines)


def test_operands_that_are_sent_from_the_root_arrive_too(own, rng, monkeypatch, log):
    original, a, b = RootMatrix.contiguous, *case(own, rng)
    asked = []
    monkeypatch.setattr(RootMatrix, "contiguous", lambda *these: (asked.append(these), original(*these))[1])
    check_product(own, a, b)
    assert bool(asked) == (own.rank == 0)


def test_the_plan_counts_what_a_rank_has_reserved(own, log):
    outcome = outcome_of(own, 40 * own.size, 30, 64)
    plan, device = outcome.decision.plan, session_of(team_of(own)).rank_device
    assert device.reserved == plan.bytes_of_buffers(own.rank)
    without = replace(plan, transport="host").bytes_of_buffers(own.rank)
    assert (plan.bytes_of_buffers(own.rank) > without) == (own.rank in receivers(plan).values())
