# SPDX-License-Identifier: MIT
"""hybrid.multiply of integers, exactly, and of floating-point numbers of 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection import pairs_first

import hybrid
from hybrid.errors import CheckFailed, DoesNotFit, HybridError, Overflow, UsageError
from hybrid.plan.plan import PROCESS_BYTES

KiB = 1 << 10
WAYS = {
    "as it comes": {},
    "tiny pieces": {"STAGED": "1", "PANEL_ROWS": "3", "PANEL_COLUMNS": "5"},
    "a node a rank": {"RANKS_PER_NODE": "1", "MESSAGE_BYTES": "100"},
}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("HYBRID_DEVICE", "cpu")


def whole(shape, dtype, seed=0, largest=None):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.2
    limits = np.iinfo(dtype)
    low, high = (limits.min, limits.max) if largest is None else (max(limits.min, -largest), min(limits.max, largest))
    return rng.integers(low, high, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_small_integers_are_one_product_and_of_numpy_s_type(kernel_calls, dtype):
    a, b = whole((30, 9), dtype, largest=3), whole((9, 20), dtype, 1, largest=3)
    c = hybrid.multiply(a, b)
    assert c.dtype == dtype
    np.testing.assert_array_equal(c, a @ b)
    assert [c.dtype for _, _, c in kernel_calls] == [np.float32]


def test_integers_beyond_what_float64_holds_are_exact(kernel_calls):
    a, b = whole((40, 30), "int64", largest=2**30), whole((30, 20), "int64", 1, largest=2**26)
    np.testing.assert_array_equal(hybrid.multiply(a, b), a @ b)
    assert len(kernel_calls) > 1
    assert {c.dtype for _, _, c in kernel_calls} == {np.dtype("float64")}


def test_bool_times_bool_is_whether_there_is_one_and_counts_where_integers_are_asked_for():
    a, b = whole((30, 40), "bool"), whole((40, 20), "bool", 1)
    c, counts = hybrid.multiply(a, b), hybrid.multiply(a, b, dtype="int32")
    assert (c.dtype, counts.dtype) == (np.bool_, np.int32)
    np.testing.assert_array_equal(c, a @ b)
    np.testing.assert_array_equal(counts, a.astype(int) @ b)


def test_nothing_is_wrapped():
    a = np.full((3, 2), 100, np.int8)
    assert int((a @ a.T)[0, 0]) != 20000  # NumPy's has
    with pytest.raises(Overflow, match=r"is 20000, which int8 \(-128 to 127\) does not hold: dtype='int16' holds all") as refused:
        hybrid.multiply(a, a.T)
    assert isinstance(refused.value, HybridError)
    assert isinstance(refused.value, OverflowError)
    assert (hybrid.multiply(a, a.T, dtype="int16") == 20000).all()
    assert hybrid.multiply(a, a.T, dtype=float).dtype == np.float64
    large = np.full((2, 2), 2**40)
    with pytest.raises(Overflow, match="dtype='float64' rounds it"):
        hybrid.multiply(large, large)
    np.testing.assert_array_equal(hybrid.multiply(large, large, dtype="float64"), np.full((2, 2), 2.0**81))


def test_unsigned_and_signed_integers_of_64_bits_are_exact_where_numpy_makes_them_float64():
    a, b = np.full((2, 2), 2**60 + 1, np.uint64), np.full((2, 2), -3)
    assert hybrid.multiply(a, b).dtype == np.float64
    np.testing.assert_array_equal(hybrid.multiply(a, b, dtype="int64"), -6 * (2**60 + 1))


@pytest.mark.parametrize("view", [np.asfortranarray, lambda x: x[::-1, ::-1], lambda x: x.astype(x.dtype.newbyteorder())])
@pytest.mark.parametrize("largest", [5, 2**40])
def test_integers_may_lie_in_memory_as_they_like(view, largest):
    a, b = view(whole((20, 5), "int64", largest=largest)), view(whole((5, 30), "int64", 1, largest=2**16))
    np.testing.assert_array_equal(hybrid.multiply(a, b), a @ b)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_empty_and_single(shape, dtype):
    n, l, m = shape
    a, b = np.ones((n, l), dtype), np.ones((l, m), dtype)
    c = hybrid.multiply(a, b)
    assert c.dtype == dtype
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("make", [np.zeros, lambda shape, dtype: np.zeros((shape[1], shape[0]), dtype).T])
def test_out_is_filled_and_one_of_another_type_refused(make):
    a, b = whole((6, 5), "int32", largest=1000), whole((5, 4), "int16", 1, largest=100)
    out = make((6, 4), "int64")
    assert hybrid.multiply(a, b, out=out, dtype="int64") is out
    np.testing.assert_array_equal(out, a @ b)
    with pytest.raises(UsageError, match="out must be an array of int32"):
        hybrid.multiply(a, b, out=out)
    square = whole((5, 5), "int32")
    with pytest.raises(UsageError, match="out overlaps a or b"):
        hybrid.multiply(square, square, out=square)


def test_wrong_products_are_found(monkeypatch):
    def wrong(a, b, c):
        np.matmul(a, b, out=c)
        c[-1, -1] += 1

    monkeypatch.setattr("hybrid.devices.cpu.blas", wrong)
    for largest in (3, 2**20, 2**40):
        with pytest.raises(CheckFailed):
            hybrid.multiply(whole((6, 5), "int64", largest=largest), whole((5, 4), "int64", 1, largest=2**18))


def test_what_the_remainders_take_is_part_of_what_must_fit(monkeypatch):
    a, b = np.full((300, 200), 2**30), np.full((200, 100), 2**20)
    primes = 3  # for sums up to 2^57.6
    need = PROCESS_BYTES + 8 * (300 * 200 + 200 * 100 + 300 * 100) + 300 * 100 * (4 * primes + 8)
    monkeypatch.setenv("HYBRID_CHECK", "0")
    monkeypatch.setenv("HYBRID_HOST_MEMORY", str(need))
    np.testing.assert_array_equal(hybrid.multiply(a, b), a @ b)
    monkeypatch.setenv("HYBRID_HOST_MEMORY", str(need - 256 * KiB))
    with pytest.raises(DoesNotFit, match=r"256\.0 KiB are missing"):
        hybrid.multiply(a, b)


# 16 bits


def test_float16_is_rounded_once_from_sums_in_float32():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((20, 300)).astype(np.float16), rng.standard_normal((300, 30)).astype(np.float16)
    c, wide = hybrid.multiply(a, b), hybrid.multiply(a, b, dtype="float32")
    assert (c.dtype, wide.dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(c, wide.astype(np.float16))
    np.testing.assert_allclose(wide, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)
    out = np.zeros((20, 30), np.float16)
    assert hybrid.multiply(a, b, out=out) is out
    np.testing.assert_array_equal(out, c)


def test_what_float16_does_not_hold_is_infinite_as_numpy_s():
    a = np.full((2, 4), 200, np.float16)
    np.testing.assert_array_equal(hybrid.multiply(a, a.T), np.full((2, 2), np.inf))
    np.testing.assert_array_equal(hybrid.multiply(a, a.T, dtype="float32"), np.full((2, 2), 160000))


@pytest.mark.needs("ml_dtypes")
def test_bfloat16_likewise():
    import ml_dtypes

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((20, 300), (300, 30)))
    c, wide = hybrid.multiply(a, b), hybrid.multiply(a, b, dtype="float32")
    assert (c.dtype, wide.dtype) == (ml_dtypes.bfloat16, np.float32)
    np.testing.assert_array_equal(c, wide.astype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(wide, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-4)


def test_a_type_may_be_asked_for():
    a = np.random.default_rng(0).random((5, 5), np.float32)
    wide = hybrid.multiply(a, a, dtype="float64")
    assert wide.dtype == np.float64
    np.testing.assert_allclose(wide, a.astype(np.float64) @ a.astype(np.float64), rtol=1e-15)
    assert hybrid.multiply(wide, wide, dtype="float32").dtype == np.float32
    assert hybrid.multiply(a, a, dtype="complex64").dtype == np.complex64
    for dtype, message in (("int8", "cannot have dtype int8"), ("bogus", "dtype bogus is no type of a product")):
        with pytest.raises(UsageError, match=message):
            hybrid.multiply(a, a, dtype=dtype)


# Several ranks


def at(comm, root, *values):
    return values if comm.rank == root else (None,) * len(values)


CASES = [
    ("int64", 2**40, "int64"),
    ("int8", 127, "int32"),
    ("bool", None, "bool"),
    ("uint16", None, "int64"),
    ("float16", None, "float16"),
]


def operands(dtype, largest):
    if dtype == "float16":
        return [np.random.default_rng(seed).random(shape).astype(dtype) for seed, shape in enumerate(((37, 23), (23, 41)))]
    return whole((37, 23), dtype, largest=largest), whole((23, 41), dtype, 1, largest=largest and min(largest, 2**15))


def assert_same(c, a, b, result):
    assert c.dtype == result
    if result == "float16":
        np.testing.assert_allclose(c, a.astype(float) @ b.astype(float), rtol=1e-3)
    else:
        np.testing.assert_array_equal(c, a.astype(result) @ b.astype(result))


@pytest.mark.mpi
@pytest.mark.parametrize(("way", "case"), pairs_first(list(WAYS), CASES))
def test_matrices_of_a_root_are_multiplied_by_all_ranks(comm, monkeypatch, way, case):
    for name, value in WAYS[way].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    dtype, largest, result = case
    a, b = operands(dtype, largest)
    root = comm.size - 1
    c = hybrid.multiply(*at(comm, root, a, b), comm=comm, root=root, dtype=result)
    assert (c is None) == (comm.rank != root)
    if comm.rank == root:
        assert_same(c, a, b, result)


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("nodes", ["0", "1"])
def test_row_blocks_stay_on_their_ranks(comm, monkeypatch, nodes, case):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    dtype, largest, result = case
    a, b = operands(dtype, largest)
    blocks = [hybrid.RowBlock(np.array_split(each, comm.size)[comm.rank]) for each in (a, b)]
    c = hybrid.multiply(*blocks, comm=comm, dtype=result)
    assert len(c) == len(blocks[0])
    assert_same(np.concatenate(comm.allgather(c.array)), a, b, result)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["root", "RowBlocks"])
def test_an_overflow_on_one_rank_is_raised_on_all_and_the_next_call_works(comm, kind):
    a, b = np.eye(2 * comm.size, dtype=np.int16), np.full((2 * comm.size, 3), 300, np.int16)
    b[:-1] = 3
    for dtype, fits in (("int8", False), ("int16", True)):
        operands = at(comm, 0, a, b)
        if kind == "RowBlocks":
            rows = slice(2 * comm.rank, 2 * comm.rank + 2)
            operands = hybrid.RowBlock(a[rows]), hybrid.RowBlock(b[rows])
        if fits:
            hybrid.multiply(*operands, comm=comm, dtype=dtype)
        else:
            with pytest.raises(Overflow, match=rf"element \[{2 * comm.size - 1}, 0\] of the product is 300"):
                hybrid.multiply(*operands, comm=comm, dtype=dtype)


@pytest.mark.mpi(min_size=2)
def test_ranks_that_ask_for_different_types_are_told(comm):
    with pytest.raises(UsageError, match="rank 1 asks for dtype float32, rank 0 for float64"):
        hybrid.multiply(None, None, comm=comm, dtype="float32" if comm.rank == 1 else float)
    with pytest.raises(UsageError, match=r"rank 1 on \S+, agree: dtype bogus is no type"):
        hybrid.multiply(np.eye(2), np.eye(2), comm=comm, dtype="bogus" if comm.rank == 1 else float)


@pytest.mark.parametrize("check", ["on", "host"])
@pytest.mark.parametrize("bits", [10, 22, 27])
def test_an_error_of_1_in_one_of_the_products_is_found(monkeypatch, bits, check):
    """The device's own check would have to round: l·p² is 2^53, and its sums are of 64 elements times x."""
    import hybrid.plan.planning
    from hybrid.devices.cpu import CpuDevice
    from hybrid.plan.planning import make_plan

    monkeypatch.setenv("HYBRID_STAGED", "1")
    monkeypatch.setattr(hybrid.plan.planning, "_checks_on_device", lambda *_: True)
    make_plan.cache_clear()
    seen, original = [], CpuDevice.multiply

    def off_by_one(device, a, b, c, after, **more):
        event = original(device, a, b, c, after, **more)
        seen.append(None)
        if len(seen) == 1:
            c[3, 5] += 1
        return event

    monkeypatch.setattr(CpuDevice, "multiply", off_by_one)
    a, b = whole((20, 100), "int64", largest=1 << bits), whole((100, 30), "int64", 1, largest=1 << bits)
    with pytest.raises(CheckFailed, match="the product is wrong"):
        hybrid.multiply(a, b, check=check)
    c = hybrid.multiply(a, b, check=check)
    assert (c == a.astype(object) @ b.astype(object)).all()
    make_plan.cache_clear()


def test_an_element_that_cannot_be_as_large_is_a_wrong_product_and_no_overflow(monkeypatch):
    monkeypatch.setenv("HYBRID_CHECK", "off")
    from hybrid.devices.cpu import CpuDevice

    original = CpuDevice.multiply

    def off_by_one(device, a, b, c, after, **more):
        event = original(device, a, b, c, after, **more)
        c[1, 1] += 1
        monkeypatch.setattr(CpuDevice, "multiply", original)
        return event

    monkeypatch.setattr(CpuDevice, "multiply", off_by_one)
    a, b = whole((4, 100), "int64", largest=1 << 27), whole((100, 3), "int64", 1, largest=1 << 27)
    with pytest.raises(CheckFailed, match=r"element \[1, 1\] of the product is \S+, and no larger one than \d+ is possible"):
        hybrid.multiply(a, b)


def test_an_overflow_tells_the_right_value_where_out_is_c():
    a, c = np.full((1, 1), -3, "int32"), np.full((1, 1), 2, "uint64")
    with pytest.raises(Overflow, match=r"element \[0, 0\] of the product is -1, "):
        hybrid.multiply(a, np.ones((1, 1), "int32"), c, beta=1, dtype="uint64", out=c)
