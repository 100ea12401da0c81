# SPDX-License-Identifier: MIT
"""kernels/check.cu on the CPU, against the same operations by NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.core.problem import padded
from hybrid.devices.cpu_check import CpuCheckOperations
from hybrid.devices.cuda_check import blocks_of, grid_of_row_sums, grid_of_subtraction, grid_of_totals, shared_bytes, subtraction
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.host.row_sums import NOT_INTEGRAL, checksum_weights
from hybrid.kernels.catalogue import ELEMENTS
from hybrid.kernels.elements import numbers_of, storage, stored
from hybrid.kernels.sources import KERNELS

GROUP = 64
OF_NUMBERS = ["column_totals", "compare_sums", "total_pieces"]


def of_type(element):
    subtractions = (f"subtract_product<{element}, {aligned}>" for aligned in ("true", "false"))
    return [*(f"row_sums<{element}, {group}>" for group in (GROUP, 512, 0)), *subtractions]


@pytest.fixture(scope="module", params=[70, 80])
def kernels(request):
    """With and without matrix units for float64. Those of one library share 48 KiB of shared memory."""
    source, found = KERNELS / "check.cu", {}
    for expressions in (OF_NUMBERS, *map(of_type, ELEMENTS.values())):
        found |= EmulatedKernel.several(source, expressions, capability=request.param)
    return found | {"capability": request.param}


def operations():
    def at_once(phase, work):
        work()

    return CpuCheckOperations(at_once)


def rows_of(random, rows, columns, dtype, *, aligned=False):
    """As they lie in a buffer. `aligned`: rows begin at multiples of 16 bytes; else the first does not."""
    numbers = random.standard_normal((rows, columns))
    numbers[::3] = np.rint(numbers[::3] * 100)
    item = storage(dtype).itemsize
    width = padded(columns, item) + (not aligned)
    memory = np.zeros(rows * width + 16, storage(dtype))
    first = -memory.ctypes.data % 16 // item + (not aligned)
    placed = memory[first : first + rows * width].reshape(rows, width)[:, :columns]
    placed[...] = stored(numbers, dtype)
    return placed


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("group", [GROUP, 512, 0])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (9, 64), (20, 65), (17, 200), (9, 700), (10, 1100)])
@pytest.mark.parametrize("first", [0, 3])  # the matrix's first column in the operand
def test_row_sums(kernels, rng, dtype, group, rows, columns, first):
    matrix = rows_of(rng, rows, columns, dtype)
    x, weights = rng.standard_normal((1, columns)), checksum_weights(first + columns, matrix.itemsize)[None, first:]
    groups = -(-columns // group) if group else 1
    got, wanted = (
        [np.zeros((rows, groups)) for _ in range(2)] + [np.zeros((rows, 1)), np.zeros((rows, 1), np.uint64)] for _ in range(2)
    )
    grid = grid_of_row_sums(rows, columns)
    expression = f"row_sums<{ELEMENTS[dtype]}, {group}>"
    kernels[expression](grid, blocks_of(dtype, dtype, group)[expression], 0, (matrix, x, weights, *got))
    operations().row_sums(matrix, x, weights, group, *wanted)([])
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-12)
    np.testing.assert_array_equal(got[2], wanted[2])
    np.testing.assert_array_equal(got[3], wanted[3])
    assert (got[2][::3] < NOT_INTEGRAL).all()
    assert dtype != "float64" or (got[2][1::3] == NOT_INTEGRAL).all()


# Magnitudes are compared only until one is no integer, so it matters where in its row an element lies.
@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize(("element", "wanted"), [(-99, 99), (0.5, NOT_INTEGRAL), (np.nan, NOT_INTEGRAL), (-np.inf, np.inf)])
@pytest.mark.parametrize("aligned", [True, False])
def test_one_unusual_element_is_found_wherever_it_is(kernels, rng, dtype, element, wanted, aligned):
    rows = columns = 300
    numbers = rng.integers(-9, 10, (rows, columns)).astype(float)
    np.fill_diagonal(numbers, element)
    matrix = rows_of(rng, rows, columns, dtype, aligned=aligned)
    matrix[...] = stored(numbers, dtype)
    x, weights, y = np.ones((1, columns)), checksum_weights(columns, matrix.itemsize)[None, :], np.ones((columns, 2))
    expression = f"row_sums<{ELEMENTS[dtype]}, {GROUP}>"
    grid, block = grid_of_row_sums(rows, columns), blocks_of(dtype, dtype, GROUP)[expression]
    sums, squares, largest = np.zeros((rows, 5)), np.zeros((rows, 5)), np.zeros((rows, 1))
    checksums = np.zeros((rows, 1), np.uint64)
    kernels[expression](grid, block, 0, (matrix, x, weights, sums, squares, largest, checksums))
    np.testing.assert_array_equal(largest, wanted)
    difference, of_rows, largest = np.zeros((rows, 2)), np.zeros((rows, 1)), np.zeros((rows, 1))
    (tiles, _), item_size = grid_of_subtraction(rows, 2, columns, matrix.itemsize), matrix.itemsize
    results, shared = (difference, of_rows, largest.view(np.uint64)), shared_bytes(kernels["capability"], item_size)
    kernels[subtraction(matrix, y)]((tiles, 2), (128, 1), shared, (matrix, y, *results))
    np.testing.assert_array_equal(largest, wanted)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (256, 32), (257, 33), (600, 5)])
def test_column_totals_add(kernels, rng, rows, columns):
    matrix, totals = rng.standard_normal((rows, columns)), rng.standard_normal((1, columns))
    wanted = totals + matrix.sum(axis=0)
    kernels["column_totals"](grid_of_totals(rows, columns), (32, 1), 0, (matrix, totals))
    np.testing.assert_allclose(totals, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (65, 16, 65), (70, 300, 7), (5, 300, 130), (5, 0, 3)])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("measures", [True, False])
@pytest.mark.parametrize("aligned", [True, False])
def test_subtract_product(kernels, rng, dtype, rows, inner, columns, layers, measures, aligned):
    a = rows_of(rng, rows, inner, dtype, aligned=aligned)
    y = rows_of(rng, inner, columns, "float64", aligned=aligned)
    before = rng.standard_normal((rows, columns))
    count = rows if measures else 0
    wanted = before.copy(), np.ones((count, 1)), np.zeros((count, 1))
    beyond = [np.ones((count + 1, 1)), np.zeros((count + 1, 1))]  # with a row that A does not have
    got = before.copy(), *(each[:count] for each in beyond)
    (tiles, _), shared = grid_of_subtraction(rows, columns, inner, a.itemsize), shared_bytes(kernels["capability"], a.itemsize)
    expression = subtraction(a, y)
    assert inner == 0 or expression == f"subtract_product<{ELEMENTS[dtype]}, {str(aligned).lower()}>"
    kernels[expression]((tiles, layers), (128, 1), shared, (a, y, got[0], got[1], got[2].view(np.uint64)))
    operations().subtract_product(a, y, *wanted)([])
    sizes = np.abs(before) + np.abs(numbers_of(a).astype(np.float64)) @ np.abs(y)  # most of the terms may cancel
    assert (np.abs(got[0] - wanted[0]) <= 1e-13 * sizes).all()
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-12)
    np.testing.assert_array_equal(got[2], wanted[2])
    assert [each[count, 0] for each in beyond] == [1, 0]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("aligned", [True, False])
def test_small_terms_of_float64_are_added_up_before_they_join_a_large_sum(kernels, rng, aligned):
    """One by one they would be lost beside it."""
    a, y = rows_of(rng, 1, 640, "float64", aligned=aligned), rows_of(rng, 640, 1, "float64", aligned=aligned)
    a[...], y[...], y[0] = 1, 2.0**-54, 1
    results = np.zeros((1, 1)), np.zeros((0, 1)), np.zeros((0, 1), np.uint64)
    kernels[subtraction(a, y)]((1, 1), (128, 1), shared_bytes(kernels["capability"], 8), (a, y, *results))
    assert 1 + 576 * 2.0**-54 <= -results[0][0, 0] <= 1 + 640 * 2.0**-54


@pytest.mark.parametrize("length", [1 << 22, 1 << 25, 1 << 28])
def test_rows_and_columns_may_be_longer_than_a_grid_has_blocks_in_y(length):
    of_row = grid_of_row_sums(1, length)
    grids = of_row, grid_of_totals(length, 64), grid_of_subtraction(length, 64, 1, 8), grid_of_subtraction(1, 64, length, 4)
    assert all(max(down) <= 65535 for _, *down in grids)
    assert of_row[1] * of_row[2] * 1024 >= length
    assert min(grids[1][0], grids[2][0]) * 64 >= length


@pytest.mark.needs("compiler")
def test_the_spans_of_a_row_go_on_along_z(kernels, rng):
    row, weights = rng.standard_normal((1, 5000)), checksum_weights(5000, 8)[None, :]
    got = [np.zeros((1, 79)) for _ in range(2)] + [np.zeros((1, 1)), np.zeros((1, 1), np.uint64)]
    wanted = [np.zeros_like(each) for each in got]
    kernels["row_sums<double, 64>"]((1, 2, 3), (32, 8), 0, (row, row, weights, *got))  # one more than there are spans
    operations().row_sums(row, row, weights, 64, *wanted)([])
    for ours, numpys in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-12)
    assert got[3] == wanted[3]


@pytest.mark.needs("compiler")
def test_compare_sums(kernels, rng):
    rows, groups = 150, 70
    squares, of_rows, of_columns = (rng.uniform(1, 2, shape) for shape in ((rows, groups), (rows, 1), (1, groups)))
    differences = rng.standard_normal((rows, groups))
    differences[3, 5], differences[4], squares[6, 1], of_rows[7], of_columns[0, 9] = np.nan, 0, 0, np.inf, np.nan
    differences[8, 69] = 1e6
    differences[9, 11], squares[9, 11] = 1e200, np.inf  # of an element of C whose square overflows
    numbers = np.array([[0.25, 0.1, 1e-30, 1e300]])
    got, wanted = (np.full((rows, 5), np.nan) for _ in range(2))
    together, numpys_together = np.zeros((2, 4)), np.zeros((2, 4))
    ours, numpys = differences.copy(), differences.copy()
    subtracted = rng.standard_normal((rows, groups))
    subtracted[4] = 0
    beside = subtracted, squares, of_rows, of_columns, numbers
    kernels["compare_sums"]((-(-rows // 8), 1), (32, 8), 0, (ours, *beside, got, together))
    operations().compare(numpys, *beside, wanted, numpys_together)([])
    np.testing.assert_allclose(ours, numpys, rtol=1e-12)
    np.testing.assert_allclose(got, wanted, rtol=1e-12)
    np.testing.assert_allclose(together, numpys_together, rtol=1e-12)
    assert together[0, 2] == NOT_INTEGRAL
    assert together[1, 2] == got[128:, 2].max() < 1e5
    assert got[3, 2] == NOT_INTEGRAL
    assert got[3, 3] == 5
    assert got[7, 4] == groups
    assert got[8, 3] == 69
    assert (got[9, 3], got[9, 4]) == (11, 1), "it is wrong, not too large to be judged; the other one is group 9"
    assert got[9, 2] > 1e199
    assert list(got[4, :3]) == [0, 0, 0]


@pytest.mark.needs("compiler")
def test_total_pieces(kernels, rng):
    pieces = np.array([(0, 1, 7), (1, 300, 0), (301, 128, 1 << 40), (301, 0, 5)], np.uint64)
    checksums = rng.integers(0, 1 << 64, (429, 1), np.uint64, endpoint=False)
    largest = rng.uniform(0, 100, (429, 1))
    largest[400] = NOT_INTEGRAL
    got, wanted = np.zeros((4, 2), np.uint64), np.zeros((4, 2), np.uint64)
    kernels["total_pieces"]((4, 2), (64, 1), 0, (checksums, largest.view(np.uint64), pieces, got))
    operations().total_pieces(checksums, largest, pieces, wanted)([])
    np.testing.assert_array_equal(got, wanted)
    assert got[2, 1:].view(float) == NOT_INTEGRAL
    assert got[1, 1:].view(float) == largest[1:301].max()
