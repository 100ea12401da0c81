# SPDX-License-Identifier: MIT
"""The transports between GPUs: mpirun -n P python -m pytest --with-mpi -m "gpu and mpi" tests/transport, P from 1 on."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import hybrid
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.nccl import load_nccl
from hybrid.errors import CheckFailed, DeviceUnavailable, RankFailed
from hybrid.plan import gather_layout
from hybrid.ranks.launcher import mpirun

pytestmark = pytest.mark.gpu
WAYS = {
    "private": {},
    "pieces": {"PANEL_ROWS": "33", "PANEL_COLUMNS": "40"},
    "slabs": {"PANEL_ROWS": "33", "SLAB_ROWS": "32"},
    "slabs from the host": {"TRANSPORT": "host", "PANEL_ROWS": "48", "SLAB_ROWS": "27"},
    "host": {"TRANSPORT": "host"},
    "little memory": {"TRANSPORT": "host", "GPU_MEMORY": "200k"},
    "a node a rank": {"RANKS_PER_NODE": "1"},
    "nccl": {"TRANSPORT": "nccl"},
    "nccl in pieces": {"TRANSPORT": "nccl", "PANEL_ROWS": "33", "PANEL_COLUMNS": "40"},
    "nccl, a node a rank": {"TRANSPORT": "nccl", "RANKS_PER_NODE": "1", "PANEL_COLUMNS": "40"},
    "nccl, nodes of two": {"TRANSPORT": "nccl", "RANKS_PER_NODE": "2"},
}


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What is read before it was written shows."""
    monkeypatch.setenv("HYBRID_POISON", "1")


def why_no_nccl(gpus, ranks):
    if not 1 < ranks <= len(gpus):
        return f"{ranks} ranks and {len(gpus)} GPUs: NCCL joins several ranks with a GPU each"
    try:
        load_nccl()
    except DeviceUnavailable as missing:
        return str(missing)
    return ""


@pytest.fixture
def nccl(comm, real_gpus):
    """Skips on all ranks where one of them cannot be joined."""
    for reason in comm.allgather(why_no_nccl(real_gpus, comm.size)):
        if reason:
            pytest.skip(reason)


@pytest.fixture(params=WAYS, ids=str)
def way(request, comm, monkeypatch):
    settings = WAYS[request.param]
    if settings.get("TRANSPORT") == "nccl":
        request.getfixturevalue("nccl")
    # Peers also for small matrices: asked for, where there are two ranks on a node.
    if "TRANSPORT" not in settings and "RANKS_PER_NODE" not in settings and comm.size > 1:
        settings = {**settings, "TRANSPORT": "peers"}
    for name, value in settings.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)


def cases(comm, rng, dtype, count):
    """Shapes, operands and roots, the same on every rank."""
    for _ in range(count):
        n, l, m = (int(size) for size in rng.integers(comm.size, 300, 3))
        yield rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype), int(rng.integers(comm.size))


def right(c, a, b):
    exact = a.astype(np.float64) @ b.astype(np.float64)
    sizes = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    return (np.abs(c - exact) <= (a.shape[1] + 2) * np.finfo(a.dtype).eps * sizes + 1e-300).all()


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_arrays_of_the_root(comm, rng, way, dtype):
    out = None
    for a, b, root in cases(comm, rng, dtype, 12):
        mine = comm.rank == root
        if mine:
            out = np.full((a.shape[0], b.shape[1]), np.nan, dtype)
        c = hybrid.multiply(*((a, b) if mine else (None, None)), comm=comm, root=root, device="cuda", out=out if mine else None)
        assert not mine or right(c, a, b), (a.shape, b.shape)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_gpu_arrays_of_the_root(comm, rng, way, dtype):
    import cupy

    for index, (a, b, root) in enumerate(cases(comm, rng, dtype, 6)):
        mine = comm.rank == root
        on_gpu = (None, None)
        if mine:
            with cupy.cuda.Device(index % cupy.cuda.runtime.getDeviceCount()):
                on_gpu = (cupy.asarray(a), cupy.asarray(np.asfortranarray(b)))
        c = hybrid.multiply(*on_gpu, comm=comm, root=root, device="cuda")
        assert isinstance(c, cupy.ndarray) == mine
        assert not mine or right(cupy.asnumpy(c), a, b), (a.shape, b.shape)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_shared_arrays(comm, rng, way, dtype):
    for a, b, root in cases(comm, rng, dtype, 6):
        shared_a, shared_b = (hybrid.empty(matrix.shape, matrix.dtype, comm=comm, root=root) for matrix in (a, b))
        mine = comm.rank == root
        if mine:
            shared_a[...], shared_b[...] = a, b
        comm.Barrier()
        c = hybrid.multiply(*((shared_a, shared_b) if mine else (None, None)), comm=comm, root=root, device="cuda")
        assert not mine or right(c, a, b), (a.shape, b.shape)


@pytest.mark.mpi
@pytest.mark.parametrize("on_gpu", [True, False], ids=["cupy", "numpy"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_row_blocks(comm, rng, way, dtype, on_gpu):
    import cupy

    for a, b, _ in cases(comm, rng, dtype, 6):
        blocks = []
        for matrix in (a, b):
            rows = np.array_split(matrix, comm.size)[comm.rank]
            blocks.append(hybrid.RowBlock(cupy.asarray(rows) if on_gpu else rows))
        c = hybrid.multiply(*blocks, comm=comm, device="cuda")
        assert isinstance(c.array, cupy.ndarray if on_gpu else np.ndarray)
        assert right(np.concatenate(comm.allgather(cupy.asnumpy(c.array))), a, b), (a.shape, b.shape)


@pytest.mark.mpi
@pytest.mark.parametrize("work", ["copy_in", "allgather_rows", "multiply", "copy_out"])
def test_a_rank_that_fails_among_joined_gpus_keeps_nobody_waiting(comm, nccl, monkeypatch, work):
    for name, value in {"TRANSPORT": "nccl", "PANEL_COLUMNS": "128"}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((900, 500)), rng.standard_normal((500, 700))
    operands = (a, b) if comm.rank == 0 else (None, None)
    c = hybrid.multiply(*operands, comm=comm, device="cuda")
    assert comm.rank != 0 or right(c, a, b)
    original, calls = getattr(CudaDevice, work), []

    def second(*arguments, **named):
        calls.append(work)
        if len(calls) == 2:
            raise RuntimeError("planted")
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        if comm.rank == comm.size - 1:
            patch.setattr(CudaDevice, work, second)
        with pytest.raises(RankFailed, match=rf"rank {comm.size - 1} .*planted"):
            hybrid.multiply(*operands, comm=comm, device="cuda")
    c = hybrid.multiply(*operands, comm=comm, device="cuda")
    assert comm.rank != 0 or right(c, a, b)


@pytest.fixture
def a_node_a_rank(nccl, monkeypatch):
    """C of all ranks but the root goes from GPU to GPU, in many pieces."""
    for name, value in {"TRANSPORT": "nccl", "RANKS_PER_NODE": "1", "PANEL_COLUMNS": "256"}.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    monkeypatch.setattr(gather_layout, "PIECE_BYTES", 100_000)


def at_root(comm, *arrays):
    return arrays if comm.rank == 0 else (None,) * len(arrays)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(3000, 700, 2100), (1501, 64, 3001), (900, 4000, 130), (4099, 1, 513)], ids=str)
def test_c_goes_from_gpu_to_gpu_in_more_pieces_than_slots(comm, rng, a_node_a_rank, dtype, shape):
    n, l, m = shape
    a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
    for _ in range(5):
        c = hybrid.multiply(*at_root(comm, a, b), comm=comm, device="cuda")
        assert comm.rank != 0 or right(c, a, b)


@pytest.mark.mpi
@pytest.mark.parametrize("failing", [0, -1], ids=["the root's rank", "another node's"])
@pytest.mark.parametrize("work", ["copy_in", "allgather_rows", "multiply", "move", "copy_out", "copy_received"])
def test_a_rank_that_fails_while_c_goes_from_gpu_to_gpu_keeps_nobody_waiting(comm, a_node_a_rank, monkeypatch, work, failing):
    if failing and work in ("copy_out", "copy_received"):
        pytest.skip("C of other nodes than the root's is not copied")
    rng, failing = np.random.default_rng(5), failing % comm.size
    a, b = rng.standard_normal((1900, 500)), rng.standard_normal((500, 1300))
    c = hybrid.multiply(*at_root(comm, a, b), comm=comm, device="cuda")
    assert comm.rank != 0 or right(c, a, b)
    name = ("send" if failing else "receive") if work == "move" else work
    original, calls = getattr(CudaDevice, name), []

    def second(*arguments, **named):
        calls.append(name)
        if len(calls) == 2:
            raise RuntimeError("planted")
        return original(*arguments, **named)

    with monkeypatch.context() as patch:
        if comm.rank == failing:
            patch.setattr(CudaDevice, name, second)
        with pytest.raises(RankFailed, match=rf"rank {failing} .*planted"):
            hybrid.multiply(*at_root(comm, a, b), comm=comm, device="cuda")
    c = hybrid.multiply(*at_root(comm, a, b), comm=comm, device="cuda")
    assert comm.rank != 0 or right(c, a, b)


@pytest.mark.mpi
def test_a_wrong_element_that_arrives_on_the_roots_gpu_is_found(comm, rng, a_node_a_rank, monkeypatch):
    import cupy

    a, b = rng.standard_normal((1900, 500)), rng.standard_normal((500, 1300))
    original, calls = CudaDevice.copy_received, []

    def spoiling(device, into, source, after):
        calls.append(source.shape)
        if source.shape != (64, 1024) and len(calls) % 5 == 4:
            for event in after:
                device.wait(event)
            with device._context:
                source[len(source) // 2, -1] += 1e-9
                cupy.cuda.Device().synchronize()
        return original(device, into, source, after)

    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(CudaDevice, "copy_received", spoiling)
        with pytest.raises(
            CheckFailed, match=r"of C left the device of rank \d on .* with other values than they have in memory"
        ):
            hybrid.multiply(*at_root(comm, a, b), comm=comm, device="cuda")
    c = hybrid.multiply(*at_root(comm, a, b), comm=comm, device="cuda")
    assert comm.rank != 0 or right(c, a, b)


@pytest.mark.mpi
def test_gpus_are_joined_once_and_again_after_they_were_left(comm, nccl, monkeypatch):
    monkeypatch.setenv("HYBRID_TRANSPORT", "nccl")
    joins, original = [], CudaDevice.init_communicator
    monkeypatch.setattr(CudaDevice, "init_communicator", lambda *these: (joins.append(these), original(*these))[1])
    a = np.random.default_rng(0).random((300, 300))
    for expected in (1, 2):
        own = comm.Dup()
        for _ in range(3):
            c = hybrid.multiply(*((a, a) if own.rank == 0 else (None, None)), comm=own, device="cuda")
            assert own.rank != 0 or right(c, a, a)
        own.Free()
        assert len(joins) == expected


@pytest.mark.mpi
def test_large_arrays_are_page_locked_and_unlocked_again(comm):
    from hybrid.devices.pinned_memory import pinned_memory

    a = np.random.default_rng(0).random((2200, 2200))
    for _ in range(3):
        mine = comm.rank == 0
        c = hybrid.multiply(*((a, a) if mine else (None, None)), comm=comm, device="cuda")
        assert not mine or right(c, a, a)
        view = a[100:]
    assert not mine or pinned_memory().pin(view)
    del a, view
    comm.Barrier()


def run(*arguments, ranks, shell=""):
    command = [sys.executable, "-m", "hybrid.matmul", *map(str, arguments), "--device", "cuda", "--fill", "uniform"]
    if shell:
        command = ["bash", "-c", f'{shell} exec "$@"', "bash", *command]
    return subprocess.run([*mpirun(ranks), *command], capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.launcher
@pytest.mark.parametrize("transport", ["auto", "host", "peers", "nccl"])
def test_the_command_with_two_ranks(transport, real_gpus):
    if transport == "nccl" and why_no_nccl(real_gpus, 2):
        pytest.skip(why_no_nccl(real_gpus, 2))
    done = run(1501, 1203, 1301, "--transport", transport, "--repeat", 2, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "check ok" in done.stdout


@pytest.mark.launcher
def test_with_one_rank_a_node_the_command_finds_that_nccl_works(real_gpus, monkeypatch):
    if why_no_nccl(real_gpus, 2):
        pytest.skip(why_no_nccl(real_gpus, 2))
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", "1")
    done = run(1501, 1203, 1301, "--repeat", 2, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "transport nccl (one rank a node" in done.stdout
    assert "check ok" in done.stdout


@pytest.mark.launcher
def test_every_rank_sees_one_gpu_only(real_gpus):
    """As under srun --gpus-per-task=1."""
    one_each = f"export CUDA_VISIBLE_DEVICES=$((${{OMPI_COMM_WORLD_LOCAL_RANK:-$MPI_LOCALRANKID}} % {len(real_gpus)}));"
    done = run(3001, 2003, 3001, ranks=2, shell=one_each)
    assert done.returncode == 0, done.stderr
    assert "check ok" in done.stdout
