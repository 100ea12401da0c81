# SPDX-License-Identifier: MIT
"""What can be computed with RowBlocks, element by element and by all ranks."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest
import scipy.sparse

import hybrid
from hybrid.arrays import distributed
from hybrid.errors import NoArray, Overflow, UsageError
from hybrid.ranks.launcher import Launch

A, B = np.arange(6.0).reshape(2, 3), np.array([[2.0, 4, 0], [1, 4, 5]])


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(distributed, "launched", lambda: None)
    monkeypatch.setenv("HYBRID_DEVICE", "cpu")


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "eq", "ne"])
@pytest.mark.parametrize("other", [B, 2, 0.5, 1j, True, np.float32(3), np.int64(-1)], ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_elements_are_those_of_the_arrays(name, other):
    operation = getattr(operator, name)
    second = hybrid.RowBlock(other) if other is B else other
    for found, wanted in (
        (operation(hybrid.RowBlock(A), second), operation(A, other)),
        (operation(second, hybrid.RowBlock(A)), operation(other, A)),
    ):
        assert isinstance(found, hybrid.RowBlock)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.array, wanted)


def test_signs_and_assignments():
    rows = before = hybrid.RowBlock(A)
    np.testing.assert_array_equal((-rows).array, -A)
    np.testing.assert_array_equal((+rows).array, A)
    rows += 1
    np.testing.assert_array_equal(rows.array, A + 1)
    np.testing.assert_array_equal(before.array, A)


def test_alone_a_product_needs_no_communicator(alone):
    rows = hybrid.RowBlock(A)
    np.testing.assert_array_equal((rows @ hybrid.RowBlock(B.T) @ hybrid.RowBlock(np.eye(2))).array, A @ B.T)


def test_where_there_are_other_ranks_the_communicator_must_be_known(monkeypatch):
    monkeypatch.setattr(distributed, "launched", lambda: Launch("mpirun", 0, 2))
    with pytest.raises(UsageError, match=r"a @ b knows no communicator: RowBlock\(\.\.\., comm=comm\) names it"):
        hybrid.RowBlock(A) @ hybrid.RowBlock(B.T)


def test_what_is_known_of_the_communicator_is_kept_and_two_are_refused():
    rows = hybrid.RowBlock(A, "one")
    for made in (rows + 1, 1 - rows, rows * hybrid.RowBlock(B), hybrid.RowBlock(B) * rows, -rows, rows == rows):
        assert made.comm == "one"
    for operation in (operator.add, operator.matmul, operator.eq):
        with pytest.raises(UsageError, match="the RowBlocks are of different communicators"):
            operation(rows, hybrid.RowBlock(A, "another"))


def test_rows_that_do_not_conform_are_refused():
    with pytest.raises(UsageError, match=r"shapes \(2, 3\) and \(1, 3\) have no add by elements"):
        hybrid.RowBlock(A) + hybrid.RowBlock(A[:1])
    with pytest.raises(NoArray, match=r"a RowBlock and an array do not go together.*take \.array"):
        hybrid.RowBlock(A) * A


def test_rows_on_different_devices_are_refused(monkeypatch):
    rows, others = hybrid.RowBlock(A), hybrid.RowBlock(A)
    monkeypatch.setattr(hybrid.RowBlock, "device", property(lambda self: "cpu" if self is rows else "cuda:0"))
    with pytest.raises(UsageError, match="the RowBlocks lie on cpu and cuda:0"):
        _ = rows + others


def test_a_row_block_is_neither_true_nor_false_nor_a_key():
    rows = hybrid.RowBlock(A)
    with pytest.raises(UsageError, match="no truth value"):
        bool(rows == rows)
    with pytest.raises(TypeError):
        hash(rows)
    with pytest.raises(UsageError, match="no truth value"):
        bool(rows.T)
    assert rows is not None
    assert rows != None  # noqa: E711 (as NumPy's arrays are compared)


def test_the_transpose_is_a_view_of_columns():
    rows = hybrid.RowBlock(A.astype("float32"), "one")
    view = rows.T
    assert (view.shape, len(view), view.ndim, view.dtype, view.nbytes, view.device) == ((3, 2), 3, 2, np.float32, 24, "cpu")
    assert view.T is rows
    assert view.comm == "one"
    assert np.shares_memory(view.array, rows.array)
    np.testing.assert_array_equal(view.array, A.T)
    assert repr(hybrid.RowBlock(rows.array).T) == "RowBlock(2 rows of 3 columns, float32, cpu).T"
    again = pickle.loads(pickle.dumps(view))
    np.testing.assert_array_equal(again.array, A.T)
    assert again.comm is None
    with pytest.raises(NoArray, match=r"a TransposedRowBlock is no array.*: hybrid\.gather brings them to one"):
        np.asarray(view)
    with pytest.raises(TypeError):
        np.ones((2, 3)) @ view
    with pytest.raises(NoArray, match="do not go together"):
        view @ np.ones((2, 3))


def test_elements_of_transposes_are_those_of_their_rows():
    first, second = hybrid.RowBlock(A, "one"), hybrid.RowBlock(B)
    for found, wanted in (
        (first.T + second.T, A + B),
        (2 - first.T, 2 - A),
        (-first.T, -A),
        (first.T * 0.5, A * 0.5),
        (first.T != second.T, A != B),
    ):
        assert type(found) is type(first.T)
        assert found.comm == "one"
        np.testing.assert_array_equal(found.T.array, wanted)
    with pytest.raises(UsageError, match="a RowBlock and a TransposedRowBlock have no add by elements"):
        first + second.T
    with pytest.raises(UsageError, match=r"shapes \(3, 2\) and \(3, 1\)"):
        first.T + hybrid.RowBlock(A[:1]).T


def test_copies_have_the_rows_and_pickled_ones_no_communicator():
    rows = hybrid.RowBlock(A, comm=lambda: None)
    for made in (pickle.loads(pickle.dumps(rows)), copy.deepcopy(rows)):
        np.testing.assert_array_equal(made.array, A)
        assert made.comm is None


@pytest.mark.mpi
def test_products_of_what_calls_return_know_the_communicator(comm):
    whole = np.arange(144.0).reshape(12, 12) % 7
    rows = hybrid.scatter(whole if comm.rank == 0 else None, comm=comm)
    assert rows.comm is comm
    product = hybrid.multiply(rows, rows, comm=comm)
    found = 2 * (product @ rows) - rows @ hybrid.RowBlock(rows.array)
    np.testing.assert_array_equal(np.concatenate(comm.allgather(found.array)), 2 * (whole @ whole @ whole) - whole @ whole)
    assert (hybrid.multiply(hybrid.RowBlock(rows.array), hybrid.RowBlock(rows.array), comm=comm)).comm is comm
    own = hybrid.RowBlock(rows.array, comm)
    assert hybrid.multiply(own, own).comm is comm
    np.testing.assert_array_equal((own @ own).array, product.array)


@pytest.mark.mpi(min_size=2)
def test_a_communicator_that_was_freed_is_refused(comm):
    own = comm.Dup()
    rows = hybrid.scatter(np.eye(4) if comm.rank == 0 else None, comm=own)
    own.Free()
    with pytest.raises(UsageError, match="a communicator that was freed"):
        rows @ rows


def test_integers_wrap_around_as_in_numpy_where_products_refuse_what_the_type_does_not_hold(alone):
    a = hybrid.RowBlock(np.full((2, 2), 100, "int8"))
    for operation in (operator.add, operator.sub, operator.mul):
        np.testing.assert_array_equal(operation(a, -a).array, operation(a.array, -a.array))
    with pytest.raises(Overflow):
        a @ a


@pytest.mark.parametrize(
    "given", [None, [[1.0]], "ab", np.ones(3), np.ones((1, 2, 2)), hybrid.RowBlock(A), scipy.sparse.eye(2)], ids=str
)
def test_blocks_are_made_of_matrices_alone(given):
    with pytest.raises(UsageError, match="a RowBlock takes a matrix of NumPy's or CuPy's, not "):
        hybrid.RowBlock(given)
    with pytest.raises(UsageError, match="a Block2D takes a matrix of NumPy's, not "):
        hybrid.Block2D(given, (2, 2), [(0, 2)], [(0, 2)])
    with pytest.raises(UsageError, match="a Block2D takes a matrix of NumPy's, not "):
        hybrid.Block2D.from_scalapack(given, [1, 0, 2, 2, 2, 2, 0, 0, 2], grid=(1, 1), process=(0, 0))


def test_the_number_of_rows_may_be_numpy_s(alone):
    assert hybrid.scatter(A, rows=np.int64(2)).shape == (2, 3)
