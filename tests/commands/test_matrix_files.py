# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul from and to HDF5, Zarr and Matrix Market files, alone and by several ranks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from support.commands import module, own_lines, start, successful
from support.selection import exhaustive

from hybrid.core.spans import Span
from hybrid.host.matrix_file import open_matrix

pytestmark = [pytest.mark.launcher, pytest.mark.needs("h5py", "zarr", "scipy")]

COMMAND = module("hybrid.matmul")
TARGETS = ["C.npy", "C.h5", "C.hdf5:/runs/one/C", "C.zarr", "C.zarr:/runs/C", "C.mtx"]
WAYS = {"alone": (0, {}), "on a node": (2, {}), "on two nodes": (3, {"HYBRID_RANKS_PER_NODE": "2"})}
SOME = [("on two nodes", "C.h5"), ("on a node", "C.zarr:/runs/C"), ("on a node", "C.hdf5:/runs/one/C"), ("alone", "C.mtx")]


def elements_of(name):
    file = open_matrix(str(name))
    into = np.empty(file.shape, file.dtype)
    file.read(Span(0, file.shape[0]), into)
    return into


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A in the file A.h5, which also has other datasets; B in B.zarr, both in chunks of other sizes than the ranks' rows."""
    import h5py
    import zarr

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((30, 20)), rng.standard_normal((20, 10)).astype("f4")
    with h5py.File("A.h5", "w") as file:
        file.create_dataset("g/A", data=a, chunks=(7, 6), compression="gzip")
        file.create_dataset("g/line", data=np.ones(3))
        file.create_dataset("other", data=np.ones((2, 2)))
    zarr.create_group("B.zarr").create_array("B", data=b, chunks=(3, 4))
    np.save("C-by-numpy", a @ b)
    return tmp_path


@pytest.mark.parametrize(("way", "target"), exhaustive(SOME, product(WAYS, TARGETS)))
def test_from_any_format_to_any(folder, way, target):
    ranks, environment = WAYS[way]
    arguments = ("--a", "A.h5:/g/A", "--b", "B.zarr", "--out", target)
    successful(start(COMMAND, *arguments, ranks=ranks, cwd=folder, **environment))
    c = elements_of(target)
    assert c.dtype == np.float64
    np.testing.assert_allclose(c, np.load("C-by-numpy.npy"))
    there = {path.name for path in folder.iterdir()}
    assert there == {"A.h5", "B.zarr", "C-by-numpy.npy", target.split(":")[0]}
    successful(start(COMMAND, 4, 30, 10, "--b", target, "--fill", "index", "--out", "D.npy", ranks=ranks, cwd=folder))
    np.testing.assert_allclose(np.load("D.npy"), np.arange(120.0).reshape(4, 30) @ c)


@pytest.mark.parametrize("ranks", exhaustive([0], [0, 2]))
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--a", "A.h5", "--b", "B.zarr"], "A.h5 holds /g/A, /other: add the name of one, after a colon"),
        (["--a", "A.h5:A", "--b", "B.zarr"], "A.h5:A has no dataset /A: did you mean /g/A?"),
        (["--a", "A.h5:other", "--b", "B.zarr"], "B.zarr:/B is 20×10, but B must be 2×10"),
        (["--a", "A.h5:g/A", "--b", "B.zarr:/C"], "B.zarr:/C has no array /C: it holds /B"),
        (["9", "9", "9", "--out", "A.h5"], "A.h5 is there and also holds /g, /g/A, /g/line, /other, which a new file would lose"),
        (["9", "9", "9", "--out", "B.zarr:/C"], "B.zarr is there, and a folder cannot be replaced in one step"),
        (["9", "9", "9", "--out", "none/C.h5:/C"], "there is no folder"),
        (["9", "9", "9", "--out", "A.h5:/C", "--json", "A.h5"], "--out and --json name the same file, A.h5"),
        (["--a", "word.mtx", "--b", "word.mtx"], "word.mtx cannot be read: it is malformed: Line 5: "),
        (["9", "20", "9", "--a", "https://example.org/A.h5:/A"], "https://example.org/A.h5:/A is a URL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_line_before_anything_is_computed(folder, ranks, arguments, said):
    (folder / "word.mtx").write_text("%%MatrixMarket matrix array real general\n2 2\n1\n2\nthree\n4\n")
    before = (folder / "A.h5").read_bytes()
    done = start(COMMAND, *arguments, ranks=ranks, cwd=folder)
    assert done.returncode == 2
    (line,) = own_lines(done.stderr)
    assert said in line
    assert not done.stdout
    assert (folder / "A.h5").read_bytes() == before


def test_a_matrix_is_replaced_by_the_product_it_was_part_of(folder):
    """As with .npy: A was read before."""
    for _ in range(2):
        successful(start(COMMAND, 5, 5, 5, "--fill", "index", "--out", "X.h5:/x", cwd=folder))
        done = start(COMMAND, "--a", "X.h5:/x", "--b", "X.h5:/x", "--out", "X.h5:/x", "--dtype", "float32", cwd=folder)
        successful(done)
    made = np.arange(25.0).reshape(5, 5) @ np.arange(25.0).reshape(5, 5)
    assert elements_of("X.h5").dtype == np.float32
    np.testing.assert_array_equal(elements_of("X.h5:/x"), made @ made)


def test_chunks_that_are_damaged_are_found_by_the_rank_that_reads_them(folder):
    chunk = next((folder / "B.zarr" / "B" / "c" / "5").iterdir())
    chunk.write_bytes(b"?")
    done = start(COMMAND, "--a", "A.h5:/g/A", "--b", "B.zarr", "--out", "C.h5", ranks=2, cwd=folder)
    assert done.returncode == 1
    (line,) = own_lines(done.stderr)
    assert "B.zarr:/B cannot be read, rows " in line
    assert not (folder / "C.h5").exists()
