# SPDX-License-Identifier: MIT
"""kernels/norms.cu and guard.cu on the CPU: what is known of lines, their powers of two, and the least ratio of a product, which
products.cu finds, too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from experiments.kernel_checks import remainder_models as models
from experiments.kernel_checks import remainder_runs as runs
from hybrid.kernels import remainders
from hybrid.kernels.catalogue import C_TYPES
from hybrid.kernels.sources import KERNELS
from hybrid.plan.arithmetic import Arithmetic, integer_bits

OF_NORMS = ["summarize", "scale_lines", "tell"] + [f"measure_{x}<{t}>" for t in C_TYPES.values() for x in ("rows", "columns")]
OF_MAGNITUDES = [f"magnitudes_of_{x}<{t}>" for t in C_TYPES.values() for x in ("rows", "columns")]
HALF = {"float64": 1e140, "float32": 1e30}  # elements may be as large, or as small, and their squares are in range


@pytest.fixture(scope="module")
def run():
    return runs.Runner.compiled({KERNELS / "norms.cu": OF_NORMS})


@dataclass(frozen=True)
class Guard:
    """The kernels that find the least ratio, on such a GPU. It is small: a cluster goes through several pairs of tiles."""

    run: runs.Runner
    capability: int
    multiprocessors: int = 2

    def ratio(self, a, b, every):
        run = self.run.but()
        ratio = runs.guarded_ratio(run, run.copied(a), run.copied(b), every, self)
        assert run.untouched()
        return ratio


@pytest.fixture(scope="module", params=[("guard.cu", 80), ("products.cu", 90)], ids=["mma", "wgmma"])
def guard(request):
    source, capability = request.param
    kernels = runs.Runner.compiled({KERNELS / "norms.cu": OF_NORMS, KERNELS / "guard.cu": OF_MAGNITUDES}).kernels
    found = runs.Runner.compiled({KERNELS / source: ["least_ratio"]}, capability=capability).kernels
    return Guard(runs.Runner({**kernels, **found}), capability)


def lines_like(rng, count, inner, dtype):
    """Rows: of all sizes, of integers, of zeros, of one number only, and whose norm is a power of two."""
    matrix = rng.standard_normal((count, inner)) * 2.0 ** rng.integers(-60, 60, (count, 1))
    matrix[1::5] = np.rint(rng.standard_normal(matrix[1::5].shape) * 100)
    matrix[2::5] = 0
    matrix[3::5] = 0
    matrix[3::5, inner // 2] = 2.0**20
    return matrix.astype(dtype)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("operand", ["A", "B"])
@pytest.mark.parametrize(("count", "inner"), [(1, 1), (33, 257), (40, 1300), (300, 9)])
def test_norms_and_powers_of_two(run, rng, dtype, operand, count, inner):
    run = run.but()
    matrix = lines_like(rng, count, inner, dtype)
    lines = runs.measured(run, operand, run.copied(matrix if operand == "A" else matrix.T))
    norms = np.sqrt((matrix.astype(np.longdouble) ** 2).sum(axis=1)).astype(float)
    np.testing.assert_allclose(lines.numbers[0], norms, rtol=1e-14)
    np.testing.assert_array_equal(lines.numbers[1], np.abs(matrix).max(axis=1))
    most, fractions, out_of_range, *_ = lines.summary[0]
    assert lines.summary[0, :1].view(float)[0] == np.abs(matrix).max(), most
    assert (fractions, out_of_range) == ((matrix != np.rint(matrix)).any(), 0)
    assert lines.least == lines.numbers[0][lines.numbers[0] > 0].min()
    bits = integer_bits(dtype)
    for limit in [0.0, 2.0**20, *(Arithmetic(moduli).limit(inner) for moduli in (3, 7, 8, 14, 15) if inner < 1000 or moduli > 3)]:
        runs.scale(run, lines, limit, bits)
        well = models.scaled_well(lines.numbers, limit, bits)
        assert well.all(), (limit, lines.numbers[:, ~well])
    assert run.untouched()


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_norms_do_not_depend_on_the_order_of_threads_nor_on_other_lines(run, rng, operand, dtype):
    matrix = lines_like(rng, 40, 1300, dtype)
    whole, part = (x if operand == "A" else x.T.copy() for x in (matrix, matrix[7:20]))
    forward = runs.measured(run.but(), operand, whole).numbers[:2]
    shuffled = runs.measured(run.but(order="shuffled"), operand, part).numbers[:2]
    np.testing.assert_array_equal(forward[:, 7:20], shuffled)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("operand", ["A", "B"])
@pytest.mark.parametrize(
    ("element", "integral", "in_range"),
    [
        (3.0, True, True),
        (0.5, False, True),
        (2.0**60, True, True),
        (1e-130, False, True),
        (np.nan, False, False),
        (np.inf, True, False),
        (-np.inf, True, False),
        (1e200, True, False),
        (1e-200, False, False),
    ],
)
def test_one_element_tells_on_a_matrix(run, operand, element, integral, in_range):
    """In a matrix of integers: somewhere in the second chunk of k, alone in its line."""
    matrix = np.full((70, 600), -7.0)
    matrix[60] = 0
    matrix[60, 555] = element
    summary = runs.measured(run.but(), operand, matrix if operand == "A" else matrix.T.copy()).summary[0]
    assert list(summary[1:3]) == [not integral, not in_range]
    if not np.isnan(element):
        assert summary[:1].view(float)[0] == max(7, abs(element))


@pytest.mark.needs("compiler")
def test_a_few_words_are_told(run):
    words, told = np.arange(1, 9, dtype=np.uint32)[None, :], np.zeros((1, 8), np.uint32)
    run(remainders.telling(), words[:, :5], told)
    assert told[0].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


def matrices(rng, kind, rows, inner, columns, dtype):
    a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    if kind == "uniform":
        a, b = np.abs(a), np.abs(b)
    if kind == "of outliers":
        a, b = a * np.exp(3 * rng.standard_normal(a.shape)), b * np.exp(3 * rng.standard_normal(b.shape))
    if kind in ("small", "large"):
        factor = HALF[dtype] / inner if kind == "large" else inner / HALF[dtype]
        a *= np.exp(2 * rng.standard_normal(a.shape)) * factor / np.exp(9)
        b *= np.exp(2 * rng.standard_normal(b.shape))
    if kind == "of large meeting small":
        a[:, : inner // 2] *= 2.0**-12
        b[inner // 2 :] *= 2.0**-12
    if kind == "with zeros":
        a[3::7], b[:, ::5] = 0, 0
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("every", [1, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["normal", "uniform", "of outliers", "small", "large", "of large meeting small", "with zeros"])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(70, 300, 67), (10, 2500, 130)])
def test_the_guard_is_never_above_the_least_ratio(guard, rng, kind, rows, inner, columns, dtype, every):
    a, b = matrices(rng, kind, rows, inner, columns, dtype)
    ratio, least = guard.ratio(a, b, every), models.least_ratio(a, b)
    assert 0 <= ratio <= least
    of_seen = models.least_ratio(a, b, models.sampled(inner, every))
    assert ratio <= of_seen
    if kind in ("normal", "uniform", "with zeros"):
        assert ratio > 0.7 * min(of_seen, runs.NEARLY_ONE)  # rounded down by up to 18 %, and from few elements


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("row", "column"), [(0, 0), (63, 64), (64, 63), (40, 127), (139, 299), (129, 255), (9, 256)])
def test_one_element_of_c_is_the_least(guard, row, column):
    """One row of A meets one column of B with nothing in common; all other elements are flat."""
    a, b = np.ones((140, 256)), np.ones((256, 300))
    a[row, ::2], b[1::2, column] = 0, 0
    assert guard.ratio(a, b, 1) == 0
    a[row] = 1
    assert guard.ratio(a, b, 1) == pytest.approx(0.5**0.5 * 7 / 8 * 15 / 16, rel=1e-5), "rounded down"


@pytest.mark.needs("compiler")
def test_zeros_alone_leave_the_ratio_where_it_was(guard):
    assert guard.ratio(np.zeros((3, 130)), np.zeros((130, 2)), 1) == runs.NEARLY_ONE
