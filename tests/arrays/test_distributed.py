# SPDX-License-Identifier: MIT
"""What a rank's part of a distributed matrix has of an array, and what NumPy is refused."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.arrays.interop import on_host
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
@pytest.mark.parametrize(
    ("operation", "refused"),
    [
        (np.asarray, "a {} is no array"),
        (lambda x: np.asarray(x, dtype=object), "a {} is no array"),
        (np.linalg.norm, "numpy.linalg.norm takes no {}"),
        (lambda x: np.array_equal(x, x), "numpy.array_equal takes no {}"),
        (np.sum, "numpy.sum takes no {}"),
        (np.add.reduce, "numpy.add.reduce takes no {}"),
        (np.modf, "numpy.modf takes no {}"),
        (lambda x: np.add(x, 1, where=True), "numpy.add takes no {}"),
        (lambda x: np.add(x, 1, out=x.array), "numpy.add takes no {}"),
    ],
)
def test_what_would_take_a_part_for_the_whole_is_refused(kind, operation, refused, request):
    each = request.getfixturevalue(kind)
    with pytest.raises(NoArray) as found:
        operation(each)
    how = "hybrid.gather brings them to one; take .array for this rank's"
    assert str(found.value) == f"{refused.format(type(each).__name__)}, since other ranks have the rest of its elements: {how}"
    assert isinstance(found.value, TypeError)


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
    ],
)
def test_operators_are_refused(kind, operation, request):
    with pytest.raises(TypeError):
        operation(request.getfixturevalue(kind))


@pytest.fixture
def rows_on_gpu(rows):
    import cupy

    return hybrid.RowBlock(cupy.asarray(rows.array))


@pytest.mark.parametrize("kind", ["rows", "block", pytest.param("rows_on_gpu", marks=pytest.mark.gpu)])
def test_what_is_computed_of_single_elements_is_of_the_same_kind_and_place(kind, request):
    part = 3 * request.getfixturevalue(kind)
    for found, expected in (
        (np.float64(3) * part, np.float64(3) * part.array),
        (np.subtract(np.float32(1), part), 1 - part.array),
        (np.add(part, part), part.array + part.array),
        (np.multiply(part, np.array(2)), part.array * np.int64(2)),
        (-part // 2 % 5, -part.array // 2 % 5),
        (2**part, 2**part.array),
        (abs(-part), part.array),
        (np.exp(part), np.exp(part.array)),
        (part < 4, part.array < 4),
        (part <= 4, part.array <= 4),
        (np.equal(part, 1), part.array == 1),
        (np.int8(1) != part, part.array != 1),
        (part == part, part.array == part.array),
    ):
        assert type(found) is type(part)
        assert found._place == part._place
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(on_host(found.array), on_host(expected))


def test_functions_that_need_no_elements_of_others(rows, block):
    assert (np.shape(rows), np.ndim(rows), np.result_type(rows, "f8"), np.iscomplexobj(rows * 1j)) == (
        (3, 7),
        2,
        np.float64,
        True,
    )
    assert (np.result_type(rows, np.float64), np.result_type(rows, 1j)) == (np.float64, np.complex64)
    assert np.transpose(rows).T is np.transpose(rows, (1, 0)).T is rows
    with pytest.raises(UsageError, match=r"axes=\(0, 1\) is no transpose of a RowBlock, which is axes=\(1, 0\)"):
        np.transpose(rows, (0, 1))
    turned = np.transpose(block)
    assert (turned.shape, turned.part.rows, turned.T._place) == ((70, 30), block.part.columns, block._place)
    np.testing.assert_array_equal(turned.array, block.array.T)


def test_blocks_of_other_places_do_not_go_together(block):
    elsewhere = hybrid.Block2D(block.array, block.shape, rows=[(11, 14)], columns=block.columns)
    with pytest.raises(UsageError, match=r"Block2Ds of shapes .* no add by elements: each rank must have the same rows"):
        block + elsewhere
    with pytest.raises(UsageError, match="a Block2D and a RowBlock have no equal by elements"):
        block == hybrid.RowBlock(block.array)  # noqa: B015
