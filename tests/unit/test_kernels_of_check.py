# SPDX-License-Identifier: MIT
"""kernels/check.cu: the sums, squares, largest magnitudes and checksums that the check makes on a GPU are those that NumPy makes
of the same matrices, for any shape and alignment, with and without matrix units for float64."""

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

pytestmark = pytest.mark.needs("compiler")
by_numpy = CpuCheckOperations(lambda phase, work: work())
each_type = pytest.mark.parametrize("dtype", list(ELEMENTS))


@pytest.fixture(scope="module", params=[70, 80])
def kernels(request):
    """Those of one library share 48 KiB of shared memory."""
    libraries = [["column_totals", "compare_sums", "total_pieces"]]
    for element in ELEMENTS.values():
        subtractions = [f"subtract_product<{element}, {aligned}>" for aligned in ("true", "false")]
        libraries.append([*(f"row_sums<{element}, {group}>" for group in (64, 512, 0)), *subtractions])
    found = {"capability": request.param}
    for expressions in libraries:
        found |= EmulatedKernel.several(KERNELS / "check.cu", expressions, capability=request.param)
    return found


def placed(numbers, dtype, *, aligned=False):
    """As they lie in a buffer. `aligned`: rows begin at multiples of 16 bytes; else the first does not."""
    (rows, columns), item = numbers.shape, storage(dtype).itemsize
    width = padded(columns, item) + (not aligned)
    memory = np.zeros(rows * width + 16, storage(dtype))
    first = -memory.ctypes.data % 16 // item + (not aligned)
    matrix = memory[first : first + rows * width].reshape(rows, width)[:, :columns]
    matrix[...] = stored(numbers, dtype)
    return matrix


def some(rng, rows, columns):
    """Each third row of integers."""
    numbers = rng.standard_normal((rows, columns))
    numbers[::3] = np.rint(numbers[::3] * 100)
    return numbers


@each_type
@pytest.mark.parametrize("group", [64, 512, 0])
def test_row_sums(kernels, rng, dtype, group):
    for rows, columns, first in [(1, 1, 0), (9, 64, 3), (20, 65, 0), (17, 200, 3), (10, 1100, 0)]:
        matrix = placed(some(rng, rows, columns), dtype)
        x, weights = rng.standard_normal((1, columns)), checksum_weights(first + columns, matrix.itemsize)[None, first:]
        sums = rows, -(-columns // group) if group else 1
        got, wanted = ([np.zeros(sums), np.zeros(sums), np.zeros((rows, 1)), np.zeros((rows, 1), np.uint64)] for _ in "12")
        expression = f"row_sums<{ELEMENTS[dtype]}, {group}>"
        launch = grid_of_row_sums(rows, columns), blocks_of(dtype, dtype, group)[expression], 0
        kernels[expression](*launch, (matrix, x, weights, *got))
        by_numpy.row_sums(matrix, x, weights, group, *wanted)([])
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-12, atol=1e-10)
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-12)
        np.testing.assert_array_equal(got[2], wanted[2])
        np.testing.assert_array_equal(got[3], wanted[3])
        assert (got[2][::3] < NOT_INTEGRAL).all()


def test_the_spans_of_a_long_row_go_on_along_y_and_z(kernels, rng):
    row, weights = rng.standard_normal((1, 5000)), checksum_weights(5000, 8)[None, :]
    got, wanted = ([np.zeros((1, 79)), np.zeros((1, 79)), np.zeros((1, 1)), np.zeros((1, 1), np.uint64)] for _ in "12")
    kernels["row_sums<double, 64>"]((1, 2, 3), (32, 8), 0, (row, row, weights, *got))  # one more than there are spans
    by_numpy.row_sums(row, row, weights, 64, *wanted)([])
    for ours, numpys in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours, numpys, rtol=1e-12)
    assert got[3] == wanted[3]
    for length in (1 << 22, 1 << 25, 1 << 28):  # more than a grid has blocks in y
        of_row, totals = grid_of_row_sums(1, length), grid_of_totals(length, 64)
        tall, deep = grid_of_subtraction(length, 64, 1, 8), grid_of_subtraction(1, 64, length, 4)
        assert all(max(down) <= 65535 for _, *down in (of_row, totals, tall, deep))
        assert of_row[1] * of_row[2] * 1024 >= length <= min(totals[0], tall[0]) * 64


@each_type
@pytest.mark.parametrize(("element", "wanted"), [(-99, 99), (0.5, NOT_INTEGRAL), (np.nan, NOT_INTEGRAL), (-np.inf, np.inf)])
@pytest.mark.parametrize("aligned", [True, False])
def test_one_unusual_element_is_found_wherever_it_is(kernels, rng, dtype, element, wanted, aligned):
    """Magnitudes are compared only until one is no integer, so it matters where in its row an element lies."""
    size = 300
    numbers = rng.integers(-9, 10, (size, size)).astype(float)
    np.fill_diagonal(numbers, element)
    matrix, ones, y = placed(numbers, dtype, aligned=aligned), np.ones((1, size)), np.ones((size, 2))
    expression = f"row_sums<{ELEMENTS[dtype]}, 64>"
    results = np.zeros((size, 5)), np.zeros((size, 5)), np.zeros((size, 1)), np.zeros((size, 1), np.uint64)
    launch = grid_of_row_sums(size, size), blocks_of(dtype, dtype, 64)[expression], 0
    kernels[expression](*launch, (matrix, ones, checksum_weights(size, matrix.itemsize)[None, :], *results))
    np.testing.assert_array_equal(results[2], wanted)
    results = np.zeros((size, 2)), np.zeros((size, 1)), np.zeros((size, 1), np.uint64)
    tiles, shared = grid_of_subtraction(size, 2, size, matrix.itemsize)[0], shared_bytes(kernels["capability"], matrix.itemsize)
    kernels[subtraction(matrix, y)]((tiles, 2), (128, 1), shared, (matrix, y, *results))
    np.testing.assert_array_equal(results[2].view(float), wanted)


@each_type
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (65, 16, 65), (70, 300, 7), (5, 300, 130), (5, 0, 3)])
def test_subtract_product(kernels, rng, dtype, rows, inner, columns, aligned):
    a, y = placed(some(rng, rows, inner), dtype, aligned=aligned), placed(some(rng, inner, columns), "float64", aligned=aligned)
    before = rng.standard_normal((rows, columns))
    tiles, shared = grid_of_subtraction(rows, columns, inner, a.itemsize)[0], shared_bytes(kernels["capability"], a.itemsize)
    for layers, count in ((1, 0), (1, rows), (3, rows)):  # rows whose squares are measured, too
        beyond = np.ones((count + 1, 1)), np.zeros((count + 1, 1))  # with a row that A does not have
        wanted = before.copy(), np.ones((count, 1)), np.zeros((count, 1))
        got, squares, largest = before.copy(), *(each[:count] for each in beyond)
        assert inner == 0 or subtraction(a, y) == f"subtract_product<{ELEMENTS[dtype]}, {str(aligned).lower()}>"
        kernels[subtraction(a, y)]((tiles, layers), (128, 1), shared, (a, y, got, squares, largest.view(np.uint64)))
        by_numpy.subtract_product(a, y, *wanted)([])
        sizes = np.abs(before) + np.abs(numbers_of(a).astype(np.float64)) @ np.abs(y)  # most of the terms may cancel
        assert (np.abs(got - wanted[0]) <= 1e-13 * sizes).all()
        np.testing.assert_allclose(squares, wanted[1], rtol=1e-12)
        np.testing.assert_array_equal(largest, wanted[2])
        assert [each[count, 0] for each in beyond] == [1, 0]


@pytest.mark.parametrize("aligned", [True, False])
def test_small_terms_of_float64_are_added_up_before_they_join_a_large_sum(kernels, aligned):
    """One by one they would be lost beside it."""
    a, y = placed(np.ones((1, 640)), "float64", aligned=aligned), placed(np.full((640, 1), 2.0**-54), "float64", aligned=aligned)
    y[0] = 1
    results = np.zeros((1, 1)), np.zeros((0, 1)), np.zeros((0, 1), np.uint64)
    kernels[subtraction(a, y)]((1, 1), (128, 1), shared_bytes(kernels["capability"], 8), (a, y, *results))
    assert 1 + 576 * 2.0**-54 <= -results[0][0, 0] <= 1 + 640 * 2.0**-54


def test_column_totals_and_totals_of_pieces(kernels, rng):
    for rows, columns in [(1, 1), (256, 32), (257, 33), (600, 5)]:
        matrix, totals = rng.standard_normal((rows, columns)), rng.standard_normal((1, columns))
        wanted = totals + matrix.sum(axis=0)
        kernels["column_totals"](grid_of_totals(rows, columns), (32, 1), 0, (matrix, totals))
        np.testing.assert_allclose(totals, wanted, rtol=1e-11, atol=1e-11)
    pieces = np.array([(0, 1, 7), (1, 300, 0), (301, 128, 1 << 40), (301, 0, 5)], np.uint64)
    checksums, largest = rng.integers(0, 1 << 64, (429, 1), np.uint64, endpoint=False), rng.uniform(0, 100, (429, 1))
    largest[400] = NOT_INTEGRAL
    got, wanted = np.zeros((4, 2), np.uint64), np.zeros((4, 2), np.uint64)
    kernels["total_pieces"]((4, 2), (64, 1), 0, (checksums, largest.view(np.uint64), pieces, got))
    by_numpy.total_pieces(checksums, largest, pieces, wanted)([])
    np.testing.assert_array_equal(got, wanted)
    assert got[2, 1:].view(float) == NOT_INTEGRAL


def test_compare_sums(kernels, rng):
    rows, groups = 150, 70
    squares, of_rows, of_columns = (rng.uniform(1, 2, shape) for shape in ((rows, groups), (rows, 1), (1, groups)))
    differences, subtracted = rng.standard_normal((2, rows, groups))
    differences[3, 5], differences[4], squares[6, 1], of_rows[7], of_columns[0, 9] = np.nan, 0, 0, np.inf, np.nan
    differences[8, 69], subtracted[4] = 1e6, 0
    differences[9, 11], squares[9, 11] = 1e200, np.inf  # of an element of C whose square overflows: wrong, not left unjudged
    ours, numpys = differences.copy(), differences.copy()
    beside = subtracted, squares, of_rows, of_columns, np.array([[0.25, 0.1, 1e-30, 1e300]])
    (got, wanted), (together, numpys_together) = np.full((2, rows, 5), np.nan), np.zeros((2, 2, 4))
    kernels["compare_sums"]((-(-rows // 8), 1), (32, 8), 0, (ours, *beside, got, together))
    by_numpy.compare(numpys, *beside, wanted, numpys_together)([])
    for each, other in ((ours, numpys), (got, wanted), (together, numpys_together)):
        np.testing.assert_allclose(each, other, rtol=1e-12)
    # Of each row: total, judged, the worst and its group, how many were left unjudged.
    assert got[3, 2:4].tolist() == [NOT_INTEGRAL, 5]
    assert (got[7, 4], got[8, 3]) == (groups, 69)
    assert got[9, 2] > 1e199
    assert got[9, 3:].tolist() == [11, 1]
    assert got[4, :3].tolist() == [0, 0, 0]
    assert together[1, 2] == got[128:, 2].max() < 1e5
