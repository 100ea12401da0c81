# SPDX-License-Identifier: MIT
"""Checksums of rows by threads in C: the same as NumPy's, for any layout, complete or given up."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.emulation.build import EmulationError
from hybrid.errors import DeviceUnavailable
from hybrid.host.row_sums import checksum_weights, row_checksums
from hybrid.verification import row_summing
from hybrid.verification.row_summing import ByNumPy, InC, load, row_sums

THREADS = 3


@pytest.fixture(scope="module")
def library():
    try:
        return load()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["NumPy", "C"])
def sums(request):
    """For one product."""
    if request.param == "NumPy":
        return ByNumPy(THREADS)
    return InC(request.getfixturevalue("library"), THREADS)


def expected(rows, weights):
    into = np.empty(len(rows), np.uint64)
    row_checksums(rows, weights, into)
    return into


@examples(200)
@given(
    rows=st.integers(0, 200),
    columns=st.integers(0, 70),
    first=st.integers(0, 5),
    more=st.integers(0, 5),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32),
)
def test_c_sums_what_numpy_does(library, rows, columns, first, more, dtype, seed):
    item = np.dtype(dtype).itemsize
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 256, (rows, item * (first + columns + more)), np.uint8).view(dtype)
    part = whole[:, first : first + columns]
    weights = checksum_weights(first + columns + more, item)[first : first + columns]
    into = np.full(rows, 7, np.uint64)
    in_c = InC(library, THREADS)
    in_c.sum("A", part, weights, into)
    in_c.wait()
    np.testing.assert_array_equal(into, expected(part, weights))


def test_rows_of_a_large_piece_are_shared_out(library, rng):
    matrix, weights = rng.standard_normal((3000, 1001)), checksum_weights(1001, 8)
    into = np.empty(3000, np.uint64)
    in_c = InC(library, THREADS)
    in_c.sum("A", matrix, weights, into)
    in_c.wait()
    np.testing.assert_array_equal(into, expected(matrix, weights))


def test_pieces_come_while_others_are_summed(sums, rng):
    weights, pieces = checksum_weights(50, 8), [rng.standard_normal((40, 50)) for _ in range(60)]
    into = [np.empty(40, np.uint64) for _ in pieces]
    for piece, each in zip(pieces, into, strict=True):
        sums.sum("C", piece, weights, each)
    sums.wait()
    for piece, each in zip(pieces, into, strict=True):
        np.testing.assert_array_equal(each, expected(piece, weights))


def test_what_is_given_up_is_not_read_afterwards(sums, rng):
    matrix, weights = rng.standard_normal((5000, 1000)), checksum_weights(1000, 8)
    into = np.zeros(5000, np.uint64)
    for _ in range(20):
        sums.sum("A", matrix, weights, into)
    sums.abandon()
    before = into.copy()
    matrix[:] = 0
    sums.abandon()
    np.testing.assert_array_equal(into, before)


def test_one_that_is_forgotten_keeps_no_thread_and_no_array(library, rng):
    for _ in range(10):
        forgotten, matrix = InC(library, THREADS), rng.standard_normal((4, 5))
        forgotten.sum("A", matrix, checksum_weights(5, 8), np.empty(4, np.uint64))
        array = weakref.ref(matrix)
        del forgotten, matrix
    gc.collect()
    sums, matrix, into = InC(library, THREADS), np.ones((4, 5)), np.empty(4, np.uint64)
    sums.sum("A", matrix, checksum_weights(5, 8), into)
    sums.wait()
    np.testing.assert_array_equal(into, expected(matrix, checksum_weights(5, 8)))
    assert array() is None


@pytest.mark.parametrize("why", [DeviceUnavailable("no compiler"), EmulationError("build", "it does not compile")])
def test_without_a_compiler_numpy_sums(monkeypatch, why):
    tried = threading.Event()

    def fail():
        tried.set()
        raise why

    monkeypatch.setattr(row_summing, "load", fail)
    monkeypatch.setattr(row_summing, "_loading", None)
    assert isinstance(row_sums(1), ByNumPy)
    assert tried.wait(10)
    assert isinstance(row_sums(1), ByNumPy)


def test_once_it_is_loaded_c_sums(monkeypatch, library):
    monkeypatch.setattr(row_summing, "load", lambda: library)
    monkeypatch.setattr(row_summing, "_loading", None)
    row_sums(1).abandon()
    assert row_summing._loading is not None
    for thread in threading.enumerate():
        if thread.name == "hybrid-compile":
            thread.join(10)
    sums = row_sums(1)
    assert isinstance(sums, InC)
    sums.abandon()
