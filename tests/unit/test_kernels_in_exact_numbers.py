# SPDX-License-Identifier: MIT
"""kernels/check.cu: the sums, squares, largest magnitudes and checksums that the check makes on a GPU are those that NumPy makes
of the same matrices, for any shape and alignment, with and without matrix units for float64."""

from itertools import cycle, product
from math import isqrt, prod
from operator import mul

import numpy as np
import pytest
from support.remainder_tiles import Gpu, Tile, ragged
from support.selection import exhaustive, pairwise

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
from hybrid.kernels.catalogue import ELEMENTS, KERNELS, numbers_of, storage
from hybrid.planning.arithmetic import BYTES, MODULI, UNIT, Arithmetic, sampling
from hybrid.testing.checked_kernels import stored

pytestmark = pytest.mark.needs("compiler")
each_type = pytest.mark.parametrize("dtype", list(ELEMENTS))
NEARLY_ONE = float(np.frombuffer(b"????", np.float32)[0])  # where the search for the least ratio begins


# What is compiled together: kernels of one library share 48 KiB of shared memory.
LIBRARIES = [["column_totals", "compare_sums", "total_pieces"]]
for element in ELEMENTS.values():
    LIBRARIES.append([f"row_sums<{element}, {group}>" for group in (64, 512, 0)])
    LIBRARIES.append([f"subtract_product<{element}, {aligned}>" for aligned in ("true", "false")])
    LIBRARIES.append([f"weigh_columns<{element}, {group}>" for group in (64, 512)])


class Kernels(dict):
    """By expression, compiled when one of their library is asked for."""

    def __missing__(self, expression):
        (library,) = (each for each in LIBRARIES if expression in each)
        self |= EmulatedKernel.several(KERNELS / "check.cu", library, capability=self["capability"])
        return self[expression]


@pytest.fixture(scope="module", params=exhaustive([80], [70, 80]))
def kernels(request):
    """Of compute capability 70 only `subtract_product` differs."""
    return Kernels(capability=request.param)


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


# --- Products from remainders (norms.cu, guard.cu, remainders.cu, products.cu, products_mma.cu, reconstruct.cu), by the launches
# of a rank: integers are exact, other numbers within the bound that is proved, on GPUs of each kind


EACH_GPU = exhaustive([80, 90], [75, 80, 90])  # by its compute capability
both_types = pytest.mark.parametrize("dtype", ["float32", "float64"])
RECONSTRUCTED = [("float64", 3), ("float32", 7), ("float64", 15), ("float64", 5), ("float64", 7), ("float64", 14), ("float32", 8)]


def whole_numbers(rng, largest, shape, dtype):
    """With the largest of either sign among them, and zeros."""
    numbers = np.rint(rng.uniform(-1, 1, shape) * largest)
    numbers.flat[:3] = [largest, -largest, 0][: numbers.size]
    return numbers.astype(dtype)


def in_python(matrix):
    return np.array(list(map(int, matrix.ravel().tolist())), object).reshape(matrix.shape)


EITHER = False, True


@pytest.mark.parametrize(
    ("of", "aligned", "by_integers"),
    exhaustive(pairwise(RECONSTRUCTED[:3], EITHER, EITHER), product(RECONSTRUCTED, EITHER, EITHER)),
    ids=str,
)
def test_integers_come_back(rng, of, aligned, by_integers):
    """Exactly where their type holds them and 7 moduli do, else rounded, though C nearly fills the moduli's range."""
    dtype, moduli = of
    gpu, bits, whole = Gpu(80), {"float64": 53, "float32": 24}[dtype], prod(MODULI[:moduli])
    for n, l, m in [(1, 1, 1), (33, 131, 70), (2, 30, 1030)]:
        held = isqrt(2**bits // l)  # up to which the type holds all of C
        largest = isqrt((whole - 1) // (2 * l)) if moduli <= 5 else int(Arithmetic(moduli).limit(l) / l**0.5)
        for most in {min(largest, held), min(largest, 2**bits)}:
            a, b = whole_numbers(rng, most, (n, l), dtype), whole_numbers(rng, most, (l, m), dtype)
            got = Tile(gpu, a, b, aligned=aligned, by_integers=by_integers).product(Arithmetic(moduli, scaled=False))
            exact = (in_python(a) @ in_python(b)).astype(float)
            is_exact = by_integers or (most <= held and moduli <= 7)
            lost = 0 if is_exact else np.abs(exact) * 2.0 ** (1 - bits) + whole / 2**68
            assert (np.abs(got - exact.astype(dtype)) <= lost).all(), (n, l, m, most)


@pytest.mark.parametrize(
    ("capability", "dtype", "moduli"),
    exhaustive(
        [(80, "complex128", 5), (90, "complex64", 3), (80, "complex128", 7)],
        [(each, *of) for each in (75, 80, 90) for of in (("complex128", 5), ("complex64", 3), ("complex128", 7))],
    ),
)
def test_complex_integers_come_back(rng, capability, dtype, moduli):
    """By three products a modulus, though C nearly fills the moduli's range."""
    most = {3: 2000, 5: 500_000, 7: 2**25}[moduli]
    for (n, l, m), aligned in product([(1, 1, 1), (70, 131, 37), (2, 30, 300)], (False, True)):
        a, b = (rng.integers(-most // l, most // l + 1, (*shape, 2)) for shape in ((n, l), (l, m)))
        first, second = (each.astype(f"f{np.dtype(dtype).itemsize // 2}").view(dtype)[..., 0] for each in (a, b))
        tile = Tile(Gpu(capability), first, second, by_integers=aligned, aligned=aligned)
        got = tile.product(Arithmetic(moduli, scaled=False))
        np.testing.assert_array_equal(got.real, a[..., 0] @ b[..., 0] - a[..., 1] @ b[..., 1])
        np.testing.assert_array_equal(got.imag, a[..., 0] @ b[..., 1] + a[..., 1] @ b[..., 0])


@pytest.mark.parametrize("capability", EACH_GPU)
@both_types
def test_signed_bytes_are_exact(rng, dtype, capability):
    for n, l, m in [(1, 1, 1), (130, 260, 133)]:
        a, b = rng.integers(-128, 128, (n, l)), rng.integers(-128, 128, (l, m))
        a[0], b[:, -1] = -128, -128
        np.testing.assert_array_equal(Tile(Gpu(capability), a.astype(dtype), b.astype(dtype)).product(BYTES), a @ b)


@pytest.mark.parametrize(("capability", "inner"), exhaustive([(80, 33_100)], product([75, 80, 90], [33_100, 66_700])))
def test_sums_are_reduced_before_they_have_no_room(capability, inner):
    """All remainders are the largest. Of so many products 32 bits with, or without, a sign cannot hold the sum."""
    tile = Tile(Gpu(capability), np.full((3, inner), -1.0), np.full((inner, 3), -1.0))
    assert (tile.product(Arithmetic(3, scaled=False)) == inner).all()


@pytest.mark.parametrize("capability", EACH_GPU)
def test_no_bit_depends_on_the_order_of_threads_and_copies(capability):
    first = ragged(Gpu(capability))
    wanted = first.summary("A"), first.summary("B"), first.ratio(), first.product(Arithmetic(3)).tobytes()
    for order, copies in zip(ORDERS, cycle(COPIES)):
        tile = ragged(Gpu(capability, order=order, copies=copies))
        found = tile.summary("A"), tile.summary("B"), tile.ratio(), tile.product(Arithmetic(3)).tobytes()
        assert found == wanted, (order, copies)


def test_one_element_tells_on_a_matrix():
    """In a matrix of integers: somewhere in the second chunk of k, alone in its line."""
    matrix, others = np.full((70, 600), -7.0), np.ones((600, 70))
    matrix[60] = 0
    cases = {3.0: (True, True), 0.5: (False, True), 2.0**60: (True, True), 1e-130: (False, True), np.nan: (False, False),
             np.inf: (True, False), -np.inf: (True, False), 1e200: (True, False), 1e-200: (False, False)}  # fmt: skip
    for element, flags in cases.items():
        matrix[60, 555] = element
        for summary in (Tile(Gpu(80), matrix, others).summary("A"), Tile(Gpu(80), others.T, matrix.T).summary("B")):
            assert (summary.integral, summary.in_range) == flags, element
            assert np.isnan(element) or summary.largest == max(7, abs(element))


def test_the_example_of_the_page():
    """kernels/README.md, and the picture there: (3, -5) · (700, 11)ᵀ = 2100 - 55 = 2045."""
    assert [2045 % p for p in MODULI[:3]] == [253, 5, 21]
    weights, whole = [11032065, 8225536, 13774080], prod(MODULI[:3])
    assert [[weight % p for p in MODULI[:3]] for weight in weights] == np.eye(3, dtype=int).tolist()
    assert sum(map(mul, weights, (253, 5, 21))) % whole == 2045
    tile = Tile(Gpu(80), np.array([[3.0, -5.0]]), np.array([[700.0], [11.0]]))
    assert tile.product(Arithmetic(3, scaled=False)).tolist() == [[2045.0]]


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


def least_ratio(a, b, seen=slice(None)):
    """The least Σ|a·b| / (|row|·|column|), of rows and columns that are not zero. `seen`: the sums are over this part of k."""
    a, b = (np.abs(matrix).astype(np.longdouble) for matrix in (a, b))
    sizes = np.outer(np.sqrt((a**2).sum(axis=1)), np.sqrt((b**2).sum(axis=0)))
    return float(((a[:, seen] @ b[seen])[sizes > 0] / sizes[sizes > 0]).min())


def sampled(inner, dtype):
    """Which elements along k the guard looks at."""
    there, every = -(-inner // UNIT), sampling(inner, dtype)
    units = [min(unit * every + (unit * 5 + 3) % every, there - 1) for unit in range(-(-there // every))]
    return np.isin(np.arange(inner) // UNIT, units)


KINDS = ["normal", "uniform", "of outliers", "small", "large", "of large meeting small", "with zeros"]


@pytest.mark.parametrize(
    ("kind", "dtype", "capability"),
    exhaustive(
        [(kind, ("float64", "float32")[at % 2], 80) for at, kind in enumerate(KINDS[::2])],
        product(KINDS, ("float32", "float64"), (75, 80, 90)),
    ),
)
def test_the_guard_is_never_above_the_least_ratio_and_no_element_errs_by_more_than_is_proved(rng, kind, dtype, capability):
    for shape in [(33, 300, 67), (3, 100, 3), (10, 2500, 130), (7, 1, 9)]:
        a, b = of_kind(rng, kind, *shape, dtype)
        tile = Tile(Gpu(capability), a, b)
        ratio, of_seen = tile.ratio(), least_ratio(a, b, sampled(shape[1], dtype))
        assert 0 <= ratio <= min(of_seen, least_ratio(a, b))
        if kind in ("normal", "uniform", "with zeros"):
            assert ratio > 0.7 * min(of_seen, NEARLY_ONE), "rounded down by up to 18 %, and from few elements"
        exact, sizes = (x.astype("g") @ y.astype("g") for x, y in ((a, b), (np.abs(a), np.abs(b))))
        for moduli in (3, 15 if dtype == "float64" else 8):
            bound = Arithmetic(moduli).error_bound(shape[1], dtype, max(ratio, 2.0**-20))
            assert ratio < 2.0**-20 or (np.abs(tile.product(Arithmetic(moduli)) - exact) <= bound * sizes).all(), moduli


@pytest.mark.parametrize("capability", EACH_GPU)
def test_one_element_of_c_is_the_least(capability):
    """One row of A meets one column of B with nothing in common; all other elements are flat."""
    for row, column in [(0, 0), (63, 64), (40, 127), (139, 299), (129, 255)]:
        a, b = np.ones((140, 256)), np.ones((256, 300))
        a[row, ::2], b[1::2, column] = 0, 0
        assert Tile(Gpu(capability), a, b).ratio() == 0
        a[row] = 1
        found = Tile(Gpu(capability), a, b, unwritten=0).ratio()
        assert found == pytest.approx(0.5**0.5 * 7 / 8 * 15 / 16, rel=1e-5), "rounded down"
    assert Tile(Gpu(capability), np.zeros((3, 130)), np.zeros((130, 2))).ratio() == NEARLY_ONE
