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

from hybrid.emulation.build import EmulationError
from hybrid.errors import DeviceUnavailable
from hybrid.host.row_sums import checksum_weights, mixed_total, row_checksums
from hybrid.verification import row_summing
from hybrid.verification.row_summing import ByNumPy, InC, PieceOfRows, load, row_sums

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


def piece_of(rows, operand="A", number=5, columns=None):
    """Its results have values before. `columns`: the weights', else they begin with those of the first column."""
    weights = checksum_weights(rows.shape[1], rows.itemsize) if columns is None else columns
    return PieceOfRows(operand, rows, weights, np.full(len(rows), 7, np.uint64), np.full(1, 8, np.uint64), number)


def assert_summed(piece):
    wanted = np.empty(len(piece.rows), np.uint64)
    row_checksums(piece.rows, piece.weights, wanted)
    np.testing.assert_array_equal(piece.checksums, wanted)
    assert piece.total[0] == 8 + mixed_total(wanted, piece.number), "it is added to what was there"


@examples(200)
@given(
    rows=st.integers(0, 200),
    columns=st.integers(0, 70),
    first=st.integers(0, 5),
    more=st.integers(0, 5),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32),
)
def test_c_sums_what_numpy_does(in_c, rows, columns, first, more, dtype, seed):
    item = np.dtype(dtype).itemsize
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 256, (rows, item * (first + columns + more)), np.uint8).view(dtype)
    weights = checksum_weights(first + columns + more, item)[first : first + columns]
    piece, sums = piece_of(whole[:, first : first + columns], columns=weights), in_c()
    sums.sum(piece)
    sums.wait()
    assert_summed(piece)


def test_rows_of_a_large_piece_are_shared_out(sums, rng):
    piece = piece_of(rng.standard_normal((3000, 1001)))
    sums.sum(piece)
    sums.wait()
    assert_summed(piece)


def test_pieces_come_while_others_are_summed(sums, rng):
    pieces = [piece_of(rng.standard_normal((40, 50)), "C", number) for number in range(60)]
    for piece in pieces:
        sums.sum(piece)
    sums.wait()
    for piece in pieces:
        assert_summed(piece)


@pytest.mark.parametrize("rows", [1, 2, 256, 257, 258, 800])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_some_rows_of_c_are_summed_once_more_in_the_end(sums, rng, rows, dtype):
    piece, changed = piece_of(rng.standard_normal((rows, 50)).astype(dtype), "C"), min(1, rows - 1)
    sums.sum(piece)
    let_all_be_summed(sums)
    before = piece.checksums.copy()
    piece.rows[changed] += 1
    sums.wait()
    assert (piece.checksums != before).nonzero()[0].tolist() == [changed]
    assert piece.total[0] == 8 + mixed_total(piece.checksums, piece.number)


@pytest.mark.parametrize("operand", ["A", "B"])
def test_rows_of_operands_are_summed_once(sums, rng, operand):
    piece = piece_of(rng.standard_normal((300, 50)), operand)
    sums.sum(piece)
    let_all_be_summed(sums)
    before = piece.checksums.copy()
    piece.rows[:] += 1
    sums.wait()
    np.testing.assert_array_equal(piece.checksums, before)


def let_all_be_summed(sums):
    """But nothing twice: pieces are summed in the order in which they come."""
    if isinstance(sums, InC):
        end = piece_of(np.ones((1, 1)))
        sums.sum(end)
        while end.checksums[0] == 7:
            time.sleep(0.001)
        time.sleep(0.01)  # those that were begun before
    else:
        sums._calls.wait()


def test_parts_of_a_piece_have_its_total(sums, rng):
    whole, parts = piece_of(rng.standard_normal((200, 50)), "C", number=3), (slice(0, 96), slice(96, 160), slice(160, 200))
    total = np.zeros(1, np.uint64)
    for part in parts:
        number = whole.number + part.start
        sums.sum(PieceOfRows("C", whole.rows[part], whole.weights, whole.checksums[part], total, number))
    sums.wait()
    whole.total[0] = total[0] + np.uint64(8)
    assert_summed(whole)


def test_what_is_given_up_is_not_read_afterwards(sums, rng):
    piece = piece_of(rng.standard_normal((5000, 1000)))
    for _ in range(20):
        sums.sum(piece)
    sums.abandon()
    before = piece.checksums.copy()
    piece.rows[:] = 0
    sums.abandon()
    np.testing.assert_array_equal(piece.checksums, before)


def test_products_at_the_same_time_do_not_disturb_each_other(in_c, rng):
    given_up, kept = in_c(), in_c()
    pieces = [piece_of(rng.standard_normal((300, 1000)), number=number) for number in range(20)]
    for number, piece in enumerate(pieces):
        (kept if number % 3 else given_up).sum(piece)
    given_up.abandon()
    kept.wait()
    for number, piece in enumerate(pieces):
        if number % 3:
            assert_summed(piece)


def test_with_fewer_threads_than_before_all_is_summed(in_c, rng):
    for threads in (6, 1, 2):
        sums, pieces = in_c(threads), [piece_of(rng.standard_normal((500, 1000))) for _ in range(4)]
        for piece in pieces:
            sums.sum(piece)
        sums.wait()
        for piece in pieces:
            assert_summed(piece)
        sums.abandon()


def test_one_that_is_forgotten_keeps_no_array(in_c, rng):
    for _ in range(10):
        forgotten, matrix = in_c(), rng.standard_normal((4, 5))
        forgotten.sum(piece_of(matrix))
        array = weakref.ref(matrix)
        del forgotten, matrix
    gc.collect()
    assert array() is None
    sums, piece = in_c(), piece_of(np.ones((4, 5)))
    sums.sum(piece)
    sums.wait()
    assert_summed(piece)


def test_a_process_that_is_forked_sums_by_threads_of_its_own(monkeypatch, library):
    monkeypatch.setattr(row_summing, "load", lambda: library)
    monkeypatch.setattr(row_summing, "_loading", None)
    row_sums(THREADS).abandon()
    wait_until_loaded()
    before = row_sums(THREADS)
    before.sum(piece_of(np.ones((4, 5))))
    child = os.fork()
    if not child:
        sums, piece = row_sums(THREADS), piece_of(np.ones((400, 5)))
        sums.sum(piece)
        sums.wait()
        del before  # the parent's: nothing waits for it here
        os._exit(int(piece.total[0] != 8 + mixed_total(piece.checksums, piece.number)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    before.wait()


def wait_until_loaded():
    for thread in threading.enumerate():
        if thread.name == "hybrid-compile":
            thread.join(10)


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
