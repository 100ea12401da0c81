# SPDX-License-Identifier: MIT
"""Integers that lie on a GPU: python -m pytest -m gpu, and mpirun -n P python -m pytest --with-mpi -m "gpu and mpi".

tests/devices/programs/integers_by_numpy.py compares more cases, on GPUs for which NumPy stands.
"""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.row_block import BlockShapes
from hybrid.core.problem import INTEGERS
from hybrid.devices.cuda_device import CudaDevice
from hybrid.errors import CheckFailed, Overflow

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def poisoned_gpu(monkeypatch):
    monkeypatch.setenv("HYBRID_POISON", "1")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def nothing_goes_to_the_host(cupy, monkeypatch):
    """But the numbers of the check: one for each row of a piece."""
    original = cupy.asnumpy

    def refuse(array):
        assert array.shape[1:] == (1,), f"a matrix of {array.shape} was copied to the host"
        return original(array)

    monkeypatch.setattr(cupy, "asnumpy", refuse)


def random(rng, shape, dtype, largest=None):
    if dtype == "bool":
        return rng.random(shape) < 0.3
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if largest is None else (max(limits.min, -largest), min(limits.max, largest))
    made = rng.integers(low, high, shape, dtype, endpoint=True)
    made.flat[0], made.flat[-1] = low, high
    return made


def same_as_python(cupy, a, b, c=None, **how):
    """Compares with Python's integers; where the type of the result does not hold them, with the host's refusal."""
    dtype = np.dtype(how.get("dtype") or np.result_type(a, b))
    wanted = how.get("alpha", 1) * (a.astype(object) @ b.astype(object))
    if c is not None:
        wanted = wanted + how["beta"] * c.astype(object)
    there = [cupy.asarray(each) for each in (a, b, c) if each is not None]
    limits = np.iinfo(dtype)
    if all(limits.min <= each <= limits.max for each in wanted.flat):
        found = hybrid.multiply(*there, device="cuda", **how)
        assert isinstance(found, cupy.ndarray)
        assert found.dtype == dtype
        assert found.get().tolist() == wanted.tolist(), (a.dtype, b.dtype, how)
        return
    with pytest.raises(Overflow) as on_gpu:
        hybrid.multiply(*there, device="cuda", **how)
    with pytest.raises(Overflow) as on_host:
        hybrid.multiply(a, b, c, device="cpu", **how)
    assert str(on_gpu.value) == str(on_host.value)


@pytest.mark.parametrize("largest", [3, 1000, 1 << 28, None], ids=str)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_type(cupy, rng, nothing_goes_to_the_host, dtype, largest):
    for n, l, m in ((33, 65, 17), (70, 90, 60)):
        a, small, b = random(rng, (n, l), dtype, largest), random(rng, (l, m), dtype, 5), random(rng, (l, m), dtype, largest)
        c = random(rng, (n, m), dtype, largest)
        for result in (None, "int64", "uint64", "int8"):
            same_as_python(cupy, a, small, dtype=result)
        same_as_python(cupy, a, b, dtype="int64")
        same_as_python(cupy, a, small, c, alpha=-3, beta=2, dtype="int64")
        same_as_python(cupy, a, small, c, beta=1)


def test_bool_and_mixtures(cupy, rng, nothing_goes_to_the_host):
    a, b = random(rng, (40, 300), "bool"), random(rng, (300, 50), "bool")
    found = hybrid.multiply(cupy.asarray(a), cupy.asarray(b))
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found.get(), a @ b)
    same_as_python(cupy, a, b, dtype="int16")
    same_as_python(cupy, random(rng, (40, 30), "int8"), random(rng, (30, 50), "uint32"))
    same_as_python(cupy, random(rng, (40, 30), "uint64"), random(rng, (30, 50), "int64", 3), dtype="int64")
    same_as_python(cupy, a, random(rng, (300, 20), "int64", 1 << 40))


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64])
def test_the_last_that_int64_holds_and_the_first_that_it_does_not(cupy, value):
    high, low = divmod(value, 2**32)
    same_as_python(cupy, np.array([[high, low]]), np.array([[2**32], [1]]), dtype="int64")


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_empty_and_single(cupy, shape, dtype):
    n, l, m = shape
    a, b = np.ones((n, l), dtype), np.ones((l, m), dtype)
    found = hybrid.multiply(cupy.asarray(a), cupy.asarray(b))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.get(), a @ b)


@pytest.mark.parametrize("largest", [9, 1 << 20], ids=str)
def test_views_transposes_and_vectors(cupy, rng, largest):
    a, b = random(rng, (120, 131), "int32"), random(rng, (131, 90), "int32", largest)
    first, second = cupy.asarray(a), cupy.asarray(b)
    wanted = a.astype(object) @ b.astype(object)

    def multiplied(*operands, **how):
        return hybrid.multiply(*operands, dtype="int64", **how).get().tolist()

    assert multiplied(cupy.asfortranarray(first), second) == wanted.tolist()
    assert multiplied(first[::-1, ::-1], second[::-1, ::3]) == wanted[::-1, ::3].tolist()
    assert multiplied(second, first, transpose_a=True, transpose_b=True) == wanted.T.tolist()
    assert multiplied(cupy.broadcast_to(first[:1], (50, 131)), second) == [wanted[0].tolist()] * 50
    assert multiplied(first[0], second) == wanted[0].tolist()
    c = random(rng, (120, 90), "int16").astype(">i2")
    assert multiplied(first, second, c, beta=3) == (wanted + 3 * c.astype(object)).tolist()


@pytest.mark.parametrize("on_gpu", range(8))
def test_c_lies_where_a_does(cupy, rng, on_gpu):
    a, b, c = random(rng, (60, 80), "int32"), random(rng, (80, 70), "int32", 99), random(rng, (60, 70), "int32")
    given = [cupy.asarray(each) if on_gpu >> bit & 1 else each for bit, each in enumerate((a, b, c))]
    found = hybrid.multiply(*map(hybrid.RowBlock, given), beta=1, dtype="int64", device="cuda").array
    assert isinstance(found, cupy.ndarray if on_gpu & 1 else np.ndarray)
    assert found.tolist() == (a.astype(object) @ b.astype(object) + c).tolist()


@pytest.mark.parametrize("precision", ["auto", "native"])
@pytest.mark.parametrize(("dtype", "largest"), [("int8", 99), ("int16", None), ("int32", 99), ("int32", 2**24), ("int64", 2**25)])
def test_large_matrices(cupy, rng, nothing_goes_to_the_host, dtype, largest, precision):
    """From remainders, too, where those are faster."""
    a, b = random(rng, (4096, 4000), dtype, largest), random(rng, (4000, 3500), dtype, largest)
    found = hybrid.multiply(cupy.asarray(a), cupy.asarray(b), dtype="int64", precision=precision)
    found = found.get()  # no sum exceeds int64
    np.testing.assert_array_equal(found[::100], a[::100].astype(np.int64) @ b.astype(np.int64))
    np.testing.assert_array_equal(found[:, ::100], a.astype(np.int64) @ b[:, ::100].astype(np.int64))


@pytest.mark.parametrize("check", [True, "host"])
@pytest.mark.parametrize("largest", [3, 1 << 20, 1 << 40], ids=str)
def test_one_wrong_element_is_found(cupy, rng, monkeypatch, largest, check):
    original, seen = CudaDevice.multiply, []

    def spoiling(device, a, b, c, after, **more):
        event = original(device, a, b, c, after, **more)
        if not seen:
            device.wait(event)
            with c.device:
                c[7, 5] += 1
                c.device.synchronize()
        seen.append(None)
        return event

    monkeypatch.setattr(CudaDevice, "multiply", spoiling)
    a, b = cupy.asarray(random(rng, (70, 90), "int64", largest)), cupy.asarray(random(rng, (90, 60), "int64", 1 << 18))
    with pytest.raises(CheckFailed, match="the product is wrong"):
        hybrid.multiply(a, b, check=check)
    if largest > 1 << 30:
        seen.clear()
        with pytest.raises(CheckFailed, match=r"element \[7, 5\] of the product is \S+, and no larger one than \d+ is possible"):
            hybrid.multiply(a, b, check=False)
    found = hybrid.multiply(a, b, check=check, dtype="int64")
    assert found.get().tolist() == (a.get().astype(object) @ b.get().astype(object)).tolist()


@pytest.mark.parametrize("largest", [99, 1 << 40], ids=str)
def test_the_pool_grows_by_no_more_than_was_forecast(cupy, rng, largest):
    import hybrid.execution.row_block_decision as decisions

    exacts, original = [], decisions.exact_product
    n, l, m = 3000, 2000, 2500
    a, b = cupy.asarray(random(rng, (n, l), "int64", largest)), cupy.asarray(random(rng, (l, m), "int64", 99))
    hybrid.multiply(a[:5], b)  # buffers, cuBLAS's memory and kernels
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decisions, "exact_product", lambda *given: exacts.append(original(*given)) or exacts[-1])
        hybrid.multiply(a, b, precision="native")
    told = BlockShapes.of(hybrid.RowBlock(a), hybrid.RowBlock(b), None, Gemm(), check=False, threads=lambda: 1)
    forecast = told.bytes_on_gpu(exacts[-1], combines=False) + n * m * 8
    assert pool.total_bytes() - before < forecast + (256 << 20)  # of the check, and what the pool rounds up


@pytest.mark.parametrize("memory", ["1M", "300k"])
def test_what_does_not_fit_the_gpu_goes_through_the_host(cupy, rng, memory):
    a, b = random(rng, (200, 150), "int64", 1 << 40), random(rng, (150, 100), "int32", 99)
    found = hybrid.multiply(cupy.asarray(a), cupy.asarray(b), gpu_memory=memory)
    assert isinstance(found, cupy.ndarray)
    assert found.get().tolist() == (a @ b).tolist()


@pytest.mark.mpi
@pytest.mark.parametrize("nodes", ["0", "1"], ids=["one node", "a node a rank"])
@pytest.mark.parametrize("largest", [9, 1 << 20, None], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint64"])
def test_row_blocks_stay_on_the_ranks_gpus(comm, cupy, monkeypatch, dtype, largest, nodes):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    rng = np.random.default_rng(5)  # the same on all ranks
    a, b, c = random(rng, (101, 93), dtype, largest), random(rng, (93, 71), dtype, 5), random(rng, (101, 71), dtype, largest)
    wanted = a.astype(object) @ b.astype(object) + 2 * c.astype(object)
    result = "uint64" if dtype == "uint64" else "int64"
    rows = [hybrid.RowBlock(cupy.asarray(np.array_split(each, comm.size)[comm.rank])) for each in (a, b, c)]
    if max(wanted.flat) > np.iinfo(result).max:
        with pytest.raises(Overflow, match=r"element \[\d+, \d+\] of the product is"):
            hybrid.multiply(*rows, beta=2, comm=comm, dtype=result, device="cuda")
        return
    found = hybrid.multiply(*rows, beta=2, comm=comm, dtype=result, device="cuda").array
    assert isinstance(found, cupy.ndarray)
    assert np.concatenate(comm.allgather(found.get())).tolist() == wanted.tolist()
