# SPDX-License-Identifier: MIT
"""Products on GPUs, by one process or by all ranks, on real GPUs or on those for which NumPy stands (`python -m hybrid.testing
--gpus N`): on_gpus.py PART… What each rank has seen, rank 0 prints as JSON.

Parts: memory, products, faults, chains, gram; special (of the stand-in's alone); random:SEED:COUNT; and paths:WORD:WORD…,
which is `python -m hybrid.paths WORD WORD…`.
"""

import gc
import json
import os
import re
import runpy
import sys
import tempfile
import warnings
import weakref
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cupy
import ml_dtypes
import numpy as np
from mpi4py import MPI
from support import cases

import hybrid
from hybrid.errors import CheckFailed, DoesNotFit, HybridError, Overflow, UsageError
from hybrid.testing import count, plant, pretend

comm = MPI.COMM_WORLD
gpus, parts = cupy.cuda.runtime.getDeviceCount(), sys.argv[1:]
ON_GPU = {"comm": comm, "device": "cuda"}
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
        try:
            yield found
        finally:
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
            np.testing.assert_allclose([each.sum(), each.norm(), each.max()], [right.sum(), np.linalg.norm(right), right.max()])
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
    size = (500, 600) if by_mpi else (5000, 1000)  # large enough to be locked
    whole, shared, b = np.ones(size), hybrid.empty(size, comm=comm), np.ones((size[1], 8))
    shared[:] = 1  # CUDA copies nothing that is locked in part
    for a in (whole[90:], shared):
        for _ in range(3):
            hybrid.multiply(*at_root(a, b), comm=comm, device="cuda")
    assert all(cupy.asnumpy(cupy.asarray(each)).all() for each in (whole, shared))


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


def blocks(kind, *matrices):
    return [hybrid.RowBlock(kind(np.array_split(each, comm.size)[comm.rank])) for each in matrices]


def whole(c):
    return np.concatenate(comm.allgather(np.asarray(cupy.asnumpy(c))))


def refusal(error, *given, call=hybrid.multiply, **how):
    """The code with which all ranks refuse a product."""
    try:
        call(*given, **how)
    except error as refused:
        return refused.code
    except HybridError as other:
        raise AssertionError(f"{other} [{other.code}]") from other
    raise AssertionError("not refused")


def off_by_one(into, source, before):
    into[1, 1] += 1


def integers_stay_there():
    """And C lies where A does, whatever lies elsewhere."""
    a, b, c = (
        rng.integers(-(2**31), 2**31, (12, 10), "int32"),
        rng.integers(-99, 99, (10, 8), "int32"),
        np.full((12, 8), 7, "int32"),
    )
    wanted = a.astype(object) @ b.astype(object) + c
    for number in (0, 3, 5, 6):  # any two of A, B and C lie together and apart
        rows = [
            block
            for bit, each in enumerate((a, b, c))
            for block in blocks(cupy.asarray if number >> bit & 1 else np.asarray, each)
        ]
        found = hybrid.multiply(*rows, beta=1, dtype="int64", **ON_GPU).array
        assert type(found) is (cupy.ndarray if number & 1 else np.ndarray)
        assert whole(found).tolist() == wanted.tolist()
    assert refusal(Overflow, *blocks(cupy.asarray, a, b), dtype="int8", **ON_GPU) == "overflow"
    with plant("multiply", 0, how=off_by_one):  # modulo a prime: so large an element is no overflow
        assert (
            refusal(CheckFailed, *blocks(cupy.asarray, a.astype(int) << 9, b.astype(int) << 9), check=False, **ON_GPU)
            == "check-product"
        )


def integers_cross_the_link_in_their_own_types():
    """And so does C, of vectors, of views, of operands that differ in type and in where they lie, with a C that is added."""
    if comm.size > 1:
        return
    kinds = ("int8", "int32"), ("uint8", "uint32"), ("int16", "int64"), ("int32", "int64"), ("int64", "int64"), ("bool", "int16")
    for (dtype, result), (n, l, m) in [*((kind, (40, 30, 50)) for kind in kinds), (kinds[0], (1, 9, 1)), (kinds[1], (0, 3, 5))]:
        low, high = (0, 2) if dtype == "bool" else (max(-(2**29), np.iinfo(dtype).min), min(2**29, np.iinfo(dtype).max))
        a, b = (rng.integers(low, high, shape).astype(dtype) for shape in ((n, l), (l, m)))
        c, how = np.full((n, m), 3, "int8"), {"device": "cuda", "dtype": result}
        wanted = a.astype(object) @ b.astype(object)
        with count() as counts:
            found = hybrid.multiply(a, b, **how)
        assert (counts.copied_in, counts.copied_out) == (a.nbytes + b.nbytes, found.nbytes)
        assert {dtype, result} <= {*re.findall(r"\w+", hybrid.plan(a, b, **how).explain())}
        assert (type(found), found.dtype, found.tolist()) == (np.ndarray, result, wanted.tolist())
        out = np.full((m, n), 99, result).T  # not in row-major order
        backwards, swapped = a[::-1].copy()[::-1], a.astype(a.dtype.newbyteorder())
        for first, second in ((backwards, b), (np.asfortranarray(a), cupy.asarray(b)), (swapped, b)):
            assert hybrid.multiply(first, second, c, beta=2, **how, out=out) is out
            assert out.tolist() == (wanted + 6).tolist()
        there = cupy.asarray(np.full((n, m), 99, result))
        assert hybrid.multiply(a, b, **how, out=there) is there
        assert cupy.asnumpy(there).tolist() == wanted.tolist()
        with count() as counts:
            found = hybrid.multiply(a, a.T, **how)
        assert counts.copied_in == a.nbytes
        assert found.tolist() == (a.astype(object) @ a.T.astype(object)).tolist()
        if n:
            assert np.array_equal(hybrid.multiply(a[0], b[:, 0], **how), a[0].astype(result) @ b[:, 0].astype(result))
    for n in (40, 2100):  # of complex numbers many rows in halves
        a, b = rng.standard_normal((n, 18)).view(complex), rng.standard_normal((9, 14)).view(complex)
        with count() as counts:
            found = hybrid.multiply(a, b, **ON_GPU)
        assert (counts.copied_in, counts.copied_out) == (a.nbytes + b.nbytes, found.nbytes)
        assert hybrid.multiply(a, b, found, alpha=1j, beta=2, conjugate_a=True, out=found, **ON_GPU) is found
        np.testing.assert_allclose(found, 2 * a @ b + 1j * a.conj() @ b, rtol=1e-12)
    with plant("multiply", at=1):
        assert refusal(CheckFailed, a, b, **ON_GPU) == "check-product"
    a, b = rng.integers(-99, 99, (40, 1040), "int8"), rng.integers(-99, 99, (1040, 50), "int8")
    for fault in ("copy in", "copy out"):
        for at in (0, 1):  # whole rows of memory, and what is left of them
            with plant(fault, at=at) as planted:
                assert refusal(CheckFailed, a[:39, :1039], b[:1039], dtype="int32", **ON_GPU).startswith("check-")
            assert planted.done
        with plant(fault), warnings.catch_warnings(record=True) as warned:
            found = hybrid.multiply(a, b, dtype="int64", on_fault="repair", **ON_GPU)
        assert len(warned) == 1
        assert np.array_equal(found, a.astype(int) @ b.astype(int))
    c = np.full((40, 50), 3, "int64")
    with plant("copy out", at=1):  # to the host: what was there before cannot be added again
        how = {"beta": 1, "dtype": "int64", "on_fault": "repair"}
        assert refusal(CheckFailed, a, b, c, out=c, **how, **ON_GPU) == "check-copy"
    a[3, 4], b[:, 5] = 127, 127
    assert refusal(Overflow, a, b, dtype="int8", **ON_GPU) == "overflow"


def results_of_16_bits_are_rounded_there():
    """To what the host rounds them to, also NaN and infinity; bfloat16 by the host. What is multiplied or copied wrong is
    refused."""
    if comm.size > 1:
        return
    shapes = {"float16": [(40, 64, 50), (33, 41, 27), (2100, 18, 14)], ml_dtypes.bfloat16: [(40, 64, 50), (33, 41, 27)]}
    for dtype, (n, l, m) in [(dtype, shape) for dtype, of in shapes.items() for shape in of]:
        a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((n, l), (l, m)))
        for number in range(3):
            out = np.full((n, m), 7, dtype) if number else None
            with count() as counts:
                found = hybrid.multiply(a, b, device="cuda", out=out)
            assert out is None or found is out
            assert (counts.copied_in, counts.copied_out) == (a.nbytes + b.nbytes, found.nbytes * (1 + (dtype != "float16")))
            with np.errstate(all="ignore"):
                wanted = hybrid.multiply(a, b, device="cuda", dtype="float32").astype(dtype)
            assert np.array_equal(found.view("u2"), wanted.view("u2"))
            a[number, number], a[number + 3] = np.nan, 6e4
        a = rng.standard_normal((n, l)).astype(dtype)
        for fault, at in (("multiply", 0), ("copy in", 0), ("copy in", 1), ("copy out", 0)) if n != 40 else ():
            with plant(fault, at=at) as planted:
                assert refusal(CheckFailed, a, b, device="cuda") == ("check-product" if fault == "multiply" else "check-copy")
            assert planted.done


def in_little_memory():
    a, b = rng.integers(-(2**30), 2**30, (40, 30)), rng.integers(-99, 99, (30, 50), "int32")
    found = hybrid.multiply(*blocks(cupy.asarray, a, b), gpu_memory=40_000, **ON_GPU).array
    assert type(found) is cupy.ndarray
    assert whole(found).tolist() == (a @ b).tolist()
    assert refusal(DoesNotFit, *blocks(cupy.asarray, a, b), host_memory=1000, **ON_GPU) == "host-memory"


def transposes_arrive_as_they_lie():
    """Of a root's matrices on the host each element is copied to its GPU once; wide elements are aligned after narrow ones."""
    if comm.size > 1:
        return
    for dtype, size in ("float32", 7), ("float64", 3):
        a, b = (rng.integers(-9, 10, (15, columns)).astype(dtype) for columns in (size, 5))
        np.testing.assert_array_equal(hybrid.multiply(a.T, b, device="cuda", precision="native"), a.T @ b)
    a, b = rng.standard_normal((70, 90)), rng.standard_normal((60, 70))
    with count() as counts:
        c = hybrid.multiply(a, b, transpose_a=True, transpose_b=True, device="cuda", precision="native")
    np.testing.assert_allclose(c, a.T @ b.T)
    assert (counts.copied_in, counts.copied_out) == (a.nbytes + b.nbytes, c.nbytes)
    with count() as counts:
        c = hybrid.multiply(cupy.asarray(a), cupy.asarray(b), transpose_a=True, transpose_b=True)
    assert (counts.copied_in, counts.copied_out) == (0, 0)


def products_with_the_own_transpose_are_symmetric():
    """Beside others of the same shapes, which are not; of arrays in host memory and on the GPU."""
    if comm.size > 1:
        return
    a, b = rng.standard_normal((2, 70, 70))
    for first, second in ((a, b), (cupy.asarray(a), cupy.asarray(b))):
        with pretend(panel_rows=35):
            for _ in range(2):  # the second time with what is kept
                for x, y in ((first, first.T), (first.T, first), (first, second), (first, first), (first, first.T)):
                    found = cupy.asnumpy(hybrid.multiply(x, y, **ON_GPU))
                    np.testing.assert_allclose(found, cupy.asnumpy(x) @ cupy.asnumpy(y), atol=1e-11)
                    assert y is second or x is y or np.array_equal(found, found.T)


def vectors_and_stacks_are_written_to_arrays_there():
    """And matrices to the C that is added."""
    a, b = rng.integers(-9, 9, (3, 20, 10)).astype(float), rng.integers(-9, 9, (10, 30)).astype(float)
    for first, second in ((a[0], b[:, 0]), (a, b)):
        out = cupy.asarray(np.full((first @ second).shape, 7.0))
        given = at_root(cupy.asarray(first), cupy.asarray(second))
        found = hybrid.multiply(*given, **ON_GPU, out=out if comm.rank == 0 else None)
        assert comm.rank or (found is out and np.array_equal(cupy.asnumpy(out), first @ second))
    c = cupy.asarray(np.ones((20, 30)))
    given = at_root(cupy.asarray(a[0]), cupy.asarray(b), c)
    hybrid.multiply(*given, beta=2, **ON_GPU, out=c if comm.rank == 0 else None)
    assert comm.rank or np.array_equal(cupy.asnumpy(c), a[0] @ b + 2)
    wrong = cupy.asarray(np.ones((20, 31)))
    assert refusal(UsageError, *given[:2], **ON_GPU, out=wrong if comm.rank == 0 else None) == "out"


def products_like_the_one_before():
    """Of matrices at the same places with other elements, at others, and written to given arrays; a wrong one is found in each,
    and no call keeps an array alive."""
    if comm.size > 1:
        return
    for kind, faults in ((cupy.asarray, ["multiply"]), (np.array, ["multiply", "copy in", "copy out"])):
        aligned, others = (70, 30, 50), (33, 17, 27)
        for check, (n, l, m) in ((True, aligned), (True, others), (False, aligned), ("host", others)):
            how = {"check": check, "device": "cuda"}
            a, b = (kind(rng.integers(-9, 9, shape).astype(float)) for shape in ((n, l), (l, m)))
            out, passed = kind(np.zeros((n, m))), []
            for number in range(6):
                a[number, :] = float(number)
                first = a if number > 3 else kind(cupy.asnumpy(a))
                into = None if number % 3 else out
                c = hybrid.multiply(first, b, out=into, **how)
                passed += [] if first is a else [weakref.ref(first)]
                assert (c is out) == (into is out)
                assert np.array_equal(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b))
                c = hybrid.multiply(kind(cupy.asnumpy(a).T), b.T, transpose_a=True, transpose_b=True, **how)
                assert np.array_equal(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b))
                c = hybrid.multiply(kind(np.asfortranarray(cupy.asnumpy(a))), b, **how)
                assert np.array_equal(cupy.asnumpy(c), cupy.asnumpy(a) @ cupy.asnumpy(b))
            for fault in faults if check else ():
                with plant(fault):
                    assert refusal(CheckFailed, a, b, **how).startswith("check-")
            assert refusal(UsageError, a, b, out=a, **how) == "out"
            first = kind(cupy.asnumpy(a))
            passed.append(weakref.ref(first))
            hybrid.multiply(first, b, **how)
            del first
            assert not any(each() is not None for each in passed)


def a_lost_launch_is_found():
    """A product like the one before, whose multiplication does not run, has C of the one before: its check refuses it."""
    if comm.size > 1:
        return
    from hybrid.testing import numpy_cupy

    a, b = (cupy.asarray(rng.standard_normal((40, 40))) for _ in "ab")
    out, enqueue, lost = cupy.asarray(np.zeros((40, 40))), numpy_cupy._enqueue, []

    def losing(stream, work):
        source = getattr(getattr(work, "__self__", None), "_function", ("check.cu",))[0]
        if source == "check.cu":
            enqueue(stream, work)
        else:
            lost.append(source)

    for _ in range(4):
        hybrid.multiply(a, b, out=out)
    numpy_cupy._enqueue = losing
    hybrid.multiply(a, b, out=out)  # C is right still
    a[3, :] = 1.0
    assert refusal(CheckFailed, a, b, out=out) == "check-product"
    numpy_cupy._enqueue = enqueue
    assert len(lost) == 2
    wanted, onto = cupy.asnumpy(a) @ cupy.asnumpy(b), cupy.asarray(cupy.asnumpy(b))
    assert np.allclose(cupy.asnumpy(hybrid.multiply(a, onto, out=onto)), wanted)
    assert np.allclose(cupy.asnumpy(hybrid.multiply(a, b, out=out)), cupy.asnumpy(a) @ cupy.asnumpy(b))


def small_products_are_left_to_the_cpu():
    """Of a process alone that asks for no GPU; those of large matrices are not, nor are any that lie on the GPU."""
    if comm.size > 1:
        return
    a, b, wide = rng.standard_normal((30, 20)), rng.standard_normal((20, 10)), np.broadcast_to(0.0, (30_000, 30_000))
    for given, device in (((a, b), "cpu"), ((wide, wide), "cuda"), ((cupy.asarray(a), cupy.asarray(b)), "cuda")):
        plan = hybrid.plan(*given, check=False, host_memory="1T", gpu_memory="1M" if given[0] is not wide else None)
        assert f" on {device}: " in plan.explain(), plan.explain()
    assert " on cuda: " in hybrid.plan(a, b, device="cuda").explain()


def new_arrays_are_multiplied_by_one_gpu():
    """Where the host's copies through slots are the limit; by all ranks' when they come again, and are pinned."""
    if comm.size == 1:
        return
    a, b = at_root(np.ones((400, 425)), np.ones((425, 4)))
    with tempfile.NamedTemporaryFile("w") as file:
        json.dump({"link_bytes_per_second": 1e6, "cpu_bytes_per_second": 5e5}, file)
        file.flush()
        os.environ["HYBRID_MACHINE"] = comm.bcast(file.name)
        for again in (False, True, True):
            with count() as counts:
                c = hybrid.multiply(a, b, **ON_GPU)
            assert comm.rank == 0 or bool(counts.multiplications) is again
            assert comm.rank or (c == 425).all()
        assert comm.rank == 0 or not counts.copied_in, "the root copies to all GPUs, also so small a B"
        comm.Barrier()
        del os.environ["HYBRID_MACHINE"]


def small_products_by_the_root_are_repeated_in_one_exchange():
    """By ranks that all call as before; else they agree anew, or all refuse, and faults are found in both."""
    if comm.size == 1:
        return
    how, last = {**ON_GPU, "check": "full"}, comm.rank == comm.size - 1
    for n, wanted in ((40, 0), (40, 0), (40, 1), (30, 0), (40, 1), (30, 1)):
        a, b = drawn(n)
        with count() as counts:
            c = hybrid.multiply(*at_root(a, b), **how)
        assert not wanted or counts.exchanges == wanted
        assert comm.rank or np.array_equal(c, a @ b)
    with plant("copy out", rank=0):
        assert refusal(CheckFailed, *at_root(a, b), **how) == "check-copy"
    assert refusal(UsageError, *at_root(a, b), **how | {"alpha": 1.0 + last}) == "ranks-differ"
    kind = partial(hybrid.empty, (4, 4), comm=comm) if last else partial(hybrid.multiply, *at_root(a, b), **how)
    assert refusal(HybridError, call=kind) == "ranks-differ"
    with count() as counts:
        c = hybrid.multiply(*at_root(a, b), **how | {"check": "on" if last else True})  # which mean the same
    assert counts.exchanges > 1
    assert comm.rank or np.array_equal(c, a @ b)
    c = rng.integers(-9, 10, (len(a), b.shape[1])).astype(float)
    wanted, given = c.copy(), at_root(c)[0]
    for _ in range(4):
        hybrid.multiply(*at_root(a, b), given, beta=1.0, out=given, **how)
        wanted += a @ b
    assert comm.rank or np.array_equal(c, wanted)


class Foreign:
    """An array of another library in GPU memory, also such as the host can read."""

    def __init__(self, array, kind):
        self._array, self._kind = array, kind

    def __dlpack_device__(self):
        return self._kind, 0

    def __dlpack__(self, **how):
        return self._array.__dlpack__(**how)


def other_libraries_arrays_stay_there():
    a, b = rng.integers(-9, 9, (20, 10)).astype(float), rng.integers(-9, 9, (10, 30)).astype(float)
    for kind in (2, 13):  # kDLCUDA, kDLCUDAManaged
        found = hybrid.multiply(*at_root(Foreign(a, kind), Foreign(b, kind)), **ON_GPU)
        assert comm.rank or (type(found) is cupy.ndarray and np.array_equal(cupy.asnumpy(found), a @ b))


def at_random(seed, number):
    """By several ranks those of a root."""
    several, nodes = comm.size > 1, {"RANKS_PER_NODE": "1"}
    ways = {
        name: way for name, way in cases.ON_GPU.items() if name != "GPU, cublas" and not (several and way.flags.get("kernel"))
    }
    for kernel in ("naive", "tiled", "register_tiled", "pipelined", "warp_tiled"):
        ways[f"GPU {kernel}"] = cases.Way({"device": "cuda", "kernel": kernel}, {})
    if several:
        ways |= {
            "GPUs of other nodes": cases.Way({"device": "cuda"}, nodes),
            "GPUs, through the host": cases.Way({"device": "cuda", "transport": "host"}, {"PANEL_COLUMNS": "32"}),
            "GPUs, peers": cases.Way({"device": "cuda"}, {"TRANSPORT": "peers"}, shapes="full"),
            "GPUs, a grid": cases.Way({"device": "cuda"}, {**nodes, "GRID": f"1x{comm.size}"}),
        }
    narrowed = dict.fromkeys(("holder_a", "holder_b"), ("array", "CuPy", "CuPy", "CuPy"))
    alone = {} if several else {"root": ("first",), "group": ("all",)}
    for case in cases.draw(int(seed), int(number), ways, **narrowed, **alone):
        cases.run(case, ways, comm if several else None)


def special():
    for each in (
        integers_stay_there, integers_cross_the_link_in_their_own_types, results_of_16_bits_are_rounded_there, in_little_memory,
        transposes_arrive_as_they_lie, products_with_the_own_transpose_are_symmetric,
        vectors_and_stacks_are_written_to_arrays_there, products_like_the_one_before, a_lost_launch_is_found,
        small_products_are_left_to_the_cpu, other_libraries_arrays_stay_there, new_arrays_are_multiplied_by_one_gpu,
        small_products_by_the_root_are_repeated_in_one_exchange,
    ):  # fmt: skip
        each()


def gram():
    """What crosses does so once: each slab of a file and the sum of integers, complex arrays and theirs; not CuPy's."""
    a = rng.integers(-9, 10, (280, 140)).astype("int8")
    with tempfile.TemporaryDirectory() as folder, pretend(slab_rows=80):
        np.save(f"{folder}/A.npy", a)
        for dtype in ("int64", "int32"):
            with count() as counts:
                c = hybrid.gram(f"{folder}/A.npy", transposed=True, dtype=dtype, device="cuda")
            assert isinstance(c, np.ndarray)
            assert (counts.copied_in, counts.copied_out) == (a.nbytes, c.nbytes)
            check(c, a.astype(int).T @ a, dtype)
            with plant("copy in", at=2, how="lowest bit"):  # of a later slab
                assert refusal(CheckFailed, f"{folder}/A.npy", call=hybrid.gram, transposed=True, device="cuda") == "check-copy"
    a = rng.standard_normal((150, 70)) + 1j * rng.standard_normal((150, 70))
    for transposed, right in ((False, a @ a.conj().T), (True, a.conj().T @ a)):
        for given, kind in ((cupy.asarray(a), cupy.ndarray), (a, np.ndarray), (a.T.copy().T, np.ndarray)):
            with count() as counts:
                c = hybrid.gram(given, transposed=transposed, device="cuda")
            assert type(c) is kind
            assert (counts.copied_in, counts.copied_out) == ((0, 0) if kind is cupy.ndarray else (a.nbytes, c.nbytes))
            found = cupy.asnumpy(c)
            assert np.array_equal(found, found.conj().T)
            assert np.allclose(found, right)
        for fault in ("copy in", "copy out", "multiply"):
            with plant(fault):
                assert refusal(CheckFailed, a, call=hybrid.gram, transposed=transposed, device="cuda").startswith("check-")
        rows = cupy.asnumpy(hybrid.gram(hybrid.RowBlock(cupy.asarray(a)), transposed=transposed).array)
        assert np.array_equal(rows, rows.conj().T)
        assert np.allclose(rows, right)


def paths(*words):
    """Counts what crosses between host memory and GPUs."""
    sys.argv = ["hybrid.paths", *words]
    with crossings() as seen["crossed"], count() as counts, suppress(SystemExit):
        runpy.run_module("hybrid.paths", run_name="__main__", alter_sys=True)
    seen["multiplied"] = counts.multiplications


PARTS = {each.__name__: each for each in (products, faults, memory, chains, gram, special, paths)} | {"random": at_random}
for part in parts:
    name, *words = part.split(":")
    with warnings.catch_warnings():
        if name in ("products", "faults", "memory", "chains"):
            warnings.simplefilter("ignore")
        PARTS[name](*words)
everything = comm.gather(seen)
if comm.rank == 0:
    print(json.dumps(everything))
