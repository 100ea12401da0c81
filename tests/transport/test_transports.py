# SPDX-License-Identifier: MIT
"""The transports between host and devices, on CPUs that copy like GPUs: the same products over each, and the one taken."""

from __future__ import annotations

import gc
import os
import time

import numpy as np
import pytest
from support.fake_nccl import stand_in
from support.selection import pairs_first

import hybrid
from hybrid.devices.cpu import CpuDevice
from hybrid.errors import CheckFailed, DeviceUnavailable, RankFailed
from hybrid.plan import tiling
from hybrid.plan.machine_model import MachineModel
from hybrid.plan.planning import make_plan
from hybrid.transport import told_later
from hybrid.transport.root_push import RootPushDriver
from hybrid.verification.copy_checksums import CopyChecksums
from hybrid.verification.device_check import DeviceCheck

pytestmark = pytest.mark.mpi
PIECES = [
    {},
    {"PANEL_ROWS": "3", "PANEL_COLUMNS": "5"},
    {"PANEL_ROWS": "1", "PANEL_COLUMNS": "40"},
    {"PANEL_ROWS": "3", "SLAB_ROWS": "5"},
    {"PANEL_ROWS": "40", "SLAB_ROWS": "1"},
]


@pytest.fixture(autouse=True)
def _staged(monkeypatch):
    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setenv("HYBRID_POISON", "1")


def product(comm, a, b, root=0, **more):
    return hybrid.multiply(*((a, b) if comm.rank == root else (None, None)), comm=comm, root=root, **more)


@pytest.fixture
def taken(monkeypatch):
    """The transports that products take."""
    import hybrid.execution.rank_run

    seen, original = [], hybrid.execution.rank_run.make_transport

    def making(*arguments):
        transport, buffers = original(*arguments)
        seen.append(type(transport).__name__)
        return transport, buffers

    monkeypatch.setattr(hybrid.execution.rank_run, "make_transport", making)
    return seen


# Of ranks a node, "0" is one node; of memory, that all fits.
@pytest.mark.parametrize(("dtype", "nodes", "memory"), pairs_first(["float64", "float32"], ["0", "1", "2"], ["0", "6k"]))
def test_the_host_transport_gives_numpys_product(comm, rng, monkeypatch, taken, dtype, nodes, memory):
    monkeypatch.setenv("HYBRID_TRANSPORT", "host")
    monkeypatch.setenv("HYBRID_GPU_MEMORY", memory)
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    for _ in range(8):
        a, b, root = case(comm, rng, dtype, least=0)
        check_product(comm, a, b, root)
    assert set(taken) == {"HostTransport"}


@pytest.fixture
def gpu_tiling_of_small_matrices(monkeypatch, comm, tmp_path):
    """A machine on which small matrices have as many panels and slabs as those of thousands of rows and columns on a GPU."""
    sizes = {"least_panel_rows": 4, "least_slab_rows": 5, "panel_row_overhead_bytes": 10, "least_column_panel_bytes": 500}
    path = comm.bcast(str(tmp_path / "machine.json"))
    if comm.rank == 0:
        MachineModel(float64_multiply_adds_per_byte=1, least_panel_bytes=1, **sizes).write(path)
    comm.Barrier()
    monkeypatch.setenv("HYBRID_MACHINE", path)
    monkeypatch.setattr(tiling, "KERNEL_TILE", 1)
    make_plan.cache_clear()
    yield
    make_plan.cache_clear()


@pytest.mark.mpi(min_size=2)
@pytest.mark.needs("compiler")
@pytest.mark.parametrize("transport", ["host", "peers", "nccl"])
@pytest.mark.parametrize("kernel", ["naive", "register_tiled"], ids=["panels", "slabs"])
@pytest.mark.parametrize("shared", [False, True], ids=["the root's arrays", "shared arrays"])
def test_as_a_gpu_tiles_it(comm, rng, monkeypatch, gpu_tiling_of_small_matrices, transport, kernel, shared):
    for name, value in {"TRANSPORT": transport, "DEVICE": "emulate", "KERNEL": kernel}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    log = stand_in(monkeypatch)
    own = comm.Dup()  # what joins its ranks goes with it
    for _ in range(3):
        a, b, root = case(own, rng, "float64", least=24)
        (check_shared_product if shared else check_product)(own, a, b, root)
    assert (("gather", 0) in log) == (transport == "nccl")
    own.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("pieces", "transport", "nodes"), pairs_first(PIECES, ["peers", "host"], ["0", "2"]))
def test_in_pieces_of_any_kind_from_shared_matrices(comm, rng, monkeypatch, transport, pieces, nodes):
    if comm.size % 2 and nodes == "2":
        pytest.skip("a node of one rank has no peers")
    for name, size in {"TRANSPORT": transport, "RANKS_PER_NODE": nodes, **pieces}.items():
        monkeypatch.setenv(f"HYBRID_{name}", size)
    for _ in range(3):
        a, b, root = case(comm, rng, "float64", least=comm.size)
        check_shared_product(comm, a, b, root)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("pieces", PIECES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_root_drives_the_links_from_its_own_arrays(comm, rng, monkeypatch, taken, dtype, pieces):
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    for name, size in pieces.items():
        monkeypatch.setenv(f"HYBRID_{name}", size)
    for _ in range(8):
        a, b, root = case(comm, rng, dtype, least=comm.size)
        taken.clear()
        check_product(comm, a, b, root)
        assert taken == ["RootPushDriver" if comm.rank == root else "RootPushReceiver"]


@pytest.mark.mpi(min_size=4)
def test_on_several_nodes_the_ranks_of_each_fetch_b_from_each_other(comm, rng, monkeypatch, taken):
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "2")
    for _ in range(8):
        a, b, root = case(comm, rng, "float64", least=comm.size)
        check_product(comm, a, b, root)
    assert set(taken) == {"PeersTransport"}


@pytest.mark.mpi(min_size=2)
def test_ranks_that_come_late_are_waited_for(comm, seed, rng, monkeypatch):
    from hybrid.devices.cpu import CpuDevice

    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", "7")
    naps = np.random.default_rng([seed, comm.rank])
    for work in ("copy_in", "exchange", "multiply", "copy_out"):
        original = getattr(CpuDevice, work)

        def late(device, *arguments, original=original, **more):
            time.sleep(naps.choice([0, 0, 0.003]))
            return original(device, *arguments, **more)

        monkeypatch.setattr(CpuDevice, work, late)
    for _ in range(3):
        a, b, root = case(comm, rng, "float64", least=comm.size)
        check_product(comm, a, b, root)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("work", ["copy_in", "exchange", "multiply", "copy_out"])
def test_a_failure_on_the_way_is_raised_on_all_ranks_and_the_next_product_is_right(comm, rng, monkeypatch, work):
    from hybrid.devices.cpu import CpuDevice

    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    a, b, _ = case(comm, rng, "float64", least=comm.size)
    failing = 0 if work in ("copy_in", "copy_out") else comm.size - 1  # where the root drives, it alone copies in and out
    check_product(comm, a, b, 0)  # the ranks have reached each other before
    with monkeypatch.context() as patch:
        if comm.rank == failing:
            patch.setattr(CpuDevice, work, broken)
        with pytest.raises(RankFailed, match=rf"rank {failing} .*planted"):
            product(comm, a, b)
    check_product(comm, a, b, 0)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_fails_before_the_round_begins_is_not_behind_in_the_next(comm, rng, monkeypatch):
    from hybrid.execution.rank_run import RankRun

    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    a, b, _ = case(comm, rng, "float64", least=comm.size)
    check_product(comm, a, b, 0)
    with monkeypatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(RankRun, "make_ready", broken)
        with pytest.raises(RankFailed, match=r"rank 1 .*planted"):
            product(comm, a, b)
    check_product(comm, a, b, 0)


@pytest.mark.mpi(min_size=2)
def test_what_was_opened_is_closed_when_another_rank_could_not_open(comm, rng, monkeypatch):
    from hybrid.devices.cpu import CpuDevice

    opened, closed_again = [], []
    original = CpuDevice.open

    def opening(device, handle):
        if comm.rank == 1:
            raise DeviceUnavailable("closed doors")
        opened.append(handle)
        return original(device, handle)

    monkeypatch.setattr(CpuDevice, "open", opening)
    monkeypatch.setattr(CpuDevice, "close", lambda device, memory: closed_again.append(memory))
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    fresh = comm.Dup()
    try:
        with pytest.raises(DeviceUnavailable, match="closed doors"):
            product(fresh, rng.random((comm.size, 3)), rng.random((3, 4)))
        assert len(closed_again) == len(opened)
    finally:
        fresh.Free()


def broken(*arguments, **more):
    raise RuntimeError("planted")


@pytest.mark.mpi(min_size=2)
def test_peers_that_cannot_open_each_others_memory_are_refused_with_the_reason(comm, rng, monkeypatch):
    from hybrid.devices.cpu import CpuDevice

    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    a, b = rng.random((comm.size, 3)), rng.random((3, 4))
    fresh = comm.Dup()  # a communicator on which nothing is known yet
    try:
        if comm.rank == 1:
            monkeypatch.setattr(CpuDevice, "open", closed)
        with pytest.raises(DeviceUnavailable, match=r"rank 1 .*closed doors"):
            product(fresh, a, b)
    finally:
        fresh.Free()


def closed(device, handle):
    raise DeviceUnavailable("closed doors")


@pytest.mark.mpi(min_size=2)
def test_what_is_fetched_must_be_what_lies_there(comm, rng, monkeypatch):
    from hybrid.devices.cpu import CpuDevice

    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    a, b = rng.random((comm.size, 3)), rng.random((3, 4))
    fresh = comm.Dup()
    try:
        if comm.rank == 0:
            monkeypatch.setattr(CpuDevice, "exchange", lambda device, into, source, after: into.fill(0))
        with pytest.raises(DeviceUnavailable, match=r"rank 0 .*fetched from the GPU of rank 1 is not what lies there"):
            product(fresh, a, b)
    finally:
        fresh.Free()


@pytest.mark.mpi(min_size=2)
def test_with_too_little_memory_for_everything_peers_are_refused_and_auto_takes_the_host_transport(comm, rng, monkeypatch, taken):
    monkeypatch.setenv("HYBRID_GPU_MEMORY", "6k")
    a, b = rng.random((50, 30)), rng.random((30, 40))
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    with pytest.raises(DeviceUnavailable, match="the transport peers cannot be used: not everything fits"):
        product(comm, a, b)
    monkeypatch.setenv("HYBRID_TRANSPORT", "auto")
    check_product(comm, a, b, 0)
    assert taken == ["HostTransport"]


@pytest.mark.mpi(min_size=2)
def test_with_fewer_rows_than_ranks_there_are_no_peers(comm, rng, monkeypatch):
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    with pytest.raises(DeviceUnavailable, match="some ranks have nothing to multiply"):
        product(comm, rng.random((1, 3)), rng.random((3, 4)))


@pytest.mark.mpi(min_size=2)
def test_memory_opened_once_serves_products_of_other_sizes_and_no_descriptor_is_left(comm, rng, monkeypatch):
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    fresh = comm.Dup()

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for size in (40, 10, 20, 60, 5):
        a, b = rng.random((size, size)), rng.random((size, size))
        check_product(fresh, a, b, 0)
    fresh.Free()
    assert descriptors() <= before


def case(comm, rng, dtype, least):
    n, l, m = (int(size) for size in rng.integers(least, 60, 3))
    a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
    return a, b, int(rng.integers(comm.size))


def check_product(comm, a, b, root):
    c = product(comm, a, b, root)
    if comm.rank == root:
        assert c.dtype == a.dtype
        np.testing.assert_allclose(
            c, a @ b, rtol=1e-4 if a.dtype == "float32" else 1e-12, atol=1e-4 if a.dtype == "float32" else 1e-12
        )
    else:
        assert c is None


def check_shared_product(comm, a, b, root):
    """Of arrays that all ranks of a node map."""
    shared_a, shared_b = (hybrid.empty(matrix.shape, comm=comm, root=root) for matrix in (a, b))
    if comm.rank == root:
        shared_a[...], shared_b[...] = a, b
    comm.Barrier()
    c = product(comm, shared_a, shared_b, root)
    assert comm.rank != root or np.allclose(c, a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.mpi(min_size=2)
def test_the_root_copies_back_what_is_computed_and_nothing_before(comm, rng, monkeypatch):
    """CPU devices are always done: here they say so late, and tiles are looked at only then."""
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    monkeypatch.setenv("HYBRID_PANEL_ROWS", "5")
    asked, brought = [], []

    def done(self, event):
        asked.append(len(brought))
        return len(asked) % 3 == 0

    original = CpuDevice.copy_out

    def copy_out(self, into, source, after):
        brought.append(len(asked))
        return original(self, into, source, after)

    monkeypatch.setattr(CpuDevice, "done", done)
    monkeypatch.setattr(CpuDevice, "copy_out", copy_out)
    a, b = rng.standard_normal((comm.size * 20, 30)), rng.standard_normal((30, 20))
    check_product(comm, a, b, 0)
    assert comm.rank != 0 or len(asked) >= 3 * 4 * (comm.size - 1)  # tiles of the others, each asked for until it is there


@pytest.mark.mpi(min_size=2)
def test_tiles_that_are_not_copied_back_show_also_where_a_product_lay_before(comm, monkeypatch):
    monkeypatch.setenv("HYBRID_TRANSPORT", "peers")
    a, b = np.ones((1200, 30)), np.ones((30, 1200))
    product(comm, a, b)  # its memory serves the next
    monkeypatch.setattr(RootPushDriver, "_store_computed", lambda self: self._to_store.clear())
    with pytest.raises(CheckFailed):
        product(comm, a, b)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("told_at_once", [0, 4], ids=["told in the end", "told meanwhile"])
def test_copies_to_other_ranks_do_not_wait_for_their_check_nor_tiles_for_its_end(comm, rng, monkeypatch, told_at_once):
    monkeypatch.setattr(told_later, "_AT_ONCE", told_at_once)
    for name in ("TRANSPORT", "PANEL_ROWS", "PANEL_COLUMNS"):
        monkeypatch.setenv(f"HYBRID_{name}", "peers" if name == "TRANSPORT" else "4")
    log, begin, stored, finish = [], RootPushDriver.begin, RootPushDriver._store_computed, DeviceCheck.finish
    monkeypatch.setattr(CopyChecksums, "loaded", noting(log, "told", CopyChecksums.loaded))
    monkeypatch.setattr(RootPushDriver, "begin", noting(log, "begun", begin))
    monkeypatch.setattr(DeviceCheck, "finish", noting(log, "checked", finish))

    drivers, begin_check = [], DeviceCheck.begin

    def store_computed(self):
        drivers[:] = [self]
        found = stored(self)
        log.extend(["stored"] * found)
        return found

    def begin_when_another_has_computed(check):
        """However slow it is: then its tile is stored, or can be."""
        until = time.monotonic() + 20
        while drivers and "stored" not in log and not drivers[0]._is_computed(1, 0) and time.monotonic() < until:
            time.sleep(0.001)
        begin_check(check)

    monkeypatch.setattr(DeviceCheck, "begin", begin_when_another_has_computed)
    monkeypatch.setattr(RootPushDriver, "_store_computed", store_computed)
    check_product(comm, rng.standard_normal((comm.size * 20, 30)), rng.standard_normal((30, 20)), 0)
    if comm.rank == 0:
        assert log.index("begun") < log.index("told")
        assert "stored" in log[: log.index("checked")]
        assert log.count("told") == comm.size * (5 + 5)  # row panels of A and column panels of B


def noting(log, what, original):
    def noted(*arguments):
        result = original(*arguments)
        log.append(what)
        return result

    return noted


def test_host_memory_is_pinned_before_each_product(comm, rng, monkeypatch):
    locked = []
    monkeypatch.setattr(CpuDevice, "pin", lambda self, array: locked.append(array.shape))
    a, b = rng.standard_normal((comm.size * 8, 12)), rng.standard_normal((12, 16))
    product(comm, a, b)
    product(comm, a, b)
    assert len(locked) == 6  # rows of A, of B and of C, twice


FAULTS = {
    "the device": ("hybrid.devices.cpu.CpuDevice.use_kernel", {}),
    "the order of arrivals": ("hybrid.plan.rank_share.arrivals", {}),
    "the plan": ("hybrid.selection.decision.make_plan", {}),
    "the buffers": ("hybrid.devices.buffers.Buffers.__init__", {"TRANSPORT": "peers"}),
    "the device, when the transport is chosen": ("hybrid.devices.cpu.CpuDevice.__init__", {"TRANSPORT": "peers"}),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_rank_that_fails_between_phases_keeps_nobody_waiting(comm, rng, monkeypatch, fault):
    where, environment = FAULTS[fault]
    for name, value in environment.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    own = comm.Dup()  # a team of its own, which has no device yet
    a, b, _ = case(comm, rng, "float64", least=20)
    make_plan.cache_clear()

    def planted(*_, **__):
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(where, planted)
        with pytest.raises(RankFailed, match=r"rank 1 on .*planted"):
            hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=own)
    c = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=own)
    assert comm.rank != 0 or np.allclose(c, a @ b)
    own.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("out", [[1, 2], "out", np.empty((3, 3))], ids=["list", "text", "array"])
def test_out_is_nothing_to_other_ranks_than_the_root(comm, rng, out):
    a, b, _ = case(comm, rng, "float64", least=1)
    c = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm, out=None if comm.rank == 0 else out)
    assert (c is None) == (comm.rank != 0)
