# SPDX-License-Identifier: MIT
"""A file that is written part by part: whose bytes are those of one that is written at once, and each of which is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host import partial_matrix
from hybrid.host.fingerprint import fingerprint
from hybrid.host.matrix_file import new_matrix, open_matrix
from hybrid.host.partial_matrix import PartialMatrix, digests_in_memory

PARTS = [Span(0, 7), Span(7, 14), Span(14, 20)]
FORMS = [
    "C.npy",
    pytest.param("C.h5:/g/C", marks=pytest.mark.needs("h5py")),
    pytest.param("C.zarr", marks=pytest.mark.needs("zarr")),
    pytest.param("C.zarr:/g/C", marks=pytest.mark.needs("zarr")),
]


@pytest.fixture
def c(rng):
    return rng.standard_normal((20, 5))


def partial_of(folder, name, c):
    return PartialMatrix(new_matrix(str(folder / name), c.shape, c.dtype), len(c), c.itemsize * c.shape[1])


def contents_of(path):
    """Of the file, or of all in the folder."""
    return {each: each.read_bytes() for each in ([path] if path.is_file() else sorted(path.rglob("*"))) if each.is_file()}


def write_part(file, frame, part, c):
    rows = np.ascontiguousarray(c[part.slice])
    file.write(frame, part, rows, file.groups(part), lambda: None)
    return digests_in_memory(part, rows, file.groups(part), lambda: None)


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    monkeypatch.setattr(partial_matrix, "_GROUP_BYTES", 3 * 40)
    monkeypatch.setattr("hybrid.host.zarr_folder.BYTES_AT_ONCE", 300)  # of a chunk: 7 rows, so that the last is not full


@pytest.mark.parametrize("name", FORMS)
def test_in_any_order_of_parts_the_file_is_the_one_written_at_once(tmp_path, rng, c, name):
    for folder in "ab":
        (tmp_path / folder).mkdir()
    whole = partial_of(tmp_path / "a", name, c)
    write_part(whole, whole.begin(), Span(0, 20), c)
    whole.publish()
    file = partial_of(tmp_path / "b", name, c)
    frame = file.begin()
    for number in rng.permutation(len(PARTS)):
        digests = write_part(file, frame, PARTS[number], c)
        assert file.digests_on_disk(file.part, frame, file.groups(PARTS[number]), lambda: None) == digests
    assert file.is_framed(file.part, frame)
    file.publish()
    files, wholes = (
        {path.relative_to(tmp_path / folder): data for path, data in contents_of(tmp_path / folder).items()} for folder in "ba"
    )
    assert files == wholes
    into = np.empty_like(c)
    open_matrix(str(tmp_path / "b" / name)).read(Span(0, 20), into)
    np.testing.assert_array_equal(into, c)


@pytest.mark.parametrize("name", FORMS)
def test_any_other_bit_anywhere_is_seen(tmp_path, c, name):
    """As of the rows, or as of what is beside them."""
    file = partial_of(tmp_path, name, c)
    frame = file.begin()
    digests = write_part(file, frame, Span(0, 20), c)
    seen = {True: 0, False: 0}
    for path, good in contents_of(file.part).items():
        for at in range(len(good)):
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            same = file.digests_on_disk(file.part, frame, file.groups(Span(0, 20)), lambda: None) == digests
            assert file.is_framed(file.part, frame) is not same, at
            seen[same] += 1
        path.write_bytes(good)
    assert seen[False] == c.nbytes
    path.write_bytes(good[:-1])
    assert not file.is_framed(file.part, frame)
    path.unlink()
    assert not file.is_framed(file.part, frame)


def test_rows_that_the_file_lacks_have_another_digest(tmp_path, c):
    file = partial_of(tmp_path, "C.npy", c)
    frame = file.begin()
    with open(file.part, "r+b") as opened:
        opened.truncate(frame.begun + 100)
    first, second, *_ = file.digests_on_disk(file.part, frame, [Span(0, 2), Span(2, 4)], lambda: None)
    assert first != second == b""


def test_a_format_whose_rows_have_no_place_is_refused(tmp_path, c):
    with pytest.raises(UsageError, match=r"cannot be written part by part: --resume writes \.npy, \.h5 and \.zarr"):
        partial_of(tmp_path, "C.mtx", c)


@pytest.mark.needs("zarr")
def test_a_zarr_store_in_parts_is_what_zarr_python_writes(tmp_path, c):
    import zarr

    file = partial_of(tmp_path, "C.zarr", c)
    write_part(file, file.begin(), Span(0, 20), c)
    file.publish()
    made = zarr.open_array(tmp_path / "C.zarr", mode="r")
    other = zarr.create_array(tmp_path / "D.zarr", shape=c.shape, chunks=made.chunks, dtype=c.dtype, compressors=None)
    other[...] = c
    chunks = [{path.relative_to(folder): data for path, data in contents_of(folder).items() if path.name != "zarr.json"}
              for folder in (tmp_path / "C.zarr", tmp_path / "D.zarr")]  # fmt: skip
    assert chunks[0] == chunks[1]
    np.testing.assert_array_equal(made[...], c)


def test_a_fingerprint_tells_what_was_changed(tmp_path):
    import os

    file, folder = tmp_path / "A.npy", tmp_path / "A.zarr"
    file.write_bytes(b"a" * 10_000)
    (folder / "c").mkdir(parents=True)
    (folder / "c" / "0").write_bytes(b"0")
    (folder / os.fsdecode(b"\xff")).touch()
    before = [fingerprint(str(path)) for path in (file, folder)]
    assert [fingerprint(str(path)) for path in (file, folder)] == before
    stat = file.stat()
    file.write_bytes(b"b" + b"a" * 9_999)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the header alone tells it
    (folder / "c" / "1").write_bytes(b"")
    assert all(fingerprint(str(path)) != old for path, old in zip((file, folder), before, strict=True))
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        fingerprint(str(tmp_path / "none"))
