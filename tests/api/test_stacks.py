# SPDX-License-Identifier: MIT
"""Stacks of matrices: each rank multiplies whole ones, all are checked, and what is wrong is found, named and repaired."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from support.selection import examples

import hybrid
from hybrid.core.spans import block
from hybrid.errors import CheckFailed, Overflow
from hybrid.execution import stack_call

FLAGS = ("transpose_a", "transpose_b", "conjugate_a", "conjugate_b")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch, request):
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setenv("HYBRID_DEVICE", "cpu")


def numbers(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 10, shape).astype(dtype)
    parts = rng.standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(dtype) if np.dtype(dtype).kind == "c" else parts[0].astype(dtype)


def at(comm, root, *values):
    return values if comm.rank == root else (None,) * len(values)


@pytest.fixture
def counts(monkeypatch):
    """How many products BLAS gets at a time."""
    found = []

    def multiply(a, b, c, threads):
        found.append(len(c))
        np.matmul(a, b, out=c)

    monkeypatch.setattr(stack_call, "multiply_on_cpu", multiply)
    return found


@pytest.fixture
def spoil(monkeypatch):
    """spoil(number, ranks): a rank's product of this number gets a wrong element."""

    def plant(number, amount=0.5):
        def multiply(a, b, c, threads):
            np.matmul(a, b, out=c)
            if number < len(c):
                c[number, 1, 2] += amount

        monkeypatch.setattr(stack_call, "multiply_on_cpu", multiply)

    return plant


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_any_stacks_have_numpy_s_product(data):
    dtype = data.draw(st.sampled_from(["float64", "float32", "complex64", "complex128", "int16", "int64", "float16", "bool"]))
    n, l, m = (data.draw(st.sampled_from([0, 1, 2, 7, 65])) for _ in "nlm")
    batches = data.draw(st.sampled_from([((3,), (3,)), ((2, 1), (1, 4)), ((3,), ()), ((), (3,)), ((1,), (5,)), ((0,), (0,))]))
    flags = FLAGS[:2] if dtype == "bool" else FLAGS  # of bool NumPy has no conjugate
    asked = {flag: flag in flags and data.draw(st.booleans()) for flag in FLAGS}
    swapped = {flag: ((l, n) if flag == "transpose_a" else (m, l)) for flag in FLAGS[:2] if asked[flag]}
    a = numbers((*batches[0], *swapped.get("transpose_a", (n, l))), dtype, 1)
    b = numbers((*batches[1], *swapped.get("transpose_b", (l, m))), dtype, 2)
    if data.draw(st.booleans()) and a.ndim > 2:
        a = np.asfortranarray(a)
    first, second = (np.swapaxes(each, -1, -2) if asked[f"transpose_{name}"] else each for name, each in (("a", a), ("b", b)))
    first, second = (np.conj(each) if asked[f"conjugate_{name}"] else each for name, each in (("a", first), ("b", second)))
    wanted = first @ second
    found = hybrid.multiply(a, b, **asked)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-2 if dtype == "float16" else 1e-4, atol=0.1 if dtype == "float16" else 1e-4)


def test_all_products_of_a_stack_are_multiplied_at_once(counts):
    a, b, out = numbers((300, 16, 16), "float64"), numbers((300, 16, 16), "float64", 1), np.empty((300, 16, 16))
    assert hybrid.multiply(a, b, out=out) is out
    assert counts == [300]
    np.testing.assert_allclose(out, a @ b)
    hybrid.multiply(np.asfortranarray(a), b[0])
    assert counts == [300, 300]


@pytest.mark.parametrize("setting", [("STAGED", "1"), ("HOST_MEMORY", "120M")], ids=str)
def test_other_stacks_are_multiplied_one_product_after_the_other(counts, monkeypatch, setting):
    """As with buffers that are asked for, or where a copy of all matrices has no room."""
    monkeypatch.setenv(f"HYBRID_{setting[0]}", setting[1])
    a, b = numbers((40, 256, 256), "float32"), numbers((40, 256, 256), "float32", 1)
    np.testing.assert_allclose(hybrid.multiply(a, b, check=False, dtype="float64"), a.astype(float) @ b.astype(float))
    assert counts == []


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "int16", "int64"])
@pytest.mark.parametrize("size", [5, 70, 400])
def test_a_wrong_product_is_found_and_named_and_repaired(spoil, dtype, size):
    a, b = numbers((3, size, size), dtype, 1), numbers((3, size, size), dtype, 2)
    if dtype == "int64":
        a *= 10**9  # several primes, whose products are checked modulo another
    wanted = hybrid.multiply(a, b)
    spoil(1, 1 if np.dtype(dtype).kind == "i" else 0.5)
    with pytest.raises(CheckFailed, match=r"product 1 of the stack, by rank 0 on \S+: .*row 1 of C"):
        hybrid.multiply(a, b)
    assert not np.array_equal(hybrid.multiply(a, b, check=False), wanted)
    with pytest.warns(RuntimeWarning, match="repaired: product 1 of the stack, .* it was computed again on the CPU of rank 0"):
        found = hybrid.multiply(a, b, on_fault="repair")
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_small_errors_of_small_products_are_found_by_the_accuracy_of_all(spoil):
    """A single product of this size has too few sums to tell how accurate it is."""
    a, b = numbers((200, 16, 16), "float64", 1), numbers((200, 16, 16), "float64", 2)
    for _ in range(20):
        hybrid.multiply(a, b)  # no right one is refused
    spoil(123, 2e-13)
    with pytest.raises(CheckFailed, match="product 123 of the stack"):
        hybrid.multiply(a, b)


def test_right_products_of_all_scales_pass():
    scales = 10.0 ** np.arange(-280, 280, 8)[:, None, None]
    a, b = numbers((70, 20, 300), "float64", 1) * scales, numbers((70, 300, 20), "float64", 2)
    for _ in range(10):
        np.testing.assert_allclose(hybrid.multiply(a, b), a @ b)
    a[3, 2, 1], a[4, 0, 0], a[5] = np.nan, np.inf, 1.5e308
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(np.isfinite(hybrid.multiply(a, b)), np.isfinite(a @ b))


def test_an_element_that_is_too_large_is_named_with_its_product():
    a = np.ones((4, 3, 5), "int8")
    a[2, 1] = 100
    with pytest.raises(Overflow, match=r"element \[1, 0\] of product 2 of the stack is 500, which int8"):
        hybrid.multiply(a, np.ones((4, 5, 2), "int8"))


def test_a_wrong_product_leaves_the_c_that_is_added_as_it_was(spoil):
    a, b, c = (numbers((3, 8, 8), "float64", seed) for seed in range(3))
    before = c.copy()
    spoil(2)
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, c, beta=1, out=c)
    np.testing.assert_array_equal(c, before)


# Several ranks


@pytest.mark.mpi
@pytest.mark.parametrize("nodes", ["0", "1"])
@pytest.mark.parametrize("dtype", ["float32", "complex128", "int64"])
@pytest.mark.parametrize(
    "shapes", [((7, 5, 6), (7, 6, 3)), ((7, 6, 5), (1, 6, 3)), ((2, 1, 5, 6), (4, 6, 3)), ((9, 5, 6), (6,))], ids=str
)
def test_each_rank_multiplies_whole_matrices(comm, counts, monkeypatch, nodes, dtype, shapes):
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    root = comm.size - 1
    turned = shapes[0] == (7, 6, 5)
    a, b = (numbers(shape, dtype, seed) for seed, shape in enumerate(shapes))
    if len(shapes[1]) == 1:
        a = a[:, :, ::-1]  # no single product
    wanted = (np.swapaxes(a, 1, 2) if turned else a) @ b
    c = numbers(wanted.shape, dtype, 3)
    found = hybrid.multiply(*at(comm, root, a, b), comm=comm, root=root, transpose_a=turned)
    assert (found is None) == (comm.rank != root)
    count = int(np.prod(wanted.shape[: max(len(each) for each in shapes) - 2]))
    assert set(counts) == {len(block(count, comm.size, comm.rank))} - {0}
    if comm.rank == root:
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    mine = at(comm, root, a, b, c)
    hybrid.multiply(*mine, comm=comm, root=root, transpose_a=turned, alpha=3, beta=2, out=mine[2])
    if comm.rank == root:
        np.testing.assert_allclose(c, 3 * wanted + 2 * numbers(wanted.shape, dtype, 3), rtol=1e-3, atol=1e-4)


@pytest.mark.mpi(min_size=2)
def test_fewer_matrices_than_ranks_are_multiplied_by_all(comm, counts):
    a, b = numbers((comm.size - 1, 9, 9), "float64"), numbers((comm.size - 1, 9, 9), "float64", 1)
    found = hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    assert counts == []
    if comm.rank == 0:
        np.testing.assert_allclose(found, a @ b)


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_multiplies_wrong_is_named_and_is_left_out_when_that_happens_again(comm, counts, monkeypatch):
    shared = comm.Dup()
    a, b = numbers((20, 6, 6), "float64"), numbers((20, 6, 6), "float64", 1)

    def multiply(first, second, c, threads):
        counts.append(len(c))
        np.matmul(first, second, out=c)
        if comm.rank == 1:
            c[0, 0, 0] += 1

    monkeypatch.setattr(stack_call, "multiply_on_cpu", multiply)
    with pytest.raises(CheckFailed, match=r"product \d+ of the stack, by rank 1 on"):
        hybrid.multiply(*at(comm, 0, a, b), comm=shared)
    for _ in range(2):
        if comm.rank == 0:
            with pytest.warns(RuntimeWarning, match="computed again on the CPU of rank 1"):
                np.testing.assert_allclose(hybrid.multiply(a, b, comm=shared, on_fault="repair"), a @ b)
        else:
            hybrid.multiply(None, None, comm=shared, on_fault="repair")
    counts.clear()
    c = hybrid.multiply(*at(comm, 0, a, b), comm=shared)
    assert bool(counts) == (comm.rank != 1)
    if comm.rank == 0:
        np.testing.assert_allclose(c, a @ b)
    shared.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("which", "message"), [(0, r"did not reach it as they are at rank 0"), (1, "did not reach the root as it has them")]
)
def test_matrices_that_do_not_arrive_as_they_were_sent_are_refused(comm, monkeypatch, which, message):
    calls = []

    def exchanged(team, to, taken):
        calls.append(1)
        series = real(team, to, taken)
        spoilt = next(iter(taken.values()), None) if len(calls) == which + 1 else None

        class Spoiling:
            def wait_until_complete(self):
                series.wait_until_complete()
                if spoilt:
                    spoilt[0][0, 0] += 1

        return Spoiling()

    real = stack_call.exchanged
    monkeypatch.setattr(stack_call, "exchanged", exchanged)
    a, b = numbers((8, 4, 4), "float64"), numbers((8, 4, 4), "float64", 1)
    with pytest.raises(CheckFailed, match=rf"matrices \d+:\d+ of the stack, of rank \d+, {message}"):
        hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    calls.append(9)
    c = hybrid.multiply(*at(comm, 0, a, b), comm=comm)
    if comm.rank == 0:
        np.testing.assert_allclose(c, a @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "int16", "int64", "float16"])
@pytest.mark.parametrize("memory", [None, "2M"])
def test_a_gpu_multiplies_stacks(dtype, memory, monkeypatch):
    at_once = []
    real = stack_call.multiply_on_gpu

    def multiply(gpu, a, b, c, most_bytes):
        at_once.append(len(c))
        real(gpu, a, b, c, most_bytes)

    monkeypatch.setattr(stack_call, "multiply_on_gpu", multiply)
    a, b = numbers((100, 48, 64), dtype, 1), numbers((100, 80, 64), dtype, 2)
    found = hybrid.multiply(a, b, transpose_b=True, device="cuda", gpu_memory=memory)
    assert set(at_once) == {100}
    tolerance = 1e-2 if dtype == "float16" else 1e-4
    np.testing.assert_allclose(found, a @ np.swapaxes(b, 1, 2), rtol=tolerance, atol=100 * tolerance)
