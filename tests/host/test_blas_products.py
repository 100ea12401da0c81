# SPDX-License-Identifier: MIT
"""Products by BLAS that threads of our own divide: numpy's, of every shape, and by as many threads as are allowed."""

from __future__ import annotations

import threading
import warnings
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.spans import Span
from hybrid.host import blas_products
from hybrid.host.blas_products import add_by_blas, blas, blas_of_long_sums
from hybrid.host.threads import limited_threads

sizes = st.integers(0, 70)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(blas_products, "_TILE_TERMS", 50)
    monkeypatch.setattr(blas_products, "_TILE_ELEMENTS", 20)
    monkeypatch.setattr(blas_products, "_ROWS_ADDED", 5)
    monkeypatch.setattr(blas_products, "_TERMS_OF_A_PART", 7)


@pytest.mark.usefixtures("small_tiles")
@examples(300)
@given(
    n=sizes,
    l=sizes,
    m=sizes,
    threads=st.integers(1, 5),
    transposed=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
)
def test_every_shape_is_numpys_product(n, l, m, threads, transposed, seed):
    rng = np.random.default_rng(seed)
    a, b = (
        rng.standard_normal(shape[::-1]).T if turned else rng.standard_normal(shape)
        for shape, turned in zip(((n, l), (l, m)), transposed, strict=True)
    )
    wide = np.full((n, m + 3), np.nan)
    c = wide[:, :m]
    with limited_threads(threads):
        blas(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=0, atol=1e-12)
        c[:] = np.nan
        blas_of_long_sums(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=0, atol=1e-12)
        add_by_blas(a, b, c)
    np.testing.assert_allclose(c, 2 * (a @ b), rtol=0, atol=1e-12)
    assert np.isnan(wide[:, m:]).all()


@pytest.mark.parametrize(("rows", "at_once"), [(40, 3), (1 << 18, 1)])
def test_long_sums_of_few_elements_are_divided_along_the_terms(monkeypatch, rows, at_once):
    monkeypatch.setattr(blas_products, "_TERMS_OF_A_PART", 4)
    parts, whole = mock.Mock(wraps=blas_products.on_threads), mock.Mock(wraps=blas)
    monkeypatch.setattr(blas_products, "on_threads", parts)
    monkeypatch.setattr(blas_products, "blas", whole)
    a, b, c = np.ones((rows, 12)), np.ones((12, 2)), np.full((rows, 2), np.nan)
    with limited_threads(3):
        blas_of_long_sums(a, b, c)
    assert (c == 12).all()
    divided = [list(call.args[2]) for call in parts.call_args_list]
    assert ([Span(0, 4), Span(4, 8), Span(8, 12)] in divided) == (at_once == 3)
    assert whole.called == (at_once == 1)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_as_many_threads_multiply_at_once_as_are_allowed(rng, monkeypatch, threads):
    monkeypatch.setattr(blas_products, "_TILE_TERMS", 1000)
    together, original, seen = threading.Barrier(threads, timeout=20), np.matmul, set()

    def meet(a, b, out):
        together.wait()  # breaks, where fewer do
        seen.add(threading.current_thread())
        return original(a, b, out=out)

    monkeypatch.setattr(blas_products.np, "matmul", meet)
    a = rng.standard_normal((60, 60))
    with limited_threads(threads):
        blas(a, a, np.empty((60, 60)))
    assert len(seen) == threads


def tiles(rows, columns, terms, threads):
    with limited_threads(threads):
        return blas_products._tiles(np.broadcast_to(0.0, (rows, columns)), terms)


@given(
    rows=st.integers(1, 5000),
    columns=st.integers(1, 5000),
    terms=st.integers(1, 5000),
    threads=st.integers(2, 16),
)
def test_tiles_are_all_of_c_once_of_about_the_same_size_and_as_many_for_each_thread(rows, columns, terms, threads):
    all_of_c = tiles(rows, columns, terms, threads)
    assert sum(len(some_rows) * len(some_columns) for some_rows, some_columns in all_of_c) == rows * columns
    assert len(set(all_of_c)) == len(all_of_c)
    for spans in zip(*all_of_c, strict=True):
        lengths = {len(span) for span in spans}
        assert max(lengths) - min(lengths) <= 1
    if min(rows, columns) > 2 * threads:
        assert len(all_of_c) < threads or len(all_of_c) in {threads * each for each in (1, 2, 3, 4)}


@pytest.mark.parametrize(
    ("size", "threads", "a_thread"), [(1000, 2, 1), (2000, 2, 4), (2000, 16, 1), (4000, 16, 2), (8000, 16, 4)]
)
def test_a_thread_gets_several_tiles_where_they_are_large(size, threads, a_thread):
    assert len(tiles(size, size, size, threads)) == a_thread * threads


def test_large_tiles_of_few_terms_are_as_many_for_each_thread():
    assert len(tiles(4000, 4000, 7, 4)) == 8  # not the 11 that would be worth a thread's while


def test_few_terms_are_not_divided_and_most_is_read_of_the_smaller_operand():
    assert tiles(100, 100, 100, 8) == [(Span(0, 100), Span(0, 100))]
    assert len({columns for _, columns in tiles(20000, 500, 500, 2)}) == 1
    assert len({rows for rows, _ in tiles(500, 20000, 500, 2)}) == 1


@pytest.mark.usefixtures("small_tiles")
def test_a_matrix_times_its_own_transpose_is_symmetric_to_the_last_bit(rng):
    a = rng.standard_normal((101, 53))
    with limited_threads(3):
        for first, second in ((a, a.T), (a.T, a)):
            c = np.empty((len(first), len(first)))
            blas(first, second, c)
            np.testing.assert_array_equal(c, c.T)
            np.testing.assert_allclose(c, first @ second, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("small_tiles")
def test_what_the_caller_does_about_floating_point_errors_its_threads_do():
    a = np.full((500, 500), 1e300)  # so large that no thread has done all before the others begin
    for threads in (1, 3):
        with limited_threads(threads), np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            blas(a, a, np.empty(a.shape))
        with limited_threads(threads), np.errstate(over="raise"), pytest.raises(FloatingPointError):
            blas(a, a, np.empty(a.shape))
        call = mock.Mock()
        with limited_threads(threads), np.errstate(over="call", call=call):
            blas(a, a, np.empty(a.shape))
        assert call.called


def test_where_nobody_can_limit_blas_it_divides_products_itself(monkeypatch):
    from hybrid.host import threads

    class None_:
        lib_controllers = ()

    monkeypatch.setattr(threads, "_blas_libraries", lambda modules: None_)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with limited_threads(2):
        assert threads.product_threads() == 1
