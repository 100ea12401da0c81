# SPDX-License-Identifier: MIT
"""Formats of matrices in files: a name's ending says which; any rows are read in any type from files however others stored
them; what several processes write is read as it was, by any library."""

from itertools import cycle, product

import numpy as np
import pytest
from support.selection import exhaustive

from hybrid.core.problem import Span
from hybrid.errors import UsageError
from hybrid.runs.matrix_file import matrix_name, new_matrix, open_matrix

FORMS = ["npy", pytest.param("h5", marks=pytest.mark.needs("h5py")), pytest.param("zarr", marks=pytest.mark.needs("zarr")),
         pytest.param("mtx", marks=pytest.mark.needs("scipy"))]  # fmt: skip


NAMES = [
    ("A.npy", ("npy", "A.npy", "")), ("A", ("npy", "A", "")), ("a:b.npy", ("npy", "a:b.npy", "")), ("a:b", ("npy", "a:b", "")),
    ("A.h5", ("hdf5", "A.h5", "")), ("A.h5:", ("hdf5", "A.h5", "")), ("A.h5:a:b", ("hdf5", "A.h5", "a:b")),
    ("dir.h5/A.HDF5:/group/name/", ("hdf5", "dir.h5/A.HDF5", "group/name")), ("A.h5:/x.h5:/y", ("hdf5", "A.h5:/x.h5", "y")),
    ("run:3/A.h5:x", ("hdf5", "run:3/A.h5", "x")), ("A.h5.npy", ("npy", "A.h5.npy", "")), ("A.zarr/", ("zarr", "A.zarr/", "")),
    ("A.zarr/:/g/x", ("zarr", "A.zarr/", "g/x")), ("A.zarr:/g/x", ("zarr", "A.zarr", "g/x")), ("A.mtx", ("mtx", "A.mtx", "")),
    ("G.bed", ("bed", "G.bed", "")), ("G.bed:called", ("bed", "G.bed", "called")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "meant"), NAMES)
def test_the_ending_of_a_name_says_the_format(text, meant):
    assert matrix_name(text) == meant


def rows_of(name, rows, dtype, columns=None, threads=1):
    file = open_matrix(str(name))
    into, told = np.full((len(rows), file.shape[1] if columns is None else len(columns)), 99, dtype), []
    file.read(rows, into, told.append, columns, threads)
    assert told == sorted(told)
    assert not into.size or told[-1] == len(rows)
    return into


MATRIX = np.arange(60, dtype=np.float64).reshape(12, 5) - 7
STORED = ["float64", ">f4", "int16", "bool", "float16", ">u8"]


def stored_npy(path, matrix, how):
    np.save(path, np.array(matrix, order=how.get("order", "C")))
    return [path]


def stored_h5(path, matrix, how):
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("g/a", data=matrix, **how)
        file["line"], file["text"], file["number"], file["soft"] = np.ones(3), "text", 3.0, h5py.SoftLink("/g/a")
    return [path, f"{path}:g/a", f"{path}:/g/a", f"{path}:/soft"]


def stored_zarr(path, matrix, how):
    import zarr

    zarr.create_array(path, name="g/a", shape=matrix.shape, dtype=matrix.dtype, **{"chunks": "auto", **how})[...] = matrix
    return [path, f"{path}:/g/a"]


STORES = {
    "npy C": (stored_npy, {"order": "C"}),
    "npy F": (stored_npy, {"order": "F"}),
    "h5": (stored_h5, {}),
    "h5 gzip": (stored_h5, {"chunks": (5, 2), "compression": "gzip", "shuffle": True, "fletcher32": True}),
    "h5 lzf": (stored_h5, {"chunks": (12, 1), "compression": "lzf"}),
    "h5 that may grow": (stored_h5, {"chunks": (4, 5), "maxshape": (None, 5)}),
    "zarr": (stored_zarr, {}),
    "zarr shards": (stored_zarr, {"chunks": (2, 5), "shards": (4, 5)}),
    "zarr 2 F": (stored_zarr, {"chunks": (5, 2), "zarr_format": 2, "order": "F"}),
    "zarr 2": (stored_zarr, {"zarr_format": 2, "compressors": None}),
}
IN_TURN = list(zip([*STORES, *reversed(STORES)], cycle(STORED)))  # two types of each


@pytest.mark.needs("h5py", "zarr")
@pytest.mark.parametrize(("stored", "dtype"), exhaustive(IN_TURN, product(STORES, STORED)))
def test_any_rows_and_columns_of_any_stored_matrix_in_any_type(tmp_path, monkeypatch, stored, dtype):
    monkeypatch.setattr("hybrid.runs.matrix_file.BYTES_AT_ONCE", 200)
    store, how = STORES[stored]
    if store is stored_zarr and dtype == ">u8":
        pytest.skip("zarr-python takes no such byte order for this type")
    matrix = abs(MATRIX).astype(dtype)
    for name in store(tmp_path / f"m.{store.__name__[7:]}", matrix, how):
        for rows in (Span(0, 12), Span(3, 10), Span(11, 12), Span(4, 4)):
            for wanted in ("float64", "float32"):
                np.testing.assert_array_equal(rows_of(name, rows, wanted), matrix[rows.slice].astype(wanted))
            for columns, threads in ((Span(1, 4), 1), (Span(4, 5), 3), (Span(2, 2), 1), (Span(0, 5), 3), (Span(1, 4), 3)):
                found = rows_of(name, rows, "float64", columns, threads)
                np.testing.assert_array_equal(found, matrix[rows.slice, columns.slice].astype(float))


def test_some_columns_of_genotypes(tmp_path, rng):
    packed = rng.integers(0, 256, (5, 3), np.uint8)
    (tmp_path / "G.bed").write_bytes(b"\x6c\x1b\x01" + packed.tobytes())
    (tmp_path / "G.fam").write_text("sample\n" * 10)
    whole = rows_of(tmp_path / "G.bed", Span(0, 5), "int8")
    for columns in (Span(1, 10), Span(5, 6)):
        np.testing.assert_array_equal(rows_of(tmp_path / "G.bed", Span(2, 5), "int8", columns), whole[2:, columns.slice])


MTX = [  # header, lines, and the matrix
    ("array real general", "2 3\n1\n2\n3\n4\n5\n6.5\n", [[1, 3, 5], [2, 4, 6.5]]),
    ("array integer symmetric", "2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
    ("array complex general", "1 2\n1 2\n3 -4\n", [[1 + 2j, 3 - 4j]]),
    ("coordinate real general", "% a comment\n2 3 2\n1 1 1.5\n2 3 -2\n", [[1.5, 0, 0], [0, 0, -2]]),
    ("coordinate pattern symmetric", "2 2 2\n1 1\n2 1\n", [[1, 1], [1, 0]]),
    ("coordinate real skew-symmetric", "2 2 1\n2 1 5\n", [[0, -5], [5, 0]]),
    ("coordinate complex hermitian", "2 2 1\n2 1 1 2\n", [[0, 1 - 2j], [1 + 2j, 0]]),
]


@pytest.mark.needs("scipy")
@pytest.mark.parametrize(("kind", "lines", "matrix"), MTX)
def test_matrix_market_files_of_every_kind(tmp_path, kind, lines, matrix):
    (tmp_path / "m.mtx").write_text(f"%%MatrixMarket matrix {kind}\n{lines}")
    wanted = "complex128" if "complex" in kind else "float64"
    np.testing.assert_array_equal(rows_of(tmp_path / "m.mtx", Span(0, len(matrix)), wanted), matrix)
    last = Span(1, len(matrix[0]))
    np.testing.assert_array_equal(rows_of(tmp_path / "m.mtx", Span(0, 1), wanted, last), np.array(matrix)[:1, 1:])


def written(path, matrix, cuts):
    """As several processes write it, the last rows first."""
    output = new_matrix(str(path), matrix.shape, matrix.dtype)
    begun = output.begin(path)
    for lo, hi in reversed(list(zip([0, *cuts], [*cuts, len(matrix)], strict=True))):
        output.write(path, begun, Span(lo, hi), matrix[lo:hi], lambda: None)
    assert sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file()) <= output.size, "its forecast holds"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64"])
@pytest.mark.parametrize(("shape", "cuts"), [((13, 7), [4, 4, 9]), ((1, 9), [0]), ((20, 1), [1, 2]), ((0, 3), []), ((3, 0), [1])])
def test_what_several_write_is_read_as_it_was(tmp_path, rng, form, dtype, shape, cuts):
    matrix = rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape)
    matrix = (matrix * (1j if dtype == "complex64" else 1) + rng.standard_normal(shape)).astype(dtype)
    path = tmp_path / f"m.{form}"
    written(path, matrix, cuts)
    file = open_matrix(str(path))
    stored = {"f": np.dtype("f8"), "c": np.dtype("c16")}[matrix.dtype.kind] if form == "mtx" else matrix.dtype
    assert (file.shape, file.dtype) == (shape, stored)
    np.testing.assert_array_equal(rows_of(path, Span(0, shape[0]), stored).astype(dtype), matrix)


@pytest.mark.parametrize("form", FORMS)
def test_infinities_nan_and_extremes_are_kept(tmp_path, form):
    matrix = np.array([[np.inf, -np.inf, np.nan], [-0.0, 5e-324, 1.7976931348623157e308]])
    written(tmp_path / f"m.{form}", matrix, [1])
    found = rows_of(tmp_path / f"m.{form}", Span(0, 2), "float64")
    np.testing.assert_array_equal(found, matrix)
    assert np.signbit(found[1, 0]) or form == "mtx"  # SciPy adds the numbers of a text to zeros
    with pytest.raises(UsageError) as refused:
        rows_of(tmp_path / f"m.{form}", Span(0, 2), "float32")
    assert refused.value.code == "file-values"
