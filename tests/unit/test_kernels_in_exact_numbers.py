# SPDX-License-Identifier: MIT
"""kernels/check.cu: the sums, squares, largest magnitudes and checksums that the check makes on a GPU are those that NumPy makes
of the same matrices, for any shape and alignment, with and without matrix units for float64."""

from fractions import Fraction
from itertools import product
from math import isqrt, prod

import numpy as np
import pytest
from support import remainder_models as models
from support import remainder_runs as runs
from support.selection import exhaustive

from hybrid.core.problem import padded
from hybrid.devices.check_operations import (
    blocks_of,
    by_numpy,
    grid_of_row_sums,
    grid_of_subtraction,
    grid_of_totals,
    shared_bytes,
    subtraction,
)
from hybrid.devices.row_sums import ALL, NOT_INTEGRAL, Sample, checksum_weights
from hybrid.emulation.kernel import COPIES, ORDERS, EmulatedKernel
from hybrid.kernels import remainders
from hybrid.kernels.catalogue import C_TYPES, ELEMENTS, KERNELS, numbers_of, storage
from hybrid.planning.arithmetic import INTEGER_BITS, MODULI, UNIT, Arithmetic, Summary, choose
from hybrid.testing.checked_kernels import stored

pytestmark = pytest.mark.needs("compiler")
each_type = pytest.mark.parametrize("dtype", list(ELEMENTS))


@pytest.fixture(scope="module", params=exhaustive([80], [70, 80]))
def kernels(request):
    """Those of one library share 48 KiB of shared memory. Of compute capability 70 only `subtract_product` differs."""
    libraries = [["column_totals", "compare_sums", "total_pieces"]]
    for element in ELEMENTS.values():
        subtractions = [f"subtract_product<{element}, {aligned}>" for aligned in ("true", "false")]
        libraries.append([*(f"row_sums<{element}, {group}>" for group in (64, 512, 0)), *subtractions])
        libraries.append([f"weigh_columns<{element}, {group}>" for group in (64, 512)])
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
        sample = Sample(*[(1, 0), (8, 5), (16, 15), (16, 1), (2, 1)][columns % 5]).words
        kernels[expression](*launch, (matrix, x, weights, *got, sample))
        by_numpy("row_sums", matrix, x, weights, *wanted, sample, group=group)
        np.testing.assert_allclose(got[0], wanted[0], rtol=1e-12, atol=1e-10)
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-12)
        np.testing.assert_array_equal(got[2], wanted[2])
        np.testing.assert_array_equal(got[3], wanted[3])
        assert (got[2][::3] < NOT_INTEGRAL).all()


def test_the_spans_of_a_long_row_go_on_along_y_and_z(kernels, rng):
    row, weights = rng.standard_normal((1, 5000)), checksum_weights(5000, 8)[None, :]
    got, wanted = ([np.zeros((1, 79)), np.zeros((1, 79)), np.zeros((1, 1)), np.zeros((1, 1), np.uint64)] for _ in "12")
    kernels["row_sums<double, 64>"]((1, 2, 3), (32, 8), 0, (row, row, weights, *got, ALL.words))  # one more than there are spans
    by_numpy("row_sums", row, row, weights, *wanted, ALL.words, group=64)
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
@pytest.mark.parametrize("aligned", exhaustive([False], [True, False]))
def test_one_unusual_element_is_found_wherever_it_is(kernels, rng, dtype, element, wanted, aligned):
    """Magnitudes are compared only until one is no integer, so it matters where in its row an element lies."""
    size = 150
    numbers = rng.integers(-9, 10, (size, size)).astype(float)
    np.fill_diagonal(numbers, element)
    matrix, ones, y = placed(numbers, dtype, aligned=aligned), np.ones((1, size)), np.ones((size, 2))
    expression = f"row_sums<{ELEMENTS[dtype]}, 64>"
    results = np.zeros((size, 5)), np.zeros((size, 5)), np.zeros((size, 1)), np.zeros((size, 1), np.uint64)
    launch = grid_of_row_sums(size, size), blocks_of(dtype, dtype, 64)[expression], 0
    kernels[expression](*launch, (matrix, ones, checksum_weights(size, matrix.itemsize)[None, :], *results, ALL.words))
    np.testing.assert_array_equal(results[2], wanted)
    results = np.zeros((size, 2)), np.zeros((size, 1)), np.zeros((size, 1), np.uint64)
    tiles, shared = grid_of_subtraction(size, 2, size, matrix.itemsize)[0], shared_bytes(kernels["capability"], matrix.itemsize)
    kernels[subtraction(matrix, y)]((tiles, 2), (128, 1), shared, (matrix, y, *results))
    np.testing.assert_array_equal(results[2].view(float), wanted)


OF_A_AND_Y = [(1, 1, 1), (65, 16, 65), (70, 300, 7), (5, 300, 130), (5, 0, 3)]  # rows of A, columns of A, and of Y
SUBTRACTED = [(80, dtype, shape) for dtype in ELEMENTS for shape in OF_A_AND_Y[2:]]
SUBTRACTED += [(70, "float64", shape) for shape in OF_A_AND_Y]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("kernels", "dtype", "shape"), exhaustive(SUBTRACTED, product((70, 80), ELEMENTS, OF_A_AND_Y)), indirect=["kernels"]
)
def test_subtract_product(kernels, rng, dtype, shape, aligned):
    rows, inner, columns = shape
    a, y = placed(some(rng, rows, inner), dtype, aligned=aligned), placed(some(rng, inner, columns), "float64", aligned=aligned)
    before = rng.standard_normal((rows, columns))
    tiles, shared = grid_of_subtraction(rows, columns, inner, a.itemsize)[0], shared_bytes(kernels["capability"], a.itemsize)
    for layers, count in ((1, 0), (1, rows), (3, rows)):  # rows whose squares are measured, too
        beyond = np.ones((count + 1, 1)), np.zeros((count + 1, 1))  # with a row that A does not have
        wanted = before.copy(), np.ones((count, 1)), np.zeros((count, 1))
        got, squares, largest = before.copy(), *(each[:count] for each in beyond)
        assert inner == 0 or subtraction(a, y) == f"subtract_product<{ELEMENTS[dtype]}, {str(aligned).lower()}>"
        kernels[subtraction(a, y)]((tiles, layers), (128, 1), shared, (a, y, got, squares, largest.view(np.uint64)))
        by_numpy("subtract_product", a, y, *wanted)
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


@pytest.mark.parametrize("group", [64, 512])
@each_type
def test_weights_of_columns(kernels, rng, dtype, group):
    """Powers of two with which all columns of a group have about the same size; none where all are small integers."""
    exponents, columns = rng.integers(-12, 4, 2 * group + 30), 2 * group + 30
    numbers = rng.uniform(1, 2, (20, columns)) * 2.0**exponents
    numbers[:, :group] = rng.integers(-9, 10, (20, group))
    numbers[:, group + 3], numbers[2, group + 4], numbers[2, group + 5] = 0, np.inf, np.nan
    with np.errstate(all="ignore"):
        matrix = placed(numbers, dtype)
    x, limits, got, wanted = rng.uniform(64, 128, (1, columns)), np.array([[0, 0, 0, 0, 1e4]]), *np.empty((2, 1, columns))
    kernels[f"weigh_columns<{ELEMENTS[dtype]}, {group}>"]((3, 1), (group, 1), 0, (matrix, x, limits, got))
    by_numpy("weigh_columns", matrix, x, limits, wanted, group=group)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(got[0, :group], x[0, :group])
    sizes = (got / x)[0, group:] * np.abs(numbers_of(matrix).astype(float)[:, group:]).max(axis=0)
    for of_group in (sizes[:group], sizes[group:]):
        of_group = of_group[np.isfinite(of_group) & (of_group > 0)]
        assert of_group.max() < 4 * of_group.min()


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
    by_numpy("total_pieces", checksums, largest, pieces, wanted)
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
    by_numpy("compare_sums", numpys, *beside, wanted, numpys_together)
    for each, other in ((ours, numpys), (got, wanted), (together, numpys_together)):
        np.testing.assert_allclose(each, other, rtol=1e-12)
    # Of each row: total, judged, the worst and its group, how many were left unjudged.
    assert got[3, 2:4].tolist() == [NOT_INTEGRAL, 5]
    assert (got[7, 4], got[8, 3]) == (groups, 69)
    assert got[9, 2] > 1e199
    assert got[9, 3:].tolist() == [11, 1]
    assert got[4, :3].tolist() == [0, 0, 0]
    assert together[1, 2] == got[128:, 2].max() < 1e5


# --- The kernels of products from remainders (norms.cu, guard.cu, remainders.cu, products_mma.cu, products.cu,
# reconstruct.cu) compute what Python's integers do: exactly, but for the roundings that docs/remainders.md allows, in any
# order of threads


REMAINDERS = [("float64", 1), ("float64", 3), ("float64", 15), ("float32", 1), ("float32", 8)]  # type, moduli
RECONSTRUCTED = [("float64", 3), ("float64", 5), ("float64", 7), ("float64", 14), ("float64", 15), ("float32", 7)]
PRODUCTS = ["products", "byte_products<double>", "byte_products<float>"]
OF_NORMS = ["summarize", "scale_lines", "tell"] + [f"measure_{x}<{t}>" for t in C_TYPES.values() for x in ("rows", "columns")]
OF_MAGNITUDES = [f"magnitudes_of_{x}<{t}>" for t in C_TYPES.values() for x in ("rows", "columns")]
both_types = pytest.mark.parametrize("dtype", ["float32", "float64"])
both_operands = pytest.mark.parametrize("operand", ["A", "B"])
both_ways = pytest.mark.parametrize("by_integers", [False, True])


@pytest.fixture(scope="module")
def run():
    packed = [f"remainders_of_{lines}<{C_TYPES[dtype]}, {n}>" for dtype, n in REMAINDERS for lines in ("rows", "columns")]
    back = [f"{name}<{C_TYPES[dtype]}, {n}>" for dtype, n in RECONSTRUCTED for name in ("reconstruct", "reconstruct_by_integers")]
    of = {"norms.cu": OF_NORMS, "remainders.cu": packed, "reconstruct.cu": back}
    return runs.Runner.compiled({KERNELS / source: expressions for source, expressions in of.items()})


class Gpu:
    """A small one: a cluster goes through several pairs of tiles."""

    multiprocessors = 4

    def __init__(self, capability):
        self.capability = capability


@pytest.fixture(scope="module", params=[75, 80, 90])
def multiply(request):
    """(packed A, packed B, shape, moduli or type of C) -> remainders of C, or with a type the product of signed bytes."""
    source, gpu = "products.cu" if request.param == 90 else "products_mma.cu", Gpu(request.param)
    runner = runs.Runner.compiled({KERNELS / source: PRODUCTS}, capability=request.param)

    def multiplied(a, b, rows, inner, columns, moduli=1, dtype="", **how):
        run, width = runner.but(**how), -(-columns // 16) * 16
        c = run.empty(rows, columns, dtype) if dtype else run.empty(moduli * rows, width, "uint8", runs.POISON)[:, :columns]
        launch = remainders.products_of(gpu, C_TYPES.get(dtype, ""), rows, columns, moduli)
        along_k = runs.number(-(-inner // UNIT) * UNIT, "i8")
        run(launch, a, b, c, *([] if dtype else [runs.number(rows, "i8")]), along_k)
        # Tiles of products.cu read the packed planes in pairs, so these are as long as pairs are.
        assert gpu.capability == 90 or run.untouched()
        return c if dtype else c.reshape(moduli, rows, columns)

    return multiplied


def planes(lines, *, interleaved):
    """Packed, and as long as pairs of units of lines are."""
    whole = np.zeros((len(lines), -(-lines.shape[1] // 256) * 256, lines.shape[2]), np.uint8)
    whole[:, : lines.shape[1]] = lines
    return np.stack([models.packed(plane, interleaved=interleaved) for plane in whole])


def lines_like(rng, count, inner, dtype):
    """Of all sizes, of integers, of zeros, of one number only, and whose norm is a power of two."""
    matrix = rng.standard_normal((count, inner)) * 2.0 ** rng.integers(-60, 60, (count, 1))
    matrix[1::5] = np.rint(rng.standard_normal(matrix[1::5].shape) * 100)
    matrix[2::5], matrix[3::5] = 0, 0
    matrix[3::5, inner // 2] = 2.0**20
    return matrix.astype(dtype)


@both_types
@both_operands
def test_norms_powers_of_two_and_what_the_elements_are(run, rng, dtype, operand):
    for count, inner in [(1, 1), (33, 257), (40, 1300), (300, 9)]:
        here, matrix = run.but(), lines_like(rng, count, inner, dtype)
        lines = runs.measured(here, operand, here.copied(matrix if operand == "A" else matrix.T))
        norms = np.sqrt((matrix.astype(np.longdouble) ** 2).sum(axis=1)).astype(float)
        np.testing.assert_allclose(lines.numbers[0], norms, rtol=1e-14)
        np.testing.assert_array_equal(lines.numbers[1], np.abs(matrix).max(axis=1))
        assert lines.summary[0, :1].view(float)[0] == np.abs(matrix).max()
        assert lines.summary[0, 1:3].tolist() == [(matrix != np.rint(matrix)).any(), 0]
        assert lines.least == lines.numbers[0][lines.numbers[0] > 0].min()
        bits = INTEGER_BITS[dtype]
        for limit in [0.0, 2.0**20, *(Arithmetic(n).limit(inner) for n in (3, 7, 8, 14, 15) if inner < 1000 or n > 3)]:
            runs.scale(here, lines, limit, bits)
            assert models.scaled_well(lines.numbers, limit, bits).all(), limit
        assert here.untouched()


@both_types
@both_operands
def test_norms_and_fingerprints_depend_on_the_elements_alone(run, rng, operand, dtype):
    """Not on the order of threads, and norms not on other lines."""
    matrix = lines_like(rng, 40, 1300, dtype)
    whole, part = (x if operand == "A" else x.T.copy() for x in (matrix, matrix[7:20]))
    forward, shuffled = runs.measured(run.but(), operand, whole), runs.measured(run.but(order="shuffled"), operand, whole)
    np.testing.assert_array_equal(forward.numbers[:2], shuffled.numbers[:2])
    np.testing.assert_array_equal(forward.numbers[:2, 7:20], runs.measured(run.but(), operand, part).numbers[:2])
    if operand == "B":
        assert int(forward.summary[0, 4]) == int(shuffled.summary[0, 4]) == models.fingerprint(matrix)


@both_operands
def test_one_element_tells_on_a_matrix(run, operand):
    """In a matrix of integers: somewhere in the second chunk of k, alone in its line."""
    matrix = np.full((70, 600), -7.0)
    matrix[60] = 0
    cases = {3.0: (True, True), 0.5: (False, True), 2.0**60: (True, True), 1e-130: (False, True), np.nan: (False, False),
             np.inf: (True, False), -np.inf: (True, False), 1e200: (True, False), 1e-200: (False, False)}  # fmt: skip
    for element, (integral, in_range) in cases.items():
        matrix[60, 555] = element
        summary = runs.measured(run.but(), operand, matrix if operand == "A" else matrix.T.copy()).summary[0]
        assert summary[1:3].tolist() == [not integral, not in_range], element
        assert np.isnan(element) or summary[:1].view(float)[0] == max(7, abs(element))


def test_a_few_words_are_told(run):
    words, told = np.arange(1, 9, dtype=np.uint32)[None, :], np.zeros((1, 8), np.uint32)
    run(remainders.telling(), words[:, :5], told)
    assert told[0].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


def numbers_like(rng, shape, dtype):
    """Of all sizes, and among them what is hard to get right with a scale of 1: ties, 0, subnormals, the largest that may be."""
    largest, of_type = 2.0 ** (62 if dtype == "float64" else 30), np.dtype(dtype).type
    bytes_ = [sign * (256.0**power + step) for power in range(1, 4) for step in (-1, 0, 1) for sign in (1, -1)]
    small = [0, -0.0, np.finfo(dtype).tiny, np.finfo(dtype).smallest_subnormal, 0.49999, -0.49999]
    most = [sign * np.nextafter(of_type(largest), of_type(0)) for sign in (1, -1)] + [-largest]
    hard = np.array([*(np.arange(-8, 9) + 0.5), *bytes_, *small, *most], dtype)
    matrix = (rng.standard_normal(shape) * 2.0 ** rng.uniform(-4, np.log2(largest) - 4, shape)).astype(dtype)
    places = rng.permutation(matrix.size)[: len(hard)]
    matrix.ravel()[places] = hard[: len(places)]
    return matrix


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("dtype", "count"), exhaustive([("float64", 1), ("float64", 15), ("float32", 8)], REMAINDERS))
@both_operands
def test_remainders_are_exact(run, rng, operand, dtype, count, aligned):
    for lines, inner in [(1, 1), (9, 128), (33, 131)]:
        here, matrix = run.but(aligned=aligned), numbers_like(rng, (lines, inner), dtype)
        scales = 2.0 ** rng.integers(-20, 1, (1, lines))
        scales[0, ::2] = 1
        expected = models.remainders(models.integers(matrix, scales.T), count)
        got = runs.reduced(here, operand, here.copied(matrix if operand == "A" else matrix.T), scales, count)
        interleaved = operand == "B" and count > 1
        for plane, wanted in zip(got, expected, strict=True):
            np.testing.assert_array_equal(plane, models.packed(wanted, interleaved=interleaved, filler=runs.POISON))
        assert here.untouched()


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    exhaustive([(16, 128, 17), (130, 300, 140)], [(1, 1, 1), (16, 128, 17), (130, 300, 140), (300, 400, 140), (257, 129, 8)]),
)
def test_products_are_exact_in_every_order(multiply, rng, rows, inner, columns):
    p = np.array(MODULI[:3])[:, None, None]
    a, b = (rng.integers(0, p, (3, *shape)).astype(np.uint8) for shape in ((rows, inner), (inner, columns)))
    a[:, 0], b[:, :, -1] = p[:, 0] - 1, p[:, 0] - 1
    packed = planes(a, interleaved=False), planes(b.transpose(0, 2, 1), interleaved=True)
    for order, copies in {(str(rng.choice(ORDERS)), copies) for copies in COPIES}:
        got = multiply(*packed, rows, inner, columns, 3, order=order, copies=copies)
        np.testing.assert_array_equal(got, models.products(a, b), f"{order} {copies}")


@pytest.mark.parametrize(
    ("multiply", "inner"),
    exhaustive([(80, 33_100)], [(at, n) for at in (75, 80, 90) for n in (33_100, 66_700)]),
    indirect=["multiply"],
)
def test_products_are_reduced_before_a_sum_has_no_room(multiply, inner):
    """All remainders are the largest. Of so many such products 32 bits with, or without, a sign cannot hold the sum."""
    lines = np.stack([np.full((3, inner), p - 1, np.uint8) for p in MODULI[:2]])  # a sum modulo 256 may lose its highest bits
    a, b = planes(lines, interleaved=False), planes(lines, interleaved=True)
    for plane, p in zip(multiply(a, b, 3, inner, 3, 2), MODULI, strict=False):
        assert (plane == (p - 1) ** 2 * inner % p).all()


@both_types
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (130, 260, 133)])
def test_products_of_signed_bytes_are_exact(multiply, rng, dtype, rows, inner, columns):
    a, b = rng.integers(-128, 128, (rows, inner)), rng.integers(-128, 128, (inner, columns))
    a[0], b[:, -1] = -128, -128
    packed = (planes(lines[None].astype(np.int8).view(np.uint8), interleaved=False) for lines in (a, b.T))
    np.testing.assert_array_equal(multiply(*packed, rows, inner, columns, dtype=dtype), (a @ b).astype(dtype))


def back(run, numbers, scales, dtype, count, by_integers):
    of_moduli = np.stack([(numbers % p).astype(np.uint8) for p in MODULI[:count]])
    return runs.put_together(run, of_moduli, *scales, dtype, by_integers=by_integers)


@both_ways
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("dtype", "count"), exhaustive([RECONSTRUCTED[0], *RECONSTRUCTED[2:5:2], RECONSTRUCTED[5]], RECONSTRUCTED)
)
def test_integers_come_back(run, rng, dtype, count, aligned, by_integers):
    """Exactly, where they fit: with 7 moduli or fewer those of 53 bits. Else within 2⁻⁶⁸·P, and rounded once; by integers they
    are only rounded."""
    half = prod(MODULI[:count]) // 2
    hard = [half - half // 2**20, half // 2**20 - half, 0, 1, -1, 255, -256]
    for shape in [(1, 1), (3, 7), (2, 1030)]:
        here, size = run.but(aligned=aligned), prod(shape)
        numbers = [int(half * Fraction(rng.uniform(-1, 1)) / 2 ** int(rng.integers(half.bit_length()))) for _ in range(size)]
        numbers = np.array([*hard[:size], *numbers[len(hard) :]], object).reshape(shape)
        scales = [2.0 ** rng.integers(-30, 31, (1, length)) for length in shape]
        got = back(here, numbers, scales, dtype, count, by_integers)
        assert here.untouched()
        assert not back(here, 0 * numbers, scales, dtype, count, by_integers).any()
        if by_integers:
            np.testing.assert_array_equal(got, (np.vectorize(float)(numbers) * scales[0].T * scales[1]).astype(dtype))
            continue
        lost, fits = Fraction(prod(MODULI[:count]), 2**68), 2 ** (53 if dtype == "float64" else 24)
        for (i, j), integer in np.ndenumerate(numbers):
            error = abs(Fraction(float(got[i, j])) / Fraction(scales[0][0, i] * scales[1][0, j]) - integer)
            assert error == 0 or count > 7 or abs(integer) > fits, integer
            assert error <= lost + Fraction(abs(integer), fits) * Fraction(1 + 1e-6), integer


@both_ways
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integers_come_back(run, sign, by_integers):
    """As near to ±P/2 as norms may be, and as the choice of moduli allows for integers."""
    ones = np.ones((1, 1)), np.ones((1, 1))
    for dtype, count in [("float64", 14), ("float64", 15), ("float32", 7)]:
        largest = int(Arithmetic(count).limit(1))
        assert largest <= isqrt(prod(MODULI[:count]) // 2)
        got = back(run.but(), np.array([[sign * largest**2]], object), ones, dtype, count, by_integers)
        assert got[0, 0] == pytest.approx(float(sign * largest**2), rel=1e-6)
    for count in (3, 5):
        half = prod(MODULI[:count]) // 2
        first = next(x for x in range(isqrt(half), 0, -1) if half % x <= half >> 33)
        factors = first, (half - 1) // first
        of_a, of_b = (Summary(float(x), integral=True, in_range=True) for x in factors)
        chosen = choose(of_a, of_b, 1, "float64", lambda: 1.0, fast=False)[0].moduli
        assert chosen >= count
        got = back(run.but(), np.array([[sign * prod(factors)]], object), ones, "float64", chosen, by_integers)
        assert got[0, 0] == sign * prod(factors)


@both_ways
def test_a_product_from_three_moduli_by_hand(run, multiply, by_integers):
    """The example of kernels/README.md, and of the picture there: (3, -5) · (700, 11)ᵀ = 2100 - 55 = 2045."""
    a, b, ones = np.array([[3.0, -5.0]]), np.array([[700.0], [11.0]]), np.ones((1, 1))
    of_a, of_b = (runs.reduced(run.but(), operand, matrix, ones, 3) for operand, matrix in (("A", a), ("B", b)))
    assert [models.unpacked(plane, 1, interleaved=False)[0, :2].tolist() for plane in of_a] == [[3, 251], [3, 250], [3, 248]]
    assert [models.unpacked(plane, 1, interleaved=True)[0, :2].tolist() for plane in of_b] == [[188, 11], [190, 11], [194, 11]]
    planes = (np.pad(each, ((0, 0), (0, len(each[0])))) for each in (of_a, of_b))  # as long as pairs are
    of_c = multiply(*planes, 1, 2, 1, 3)
    assert of_c.ravel().tolist() == [253, 5, 21]
    assert [models.weight(i, 3) for i in range(3)] == [11032065, 8225536, 13774080]
    assert runs.put_together(run.but(), of_c, ones, ones, "float64", by_integers=by_integers).tolist() == [[2045.0]]


@pytest.fixture(scope="module", params=[80, 90])
def guard(request, run):
    """(a, b, every) -> the least ratio that the kernels find, of mma and of clusters."""
    here = runs.Runner.compiled({KERNELS / "guard.cu": OF_MAGNITUDES}).kernels
    source = "guard.cu" if request.param == 80 else "products.cu"
    found = runs.Runner.compiled({KERNELS / source: ["least_ratio"]}, capability=request.param).kernels

    def ratio(a, b, every):
        runner = runs.Runner({**run.kernels, **here, **found})
        least = runs.guarded_ratio(runner, runner.copied(a), runner.copied(b), every, Gpu(request.param))
        assert runner.untouched()
        return least

    return ratio


def of_kind(rng, kind, rows, inner, columns, dtype):
    a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    half = 1e140 if dtype == "float64" else 1e30  # elements may be as large, or as small, and their squares are in range
    if kind == "uniform":
        a, b = np.abs(a), np.abs(b)
    elif kind == "of outliers":
        a, b = a * np.exp(3 * rng.standard_normal(a.shape)), b * np.exp(3 * rng.standard_normal(b.shape))
    elif kind in ("small", "large"):
        a *= np.exp(2 * rng.standard_normal(a.shape) - 9) * (half / inner if kind == "large" else inner / half)
        b *= np.exp(2 * rng.standard_normal(b.shape))
    elif kind == "of large meeting small":
        a[:, : inner // 2] *= 2.0**-12
        b[inner // 2 :] *= 2.0**-12
    elif kind == "with zeros":
        a[3::7], b[:, ::5] = 0, 0
    return a.astype(dtype), b.astype(dtype)


@both_types
@pytest.mark.parametrize("kind", ["normal", "uniform", "of outliers", "small", "large", "of large meeting small", "with zeros"])
@pytest.mark.parametrize(
    ("rows", "inner", "columns", "every"),
    exhaustive([(33, 300, 67, 1)], [(33, 300, 67, 1), (70, 300, 67, 1), (3, 100, 3, 2), (10, 2500, 130, 8)]),
)
def test_the_guard_is_never_above_the_least_ratio(guard, rng, kind, rows, inner, columns, every, dtype):
    a, b = of_kind(rng, kind, rows, inner, columns, dtype)
    ratio, of_seen = guard(a, b, every), models.least_ratio(a, b, models.sampled(inner, every))
    assert 0 <= ratio <= min(of_seen, models.least_ratio(a, b))
    if kind in ("normal", "uniform", "with zeros"):
        assert ratio > 0.7 * min(of_seen, runs.NEARLY_ONE), "rounded down by up to 18 %, and from few elements"


@pytest.mark.parametrize(
    ("row", "column"), exhaustive([(63, 64), (139, 299)], [(0, 0), (63, 64), (40, 127), (139, 299), (129, 255)])
)
def test_one_element_of_c_is_the_least(guard, row, column):
    """One row of A meets one column of B with nothing in common; all other elements are flat."""
    a, b = np.ones((140, 256)), np.ones((256, 300))
    a[row, ::2], b[1::2, column] = 0, 0
    assert guard(a, b, 1) == 0
    a[row] = 1
    assert guard(a, b, 1) == pytest.approx(0.5**0.5 * 7 / 8 * 15 / 16, rel=1e-5), "rounded down"
    assert guard(np.zeros((3, 130)), np.zeros((130, 2)), 1) == runs.NEARLY_ONE
