# SPDX-License-Identifier: MIT
"""docs/python.md, Gram matrices: of arrays, RowBlocks and files they are right, Hermitian to the last bit, and checked."""

import sys

import numpy as np
import pytest
from support.cases import refused
from support.commands import ROOT, start, successful
from support.distributed import heights, rows_of, whole

import hybrid
from hybrid.errors import CheckFailed, Overflow, UsageError
from hybrid.testing import plant, pretend

TYPES = ["float64", "float32", "float16", "complex128", "complex64", "int8", "bool"]
BOTH = pytest.mark.parametrize("transposed", [False, True])


def drawn(rng, dtype, n=203, l=71):
    a = rng.integers(-9, 10, (n, l)) if dtype in ("int8", "bool") else rng.standard_normal((n, l))
    return (a + 1j * rng.standard_normal((n, l)) if dtype.startswith("c") else a).astype(dtype)


def assert_gram(c, a, transposed):
    """C is the Gram matrix of `a`, of the type that it has by itself."""
    exact = a.dtype.kind in "bi"
    wide = a.astype("int64" if exact else "complex128" if a.dtype.kind == "c" else "float64")
    right = wide.conj().T @ wide if transposed else wide @ wide.conj().T
    assert c.dtype == ("int64" if exact else a.dtype)
    np.testing.assert_array_equal(c, c.conj().T)  # the diagonal is real then, too
    rounded, of_sums = (0 if exact else np.finfo(dtype).eps for dtype in (a.dtype, np.result_type(a, "f4")))
    np.testing.assert_allclose(c, right, rtol=rounded, atol=20 * of_sums * np.abs(right).max(initial=0))


@BOTH
@pytest.mark.parametrize("dtype", TYPES)
def test_of_arrays(rng, dtype, transposed):
    a = drawn(rng, dtype)
    for given in (a, np.asfortranarray(a), a[::2, ::-1], a[:0], a[:, :0]):
        assert_gram(hybrid.gram(given, transposed=transposed), given, transposed)
    with pretend(staged=True, panel_rows=48):
        assert_gram(hybrid.gram(a, transposed=transposed, check="full"), a, transposed)


@pytest.mark.exhaustive(above=2)
@pytest.mark.mpi(min_size=2)
@BOTH
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8"])
def test_of_ranks(comm, rng, dtype, transposed):
    """Of a root's array, whose type the others do not know, and of RowBlocks: a large C moves rows, a small one is a sum."""
    root, a = comm.size - 1, drawn(rng, dtype, 301)
    for way in ({}, {"ranks_per_node": 1}, {"staged": True, "panel_rows": 48}):
        with pretend(**way):
            c = hybrid.gram(a if comm.rank == root else None, transposed=transposed, comm=comm, root=root)
        assert (c is not None) == (comm.rank == root)
        if c is not None:
            assert_gram(c, a, transposed)
    rows = rows_of(comm, a, heights(rng, comm.size, len(a)), known=True)
    for given, matrix in ((rows, a), (rows.T, a.T)):
        c = hybrid.gram(given, transposed=transposed)
        assert c.comm == comm
        assert_gram(whole(comm, c), matrix, transposed)


@BOTH
@pytest.mark.parametrize("dtype", TYPES)
def test_of_files(rng, tmp_path, dtype, transposed):
    """Of one slab, and of several."""
    a = drawn(rng, dtype)
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "F.npy", np.asfortranarray(a)[:40])
    for rows in (0, 64):
        with pretend(slab_rows=rows):
            assert_gram(hybrid.gram(tmp_path / "A.npy", transposed=transposed), a, transposed)
            assert_gram(hybrid.gram(str(tmp_path / "F.npy"), transposed=transposed), a[:40], transposed)
    for empty in (a[:0], a[:, :0]):
        np.save(tmp_path / "A.npy", empty)
        assert_gram(hybrid.gram(tmp_path / "A.npy", transposed=transposed), empty, transposed)


def written_bed(path, codes):
    """Write these codes of genotypes, from 0 to 3, a row a variant, as PLINK documents its files."""
    packed = np.zeros((len(codes), -(-codes.shape[1] // 4) * 4), np.uint8)
    packed[:, : codes.shape[1]] = codes
    packed = packed.reshape(len(codes), -1, 4) << np.arange(0, 8, 2, dtype=np.uint8)
    path.write_bytes(b"\x6c\x1b\x01" + np.bitwise_or.reduce(packed, axis=2).tobytes())
    path.with_suffix(".fam").write_text("".join(f"F S{number} 0 0 0 -9\n" for number in range(codes.shape[1])))


@BOTH
@pytest.mark.parametrize("samples", [40, 41, 43])
def test_of_genotypes(rng, tmp_path, samples, transposed):
    codes = rng.integers(0, 4, (500, samples), dtype=np.uint8)
    written_bed(tmp_path / "G.bed", codes)
    alleles = np.array([2, 0, 1, 0], np.int8)[codes]
    for rows in (0, 77):
        with pretend(slab_rows=rows):
            for name, matrix in (("", alleles), (":alleles", alleles), (":/called", (codes != 1).astype(np.int8))):
                assert_gram(hybrid.gram(f"{tmp_path}/G.bed{name}", transposed=transposed), matrix, transposed)
    c = hybrid.gram(tmp_path / "G.bed", transposed=True, dtype="int32")
    assert c.dtype == np.int32
    with refused(Overflow, "overflow"):
        hybrid.gram(tmp_path / "G.bed", transposed=True, dtype="int8")


def test_the_example_finds_the_two_populations_and_the_sample_that_is_there_twice(tmp_path):
    program = [sys.executable, ROOT / "docs/examples/relatedness.py"]
    successful(start([*program, "--make", "30", "3000", "G.bed"], cwd=tmp_path))
    of_variance, most_alike = successful(start([*program, "G.bed"], cwd=tmp_path)).stdout.splitlines()
    first, second, *_ = (float(share.rstrip("%")) for share in of_variance.split(": ")[1].split())
    assert first > 1.5 * second
    assert most_alike.startswith("most alike: samples 0 and 29, correlation ")
    assert float(most_alike.split()[-1]) > 0.9


WRONG_BEDS = {
    "of text": (lambda bed: bed.write_bytes(b"chr1\t0\t100\n"), "file-format"),
    "by samples": (lambda bed: bed.write_bytes(b"\x6c\x1b\x00" + bytes(50)), "file-format"),
    "cut short": (lambda bed: bed.write_bytes(bed.read_bytes()[:-1]), "file-format"),
    "of no sample": (lambda bed: bed.with_suffix(".fam").write_text("\n"), "file-format"),
    "without samples": (lambda bed: bed.with_suffix(".fam").unlink(), "file-missing"),
    "not there": (lambda bed: bed.unlink(), "file-missing"),
}


@pytest.mark.parametrize("wrong", WRONG_BEDS)
def test_wrong_files_of_genotypes(rng, tmp_path, wrong):
    bed = tmp_path / "G.bed"
    written_bed(bed, rng.integers(0, 4, (50, 9), dtype=np.uint8))
    with refused(UsageError, "dataset-missing") as refusal:
        hybrid.gram(f"{bed}:allels")
    assert "did you mean /alleles?" in str(refusal.value)
    spoil, code = WRONG_BEDS[wrong]
    spoil(bed)
    with refused(UsageError, code) as refusal:
        hybrid.gram(bed)
    assert str(bed) in str(refusal.value)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "int8"])
def test_what_is_multiplied_wrong_is_found(rng, tmp_path, dtype):
    a = drawn(rng, dtype)
    np.save(tmp_path / "A.npy", a)
    for given in (a, tmp_path / "A.npy"):
        for at in range(1 if given is a and dtype != "complex128" else 2):  # of a file in either slab, else either real product
            with pretend(slab_rows=150), plant("multiply", at=at), pytest.raises(CheckFailed):
                hybrid.gram(given, transposed=True)


def test_what_has_no_gram_matrix(rng, tmp_path):
    a = rng.standard_normal((6, 5))
    for given, code in ((a[0], "dimensions"), (a[None], "dimensions"), (None, "no-operand"), (tmp_path / "A.npy", "file-missing"),
                        (hybrid.Block2D(a, a.shape, [(0, 6)], [(0, 5)]), "mixed-kinds"), ([["a"]], "dtype")):  # fmt: skip
        with refused(UsageError, code):
            hybrid.gram(given)
    with refused(UsageError, "dtype"):
        hybrid.gram(a + 1j, dtype="float64")
    for option in ("alpha", "transpose_a", "threds"):
        with pytest.raises(TypeError, match=rf"gram\(\) got an unexpected keyword argument '{option}'"):
            hybrid.gram(a, **{option: 1})


@pytest.mark.mpi(min_size=2)
def test_what_has_none_of_ranks(comm, tmp_path):
    rows = hybrid.scatter(np.eye(4) if comm.rank == 0 else None, comm=comm)
    for of_first, others, code in (
        (tmp_path / "A.npy", tmp_path / "A.npy", "communicator"), (tmp_path / "A.npy", None, "communicator"),
        (rows, np.eye(4), "mixed-kinds"), (np.eye(4), rows, "mixed-kinds"),
    ):  # fmt: skip
        with refused(UsageError, code):
            hybrid.gram(others if comm.rank else of_first, comm=comm)
    for root, code in ((comm.size, "root"), (0, "no-operand")):
        with refused(UsageError, code):
            hybrid.gram(None, comm=comm, root=root)
