# SPDX-License-Identifier: MIT
"""docs/files.md: A and B are read from .npy, HDF5, Zarr and Matrix Market files and C is written to them by any number of
ranks, whole or not at all; what is malformed or would lose something is refused in a line before anything is computed."""

import os
import shlex
import shutil
import stat
from itertools import product

import numpy as np
import pytest
from support.commands import start
from support.forked import quickly
from support.matmul import MATMUL, WAYS, code_in, doing, good, line_of_failure, names_in, run
from support.selection import exhaustive

pytestmark = [pytest.mark.launcher, pytest.mark.needs("h5py", "zarr", "scipy")]

TARGETS = ["C.npy", "C.h5", "C.hdf5:/runs/one/C", "C.zarr", "C.zarr:/runs/C", "C.mtx", "link.npy"]


def elements_of(name):
    """As whoever has no program but the format's own library reads a file of ours."""
    path, _, inside = str(name).partition(":")
    if path.endswith((".h5", ".hdf5")):
        import h5py

        with h5py.File(path) as file:
            return file[inside or "/C"][...]
    if path.endswith(".zarr"):
        import zarr

        return zarr.open(path, mode="r")[inside.strip("/") or ...][...]
    if path.endswith(".mtx"):
        import scipy.io

        return scipy.io.mmread(path)
    return np.load(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A in A.h5, which also has other datasets; B in B.zarr, both in chunks of other sizes than the ranks' rows."""
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
    return tmp_path


CHOSEN = [("2 nodes", "C.h5"), ("2 ranks", "C.zarr:/runs/C"), ("alone", "C.mtx"), ("alone", "link.npy")]


@pytest.mark.parametrize(
    ("way", "target"),
    exhaustive(CHOSEN, [(way, to) for way in ("alone", "2 ranks", "staged", "2 nodes", "a grid") for to in TARGETS]),
)
def test_from_any_format_to_any_and_back(folder, way, target):
    if target == "link.npy":  # the link stays, and leads to the file
        os.symlink("target.npy", "link.npy")
    before = set(os.listdir())
    good("--a", "A.h5:/g/A", "--b", "B.zarr", "--out", target, way=way)
    with_a = elements_of("A.h5:/g/A"), elements_of("B.zarr:/B")
    c = elements_of(target)
    assert (c.shape, c.dtype) == ((30, 10), np.float64)
    np.testing.assert_allclose(c, with_a[0] @ with_a[1], rtol=1e-12, atol=1e-13)
    assert set(os.listdir()) - before == {"target.npy" if target == "link.npy" else target.partition(":")[0]}
    assert os.path.islink("link.npy") == (target == "link.npy")
    good(4, 30, 10, "--b", target, "--fill", "index", "--out", "D.npy")
    np.testing.assert_allclose(np.load("D.npy"), np.arange(120.0).reshape(4, 30) @ c, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "target"),
    exhaustive(
        [("complex64", "C.h5:/g/C"), ("uint64", "C.mtx"), ("complex64", "C.zarr")],
        product(("complex64", "complex128", "int32", "uint64", "bool", "float16"), ("C.npy", "C.h5:/g/C", "C.zarr", "C.mtx")),
    ),
)
def test_every_format_holds_every_type(tmp_path, name, target):
    good(30, 20, 10, "--dtype", name, "--out", "plain.npy", cwd=tmp_path)
    good(30, 20, 10, "--dtype", name, "--out", target, cwd=tmp_path)
    c, plain = elements_of(tmp_path / target), np.load(tmp_path / "plain.npy")
    assert c.dtype == name or target == "C.mtx"
    np.testing.assert_array_equal(c, plain)


def test_a_matrix_is_replaced_by_the_product_it_was_part_of(folder):
    made = np.arange(25.0).reshape(5, 5)
    for name in ("X.h5:/x", "X.npy", "X.mtx"):
        good(5, 5, 5, "--fill", "index", "--out", name)
        good("--a", name, "--b", name, "--out", name, "--dtype", "float32")
        x = elements_of(name)
        assert x.dtype == np.float32 or name == "X.mtx"
        np.testing.assert_array_equal(x, made @ made @ made @ made)
    assert [name for name in os.listdir() if name.startswith(".")] == []


WORD = "%%MatrixMarket matrix array real general\n2 2\n1\n2\nthree\n4\n"
REFUSED = [
    ("--a A.h5 --b B.zarr", "/g/A, /other", "dataset-missing"), ("--a A.h5:A --b B.zarr", "/g/A?", "dataset-missing"),
    ("--a A.h5:g --b B.zarr", "/g/A", "dataset-missing"), ("--a A.h5:g/line --b B.zarr", "(3,)", "dimensions"),
    ("--a A.h5:other --b B.zarr", "20×10", "shapes"), ("8 20 10 --a A.h5:g/A --b B.zarr", "30×20", "shapes"),
    ("--a A.h5:g/A --b B.zarr:/C", "/B", "dataset-missing"), ("9 9 9 --out A.h5", "/other", "file-exists"),
    ("9 9 9 --out B.zarr:/C", "B.zarr", "file-exists"), ("9 9 9 --out none/C.h5:/C", "none", "file-missing"),
    ("9 9 9 --out A.h5:/C --json A.h5", "--json", "same-file"), ("--a word.mtx --b word.mtx", "Line 5", "file-format"),
    ("--a text.mtx --b text.mtx", "text.mtx", "file-format"), ("--a text.h5 --b text.h5", "text.h5", "file-format"),
    ("--a text.npy --b text.npy", "text.npy", "file-format"), ("--a short.npy --b short.npy", "short.npy", "file-format"),
    ("--a long.npy --b long.npy", "long.npy", "file-format"),
    ("--a objects.npy --b objects.npy", "Python objects", "no-numbers"),
    ("--a cube.npy --b cube.npy", "(2, 2, 2)", "dimensions"), ("--a empty.zarr --b empty.zarr", "empty.zarr", "file-format"),
    ("--a pickled.zarr --b pickled.zarr", "pickle", "file-format"),
    ("9 9 9 --out C.txt", ".txt", "file-kind"),
    ("9 9 9 --out C.mat", ".mat", "file-kind"),
]  # fmt: skip


@pytest.fixture
def malformed(folder):
    import zarr

    (folder / "word.mtx").write_text(WORD)
    for form in ("mtx", "h5", "npy"):
        (folder / f"text.{form}").write_text("1 2 3\n")
    np.save("whole.npy", np.ones((20, 20)))
    whole = (folder / "whole.npy").read_bytes()
    (folder / "short.npy").write_bytes(whole[:-8])
    (folder / "long.npy").write_bytes(whole + b"more")
    np.save("objects.npy", np.array([[{}]]), allow_pickle=True)
    np.save("cube.npy", np.ones((2, 2, 2)))
    (folder / "empty.zarr").mkdir()
    zarr.create_array("pickled.zarr", data=np.eye(3), chunks=(3, 3), zarr_format=2, compressors=None)
    metadata = (folder / "pickled.zarr" / ".zarray").read_text()
    (folder / "pickled.zarr" / ".zarray").write_text(metadata.replace('"filters": null', '"filters": [{"id": "pickle"}]'))
    # Whoever unpickles it makes a file.
    (folder / "pickled.zarr" / "0.0").write_bytes(b"cbuiltins\nopen\n(S'exploded'\nS'w'\ntR.")
    return folder


@pytest.mark.parametrize(("arguments", "word", "code"), REFUSED, ids=[arguments[:40] for arguments, *_ in REFUSED])
def test_what_cannot_be_is_one_line_before_anything_is_computed(malformed, arguments, word, code):
    before = {path: path.read_bytes() for path in malformed.rglob("*") if path.is_file()}
    done = run(*arguments.split())
    line = line_of_failure(done, 2)
    assert (done.stdout, word in line) == ("", True), line
    assert {path: path.read_bytes() for path in malformed.rglob("*") if path.is_file()} == before
    assert code_in(line) == code


@pytest.mark.parametrize("way", ["alone", "2 ranks"])
def test_damage_is_found_by_the_rank_that_reads_it(folder, way):
    chunk = next((folder / "B.zarr" / "B" / "c" / "5").iterdir())
    chunk.write_bytes(b"?")
    line = line_of_failure(run("--a", "A.h5:/g/A", "--b", "B.zarr", "--out", "C.h5", way=way), 1)
    assert "B.zarr:/B" in line
    assert not (folder / "C.h5").exists()
    assert code_in(line) in ("file-format", "file-unreadable")


def meddled(folder, phase, code, *arguments, way="alone", mount=""):
    """The command, whose rank 0 runs this code when it comes to that phase; below a folder of its own where `mount` says so."""
    fault = f"rank rank=0 phase={phase}"
    command = [*doing(f"import os, shutil\ndef now(): {code}\n", fault, folder.parent / "meddler.py"), *map(str, arguments)]
    ranks, environment = WAYS[way]
    if mount:
        words = ["unshare", "--mount", "sh", "-c", f"{mount} && cd {folder} && exec {shlex.join(command)}"]
        return start(words, cwd=folder, limit=120)
    return quickly(command, ranks=ranks, cwd=folder, limit=120, **environment)


GONE = ["shutil.rmtree('out')", "shutil.rmtree('out'); open('out', 'w').close()", "os.mkdir('out/C.npy')"]


@pytest.mark.parametrize(
    ("way", "code"),
    exhaustive([("alone", GONE[1]), ("alone", GONE[2])], [(way, code) for way in ("alone", "2 ranks") for code in GONE]),
)
def test_an_output_folder_that_vanishes_or_becomes_something_else(tmp_path, way, code):
    here = tmp_path / "here"
    (here / "out").mkdir(parents=True)
    line = line_of_failure(meddled(here, "multiply", code, 20, 20, 20, "--out", "out/C.npy", way=way), 1)
    assert "out/C.npy" in line
    assert code_in(line) == ("file-unwritable" if "mkdir" in code else "file-missing")


def test_a_matrix_that_is_cut_short_while_it_is_read(tmp_path):
    """Memory that is mapped to it would end the process by a SIGBUS."""
    here = tmp_path / "here"
    here.mkdir()
    np.save(here / "A.npy", np.ones((600, 500)))
    done = meddled(here, "fill", "os.truncate('A.npy', 10000)", 600, 500, 40, "--a", "A.npy", way="2 ranks")
    line = line_of_failure(done, 1)
    assert "A.npy" in line
    assert code_in(line) == "file-changed"


def test_too_little_room_is_known_before_anything_is_computed(tmp_path):
    if os.geteuid():
        pytest.skip("needs root")
    words = shlex.join([*MATMUL, "200", "200", "200", "--out", str(tmp_path / "C.npy")])
    done = start(["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=128k tmpfs {tmp_path} && exec {words}"])
    line = line_of_failure(done, 1)
    assert "312.6 KiB" in line
    assert done.stdout == ""
    assert names_in(tmp_path) == []
    assert code_in(line) == "disk-full"


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("form", exhaustive(["npy", "zarr"], ["npy", "h5", "zarr", "mtx"]))
def test_a_disk_that_fills_meanwhile_is_named_with_the_file(tmp_path, form):
    here = tmp_path / "here"
    here.mkdir()
    fill = f"os.system('cat /dev/zero >{here}/other 2>/dev/null')"
    mount = f"mount -t tmpfs -o size=700k tmpfs {here}"
    line = line_of_failure(meddled(here, "multiply", fill, 150, 150, 150, "--out", f"C.{form}", mount=mount), 1)
    assert f"C.{form}" in line
    assert "KiB" in line
    assert code_in(line) == "disk-full"


def test_an_existing_file_stays_until_the_product_is_whole_and_right(tmp_path):
    (tmp_path / "C.npy").write_bytes(b"old")
    done = run(30, 20, 10, "--fill", "normal", "--out", "C.npy", planted=["multiply how=element"], cwd=tmp_path)
    assert (done.returncode, names_in(tmp_path), (tmp_path / "C.npy").read_bytes()) == (3, ["C.npy"], b"old")
    for way in ("alone", "2 ranks"):
        full = run(30, 20, 10, "--out", "C.npy", planted=["disk rank=0 times=None how=full"], way=way, cwd=tmp_path)
        assert code_in(line_of_failure(full, 1)) == "disk-full"
        assert (names_in(tmp_path), (tmp_path / "C.npy").read_bytes()) == (["C.npy"], b"old")
    good(5, 5, 5, "--out", "C.npy", cwd=tmp_path)
    assert np.load(tmp_path / "C.npy").shape == (5, 5)


@pytest.mark.parametrize("form", ["npy", "zarr"])
def test_what_a_killed_job_left_is_removed_by_the_next_one_for_the_same_file(tmp_path, form):
    """And what others may still be writing is not."""
    killed = run(30, 20, 10, "--out", f"C.{form}", planted=["disk at=1 how=killed before"], cwd=tmp_path)
    assert killed.returncode
    (left,) = [name for name in names_in(tmp_path) if name.startswith(f".C.{form}.")]
    assert left.endswith(".part")
    space, process, number = left.removeprefix(f".C.{form}.").removesuffix(".part").split("-")
    others = {
        f".C.{form}.{space}-{os.getpid()}-{number}.part",  # of a process that runs
        f".C.{form}.{'0' * len(space)}-{process}-{number}.part",  # of another machine, container or time
        f".D.{form}.{space}-{process}-{number}.part",  # of another file
    }
    for name in others:
        (tmp_path / name).write_text("half")
    good(30, 20, 10, "--out", f"C.{form}", cwd=tmp_path)
    assert set(names_in(tmp_path)) == {f"C.{form}", *others}


@pytest.mark.parametrize("how", ["link", "virtual", "raw"])
def test_an_hdf5_file_gives_no_elements_of_other_files(folder, how):
    import h5py

    raw = np.ones((9, 9))
    with h5py.File("other.h5", "w") as file:
        file["x"] = raw
    with h5py.File("L.h5", "w") as file:
        if how == "link":
            file["x"] = h5py.ExternalLink("other.h5", "x")
        elif how == "raw":
            raw.tofile(folder / "raw")
            file.create_dataset("x", (9, 9), "f8", external=[("raw", 0, raw.nbytes)])
        else:
            layout = h5py.VirtualLayout((9, 9), "f8")
            layout[:] = h5py.VirtualSource("other.h5", "x", (9, 9))
            file.create_virtual_dataset("x", layout)
    assert code_in(line_of_failure(run(9, 9, 9, "--a", "L.h5:/x"), 2)) == "file-kind"


def test_chunks_that_a_zarr_store_lacks_are_told(folder):
    done = good("--a", "A.h5:/g/A", "--b", "B.zarr")
    assert "lacks" not in done.stderr
    next(path for path in (folder / "B.zarr" / "B" / "c").rglob("*") if path.is_file()).unlink()
    assert "lacks 1 chunk of" in good("--a", "A.h5:/g/A", "--b", "B.zarr").stderr


def test_a_file_that_is_replaced_leaves_its_mode(tmp_path):
    old = tmp_path / "C.npy"
    old.write_bytes(b"")
    old.chmod(0o600)
    good(9, 9, 9, "--out", "C.npy", cwd=tmp_path)
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    assert old.stat().st_size


def test_a_file_that_another_process_has_open_for_writing_is_refused(folder):
    import h5py

    good(9, 9, 9, "--out", "C.h5")
    with h5py.File("C.h5", "a"):
        read, written = run(9, 9, 9, "--a", "C.h5"), run(9, 9, 9, "--out", "C.h5")
    assert code_in(line_of_failure(read, 2)) == "file-locked"
    assert code_in(line_of_failure(written, 2)) == "file-exists"


def test_without_the_libraries_it_is_said_what_to_install(folder, tmp_path):
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for name in ("h5py", "zarr"):
        (shadow / f"{name}.py").write_text("raise ImportError('planted')")
    (shadow / "scipy").mkdir()
    (shadow / "scipy" / "__init__.py").write_text("raise ImportError('planted')")
    (folder / "M.mtx").write_text(WORD.replace("three", "3"))
    path = f"{shadow}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    for name, extra in (("A.h5:/g/A", "hdf5"), ("B.zarr", "zarr"), ("M.mtx", "graphs")):
        line = line_of_failure(run("--a", name, "--b", name, PYTHONPATH=path, anew=True), 2)
        assert "pip install" in line
        assert extra in line
        assert code_in(line) == "package-missing"
    good(9, 9, 9, "--out", "C.mtx", PYTHONPATH=path, anew=True)
    shutil.rmtree(shadow)
