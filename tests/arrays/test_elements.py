# SPDX-License-Identifier: MIT
"""Matrices of any type, generated and from files: any rows alone are what they are in the whole."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.arrays import derived_sources, elements
from hybrid.arrays.elements import FileElements, GeneratedElements, rows_of
from hybrid.arrays.fill import FILLS, fill_rows
from hybrid.arrays.product_type import numpy_type
from hybrid.arrays.sources import FileMatrix
from hybrid.arrays.typed_product import TypedProduct
from hybrid.core.problem import DTYPES
from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.ranks.team import Team

ALL = [pytest.param(name, marks=pytest.mark.needs("ml_dtypes")) if name == "bfloat16" else name for name in DTYPES]
SHAPE = 11, 7


def all_of(matrix):
    return rows_of(matrix, Span(0, matrix.shape[0]))


def real(fill, shape, dtype="float64"):
    """The generated matrix of real numbers."""
    into = np.empty(shape, dtype)
    fill_rows(into, Span(0, shape[0]), fill=fill, seed=3, matrix="A")
    return into


def written_by(source, rows, dtype):
    """What a source of a real product writes, from memory that held other numbers."""
    into = np.full((len(rows), source.shape[1]), np.nan, dtype)
    source.rows(rows, into, 2, lambda done: None)
    return into


@pytest.fixture(params=[1, 32 << 20])
def at_once(request, monkeypatch):
    """Converted row by row, and all rows together."""
    for module in (elements, derived_sources):
        monkeypatch.setattr(module, "BYTES_AT_ONCE", request.param)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("name", ALL)
def test_generated_elements_are_numbers_of_their_type(at_once, name, fill):
    dtype = numpy_type(name)
    if dtype.kind in "biu" and fill in ("uniform", "normal"):
        with pytest.raises(UsageError, match=f"--fill {fill} makes fractions, which {name} does not hold: use --fill lecture or"):
            GeneratedElements(SHAPE, fill, 3, "A", dtype)
        return
    made = GeneratedElements(SHAPE, fill, 3, "A", dtype)
    if dtype.kind != "c":
        expected = real(fill, SHAPE, "float32" if dtype.itemsize == 2 else "float64" if dtype.kind in "biu" else name).astype(
            dtype
        )
    elif fill == "index":
        expected = real(fill, SHAPE).astype(dtype)
    else:
        expected = real(fill, (11, 14), "float32" if name == "complex64" else "float64").view(dtype)
    np.testing.assert_array_equal(all_of(made).astype(dtype), expected)
    np.testing.assert_array_equal(rows_of(made, Span(4, 9)), all_of(made)[4:9])


@pytest.mark.parametrize(("name", "columns", "most"), [("int8", 14, 153), ("uint8", 26, 285), ("float16", 6000, 65999)])
def test_numbers_that_a_type_does_not_hold_are_not_generated(name, columns, most):
    GeneratedElements((11, columns // 2 - 1), "index", 0, "A", np.dtype(name))
    with pytest.raises(UsageError, match=f"--fill index makes numbers up to {most}, which {name} does not hold"):
        GeneratedElements((11, columns), "index", 0, "A", np.dtype(name))


@pytest.fixture
def saved(tmp_path):
    """A file of this matrix."""

    def save(matrix):
        np.save(tmp_path / "m.npy", matrix)
        return FileMatrix(str(tmp_path / "m.npy"))

    return save


@pytest.mark.parametrize("held", ["bool", "int8", "uint8", ">i4", "int64", "float32", ">f8", "complex64", "complex128"])
@pytest.mark.parametrize("name", ALL)
def test_files_are_converted_where_only_rounding_is_lost(saved, rng, at_once, held, name):
    matrix, dtype = (rng.integers(0, 2, SHAPE) if held == "bool" else rng.integers(0, 100, SHAPE)).astype(held), numpy_type(name)
    kinds = "bool" if matrix.dtype.kind == "b" else matrix.dtype.kind
    fits = {
        "bool": True,
        "i": name != "bool",
        "u": name != "bool",
        "f": "float" in name or "complex" in name,
        "c": "complex" in name,
    }
    if not fits[kinds]:
        with pytest.raises(UsageError, match=rf"m\.npy holds \S+, which as {name} would lose .+: use another --dtype, or none"):
            FileElements(saved(matrix), dtype)
        return
    file = FileElements(saved(matrix), dtype)
    np.testing.assert_array_equal(all_of(file), matrix.astype(dtype).astype("float32" if "float16" in name else dtype))
    np.testing.assert_array_equal(rows_of(file, Span(2, 5)), all_of(file)[2:5])


@pytest.mark.parametrize(
    ("held", "value", "name"),
    [
        ("int64", 128, "int8"),
        ("int64", -129, "int8"),
        ("int8", -1, "uint64"),
        ("uint64", 1 << 63, "int64"),
        ("float64", 7e4, "float16"),
        ("int64", 1 << 20, "float16"),
        ("float64", 1e39, "float32"),
        pytest.param("float64", 1e39, "bfloat16", marks=pytest.mark.needs("ml_dtypes")),
    ],
)
def test_values_that_do_not_fit_are_refused_when_they_are_read(saved, at_once, held, value, name):
    matrix = np.ones(SHAPE, held)
    file = FileElements(saved(matrix), numpy_type(name))
    np.testing.assert_array_equal(all_of(file), np.ones(SHAPE))
    matrix[6, 2] = value
    file = FileElements(saved(matrix), numpy_type(name))
    with pytest.raises(UsageError, match=rf"m\.npy holds values too large for {name}"):
        all_of(file)


def test_infinity_in_a_file_is_one_in_any_type(saved):
    file = FileElements(saved(np.full(SHAPE, -np.inf)), np.dtype("float16"))
    assert (all_of(file) == -np.inf).all()


@pytest.mark.needs("ml_dtypes")
def test_bfloat16_is_read_as_numpy_saves_it(saved, rng):
    import ml_dtypes

    matrix = rng.standard_normal(SHAPE).astype(ml_dtypes.bfloat16)
    file = saved(matrix)
    assert file.dtype == "V2"
    np.testing.assert_array_equal(all_of(FileElements(file, np.dtype(ml_dtypes.bfloat16))), matrix.astype(np.float32))


def product_of(rng, saved_as, kind_a, kind_b, asked=""):
    """A product of two files of these types, with A and B."""
    matrices = []
    for name, kind, shape in (("a", kind_a, (9, 5)), ("b", kind_b, (5, 6))):
        matrix = rng.standard_normal(shape) * 8
        matrix = (matrix + 1j * rng.standard_normal(shape) if "complex" in kind else matrix).astype(kind)
        np.save(saved_as / f"{name}.npy", matrix)
        matrices.append(matrix)
    a, b = (FileElements(file := FileMatrix(str(saved_as / f"{name}.npy")), file.dtype) for name in "ab")
    return TypedProduct.of(a, b, asked), *matrices


@pytest.mark.parametrize(
    ("kind_a", "kind_b"), [("complex128", "complex128"), ("float64", "complex128"), ("complex64", "float64")]
)
def test_the_real_product_of_complex_matrices_is_theirs(rng, tmp_path, at_once, kind_a, kind_b):
    product, a, b = product_of(rng, tmp_path, kind_a, kind_b)
    n, l, m = (product.problem.n, product.problem.l, product.problem.m)
    assert (n, l, m) == (9, 10 if "complex" in kind_a else 5, 12)
    first, second = product.sources()
    real_a, real_b = written_by(first, Span(0, n), "float64"), written_by(second, Span(0, l), "float64")
    np.testing.assert_allclose((real_a @ real_b).view(complex), a @ b, rtol=1e-12)
    for lo in range(l):  # an odd row begins within what one row of B gives
        for hi in range(lo, l + 1):
            np.testing.assert_array_equal(written_by(second, Span(lo, hi), "float64"), real_b[lo:hi])


def test_integers_are_looked_at_only_where_their_type_allows_sums_that_are_too_long(rng, tmp_path):
    product, *_ = product_of(rng, tmp_path, "int16", "int16")
    assert (product.primes, product.types.computed) == ((0,), "float64")
    assert product.looked_at(Team(), 1) is product
    wide, *_ = product_of(rng, tmp_path, "int64", "int64")
    assert len(wide.primes) > 1
    assert wide.looked_at(Team(), 1).primes == (0,)


def test_remainders_of_integers(rng, tmp_path, at_once):
    product, a, b = product_of(rng, tmp_path, "int64", "int64")
    prime = product.primes[0]
    first, second = product.sources(prime)
    real_a, real_b = written_by(first, Span(0, 9), "float64"), written_by(second, Span(0, 5), "float64")
    np.testing.assert_array_equal((real_a @ real_b - a @ b) % prime, np.zeros((9, 6)))
