# SPDX-License-Identifier: MIT
"""docs/python.md, Row blocks: what a RowBlock, its transpose and a Block2D have of an array. Elements are computed by each rank
alone; what would take this rank's part for the whole matrix is refused."""

import copy
import operator
import pickle
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from support.cases import refused
from support.distributed import dealt, grids, heights, rows_of

import hybrid
from hybrid.errors import NoArray, UsageError

A = np.arange(1.0, 22).reshape(3, 7).astype("float32")
B = (A[::-1] % 5) + 1
KINDS = {
    "rows": lambda array: hybrid.RowBlock(array),
    "transpose": lambda array: hybrid.RowBlock(array.T).T,
    "block": lambda array: hybrid.Block2D(array, (30, 70), rows=[(10, 13)], columns=[(0, 4), (6, 9)]),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@kinds
def test_it_is_described_by_the_whole_matrix_and_by_what_this_rank_has(make):
    part = make(A)
    shape = (30, 70) if isinstance(part, hybrid.Block2D) else (3, 7)
    assert (part.shape, len(part), part.ndim, part.dtype, part.nbytes, part.device) == (shape, shape[0], 2, "float32", 84, "cpu")
    assert (part.local_shape, part.comm) == ((3, 7), None)
    assert (np.shape(part), np.ndim(part), np.iscomplexobj(part * 1j)) == (shape, 2, True)
    assert (np.result_type(part, "f8"), np.result_type(part, 1j)) == (np.float64, np.complex64)
    assert np.shares_memory(part.array, A)
    shown = {"RowBlock": "RowBlock(rows 0:3 of 3×7, float32, cpu)", "Block2D": "Block2D(3×7 of 30×70, float32, cpu)"}
    assert repr(part) == shown.get(type(part).__name__, "RowBlock(rows 0:7 of 7×3, float32, cpu).T")


BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
OTHERS = [B, 2, 0.5, 1j, True, np.float64(3), np.float32(3), np.int64(2), np.array(2)]


@kinds
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_operators_are_those_of_the_arrays(make, name):
    operation, part = getattr(operator, name), make(A)
    for other in OTHERS:
        if isinstance(other, complex) and name not in ("add", "sub", "mul", "truediv", "pow", "eq", "ne"):
            continue
        second = make(other) if other is B else other
        other = other[()] if isinstance(other, np.ndarray) and not other.ndim else other
        for found, right in ((operation(part, second), operation(A, other)), (operation(second, part), operation(other, A))):
            assert type(found) is type(part)
            assert (found.dtype, found.shape) == (right.dtype, part.shape)
            np.testing.assert_array_equal(found.array, right)


@kinds
def test_functions_of_single_elements_and_signs_are_those_of_the_arrays(make):
    part, before = make(A), make(A)
    for found, right in (
        (np.exp(part), np.exp(A)),
        (np.add(part, part), A + A),
        (np.subtract(np.float32(1), part), 1 - A),
        (np.multiply(part, np.array(2)), A * np.int64(2)),
        (np.equal(part, 1), A == 1),
        (np.isfinite(part), np.isfinite(A)),
        (-part // 2 % 5, -A // 2 % 5),
        (+part, A),
        (abs(-part), A),
    ):
        assert type(found) is type(part)
        assert found.dtype == right.dtype
        np.testing.assert_array_equal(found.array, right)
    part += 1
    np.testing.assert_array_equal(part.array, A + 1)
    np.testing.assert_array_equal(before.array, A)
    wrapped = make(A.astype("int8")) * np.int8(100)
    np.testing.assert_array_equal(wrapped.array, A.astype("int8") * np.int8(100))


@kinds
def test_the_transpose_is_a_view(make):
    part = make(A)
    turned = np.transpose(part)
    assert turned.shape == part.shape[::-1]
    assert np.shares_memory(turned.array, A)
    np.testing.assert_array_equal(turned.array, A.T)
    for again in (turned.T, *(np.transpose(part.T, axes) for axes in ((1, 0), (-1, 0), (1, -2), (-1, -2)))):
        assert (type(again), again.shape) == (type(part), part.shape)
        np.testing.assert_array_equal((again + part).array, 2 * A)
    with refused(UsageError, "dimensions"):
        np.transpose(part, (0, 1))


TAKEN_FOR_THE_WHOLE = [
    np.asarray, np.linalg.norm, np.sum, np.add.reduce, np.modf, np.copy, np.trace, lambda part: np.asarray(part, dtype=object),
    lambda part: np.array_equal(part, part), lambda part: np.concatenate([part, part]), lambda part: np.add(part, 1, where=True),
    lambda part: np.add(part, 1, out=part.array), lambda part: np.add(part, 1, dtype="f8"),
    lambda part: np.maximum.outer(part, part), lambda part: np.einsum("ij,ij->", part, part), lambda part: part + A,
    lambda part: A + part, lambda part: np.ones((3, 3)) @ part,
    lambda part: np.matmul(np.ones((3, 3)), part),
]  # fmt: skip


@kinds
def test_what_would_take_a_part_for_the_whole_is_refused(make):
    for number, operation in enumerate(TAKEN_FOR_THE_WHOLE):
        with refused(NoArray, "no-array") as found:
            operation(make(A))
        assert isinstance(found.value, TypeError), number
    for operation in (lambda part: part * "2", lambda part: part - None, lambda part: part @ 2, hash, iter):
        with pytest.raises(TypeError):
            operation(make(A))
    with refused(UsageError, "no-array"):
        bool(make(A) == make(A))
    assert make(A) is not None


def test_parts_of_different_places_or_kinds_do_not_go_together():
    rows, block = hybrid.RowBlock(A), KINDS["block"](A)
    moved = hybrid.Block2D(A, (30, 70), rows=[(11, 14)], columns=block.columns)
    for code, first, second in (
        ("shapes", rows, hybrid.RowBlock(A[:1])), ("shapes", rows.T, hybrid.RowBlock(A[:1]).T), ("shapes", block, moved),
        ("mixed-kinds", rows, rows.T), ("mixed-kinds", block, rows),
    ):  # fmt: skip
        for operation in (operator.add, operator.eq, np.maximum):
            with refused(UsageError, code):
                operation(first, second)


@pytest.mark.parametrize("kind", ["rows", "block"])
def test_only_matrices_are_taken(kind):
    for wrong in ([[1.0]], np.ones(3), np.ones((1, 1, 1)), np.float64(1), None):
        with pytest.raises(UsageError):
            KINDS[kind](wrong)
    with refused(UsageError, "masked"):
        KINDS[kind](np.ma.array(A))


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["float64", "float16", "complex64", "int8", "uint64", "bool"])
def test_sums_norms_and_the_largest_are_of_the_whole_matrix_on_every_rank(comm, rng, dtype):
    """Of any rows of any rank, none among them, their transposes, and blocks of any grid; copies lie as they do."""
    for shape in ((40, 23), (1, 3), (0, 5)):
        a = (30 * rng.standard_normal(shape)).astype("int64").astype(dtype)
        rows = rows_of(comm, a, heights(rng, comm.size, len(a)), known=True)
        blocks = [replace(dealt(comm, a, grid, (3, 5)), comm=comm) for grid in grids(comm.size)]
        for part in (rows, rows.T, *blocks, blocks[-1].T):
            whole = a.T if part.shape != a.shape else a
            assert (part.shape, len(part), part.local_shape) == (whole.shape, len(whole), part.array.shape)
            assert np.array_equal(part.array, whole[np.ix_(*part.indices)])
            assert (part.sum().dtype, abs(part.sum() - a.sum()) <= 8 * (dtype == "float16")) == (a.sum().dtype, True)
            np.testing.assert_allclose(part.norm(), np.linalg.norm(a.astype(complex)), rtol=1e-6)
            pickled = pickle.loads(pickle.dumps(part)), copy.deepcopy(part)
            for again, knows in ((part.copy(), comm), (part.astype(complex), comm), *((each, None) for each in pickled)):
                assert (type(again), again.comm, again.part) == (type(part), knows, part.part)
                assert np.array_equal(again.array, part.array)
                assert not np.shares_memory(again.array, part.array)
            with nullcontext() if a.size else refused(UsageError, "shapes"):
                assert (part.max(), part.max().dtype) == (a.max(), a.dtype)


@pytest.mark.mpi(min_size=2)
def test_a_sum_of_some_ranks_only_or_of_elements_that_are_there_twice_is_refused(comm):
    rows, twice = rows_of(comm, A, known=True), hybrid.Block2D(A, (3, 7), [(0, 3)], [(0, 7)], comm)
    others = ("ranks-differ", rows.max), ("ranks-differ", lambda: rows @ rows.T), ("blocks", twice.sum)
    for code, call in others:
        with refused(UsageError, code):
            rows.sum() if comm.rank and code != "blocks" else call()
    assert rows.max() == A.max()


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128", "bool"])
def test_alone_a_part_is_the_whole_matrix(dtype):
    a, b = A.astype(dtype), B.T.astype(dtype)
    full = [(0, 3)], [(0, 7)]
    for first, second in (
        (hybrid.RowBlock(a), hybrid.RowBlock(b)),
        (hybrid.Block2D(a, (3, 7), *full), hybrid.Block2D(b, (7, 3), *full[::-1])),
    ):
        for found in (hybrid.multiply(first, second), first @ second, np.dot(first, second), np.matmul(first, second)):
            assert type(found) is type(first)
            np.testing.assert_array_equal(found.array, a @ b)
        np.testing.assert_array_equal((second.T @ first.T).array, (a @ b).T)
        np.testing.assert_array_equal(gathered := hybrid.gather(first), a)
        scattered = hybrid.scatter(first, rows=3)
        assert not any(np.shares_memory(each, first.array) for each in (gathered, scattered.array))
        assert isinstance(scattered, hybrid.RowBlock)
        np.testing.assert_array_equal(scattered.array, a)
