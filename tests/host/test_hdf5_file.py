# SPDX-License-Identifier: MIT
"""Matrices in HDF5 files as others write them; what is no matrix, damaged, locked or elsewhere is said in a line."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.matrix_files import assert_refused, assert_rows_are_read, rows_of

from hybrid.core.spans import Span
from hybrid.errors import HybridError, UsageError
from hybrid.host import chunked_matrix
from hybrid.host.matrix_file import new_matrix, open_matrix

pytestmark = pytest.mark.needs("h5py")

MATRIX = np.arange(60, dtype=np.float64).reshape(12, 5) - 7
DOUBLE = np.dtype("float64")


@pytest.fixture
def h5py():
    import h5py

    return h5py


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.h5"


@pytest.mark.parametrize(
    "stored_how",
    [
        {},
        {"chunks": (5, 2)},
        {"chunks": (5, 2), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (12, 1), "compression": "lzf"},
        {"chunks": (4, 5), "maxshape": (None, 5)},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float64", ">f4", "int16", "bool", "float16", ">u8"])
def test_any_rows_of_any_dataset(h5py, path, monkeypatch, stored_how, dtype):
    monkeypatch.setattr(chunked_matrix, "BYTES_AT_ONCE", 64)
    matrix = abs(MATRIX).astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("g/a", data=matrix, **stored_how)
        file["line"], file["text"], file["number"] = np.ones(3), "text", 3.0
    assert open_matrix(str(path)).dtype == np.dtype(dtype)
    assert_rows_are_read([path, f"{path}:g/a", f"{path}:/g/a"], matrix)


def test_links_and_virtual_datasets_lead_to_matrices(h5py, path):
    with h5py.File(path.with_name("other.h5"), "w") as other:
        other["there"] = MATRIX
    layout = h5py.VirtualLayout((12, 5), "f8")
    layout[...] = h5py.VirtualSource("other.h5", "there", (12, 5))
    with h5py.File(path, "w") as file:
        file["here"] = MATRIX
        file["soft"], file["external"] = h5py.SoftLink("/here"), h5py.ExternalLink("other.h5", "/there")
        file.create_virtual_dataset("virtual", layout)
    for name in ("here", "soft", "external", "virtual"):
        np.testing.assert_array_equal(rows_of(f"{path}:{name}", Span(2, 12)), MATRIX[2:])
    path.with_name("other.h5").unlink()  # HDF5 would read zeros
    with pytest.raises(UsageError, match=r"^takes rows from other\.h5, which is not there"):
        open_matrix(f"{path}:virtual")


@pytest.fixture
def assorted(h5py, path):
    """A file with all that is no matrix, and three that are."""
    with h5py.File(path, "w") as file:
        for name in ("g/alpha", "g/beta", "gamma"):
            file[name] = MATRIX
        file["soft"], file["external"] = h5py.SoftLink("/gone"), h5py.ExternalLink("gone.h5", "/x")
        file["loop"] = h5py.SoftLink("/loop")
        file["line"], file["cube"] = np.ones(3), np.ones((2, 2, 2))
        file["compound"] = np.zeros((2, 2), [("x", "f8"), ("y", "i4")])
        file.create_dataset("text", data=[["a"]], dtype=h5py.string_dtype())
        file.create_dataset("ragged", (2, 2), dtype=h5py.vlen_dtype("f8"))
        file.create_dataset("empty", data=h5py.Empty("f8"))
    return path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "holds /g/alpha, /g/beta, /gamma: add the name of one, after a colon"),
        (":/alpha", "has no dataset /alpha: did you mean /g/alpha?"),
        (":/g/gama", "has no dataset /g/gama: did you mean /gamma?"),
        (":/x", "has no dataset /x: it holds /g/alpha, /g/beta, /gamma"),
        (":/gamma/x", "has no dataset /gamma/x: did you mean /gamma?"),
        (":/g", "has no dataset /g, which is a group there: it holds /g/alpha"),
        (":/soft", "has a link /soft to /gone, which is not there"),
        (":/external", "has a link /external to /x in gone.h5, which is not there"),
        (":/loop", "has a link /loop to /loop, which is not there"),
        (":/line", "does not hold a matrix: its shape is (3,)"),
        (":/cube", "does not hold a matrix: its shape is (2, 2, 2)"),
        (":/empty", "does not hold a matrix: its shape is unknown"),
        (":/compound", "holds [('x', '<f8'), ('y', '<i4')]: only numbers"),
        (":/text", "holds object: only numbers"),
        (":/ragged", "holds object: only numbers"),
    ],
)
def test_what_is_no_matrix_is_said(assorted, name, said):
    assert_refused(f"{assorted}{name}", said)


def test_a_file_without_a_matrix(h5py, path):
    h5py.File(path, "w").close()
    with pytest.raises(UsageError, match=r"^holds no matrix of numbers$"):
        open_matrix(str(path))


def test_many_matrices_are_not_all_listed(h5py, path):
    with h5py.File(path, "w") as file:
        for number in range(20):
            file[f"m{number:02}"] = MATRIX
    with pytest.raises(UsageError, match=r"^holds /m00, /m01, /m02, .*, /m07 and 12 others: add"):
        open_matrix(str(path))


def test_junk_and_what_is_cut_short(h5py, path):
    for junk in (b"", b"junk", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(100)):
        path.write_bytes(junk)
        with pytest.raises(UsageError, match=r"^is (no HDF5 file|cut short|a malformed HDF5 file)") as found:
            open_matrix(str(path))
        assert "\n" not in str(found.value)
    with h5py.File(path, "w") as file:
        file["m"] = np.ones((100, 100))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(UsageError, match=r"^is cut short: it begins as an HDF5 file that has more bytes"):
        open_matrix(str(path))


def test_damage_is_found_by_whoever_reads_it(h5py, path):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("m", data=MATRIX, chunks=(4, 5), compression="gzip", fletcher32=True)
        place = data.id.get_chunk_info(1)
    with open(path, "r+b") as file:
        file.seek(place.byte_offset)
        file.write(bytes(place.size))
    assert (rows_of(path, Span(0, 4)) == MATRIX[:4]).all()
    with pytest.raises(HybridError, match=rf"{path}:/m cannot be read, rows 0:12: OSError"):
        rows_of(path, Span(0, 12))


@pytest.mark.parametrize("damage", range(20))
def test_no_damage_to_a_file_ends_in_anything_but_a_line(h5py, path, damage):
    with h5py.File(path, "w") as file:
        file.create_dataset("g/m", data=MATRIX, chunks=(4, 5), compression="gzip")
    content, chance = np.frombuffer(path.read_bytes(), np.uint8).copy(), np.random.default_rng(damage)
    content[chance.integers(8, len(content), 30)] = chance.integers(0, 256, 30)
    path.write_bytes(content.tobytes())
    said = ""
    try:
        file = open_matrix(str(path))
        if file.shape == MATRIX.shape:
            file.read(Span(0, 12), np.empty((12, 5)))
    except HybridError as error:
        said = str(error)
    assert "\n" not in said


def test_a_filter_that_hdf5_lacks_is_named(h5py, path):
    with h5py.File(path, "w") as file:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        made.set_chunk((4, 5))
        made.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, ())  # Blosc
        h5py.h5d.create(file.id, b"m", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((12, 5)), made)
    with pytest.raises(UsageError, match=r"^is stored with the filter .+, which HDF5 lacks here: rewrite it with h5repack"):
        open_matrix(str(path))


def test_a_file_that_another_process_writes_is_locked(h5py, path):
    with h5py.File(path, "w") as file:
        file["m"] = MATRIX
        file.flush()
        look = f"from hybrid.host.matrix_file import open_matrix; open_matrix({str(path)!r})"
        done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert "UsageError: is open for writing in another process, which has locked it" in done.stderr
    assert open_matrix(str(path)).shape == (12, 5)


def refuse(path, inside=""):
    output = new_matrix(f"{path}{inside}", (3, 3), DOUBLE)
    output.refuse(output.size)


def test_a_file_is_replaced_only_where_nothing_else_would_be_lost(h5py, path):
    refuse(path)
    with h5py.File(path, "w") as file:
        file["C"] = MATRIX
    refuse(path)
    refuse(path, ":/C")
    with pytest.raises(UsageError, match=r"m\.h5 is there and also holds /C, which a new file would lose: name another file"):
        refuse(path, ":/D")
    with h5py.File(path, "a") as file:
        file["g/h/D"], file["link"] = MATRIX, h5py.SoftLink("/gone")
    with pytest.raises(UsageError, match="also holds /C, /link, which"):
        refuse(path, ":/g/h/D")
    with pytest.raises(UsageError, match="also holds /g, /g/h, /g/h/D, /link, which"):
        refuse(path)
    path.write_bytes(b"something else")
    with pytest.raises(UsageError, match=r"m\.h5 is there, and is no HDF5 file: .*: remove it, or name another file"):
        refuse(path)
    path.write_bytes(b"")
    refuse(path)


@pytest.mark.parametrize("name", ["/a//b", "/a/../b", "/.", "/\udcff"])
def test_names_that_no_dataset_can_have(path, name):
    with pytest.raises(UsageError, match=f"m.h5:{name} names no dataset"):
        refuse(path, f":{name}")


def test_without_h5py_it_is_said_what_to_install(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    path.touch()
    with pytest.raises(UsageError, match=r"^cannot be read without h5py: pip install .*hdf5"):
        open_matrix(str(path))
    with pytest.raises(UsageError, match=r"m\.h5 cannot be written without h5py: pip install .*hdf5"):
        refuse(path)
