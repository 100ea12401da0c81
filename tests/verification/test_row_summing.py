# SPDX-License-Identifier: MIT
"""Checksums of rows by threads in C: the same as NumPy's, for any layout, complete or given up."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.spans import Span
from hybrid.emulation.build import EmulationError
from hybrid.errors import DeviceUnavailable
from hybrid.host.row_sums import checksum_weights, mixed_total, row_checksums
from hybrid.verification import row_summing
from hybrid.verification.row_summing import ByNumPy, InC, RowsToSum, load, row_sums

THREADS = 3


@pytest.fixture(scope="module")
def library():
    try:
        return load()
    except DeviceUnavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def in_c(library):
    """Makes those for one product, all of one pool."""
    pool = library.new_pool()
    return lambda threads=THREADS: InC(library, pool, threads)


@pytest.fixture(params=["NumPy", "C"])
def sums(request):
    """For one product."""
    return ByNumPy(THREADS) if request.param == "NumPy" else request.getfixturevalue("in_c")()


def rows_of(matrix, operand="A", number=5, columns=None):
    """Their results have values before."""
    columns = columns or Span(0, matrix.shape[1])
    weights, checksums = checksum_weights(matrix.shape[1], matrix.itemsize), np.full(len(matrix) + 3, 7, np.uint64)
    return RowsToSum(operand, matrix, Span(0, len(matrix)), columns, weights, checksums, 2, np.full(3, 8, np.uint64), 1, number)


def finish(sums):
    sums.complete()
    sums.wait()


def assert_summed(rows):
    wanted = np.empty(len(rows.rows), np.uint64)
    row_checksums(rows.elements, rows.weights[rows.columns.slice], wanted)
    np.testing.assert_array_equal(rows.of_rows, wanted)
    assert rows.checksums[[0, 1, -1]].tolist() == [7, 7, 7]
    assert rows.totals.tolist() == [8, 8 + mixed_total(wanted, rows.number), 8], "it is added to what was there"


@examples(200)
@given(
    rows=st.integers(0, 200),
    columns=st.integers(0, 70),
    first=st.integers(0, 5),
    more=st.integers(0, 5),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 2**32),
)
def test_c_sums_what_numpy_does(in_c, rows, columns, first, more, dtype, seed):
    item = np.dtype(dtype).itemsize
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 256, (rows, item * (first + columns + more)), np.uint8).view(dtype)
    part, sums = rows_of(whole, columns=Span(first, first + columns)), in_c()
    sums.sum(part)
    finish(sums)
    assert_summed(part)


def test_rows_of_a_large_piece_are_shared_out(sums, rng):
    piece = rows_of(rng.standard_normal((3000, 1001)))
    sums.sum(piece)
    finish(sums)
    assert_summed(piece)


def test_pieces_come_while_others_are_summed(sums, rng):
    pieces = [rows_of(rng.standard_normal((40, 50)), "C", number) for number in range(60)]
    for piece in pieces:
        sums.sum(piece)
    finish(sums)
    for piece in pieces:
        assert_summed(piece)


@pytest.mark.parametrize("rows", [1, 2, 256, 257, 258, 800])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_some_rows_of_c_are_summed_once_more_in_the_end(sums, rng, rows, dtype):
    piece, changed = rows_of(rng.standard_normal((rows, 50)).astype(dtype), "C"), min(1, rows - 1)
    sums.sum(piece)
    let_all_be_summed(sums)
    before = piece.of_rows.copy()
    piece.matrix[changed] += 1
    finish(sums)
    assert (piece.of_rows != before).nonzero()[0].tolist() == [changed]
    assert piece.totals[1] == 8 + mixed_total(piece.of_rows, piece.number)


@pytest.mark.parametrize("operand", ["A", "B"])
def test_rows_of_operands_are_summed_once(sums, rng, operand):
    piece = rows_of(rng.standard_normal((300, 50)), operand)
    sums.sum(piece)
    let_all_be_summed(sums)
    before = piece.checksums.copy()
    piece.matrix[:] += 1
    finish(sums)
    np.testing.assert_array_equal(piece.checksums, before)


def let_all_be_summed(sums):
    """But nothing twice: pieces are summed in the order in which they come."""
    if isinstance(sums, InC):
        end = rows_of(np.ones((1, 1)))
        sums.sum(end)
        while end.of_rows[0] == 7:
            time.sleep(0.001)
        time.sleep(0.01)  # those that were begun before
    else:
        sums._calls.wait()


def test_parts_of_a_piece_have_its_total(sums, rng):
    whole = rows_of(rng.standard_normal((200, 50)), "C", number=3)
    for part in (Span(0, 96), Span(96, 160), Span(160, 200)):
        sums.sum(whole._replace(rows=part, first=whole.first + part.lo, number=whole.number + part.lo))
    finish(sums)
    assert_summed(whole)


def test_what_is_given_up_is_not_read_afterwards(sums, rng):
    piece = rows_of(rng.standard_normal((5000, 1000)))
    for _ in range(20):
        sums.sum(piece)
    sums.abandon()
    before = piece.checksums.copy()
    piece.matrix[:] = 0
    sums.abandon()
    np.testing.assert_array_equal(piece.checksums, before)


def test_products_at_the_same_time_do_not_disturb_each_other(in_c, rng):
    given_up, kept = in_c(), in_c()
    pieces = [rows_of(rng.standard_normal((300, 1000)), number=number) for number in range(20)]
    for number, piece in enumerate(pieces):
        (kept if number % 3 else given_up).sum(piece)
    given_up.abandon()
    finish(kept)
    for number, piece in enumerate(pieces):
        if number % 3:
            assert_summed(piece)


def test_with_fewer_threads_than_before_all_is_summed(in_c, rng):
    for threads in (6, 1, 2):
        sums, pieces = in_c(threads), [rows_of(rng.standard_normal((500, 1000))) for _ in range(4)]
        for piece in pieces:
            sums.sum(piece)
        finish(sums)
        for piece in pieces:
            assert_summed(piece)
        sums.abandon()


def test_one_that_is_forgotten_keeps_no_array(in_c, rng):
    for _ in range(10):
        forgotten, matrix = in_c(), rng.standard_normal((4, 5))
        forgotten.sum(rows_of(matrix))
        array = weakref.ref(matrix)
        del forgotten, matrix
    gc.collect()
    assert array() is None
    sums, piece = in_c(), rows_of(np.ones((4, 5)))
    sums.sum(piece)
    finish(sums)
    assert_summed(piece)


def test_a_process_that_is_forked_sums_by_threads_of_its_own(monkeypatch, library):
    monkeypatch.setattr(row_summing, "load", lambda: library)
    monkeypatch.setattr(row_summing, "_loading", None)
    row_sums(THREADS).abandon()
    wait_until_loaded()
    before = row_sums(THREADS)
    before.sum(rows_of(np.ones((4, 5))))
    child = os.fork()
    if not child:
        sums, piece = row_sums(THREADS), rows_of(np.ones((400, 5)))
        sums.sum(piece)
        finish(sums)
        del before  # the parent's: nothing waits for it here
        os._exit(int(piece.totals[1] != 8 + mixed_total(piece.of_rows, piece.number)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finish(before)


def wait_until_loaded():
    for thread in threading.enumerate():
        if thread.name == "hybrid-compile":
            thread.join(10)


def test_more_links_have_more_threads(monkeypatch, library):
    monkeypatch.setattr(row_summing, "load", lambda: library)
    monkeypatch.setattr(row_summing, "_loading", None)
    row_sums(1).abandon()
    wait_until_loaded()
    asked = []
    monkeypatch.setattr(row_summing, "InC", lambda library, pool, threads: asked.append(threads))
    for threads, links in ((40, 1), (40, 2), (3, 2)):
        row_sums(threads, links)
    assert asked == [12, 24, 3]


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
    wait_until_loaded()
    sums = row_sums(1)
    assert isinstance(sums, InC)
    sums.abandon()
