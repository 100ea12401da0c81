# SPDX-License-Identifier: MIT
"""What a rank's part of a distributed matrix has of an array, and what NumPy is refused."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.errors import NoArray, UsageError


@pytest.fixture
def rows():
    return hybrid.RowBlock(np.ones((3, 7), "float32"))


@pytest.fixture
def block():
    return hybrid.Block2D(np.ones((3, 7)), (30, 70), rows=[(10, 13)], columns=[(0, 4), (6, 9)])


def test_a_row_block_is_described_by_its_rows(rows):
    assert (rows.shape, len(rows), rows.ndim, rows.dtype, rows.nbytes, rows.device) == ((3, 7), 3, 2, np.float32, 84, "cpu")
    assert repr(rows) == "RowBlock(3 rows of 7 columns, float32, cpu)"
    assert len(hybrid.RowBlock(np.ones((0, 7)))) == 0


def test_a_block_of_a_grid_is_described_by_the_whole_matrix(block):
    assert (block.shape, len(block), block.ndim, block.dtype, block.nbytes, block.device) == (
        (30, 70),
        30,
        2,
        np.float64,
        168,
        "cpu",
    )
    assert repr(block) == "Block2D(3×7 of 30×70, float64, cpu)"


@pytest.mark.parametrize("kind", ["rows", "block"])
@pytest.mark.parametrize("convert", [np.asarray, np.array, np.linalg.norm, lambda each: np.asarray(each, dtype=object)])
def test_numpy_s_functions_are_refused(kind, convert, request):
    each = request.getfixturevalue(kind)
    with pytest.raises(
        UsageError, match=rf"^a {type(each).__name__} is no array, since other ranks .*take \.array for this rank's$"
    ) as refused:
        convert(each)
    assert isinstance(refused.value, TypeError)
    assert ("hybrid.gather" in str(refused.value)) == (kind == "rows")


@pytest.mark.parametrize("kind", ["rows", "block"])
@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + np.ones((3, 7)),
        lambda x: np.ones((3, 7)) + x,
        lambda x: np.ones((3, 3)) @ x,
        lambda x: x @ np.ones((7, 3)),
        lambda x: x * "2",
        lambda x: x - None,
        lambda x: x @ 2,
        np.exp,
        np.sum,
    ],
)
def test_operators_and_ufuncs_are_refused(kind, operation, request):
    with pytest.raises(TypeError):
        operation(request.getfixturevalue(kind))


@pytest.mark.parametrize("kind", ["rows", "block"])
@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (np.exp, "exp"),
        (np.sum, "add.reduce"),
        (lambda x: np.add(x, 1, where=True), "add"),
        (lambda x: np.floor_divide(x, 2), "floor_divide"),
    ],
)
def test_a_refused_ufunc_says_what_to_do(kind, operation, name, request):
    each = request.getfixturevalue(kind)
    with pytest.raises(NoArray, match=rf"^numpy\.{name} takes no {type(each).__name__}, since other ranks .*take \.array for"):
        operation(each)


def test_numpy_s_functions_that_are_operators_are_those_of_a_row_block(rows):
    twice = hybrid.RowBlock(2 * rows.array, first_row=6)
    for found, expected in (
        (np.float64(3) * rows, np.float64(3) * rows.array),
        (np.subtract(np.float32(1), twice), 1 - twice.array),
        (np.add(rows, twice), rows.array + twice.array),
        (np.true_divide(twice, 4), twice.array / 4),
        (np.negative(rows), -rows.array),
        (np.equal(rows, 1), rows.array == 1),
        (np.int8(1) != twice, twice.array != 1),
    ):
        assert isinstance(found, hybrid.RowBlock)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.array, expected)
    assert repr(twice * 2) == "RowBlock(rows 6:9 of 7 columns, float32, cpu)"


@pytest.mark.parametrize("operation", [lambda x: x @ x, lambda x: x + 1, lambda x: 2 * x, lambda x: x - x, lambda x: x / 2])
def test_a_block_of_a_grid_says_how_it_is_multiplied(block, operation):
    with pytest.raises(NoArray, match=r"a Block2D has no operators, .*: hybrid\.multiply\(a, b, comm=comm\) multiplies two"):
        operation(block)
