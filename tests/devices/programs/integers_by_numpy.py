# SPDX-License-Identifier: MIT
"""Products of integers that lie on GPUs, for which NumPy stands, one for each rank: integers_by_numpy.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpi4py import MPI
from support import numpy_cupy

comm = MPI.COMM_WORLD
numpy_cupy.install(Path(sys.argv[1]), comm.size)

import cupy  # noqa: E402
import numpy as np  # noqa: E402

import hybrid  # noqa: E402
from hybrid.arrays import integer_parts  # noqa: E402
from hybrid.core.problem import INTEGERS  # noqa: E402
from hybrid.errors import HybridError  # noqa: E402
from hybrid.plan.arithmetic import most_moduli  # noqa: E402
from hybrid.selection import decision  # noqa: E402
from hybrid.selection.precision import Precision  # noqa: E402

rng = np.random.default_rng(11)  # the same on all ranks
on_gpu, on_host = {"comm": comm, "device": "cuda"}, {"comm": comm, "device": "cpu"}


def random(shape, dtype, largest=None):
    if dtype == "bool":
        return rng.random(shape) < 0.3
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if largest is None else (max(limits.min, -largest), min(limits.max, largest))
    made = rng.integers(low, high, shape, dtype, endpoint=True)
    if made.size > 1:
        made.flat[0], made.flat[-1] = low, high
    return made


def blocks(kind, *matrices):
    return [hybrid.RowBlock(kind(np.array_split(each, comm.size)[comm.rank])) for each in matrices]


def made(matrices, **how):
    """The whole product of row blocks: as it is of arrays on GPUs, where all of it stays on them."""
    before = numpy_cupy.calls["elements to the host"]
    c = hybrid.multiply(*blocks(cupy.asarray, *matrices), **on_gpu, **how).array
    assert type(c) is cupy.ndarray
    if comm.size == 1:
        assert numpy_cupy.calls["elements to the host"] == before, "it was copied to the host"
    return np.concatenate(comm.allgather(np.asarray(c)))


def refusal(call, *given, **how):
    try:
        return str(call(*given, **how))
    except HybridError as error:
        return f"{type(error).__name__}: {error}"


def same_as_python(a, b, c=None, alpha=1, beta=None, dtype=None):
    wanted = alpha * (a.astype(object) @ b.astype(object)) + (beta * c.astype(object) if beta else 0)
    matrices, how = (a, b) if c is None else (a, b, c), {"alpha": alpha, "beta": beta, "dtype": dtype}
    result = np.dtype(dtype or np.result_type(a, b))
    limits = np.iinfo(result)
    if all(limits.min <= int(each) <= limits.max for each in wanted.flat):
        found = made(matrices, **how)
        assert found.dtype == result
        assert found.tolist() == wanted.tolist(), (a.dtype, b.dtype, how)
        return
    there, here = (
        refusal(hybrid.multiply, *blocks(kind, *matrices), **where, **how)
        for kind, where in ((cupy.asarray, on_gpu), (np.asarray, on_host))
    )
    assert there == here, (there, here)
    assert there.startswith("Overflow: "), there


def every_type():
    """By several ranks the ones at the ends: how the rest are put together does not depend on the number of ranks."""
    for dtype in INTEGERS if comm.size == 1 else ("int8", "int64", "uint64"):
        for largest in (3, 1000, 1 << 28, None):
            a, b, c = random((13, 21), dtype, largest), random((21, 9), dtype, 5), random((13, 9), dtype, largest)
            for result in (None, "int64", "uint64", "int8"):
                if np.result_type(a, b).kind == "u" or result != "uint64":
                    same_as_python(a, b, dtype=result)
            same_as_python(a, random((21, 9), dtype, largest), dtype="int64")
            same_as_python(a, b, c, alpha=-3, beta=2, dtype="int64")
            same_as_python(a, b, c, alpha=1, beta=1)
    a, b = random((13, 21), "bool"), random((21, 9), "bool")
    np.testing.assert_array_equal(made((a, b)), a @ b)
    same_as_python(a, b, dtype="int16")
    same_as_python(random((13, 21), "int8"), random((21, 9), "uint32"))
    same_as_python(random((13, 21), "uint64"), random((21, 9), "int64", 3), dtype="int64")
    for value in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1):
        high, low = divmod(value, 2**32)
        same_as_python(np.array([[high, low]]), np.array([[2**32], [1]]), dtype="int64")


def every_layout():
    for n, l, m in ((0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)):
        same_as_python(np.full((n, l), 7), np.full((l, m), -9))
    if comm.size > 1:
        return
    a, b = random((20, 31), "int32"), random((31, 40), "int32", 1 << 20)
    views = (np.asfortranarray(a), b), (a[::-1, ::2], b[:16, ::-3]), (np.broadcast_to(a[:1], (50, 31)), b)
    for first, second in views:
        there = (each.view(numpy_cupy.ndarray) for each in (first, second))
        found = hybrid.multiply(*there, device="cuda", dtype="int64")
        assert found.tolist() == (first.astype(object) @ second.astype(object)).tolist()
    first, second = cupy.asarray(a), cupy.asarray(b)
    found = hybrid.multiply(second, first, transpose_a=True, transpose_b=True, device="cuda", dtype="int64")
    assert found.tolist() == (b.astype(object).T @ a.astype(object).T).tolist()
    assert hybrid.multiply(first[0], second, device="cuda", dtype="int64").shape == (40,)
    c = random((20, 40), "int16").astype(">i2")  # in host memory, and not in this machine's byte order
    found = hybrid.multiply(first, second, c, beta=3, device="cuda", dtype="int64")
    assert type(found) is cupy.ndarray
    assert found.tolist() == (a.astype(object) @ b.astype(object) + 3 * c.astype(object)).tolist()


def mixed():
    """Operands of which only some lie on a GPU: C lies where A does."""
    a, b, c = random((12, 10), "int32"), random((10, 8), "int32", 99), random((12, 8), "int32")
    wanted = (a.astype(object) @ b.astype(object) + c).tolist()
    for number in range(8):
        rows = [
            block
            for bit, each in enumerate((a, b, c))
            for block in blocks(cupy.asarray if number >> bit & 1 else np.asarray, each)
        ]
        found = hybrid.multiply(*rows, beta=1, dtype="int64", **on_gpu).array
        assert type(found) is (cupy.ndarray if number & 1 else np.ndarray)
        assert np.concatenate(comm.allgather(np.asarray(found))).tolist() == wanted


def wrong_products():
    from hybrid.devices.cuda_device import CudaDevice

    original, planted = CudaDevice.multiply, []

    def off_by_one(device, a, b, c, after, **more):
        event = original(device, a, b, c, after, **more)
        if planted and planted.pop():
            c[1, 1] = c[1, 1] + 1
        return event

    CudaDevice.multiply = off_by_one
    for largest in (3, 1 << 20, 1 << 40):
        rows = blocks(cupy.asarray, random((12, 10), "int64", largest), random((10, 8), "int64", 1 << 18))
        for check in (True, "host"):
            planted[:] = [comm.rank == 0]
            assert refusal(hybrid.multiply, *rows, check=check, **on_gpu).startswith("CheckFailed: the product is wrong"), largest
    planted[:] = [comm.rank == 0]
    rows = blocks(cupy.asarray, random((12, 10), "int64", 1 << 40), random((10, 8), "int64", 1 << 18))
    said = refusal(hybrid.multiply, *rows, check=False, **on_gpu)
    assert said.startswith("CheckFailed: "), said
    assert "the product is wrong: element [1, 1] of the product is " in said, said
    CudaDevice.multiply = original


def in_little_memory():
    """What does not fit the GPU with all that is made of it goes through the host's memory."""
    a, b = random((40, 30), "int64", 1 << 30), random((30, 50), "int32", 99)
    before = numpy_cupy.calls["elements to the host"]
    found = hybrid.multiply(*blocks(cupy.asarray, a, b), gpu_memory=40_000, **on_gpu).array
    assert type(found) is cupy.ndarray
    assert numpy_cupy.calls["elements to the host"] > before
    assert np.concatenate(comm.allgather(np.asarray(found))).tolist() == (a @ b).tolist()
    assert refusal(hybrid.multiply, *blocks(cupy.asarray, a, b), host_memory=1000, **on_gpu).startswith("DoesNotFit: ")


def from_remainders():
    """What GPUs compute from remainders is exact as well; also where `fast` was asked for, which of integers makes no sense."""
    as_usual = decision.choose_precision
    decision.choose_precision = lambda settings, *of: (
        Precision(most_moduli("float64"), "small, too") if settings.precision == "auto" else as_usual(settings, *of)
    )
    before = dict(numpy_cupy.calls)
    for largest in (9, 1 << 12, 1 << 31, None):
        a, b = random((40, 70), "int64", largest), random((70, 50), "int64", 1 << 8)
        same_as_python(a, b, dtype="int64")
        same_as_python(a, a.T, dtype="int64")
    for precision in ("fast", "native"):
        rows = blocks(cupy.asarray, a[:, :20] >> 40, b[:20])
        found = hybrid.multiply(*rows, precision=precision, **on_gpu).array
        assert np.concatenate(comm.allgather(np.asarray(found))).tolist() == ((a[:, :20] >> 40) @ b[:20]).tolist()
    decision.choose_precision = as_usual
    new = {each.partition("<")[0] for each, count in numpy_cupy.calls.items() if count > before.get(each, 0)}
    assert {"byte_products", "products", "reconstruct_by_integers"} <= new, new


for part in (32 << 20, 500):  # bytes at a time
    integer_parts._GPU_BYTES = part
    for each in (every_layout, mixed, wrong_products, in_little_memory):
        each()
every_type()
from_remainders()
if comm.rank == 0:
    print("all as it should be")
