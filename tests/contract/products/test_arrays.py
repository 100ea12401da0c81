# SPDX-License-Identifier: MIT
"""What becomes of arrays: the result is one of its own, or `out` and nothing beside it; operands are left alone and let go of;
and what a call takes of memory was forecast, or refused with nothing allocated."""

import gc
import resource
import tracemalloc
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.cases import refused

import hybrid
import hybrid.testing
from hybrid.errors import DoesNotFit

KiB, MiB = 1 << 10, 1 << 20


@pytest.mark.parametrize("check", [True, "host", False])
@pytest.mark.parametrize("staged", [False, True])
def test_nothing_keeps_arrays_when_the_caller_lets_go_of_them(staged, check):
    a, b, c = np.ones((30, 20)), np.ones((20, 10)), np.ones((30, 10))
    gc.disable()  # it would free them later, and until then they take memory
    try:
        with hybrid.testing.pretend(staged=staged):
            for _ in range(2):
                d = hybrid.multiply(a, b, c, beta=1, check=check)
        alive = [weakref.ref(each) for each in (a, b, c, d)]
        del a, b, c, d
        assert [each() for each in alive] == [None] * 4
    finally:
        gc.enable()


# out


def test_out_may_be_a_block_beside_the_operands(rng):
    """As in the update of an LU decomposition: no element is shared, though each block reaches through the whole matrix."""
    whole, k = rng.random((9, 9)), 3
    before, corner = whole.copy(), whole[k:, k:]
    hybrid.multiply(whole[k:, :k], whole[:k, k:], corner, alpha=-1, beta=1, out=corner)
    np.testing.assert_allclose(whole[k:, k:], before[k:, k:] - before[k:, :k] @ before[:k, k:])
    np.testing.assert_array_equal(whole[:k], before[:k])
    np.testing.assert_array_equal(whole[:, :k], before[:, :k])
    stack = np.ones((2, 4, 6))
    hybrid.multiply(stack[:, :, :2], np.ones((2, 2, 3)), out=stack[:, :, 2:5])
    np.testing.assert_array_equal(stack[0, 0], [1, 1, 2, 2, 2, 1])


def test_any_strides_without_a_shared_element_will_do():
    """Also of one row or column, whose stride is nobody's."""
    square, ones = [(32, 8), (8, 32), (-32, -8), (64, 16)], [((1, 4), (0, 8)), ((4, 1), (8, 0)), ((1, 1), (0, 0))]
    for shape, strides in [*(((4, 4), each) for each in square), *ones]:
        out = np.lib.stride_tricks.as_strided(np.zeros(128)[63:], shape, strides)
        a, b = np.ones((shape[0], 2)), np.arange(2.0 * shape[1]).reshape(2, shape[1])
        assert hybrid.multiply(a, b, out=out) is out
        np.testing.assert_array_equal(out, a @ b)


def test_subclasses_are_filled_and_returned():
    out = np.asmatrix(np.zeros((3, 3)))
    assert hybrid.multiply(np.eye(3), 2 * np.eye(3), out=out) is out
    np.testing.assert_array_equal(out, 2 * np.eye(3))
    assert type(hybrid.multiply(out, out)) is np.ndarray


@pytest.mark.parametrize("kind", ["matrix", "stack", "int64", "complex128"])
def test_a_wrong_product_leaves_the_c_that_it_is_added_to_as_it_was(rng, kind):
    dtype = kind if kind in ("int64", "complex128") else "float64"
    a, c = (np.rint(9 * rng.random((3, 8, 8) if kind == "stack" else (8, 8))).astype(dtype) for _ in "ac")
    before = c.copy()
    with hybrid.testing.plant("multiply", times=None) as planted, pytest.raises(hybrid.errors.CheckFailed):
        hybrid.multiply(a, a, c, beta=1, out=c)
    assert planted.done
    np.testing.assert_array_equal(c, before)


# Memory


KEPT = []  # results: of those that are given back, the next ones have the memory, which is not forecast again


def least_memory(low, step, call):
    """The least --host-memory, to `step` bytes, with which a call is not refused."""
    while True:
        try:
            KEPT.append(call(host_memory=low))
            return low
        except DoesNotFit:
            low += step


def taken(call):
    """Bytes that NumPy takes at most during the call."""
    KEPT.append(call())  # what is loaded and made once takes memory, too
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        KEPT.append(call())
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


N, L, M = 700, 500, 600
REAL, COMPLEX = (np.ones((N, L)), np.ones((L, M))), (np.ones((N, L), complex), np.ones((L, M), complex))
ADDED, WHOLE = np.ones((N, M)), (np.full((N, L), 2**30), np.full((L, M), 2**20))
# What is multiplied, how, the settings; and the bytes that must be forecast beside the arrays of the call: those of the result,
# of what is converted, expanded or copied into buffers.
FORECASTS = {
    "the result": (REAL, {}, {}, 8 * N * M),
    "nothing beside out": (REAL, {"out": np.empty((N, M))}, {}, 0),
    "the product that is added": ((*REAL, ADDED), {"beta": 1, "out": np.empty((N, M))}, {}, 8 * N * M),
    "operands of another type": ((REAL[0].astype("float32"), REAL[1]), {}, {}, 8 * (N * M + N * L)),
    "operands without order": ((np.ones((N, 2 * L))[:, ::2], REAL[1]), {}, {}, 8 * (N * M + N * L)),
    "the expanded B": (COMPLEX, {}, {}, 16 * N * M + 32 * L * M),
    "remainders": (WHOLE, {}, {}, 8 * (N * L + L * M + N * M) + N * M * 20),
    "buffers": (REAL, {}, {"staged": True}, 8 * (2 * N * M + N * L + L * M)),
}


def test_results_of_several_sizes_in_turn_use_the_memory_of_those_before():
    places, others = {}, []
    for n in (400, 800, 1600) * 3:
        c = hybrid.multiply(np.ones((n, 3)), np.ones((3, n)))
        assert (c == 3).all()
        places.setdefault(n, set()).add(c.ctypes.data)
        del c
        others.append(np.empty((n, n)))  # lies where the result was, if that was freed
    assert [*map(len, places.values())] == [1, 1, 1]


def test_the_memory_of_results_before_makes_room_for_another_size():
    for n in (2000, 2800):
        hybrid.multiply(np.ones((n, 3)), np.ones((3, n)))
    _, most = limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 60 * MiB, most))  # of 111 MiB, and 91 are kept
    try:
        c = hybrid.multiply(np.ones((3800, 3)), np.ones((3, 3800)))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert (c == 3).all()


@pytest.mark.parametrize("case", FORECASTS)
def test_memory_is_forecast(case):
    """No more is taken than with the least limit that is not refused, and no more is wanted than is needed."""
    operands, how, settings, bytes_beside = FORECASTS[case]
    tiny, settings = [each[:1, :1].copy() for each in operands], {"check": "off", "device": "cpu", **settings}

    def call(*arrays, **limit):
        return hybrid.multiply(*arrays, **how, **limit)

    with hybrid.testing.pretend(**settings):
        for kind in (float, complex):  # take the memory that results before may have left
            KEPT.append(hybrid.multiply(np.ones((N, 1), kind), np.ones((1, M), kind)))
        alone = least_memory(MiB, MiB, lambda **limit: hybrid.multiply(*tiny, beta=how.get("beta"), **limit)) - MiB
        alone = least_memory(alone, 16 * KiB, lambda **limit: hybrid.multiply(*tiny, beta=how.get("beta"), **limit))
        forecast = least_memory(alone, 64 * KiB, partial(call, *operands)) - alone
        used = taken(partial(call, *operands))
    KEPT.clear()
    assert forecast == pytest.approx(bytes_beside, abs=160 * KiB), case
    parts = 8 * MiB if case == "remainders" else 600 * KiB  # what threads work on at a time
    assert used <= forecast + parts, (case, used, forecast)


def test_what_does_not_fit_is_refused_before_it_is_allocated():
    """Also of results that no machine holds."""
    a = np.broadcast_to(np.float64(1), (1 << 20, 3))
    tracemalloc.start()
    try:
        for first, second in ((a, a.T), (np.broadcast_to(a, (1 << 10, 1 << 20, 3)), a.T)):
            with refused(DoesNotFit, "host-memory"):
                hybrid.multiply(first, second)
        assert tracemalloc.get_traced_memory()[1] < MiB
    finally:
        tracemalloc.stop()


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", ["float64", "float16", "complex64"])
def test_in_little_gpu_memory_products_come_in_parts(rng, dtype):
    """Down to what one element needs; below that they are refused."""
    a, b = (np.rint(5 * rng.standard_normal(shape)).astype(dtype) for shape in ((20, 13), (13, 11)))
    fits = []
    for memory in (1 << 20, 30_000, 10_000, 2000, 100):
        try:
            c = hybrid.multiply(a, b, device="emulate", gpu_memory=memory)
        except DoesNotFit as refusal:
            fits.append({"gpu-memory": False}[refusal.code])
        else:
            np.testing.assert_array_equal(c, a @ b)
            fits.append(True)
    assert fits == sorted(fits, reverse=True)
    assert fits[:3] == [True] * 3
    assert not fits[-1]
