# SPDX-License-Identifier: MIT
"""Which format a name means; and what every format has in common: any rows in any type, and a file written by several at once."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.errors import DoesNotFit, UsageError
from hybrid.host import chunked_matrix, files, matrix_output, npy_file, zarr_folder
from hybrid.host.matrix_file import matrix_name, new_matrix, open_matrix

ALL = ["npy", pytest.param("h5", marks=pytest.mark.needs("h5py")), pytest.param("zarr", marks=pytest.mark.needs("zarr")),
       pytest.param("mtx", marks=pytest.mark.needs("scipy"))]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("A.npy", ("npy", "A.npy", "")),
        ("A", ("npy", "A", "")),
        ("a:b.npy", ("npy", "a:b.npy", "")),
        ("a:b", ("npy", "a:b", "")),
        ("A.h5", ("hdf5", "A.h5", "")),
        ("A.h5:", ("hdf5", "A.h5", "")),
        ("dir.h5/A.HDF5:/group/name/", ("hdf5", "dir.h5/A.HDF5", "group/name")),
        ("A.h5:a:b", ("hdf5", "A.h5", "a:b")),
        ("A.h5:/x.h5:/y", ("hdf5", "A.h5:/x.h5", "y")),
        ("run:3/A.h5:x", ("hdf5", "run:3/A.h5", "x")),
        ("A.h5.npy", ("npy", "A.h5.npy", "")),
        ("A.zarr/", ("zarr", "A.zarr/", "")),
        ("A.zarr/:/g/x", ("zarr", "A.zarr/", "g/x")),
        ("A.zarr:/g/x", ("zarr", "A.zarr", "g/x")),
        ("A.mtx", ("mtx", "A.mtx", "")),
    ],
)
def test_the_ending_of_a_name_says_the_format(text, meant):
    assert matrix_name(text) == meant


def test_a_file_that_is_there_under_the_whole_name_is_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert matrix_name("A.h5:b.npy") == ("hdf5", "A.h5", "b.npy")
    np.save("A.h5:b.npy", np.eye(3))
    assert matrix_name("A.h5:b.npy") == ("npy", "A.h5:b.npy", "")
    assert open_matrix("A.h5:b.npy").shape == (3, 3)


@pytest.fixture
def small_pieces(monkeypatch):
    for module, name in ((chunked_matrix, "BYTES_AT_ONCE"), (npy_file, "BYTES_AT_ONCE"), (zarr_folder, "BYTES_AT_ONCE"),
                         (matrix_output, "BYTES_AT_ONCE")):  # fmt: skip
        monkeypatch.setattr(module, name, 200)


def written(path, matrix, cuts):
    """As several ranks write it, the last one first."""
    output = new_matrix(str(path), matrix.shape, matrix.dtype)
    output.refuse(output.size)
    beside = files.temporary_name(output.path)
    begun = output.begin(beside)
    told = []
    for lo, hi in reversed(list(zip([0, *cuts], [*cuts, len(matrix)], strict=True))):
        output.write(beside, begun, matrix, Span(lo, hi), lambda: told.append(1))
    takes = sum(each.stat().st_size for each in (beside, *beside.rglob("*")) if each.is_file())
    files.publish(beside, output.path)
    assert takes <= output.size
    assert told or not matrix.size
    return output


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64"])
@pytest.mark.parametrize(("shape", "cuts"), [((13, 7), [4, 4, 9]), ((1, 9), [0]), ((20, 1), [1, 2]), ((0, 3), []), ((3, 0), [1])])
def test_what_several_write_is_read_as_it_was(tmp_path, rng, small_pieces, form, dtype, shape, cuts):
    matrix = rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30, shape)
    matrix = (matrix * (1j if dtype == "complex64" else 1) + rng.standard_normal(shape)).astype(dtype)
    written(tmp_path / f"m.{form}", matrix, cuts)
    assert [path.name for path in tmp_path.iterdir()] == [f"m.{form}"]
    file = open_matrix(str(tmp_path / f"m.{form}"))
    assert (file.shape, file.dtype) == (
        shape,
        {"f": np.float64, "c": np.complex128}[matrix.dtype.kind] if form == "mtx" else matrix.dtype,
    )
    for rows in (Span(0, shape[0]), Span(shape[0] // 3, shape[0] // 2), Span(shape[0] // 2, shape[0])):
        into, told = np.full((len(rows), shape[1]), np.nan, file.dtype), []
        file.read(rows, into, told.append)
        np.testing.assert_array_equal(into.astype(dtype), matrix[rows.slice])
        assert told == sorted(told)
        assert not into.size or told[-1] == len(rows)


@pytest.mark.parametrize("form", ALL)
def test_infinities_and_nan_are_kept(tmp_path, form):
    matrix = np.array([[np.inf, -np.inf, np.nan], [-0.0, 5e-324, 1.7976931348623157e308]])
    written(tmp_path / f"m.{form}", matrix, [1])
    into = np.zeros((2, 3))
    open_matrix(str(tmp_path / f"m.{form}")).read(Span(0, 2), into)
    np.testing.assert_array_equal(into, matrix)
    assert np.signbit(into[1, 0]) or form == "mtx"  # SciPy adds the numbers of a text to zeros


@pytest.mark.parametrize("form", ALL)
def test_values_that_the_wanted_type_cannot_hold_are_refused(tmp_path, form):
    written(tmp_path / f"m.{form}", np.full((2, 2), 1e300), [])
    with pytest.raises(UsageError, match=rf"m\.{form}\S* holds values too large for float32"):
        open_matrix(str(tmp_path / f"m.{form}")).read(Span(0, 2), np.empty((2, 2), "float32"))


@pytest.mark.parametrize("form", ALL)
def test_a_disk_without_room_for_it_is_known_before(tmp_path, monkeypatch, form):
    output = new_matrix(str(tmp_path / f"m.{form}"), (100, 50), np.dtype("float64"))
    monkeypatch.setattr(files, "free_bytes_in", lambda folder: 20 << 10)
    with pytest.raises(DoesNotFit, match=rf"m\.{form} takes .* KiB, 20\.0 KiB are free in {tmp_path}"):
        output.refuse(output.size)
    output.refuse(0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("trouble", ["none", "twisted"])
def test_what_is_not_there_is_said(tmp_path, form, trouble):
    if trouble == "twisted":  # a folder where a file belongs, and the other way round
        (tmp_path / f"m.{form}").touch() if form == "zarr" else (tmp_path / f"m.{form}").mkdir()
        said = "is a file, and Zarr" if form == "zarr" else "is not a regular file"
    else:
        said = "cannot be read: No such file or directory"
    with pytest.raises(UsageError, match=f"^{said}"):
        open_matrix(str(tmp_path / f"m.{form}"))
