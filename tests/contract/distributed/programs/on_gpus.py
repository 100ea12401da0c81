# SPDX-License-Identifier: MIT
"""Products by all ranks on GPUs, their own or those for which NumPy stands (`python -m hybrid.testing --gpus N`). Rank 0 prints
what each rank has seen, as JSON: on_gpus.py GPUS PART…"""

import gc
import json
import sys
import warnings
from collections import Counter
from contextlib import contextmanager
from itertools import product

import cupy
import numpy as np
from mpi4py import MPI

import hybrid
from hybrid.errors import CheckFailed, HybridError
from hybrid.testing import count, plant, pretend

comm = MPI.COMM_WORLD
gpus, parts = int(sys.argv[1]), sys.argv[2:]
pieces = {"panel_rows": 17, "panel_columns": 20}
WAYS = {
    "auto": {},
    "host in pieces": {"transport": "host", **pieces},
    "slabs": {"panel_rows": 17, "slab_rows": 16},
    "out of core": {"transport": "host", "gpu_memory": "60k"},
    **({"peers": {"transport": "peers"}, "peers in pieces": {"transport": "peers", **pieces}} if comm.size > 1 else {}),
    "a node a rank": {"ranks_per_node": 1},
    **({"a grid": {"ranks_per_node": 1, "grid": f"1x{comm.size}", **pieces}} if comm.size > 1 else {}),
    **({name: {"transport": "nccl", **how} for name, how in {
        "nccl": {}, "nccl in pieces": pieces, "C from GPU to GPU": {"ranks_per_node": 1, **pieces},
    }.items()} if 1 < comm.size <= gpus else {}),
}  # fmt: skip
by_mpi = "hybrid.testing.numpy_cupy" in sys.modules  # NCCL's stand-in, which cannot be aborted
rng = np.random.default_rng(7)
seen: dict[str, object] = {}


def drawn(n=36, l=50, m=30, dtype="float64"):
    return rng.integers(-9, 10, (n, l)).astype(dtype), rng.integers(-9, 10, (l, m)).astype(dtype)


def at_root(*arrays, root=0):
    return arrays if comm.rank == root else (None,) * len(arrays)


def mine(matrix):
    return np.array_split(matrix, comm.size)[comm.rank]


def check(c, right, what):
    assert np.array_equal(cupy.asnumpy(c), right), what


def products():
    """Every form by every way, in NumPy's and CuPy's arrays in turn; the results lie where the operands do."""
    for number, name in enumerate(WAYS):
        precision, (a, b) = ("native", "native", "fast")[number % 3], drawn(dtype=("float64", "float32")[number // 2 % 2])
        kind, root = (np.asarray, cupy.asarray)[(number + comm.size) % 2], number % comm.size
        with pretend(device="cuda", poison=1, precision=precision, **WAYS[name]):
            c = hybrid.multiply(*at_root(kind(a), kind(b), root=root), comm=comm, root=root)
            assert comm.rank != root or type(c) is type(kind(a))
            assert comm.rank != root or check(c, a @ b, name) is None
            out = cupy.empty((len(a), b.shape[1]), a.dtype) if comm.rank == root else None
            c = hybrid.multiply(*at_root(kind(a), kind(b), root=root), comm=comm, root=root, out=out)
            assert c is out
            assert comm.rank != root or check(out, a @ b, f"{name}, in an array on the GPU") is None
            rows = [hybrid.RowBlock(kind(mine(each)), comm) for each in (a, b)]
            assert hybrid.gather(rows[0].T, root=root, out=(into := cupy.empty(a.T.shape, a.dtype))) is (
                into if out is not None else None
            )
            assert comm.rank != root or check(into, a.T, f"{name}, gathered on the GPU") is None
            for _ in range(1 + number % 2):  # what stays on the GPU is right for a second one
                c = hybrid.multiply(*rows)
                assert type(c.array) is type(kind(a))
                check(np.concatenate(comm.allgather(cupy.asnumpy(c.array))), a @ b, f"{name}, row blocks")
            if number % 3 == 1:
                continue
            shared = [hybrid.empty(each.shape, each.dtype, comm=comm) for each in (a, b)]
            for into, values in zip(shared, (a, b), strict=True):
                if into is not None:
                    into[...] = values
                comm.Barrier()
            c = hybrid.multiply(*at_root(shared[0].T if shared[0] is not None else None, shared[1]), comm=comm, transpose_a=True)
            assert comm.rank or check(c, a @ b, f"{name}, shared and transposed") is None
    for root, kind, stacked in product((0, comm.size - 1), (np.asarray, cupy.asarray), (False, True)):
        a, b = drawn()  # which the root may have alone
        a, b = (np.stack([each] * max(1, comm.size - 1)) for each in (a, b)) if stacked else (a, b)  # fewer than ranks
        c = hybrid.multiply(*at_root(kind(a), kind(b), root=root), comm=comm, root=root, device="cuda")
        assert comm.rank != root or check(c, a @ b, f"small, at root {root}") is None
    seen["ways"] = list(WAYS)


def faults():
    """Wrong copies, products and rows are found, a rank that fails keeps nobody waiting, and the next product is right."""
    a, b = drawn(40 * comm.size)
    done = 0
    ways = [each for each in ("auto", "peers in pieces", "nccl in pieces", "C from GPU to GPU") if each in WAYS]
    for number_of_way, name in enumerate(ways):
        with pretend(device="cuda", **WAYS[name]):
            for number, kind in enumerate(("multiply", "copy in", "copy out", "arrive", "multiply")):
                rank = number % 2 if comm.size > 1 else 0
                how, error = ("element", "nothing", "element", "element", "nothing")[number], None
                with plant(kind, rank=rank, how=how) as planted:
                    try:
                        hybrid.multiply(*at_root(a, b), comm=comm)
                    except HybridError as found:
                        error = found
                codes = comm.allgather((getattr(error, "code", None), planted.done))
                assert len({code for code, _ in codes}) == 1
                assert isinstance(error, CheckFailed) == any(was for _, was in codes), (name, kind, how, rank, str(error))
                done += any(was for _, was in codes)
            is_nccl = WAYS[name].get("transport") == "nccl"
            if comm.size > 1 and not (by_mpi and is_nccl):
                rank = number_of_way % 2
                with plant("rank", rank=rank, phase="multiply", how="raise"):
                    try:
                        hybrid.multiply(*at_root(a, b), comm=comm)
                        failed = ""
                    except hybrid.errors.RankFailed as found:
                        failed = str(found)
                assert f"rank {rank} " in failed
            right = hybrid.multiply(*at_root(a, b), comm=comm)
            assert comm.rank or check(right, a @ b, name) is None
    seen["faults"] = done


@contextmanager
def crossings():
    """Counts the bytes of matrices that this rank copies between host memory and a GPU, or sends to others."""
    found, undone = Counter(), []

    def counted(owner, name, from_gpu):
        original = getattr(owner, name)

        def copy(array, *given, **how):
            is_matrix = isinstance(array, cupy.ndarray) == from_gpu and getattr(array, "dtype", None) != np.uint64
            found[name] += getattr(array, "nbytes", 0) if is_matrix else 0  # else the rows' checksums
            return original(array, *given, **how)

        setattr(owner, name, copy)
        undone.append((owner, name, original))

    counted(cupy, "asarray", False)
    counted(cupy, "asnumpy", True)
    if by_mpi:  # real CuPy's class cannot be changed
        counted(cupy.ndarray, "get", True)
    with count() as counts:
        yield found
    found.update(copied_in=counts.copied_in, copied_out=counts.copied_out, sent=counts.bytes_sent)
    for each in undone:
        setattr(*each)


def chains():
    """Products of row blocks on GPUs stay there, from one to the next; an operand of the root that lies on its GPU is not copied
    to the host, whatever the other one and the result are. All are checked as others are."""
    (a, b), (c, _) = drawn(64 * comm.size, 32 * comm.size, 96), drawn(96, 32 * comm.size)
    rows = [hybrid.RowBlock(cupy.asarray(mine(each)), comm) for each in (a, b, c)]
    plan = hybrid.plan(*rows[:2])
    for transport in ("auto", *(["peers"] if comm.size > 1 else [])):
        for first in (True, False):
            with crossings() as crossed, pretend(transport=transport):
                found, planned = rows[0] @ rows[1] @ rows[2], plan.run(*rows[:2])
                power = hybrid.multiply(found, rows[1])
            sent = crossed.pop("sent")
            if not first:  # then it is tried which transports work
                assert not any(crossed.values()), crossed
                assert sent < a.nbytes // comm.size, "only what ranks agree on"
        for each, right in ((found, a @ b @ c), (planned, a @ b), (power, a @ b @ c @ b)):
            assert type(each.array) is cupy.ndarray
            check(np.concatenate(comm.allgather(cupy.asnumpy(each.array))), right, "a chain")
        with plant("multiply", rank=comm.size - 1) as planted:
            try:
                found = rows[0] @ rows[1]
            except CheckFailed:
                found = None
        assert found is None
        assert planned is not None
        assert planted.done == (comm.rank == comm.size - 1)
    there, how = cupy.asarray(a), {"comm": comm, "device": "cuda", "transport": "peers" if comm.size > 1 else "auto"}
    for number in range(4):
        other, out = b + number, np.full((len(a), b.shape[1]), np.nan) if number % 2 else None
        with crossings() as crossed:
            product = hybrid.multiply(*at_root(there, other), out=out if comm.rank == 0 else None, **how)
        copied = comm.allgather((crossed["copied_in"], crossed["copied_out"], crossed["asnumpy"] + crossed["get"]))
        assert tuple(map(sum, zip(*copied, strict=True))) == (b.nbytes, len(a) * b.shape[1] * 8, 0), copied
        if comm.rank == 0:
            assert type(product) is np.ndarray
            assert out is None or product is out
            check(product, a @ other, "an operand on the GPU")
        on_gpus = hybrid.multiply(*at_root(there, cupy.asarray(other)), out=out if comm.rank == 0 else None, **how)
        assert comm.rank or check(on_gpus, a @ other, "both on the GPU") is None
    for kind in ("copy in", "copy out", "multiply"):
        error = None
        with plant(kind, rank=0) as planted:
            try:
                hybrid.multiply(*at_root(there, b), **how)
            except CheckFailed as found:
                error = found
        assert error is not None, kind
        assert comm.rank or planted.done


def memory():
    """Which GPUs this rank has a context of, what stays page-locked, and the context that is current after a call."""
    runtime, locked, times = cupy.cuda.runtime, {}, Counter()
    lock, unlock = runtime.hostRegister, runtime.hostUnregister

    def locking(place, size, *flags):
        assert all(place + size <= other or other + held <= place for other, held in locked.items()), "locked twice"
        lock(place, size, *flags)
        locked[place] = size
        times["locked"] += 1

    def unlocking(place):
        unlock(place)
        del locked[place]

    runtime.hostRegister, runtime.hostUnregister = locking, unlocking
    before = current_context()
    a, b = np.ones((400, 8)), np.ones((8, 400))  # whose C is large enough to be worth locking
    for transport in ("host", *(["peers"] if comm.size > 1 else []), *(["nccl"] if 1 < comm.size <= gpus else [])):
        for _ in range(2):
            c = hybrid.multiply(*at_root(a, b), comm=comm, device="cuda", transport=transport)
            before = before or current_context()  # that of its GPU, for a rank that had none
            assert current_context() == before, "a call leaves another context current"
        rows = [hybrid.RowBlock(mine(each), comm) for each in (a, b)]
        c = hybrid.multiply(*rows, device="cuda", transport=transport)
        gc.collect()
    del c, rows
    with pretend(staged=1):  # a CPU with memory of its own, for which the GPUs are given back
        hybrid.multiply(*at_root(np.ones((2, 2)), np.ones((2, 2))), comm=comm, device="cpu")
    other = comm.Dup()
    hybrid.multiply(*at_root(np.ones((9, 2)), np.ones((2, 2))), comm=other, device="cuda")
    other.Free()
    gc.collect()
    seen.update(locked=times["locked"], still_locked=len(locked), contexts=sorted(contexts()))


def current_context():
    """0: none, as where CUDA has not been initialized."""
    try:
        return cupy.cuda.driver.ctxGetCurrent()
    except cupy.cuda.driver.CUDADriverError:
        return 0


def contexts():
    """The GPUs of which this process has a primary context."""
    if by_mpi:
        return sys.modules["hybrid.testing.numpy_cupy"].contexts
    import ctypes

    driver, device, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    found = set()
    for index in range(gpus):
        assert driver.cuDeviceGet(ctypes.byref(device), index) == 0
        assert driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)) == 0
        found |= {index} if active.value else set()
    return found


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for part in parts:
        {"products": products, "faults": faults, "memory": memory, "chains": chains}[part]()
everything = comm.gather(seen)
if comm.rank == 0:
    print(json.dumps(everything))
