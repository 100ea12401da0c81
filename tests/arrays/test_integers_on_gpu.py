# SPDX-License-Identifier: MIT
"""Exact products of integers on a GPU, for whose arrays NumPy's stand: what is computed, and the memory that it takes."""

from __future__ import annotations

import math
import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.numpy_cupy import ndarray, on_gpu
from support.selection import examples

import hybrid
from hybrid.arrays import integer_parts
from hybrid.arrays.exact_result import ExactResult
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.integers import Exact, largest_of, write_remainders
from hybrid.arrays.interop import empty_beside
from hybrid.arrays.row_block import BlockShapes
from hybrid.core.problem import INTEGERS, Problem
from hybrid.core.settings import Settings
from hybrid.core.spans import Span
from hybrid.errors import Overflow
from hybrid.execution import row_block_decision
from hybrid.execution.row_block_decision import decide_on_row_blocks
from hybrid.plan.arithmetic import Summary, choose
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.verification.rounding import is_exact, most_exact


@pytest.fixture(scope="module", autouse=True)
def cupy():
    with pytest.MonkeyPatch.context() as patch:
        stub = SimpleNamespace(
            asarray=lambda array: array if isinstance(array, ndarray) else on_gpu(array),
            empty=lambda shape, dtype: np.empty(shape, dtype).view(ndarray),
        )
        patch.setitem(sys.modules, "cupy", stub)
        yield


def product(a, b, exact, result, *, gemm=Gemm(), c=None):  # noqa: B008
    """As `part_of_product` computes it."""
    how = {"alpha": gemm.alpha, "beta": gemm.beta, "c": c}
    made = ExactResult(exact, result, (len(a), b.shape[1]), beside=a, **how)
    for number, prime in enumerate(exact.products):
        real = []
        for each in (a, b):
            real.append(empty_beside(each, each.shape, exact.computed))
            write_remainders(each, prime, Span(0, len(each)), real[-1], 1)
        part = (np.asarray(real[0]) @ np.asarray(real[1])).view(ndarray)
        del real
        made.add(number, part, 1)
        del part
    return made.result(None, 1)


@st.composite
def cases(draw):
    types = [np.dtype(draw(st.sampled_from((*INTEGERS, "bool")))) for _ in "abc"]
    shapes = draw(st.sampled_from([(1, 1, 1), (3, 4, 2), (5, 1, 3), (2, 0, 2)]))
    sizes = (shapes[0], shapes[1]), (shapes[1], shapes[2]), (shapes[0], shapes[2])
    found = []
    for dtype, shape in zip(types, sizes, strict=True):
        low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        some = draw(st.sampled_from([(max(-3, low), min(3, high)), (low, high)]))
        count = shape[0] * shape[1]
        values = draw(st.lists(st.integers(*some) | st.sampled_from(some), min_size=count, max_size=count))
        found.append(np.array(values, dtype).reshape(shape))
    return found


@examples(300, deadline=None)
@given(cases(), st.sampled_from(INTEGERS), st.sampled_from([(1, 0), (-1, 1), (3, -2), (2**63, -(2**63))]), st.booleans())
def test_the_product_is_python_s_or_the_host_s_refusal(given, result, factors, checked):
    (a, b, c), (alpha, beta) = given, factors
    expected = alpha * (a.astype(object) @ b.astype(object)) + beta * c.astype(object)
    there = [on_gpu(each) for each in (a, b, c)]
    largest = [largest_of(each, 1) for each in there]
    assert largest == [max((abs(int(each)) for each in matrix.flat), default=0) for matrix in (a, b, c)]
    most = most_exact(GROUP_COLUMNS) if checked else None
    how = {"alpha": alpha, "beta": beta, "largest_c": largest[2] if beta else 0}
    exact = Exact.of(a.shape[1], (largest[0], largest[1]), most=most, **how)
    limits, gemm = np.iinfo(result), Gemm(alpha=alpha, beta=beta)
    if all(limits.min <= int(each) <= limits.max for each in expected.flat):
        made = product(there[0], there[1], exact, result, gemm=gemm, c=there[2] if beta else None)
        assert isinstance(made, ndarray)
        assert made.dtype == result
        assert made.tolist() == expected.tolist()
        return
    with pytest.raises(Overflow) as on_device:
        product(there[0], there[1], exact, result, gemm=gemm, c=there[2] if beta else None)
    with pytest.raises(Overflow) as on_host:
        hybrid.multiply(a, b, c if beta else None, alpha=alpha, beta=beta or None, dtype=result, device="cpu")
    assert str(on_device.value) == str(on_host.value)
    place = next(each for each, value in np.ndenumerate(expected) if not limits.min <= value <= limits.max)
    assert str(on_device.value).startswith(f"element {[*place]} of the product is {expected[place]}, ")


@pytest.mark.parametrize("largest", [(3, 3), (1 << 20, 99), (1 << 40, 1 << 15)], ids=str)
@pytest.mark.parametrize("how", [{}, {"alpha": 3, "beta": -1}], ids=str)
def test_the_memory_that_is_made_there_is_forecast(monkeypatch, largest, how):
    monkeypatch.setattr(integer_parts, "_GPU_BYTES", 1 << 18)
    rng, shapes = np.random.default_rng(0), [(600, 300), (300, 700), (600, 700)]
    a, b, c = (on_gpu(rng.integers(-most, most, shape, endpoint=True)) for shape, most in zip(shapes, (*largest, 9), strict=True))
    c, gemm = c if how else None, Gemm(**how)
    blocks = [each if each is None else hybrid.RowBlock(each) for each in (a, b, c)]
    told = BlockShapes.of(*blocks, gemm, check=False, threads=lambda: 1)
    exact = Exact.of(300, told.largest[:2], alpha=gemm.alpha, beta=gemm.beta, largest_c=told.largest[2])
    forecast = told.bytes_on_gpu(exact, combines=gemm.combines)
    tracemalloc.start()
    try:
        product(a, b, exact, "int64", gemm=gemm, c=c)
        taken = tracemalloc.get_traced_memory()[1] - 600 * 700 * np.dtype(exact.computed).itemsize  # the real product's C
    finally:
        tracemalloc.stop()
    assert forecast * 0.75 < taken < forecast + 100_000


def test_a_c_that_is_copied_to_the_gpu_is_part_of_the_forecast():
    a, b, c = np.ones((3, 4), np.int8), np.ones((4, 5), np.int8), np.ones((3, 5), np.int64)
    asked, none = Gemm(beta=1), Gemm(beta=0)
    there = on_gpu(a), on_gpu(c)
    for matrices, gemm, copied in (
        ((there[0], c), asked, 120),
        (there, asked, 0),
        ((there[0], c), none, 0),
        ((a, c), asked, 0),  # C is put together in host memory, where A is
    ):
        blocks = [hybrid.RowBlock(each) for each in (matrices[0], on_gpu(b), matrices[1])]
        assert BlockShapes.of(*blocks, gemm, check=False, threads=lambda: 1).gpu_bytes == copied


@examples(200)
@given(st.integers(1, 10**6), st.integers(0, 2**64), st.integers(0, 2**64), st.booleans())
def test_gpus_can_check_every_product_and_compute_it_from_remainders(terms, largest_a, largest_b, checked):
    """Both of the integers themselves and modulo primes."""
    exact = Exact.of(terms, (largest_a, largest_b), most=most_exact(GROUP_COLUMNS) if checked else 2**53 - 1)
    assert not exact.primes or math.prod(exact.primes) > 2 * exact.bound
    for prime in exact.products:
        largest = [float(prime // 2)] * 2 if prime else [float(largest_a), float(largest_b)]
        if checked and (prime or min(largest)):
            assert is_exact(Problem(1, terms, 1, exact.computed), GROUP_COLUMNS, *largest)
        a, b = (Summary(each, integral=True, in_range=True) for each in largest)
        arithmetic, error = choose(a, b, terms, exact.computed, lambda: pytest.fail("not exact"), fast=False)
        assert error == 0.0
        assert not arithmetic.scaled


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(("precision", "there"), [("native", "native"), ("auto", "auto"), ("fast", "auto")])
def test_who_asks_for_native_products_gets_them_also_on_a_gpu(monkeypatch, device, precision, there):
    plan = SimpleNamespace(device=device, shares=[SimpleNamespace(rows=Span(0, 3))])
    monkeypatch.setattr(row_block_decision, "agree", lambda *_: SimpleNamespace(plan=plan))
    blocks = hybrid.RowBlock(on_gpu(np.ones((3, 4), int))), hybrid.RowBlock(on_gpu(np.ones((4, 5), int))), None
    shapes = BlockShapes.of(*blocks, Gemm(), check=False, threads=lambda: 1)
    session = SimpleNamespace(team=SimpleNamespace(rank=0))
    wanted, settings, _ = decide_on_row_blocks(session, [shapes], [], Settings(precision=precision), Gemm())
    assert wanted.stays == (device == "cuda")
    assert settings.precision == (there if wanted.stays else "native")
