# SPDX-License-Identifier: MIT
"""Matrices in Zarr stores of both versions; what is no matrix or damaged is said in a line, and what pickles is not read."""

from __future__ import annotations

import json
import pickle
import sys
from collections import namedtuple

import numpy as np
import pytest
from support.matrix_files import assert_refused, assert_rows_are_read, rows_of

from hybrid.core.spans import Span
from hybrid.errors import HybridError, UsageError
from hybrid.host import chunked_matrix, zarr_folder
from hybrid.host.matrix_file import new_matrix, open_matrix

MATRIX = np.arange(60, dtype=np.float64).reshape(12, 5) - 7
needs_zarr = pytest.mark.needs("zarr")


@pytest.fixture
def zarr():
    import zarr

    return zarr


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.zarr"


@needs_zarr
@pytest.mark.parametrize(
    "stored_how",
    [
        {},
        {"chunks": (5, 2)},
        {"chunks": (2, 5), "shards": (4, 5)},
        {"chunks": (5, 2), "zarr_format": 2, "order": "F"},
        {"zarr_format": 2, "compressors": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float64", ">f4", "int16", "bool", "float16"])
def test_any_rows_of_any_array(zarr, path, monkeypatch, stored_how, dtype):
    monkeypatch.setattr(chunked_matrix, "BYTES_AT_ONCE", 64)
    matrix = abs(MATRIX).astype(dtype)
    for name in ("", "g/a"):
        store = zarr.storage.LocalStore(path.with_name(f"{name and 'in-'}m.zarr"))
        array = zarr.create_array(store, name=name or None, shape=matrix.shape, dtype=dtype, **{"chunks": "auto", **stored_how})
        array[...] = matrix
    assert_rows_are_read([path, path.with_name("in-m.zarr"), f"{path.with_name('in-m.zarr')}:/g/a"], matrix)


@pytest.fixture
def assorted(zarr, path):
    group = zarr.create_group(path)
    for name in ("g/alpha", "g/beta", "gamma"):
        group.create_array(name, data=MATRIX)
    group.create_array("line", data=np.ones(3))
    group.create_array("text", data=np.array([["a"]], "<U3"))
    return path


@needs_zarr
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "holds /g/alpha, /g/beta, /gamma: add the name of one, after a colon"),
        (":/alpha", "has no array /alpha: did you mean /g/alpha?"),
        (":/x", "has no array /x: it holds /g/alpha, /g/beta, /gamma"),
        (":/g", "has no array /g, which is a group there: it holds /g/alpha"),
        (":/../m.zarr", "has malformed metadata of /../m.zarr: ValueError"),
        (":/line", "does not hold a matrix: its shape is (3,)"),
        (":/text", "holds <U3: only numbers"),
    ],
)
def test_what_is_no_matrix_is_said(assorted, name, said):
    assert_refused(f"{assorted}{name}", said)


@needs_zarr
@pytest.mark.parametrize("name", ["zarr.json", ".zarray", ".zgroup"])
@pytest.mark.parametrize("content", [b"", b'{"a":', b"[]", b"{}", b'{"zarr_format": 3, "node_type": "array"}', b"\xff\x00"])
def test_malformed_metadata(path, name, content):
    path.mkdir()
    with pytest.raises(UsageError, match=r"^is no Zarr store: it has neither"):
        open_matrix(str(path))
    (path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"^has malformed metadata|^holds no matrix") as found:
        open_matrix(str(path))
    assert "\n" not in str(found.value)


@needs_zarr
@pytest.mark.parametrize("stored_how", [{"compressors": None}, {}, {"chunks": (3, 5), "shards": (6, 5)}], ids=str)
def test_a_chunk_that_is_cut_short_is_found_by_whoever_reads_it(zarr, path, stored_how):
    zarr.create_array(path, shape=MATRIX.shape, dtype="f8", **{"chunks": (6, 5), **stored_how})[...] = MATRIX
    chunk = path / "c" / "1" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    np.testing.assert_array_equal(rows_of(path, Span(0, 6)), MATRIX[:6])
    with pytest.raises(HybridError, match=rf"{path} cannot be read, rows 6:12: \w+"):
        rows_of(path, Span(6, 12))


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@needs_zarr
@pytest.mark.parametrize("where", ["filters", "compressor"])
def test_what_pickles_is_never_read(zarr, path, where):
    zarr.create_array(path, data=MATRIX, chunks=(12, 5), zarr_format=2, compressors=None)
    (path / "0.0").write_bytes(pickle.dumps(Bomb(path.with_name("exploded"))))
    metadata = json.loads((path / ".zarray").read_text())
    metadata[where] = [{"id": "pickle"}] if where == "filters" else {"id": "pickle"}
    (path / ".zarray").write_text(json.dumps(metadata))
    with pytest.raises(UsageError, match=r"^is encoded by 'pickle', which is not read|^has malformed metadata"):
        open_matrix(str(path))
    assert not path.with_name("exploded").exists()


def test_codecs_within_shards_are_looked_at():
    inner = {"name": "numcodecs.pickle"}
    shard = {"name": "sharding_indexed", "configuration": {"codecs": ({"name": "bytes"}, inner), "index_codecs": ()}}
    metadata = namedtuple("Metadata", "to_dict")(lambda: {"codecs": (shard,)})
    array = namedtuple("Array", "metadata")(metadata)
    assert zarr_folder._codecs(array) == ["sharding_indexed", "bytes", "pickle"]


@needs_zarr
def test_a_store_that_is_there_is_not_replaced(path):
    output = new_matrix(f"{path}:/g/C", (3, 3), np.dtype("float64"))
    output.refuse(output.size)
    path.mkdir()
    output.refuse(output.size)
    (path / "zarr.json").touch()
    with pytest.raises(UsageError, match=r"m\.zarr is there, and a folder cannot be replaced in one step: remove it"):
        output.refuse(output.size)
    with pytest.raises(UsageError, match=r"m\.zarr:/a//b names no dataset"):
        new_matrix(f"{path}:/a//b", (3, 3), np.dtype("float64")).refuse(0)


@needs_zarr
def test_every_chunk_is_written_also_where_it_is_all_zeros(zarr, path, monkeypatch):
    """A chunk that is not there is read as zeros, also where it was lost."""
    monkeypatch.setattr(zarr_folder, "BYTES_AT_ONCE", 160)
    output = new_matrix(str(path), (10, 5), np.dtype("float64"))
    output.write(path, output.begin(path), np.zeros((10, 5)), Span(0, 10), lambda: None)
    assert sorted(each.name for each in (path / "c").iterdir()) == ["0", "1", "2"]
    assert zarr.open_array(path).chunks == (4, 5)


@pytest.mark.parametrize(("python", "said"), [
    ((3, 10, 4), r"cannot be read: zarr-python 3 needs Python 3\.11 or newer, and this is 3\.10$"),
    ((3, 12, 1), r"cannot be read without zarr-python 3: pip install .*zarr"),
])  # fmt: skip
def test_without_zarr_it_is_said_what_to_install(path, monkeypatch, python, said):
    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.setattr(sys, "version_info", python)
    path.mkdir()
    with pytest.raises(UsageError, match=said):
        open_matrix(str(path))
    with pytest.raises(UsageError, match=rf"m\.zarr {said.replace('read', 'written')}"):
        new_matrix(str(path), (3, 3), np.dtype("float64")).refuse(0)
