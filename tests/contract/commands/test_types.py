# SPDX-License-Identifier: MIT
"""Types of the command (docs/use.md): A, B and C have the type of --dtype, or files their own and C NumPy's; files are
converted where nothing is lost; what an integer type does not hold is refused; the page's operations are counted."""

import itertools
import json

import numpy as np
import pytest
from support.matmul import WAYS, code_in, good, line_of_failure, names_in, run
from support.selection import exhaustive

pytestmark = pytest.mark.launcher

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
TYPES = ["bool", *INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
EXACT = ["bool", *INTEGERS]
N, L, M = 31, 23, 100  # M: with which a matrix of a few rows is larger than a page of memory
DEVICES = {"cpu": (), "emulate": ("--device", "emulate")}


def numpy_type(name):
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def matrix(rng, name, shape):
    dtype = numpy_type(name)
    numbers = rng.integers(0, 3, shape) if name in EXACT else rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if dtype.kind == "c" else numbers).astype(dtype)


def exact_product(a, b):
    """In a wider type, and its error bound for the type in which a product is computed."""
    wide = "complex256" if "c" in (a.dtype.kind, b.dtype.kind) else "longdouble"
    a, b = a.astype(wide), b.astype(wide)
    return a @ b, abs(a) @ abs(b)


CASES = exhaustive(
    [
        ("complex128", "2 nodes", "cpu"), ("int64", "2 ranks", "cpu"), ("float16", "alone", "cpu"), ("bool", "alone", "cpu"),
        ("bfloat16", "staged", "emulate"), ("complex64", "alone", "emulate"), ("uint64", "alone", "cpu"),
    ],
    [(name, way, device) for name in TYPES for way in WAYS for device in DEVICES if (way, device) != ("a grid", "emulate")],
)  # fmt: skip


@pytest.mark.needs("compiler")  # for some
@pytest.mark.parametrize(("name", "way", "device"), CASES)
def test_every_type_from_files_to_a_file(rng, tmp_path, name, way, device):
    a, b = matrix(rng, name, (N, L)), matrix(rng, name, (L, M))
    np.save(tmp_path / "a.npy", np.asfortranarray(a))
    np.save(tmp_path / "b.npy", b)
    named = ("--dtype", name) if name == "bfloat16" else ()  # NumPy saves it without its name
    asked = ("--a", "a.npy", "--b", "b.npy", "--out", "c.npy", "--json", "r.jsonl", *named)
    good(*asked, *DEVICES[device], way=way, cwd=tmp_path)
    c, ran = np.load(tmp_path / "c.npy"), json.loads((tmp_path / "r.jsonl").read_text())
    c = c.view(a.dtype) if name == "bfloat16" else c
    assert (c.dtype, c.shape, ran["dtype"]) == (a.dtype, (N, M), name)
    right, bound = exact_product(a, b)
    if name in EXACT:
        np.testing.assert_array_equal(c, right.astype(bool) if name == "bool" else right)
        return
    eps = {"float16": 2**-10, "bfloat16": 2**-7}.get(name, np.finfo(c.dtype).eps if name not in ("float16", "bfloat16") else 0)
    assert (abs(c.astype(right.dtype) - right) <= (L + 2) * eps * bound + 1e-300).all()


@pytest.mark.parametrize("name", exhaustive(["complex64"], TYPES))
def test_generated_matrices_are_of_the_type_and_the_same_for_any_ranks(tmp_path, name):
    found = []
    for number, way in enumerate(("alone", "2 nodes")):
        good(N, L, M, "--dtype", name, "--out", f"{number}.npy", way=way, cwd=tmp_path)
        found.append(np.load(tmp_path / f"{number}.npy").view(numpy_type(name)))
        np.testing.assert_array_equal(found[-1], found[0])
    numbers = found[0].astype(complex)
    assert (numbers.real > 0).any()
    assert (numbers.imag > 0).all() == (numpy_type(name).kind == "c")


def test_integers_of_64_bits_are_exact_by_products_modulo_primes(rng, tmp_path):
    a, b = rng.integers(-(2**40), 2**40, (N, L)), rng.integers(-(2**18), 2**18, (L, M))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    asked = ("--a", "a.npy", "--b", "b.npy", "--out", "c.npy", "--json", "r.jsonl", "--trace", "t.json", "--repeat", 2)
    told = good(*asked, way="2 ranks", cwd=tmp_path).stdout
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ b)
    ran = json.loads((tmp_path / "r.jsonl").read_text())
    asked = {"n": N, "l": L, "m": M, "dtype": "int64", "computed": "float64", "repeat": 2}
    assert {key: ran[key] for key in asked} == asked
    assert ran["products"] > 1
    assert f"  computed as {N}×{L} · {L}×{M} float64" in told
    assert f" {ran['products']} primes" in told
    assert (ran["check"]["kind"], ran["wall"]["convert"] > 0) == ("exact", True)
    events = [each for each in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if each["name"] == "multiply"]
    of_rank = sorted((each["ts"], each["ts"] + each["dur"]) for each in events if each["pid"] == 0)
    assert len(of_rank) >= 2 * ran["products"]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(of_rank))  # one after the other


@pytest.mark.parametrize("way", exhaustive(["2 ranks"], ["alone", "2 ranks", "2 nodes"]))
def test_an_element_that_the_type_does_not_hold_is_refused_and_leaves_no_file(tmp_path, way):
    line = line_of_failure(run(300, 200, 30, "--dtype", "int8", "--out", "c.npy", way=way, cwd=tmp_path), 1)
    assert "int16" in line  # which holds all
    assert names_in(tmp_path) == []
    assert code_in(line) == "overflow"


def test_the_operations_of_complex_products_are_those_of_their_real_ones(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((30, 20)))
    for arguments, factor, dtype, computed in (
        (("--dtype", "complex64"), 8, "complex64", "float32"),
        (("--a", "a.npy", "--dtype", "complex128"), 4, "complex128", "float64"),
    ):
        good(30, 20, 10, *arguments, "--json", "r.jsonl", cwd=tmp_path)
        ran = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])
        assert ran["rate"] == pytest.approx(factor * 30 * 20 * 10 / ran["total"]["median"])
        assert (ran["n"], ran["l"], ran["m"], ran["dtype"], ran["computed"]) == (30, 20, 10, dtype, computed)


CONVERTED = [  # the file's type and elements, --dtype, and what is read; None: refused
    ("int16", [[1, -2], [3, 4]], "float32", [[1, -2], [3, 4]]), ("int16", [[1, -2], [3, 4]], "int8", [[1, -2], [3, 4]]),
    ("int64", [[1, 200], [3, 4]], "int8", None), ("float64", [[1, -2], [3, 4]], "int8", None),
    ("int16", [[1, -2], [3, 4]], "uint8", None), ("complex128", [[1, 2j], [3, 4]], "float64", None),
    ("complex64", [[1, 2j], [3, 4]], "complex128", [[1, 2j], [3, 4]]), ("float64", [[1, 1e300], [3, 4]], "float32", None),
    ("float64", [[0, 1], [1, 1]], "bool", None), (">f4", [[1, -2], [3, 4]], "float64", [[1, -2], [3, 4]]),
    ("<U5", [["a", "b"]] * 2, "float64", None), ("datetime64[s]", [[0, 1], [2, 3]], "float64", None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "elements", "wanted", "read"), CONVERTED)
def test_files_are_converted_where_nothing_is_lost(tmp_path, kind, elements, wanted, read):
    np.save(tmp_path / "x.npy", np.array(elements).astype(kind))
    np.save(tmp_path / "eye.npy", np.eye(2, dtype=bool))
    done = run("--a", "x.npy", "--b", "eye.npy", "--dtype", wanted, "--out", "c.npy", cwd=tmp_path)
    if read is None:
        line = line_of_failure(done)
        assert "x.npy" in line
        assert not (tmp_path / "c.npy").exists()
        assert code_in(line) in ("dtype", "file-values", "no-numbers")
        return
    assert done.returncode == 0, done.stderr
    c = np.load(tmp_path / "c.npy")
    assert c.dtype == wanted
    np.testing.assert_array_equal(c, np.array(read).astype(wanted))


def test_without_a_type_c_has_numpys_for_those_of_the_files(tmp_path):
    pairs = [("int8", "uint8"), ("int32", "float32"), ("float16", "float32"), ("float64", "complex64")]
    for first, second in pairs:
        np.save(tmp_path / "a.npy", np.eye(3, dtype=first))
        np.save(tmp_path / "b.npy", np.eye(3, dtype=second))
        good("--a", "a.npy", "--b", "b.npy", "--out", "c.npy", cwd=tmp_path)
        c = np.load(tmp_path / "c.npy")
        assert c.dtype == np.result_type(first, second), (first, second)
        np.testing.assert_array_equal(c, np.eye(3))


@pytest.mark.needs("ml_dtypes")
def test_sixteen_bits_without_a_name_are_read_where_they_are_named(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3).astype(numpy_type("bfloat16")))
    assert "--dtype bfloat16" in line_of_failure(run("--a", "x.npy", "--b", "x.npy", cwd=tmp_path), 2)
    good("--a", "x.npy", "--b", "x.npy", "--dtype", "bfloat16", "--out", "c.npy", cwd=tmp_path)
    assert (tmp_path / "c.npy").read_bytes()[-18:] == np.eye(3).astype(numpy_type("bfloat16")).tobytes()
    line = line_of_failure(run(3, 3, 3, "--dtype", "bfloat16", "--out", "c.h5", cwd=tmp_path), 2)
    assert code_in(line) in ("dtype", "file-kind")


def test_what_is_printed_of_each_type():
    index = good(2, 2, 2, "--fill", "index", "--dtype", "int16", "--print").stdout
    assert "A (2×2)\n0 1 \n2 3 \n\nB (2×2)\n0 1 \n2 3 \n\nC (2×2)\n2 3 \n6 11 \n\n" in index
    parts = good(2, 2, 2, "--fill", "index", "--dtype", "complex128", "--print").stdout
    assert "C (2×2)\n2.000000+0.000000j 3.000000+0.000000j \n6.000000+0.000000j 11.000000+0.000000j \n\n" in parts


@pytest.mark.needs("compiler", "ml_dtypes")
@pytest.mark.parametrize("name", exhaustive(["bfloat16"], ["float16", "bfloat16"]))
def test_a_device_that_can_multiplies_operands_of_16_bits_as_they_are(rng, tmp_path, name):
    np.save(tmp_path / "a.npy", matrix(rng, name, (70, 60)))
    asked = ("--a", "a.npy", "--dtype", name, "--fill", "normal", 70, 60, M, "--json", "r.jsonl", "--out", "c.npy")
    of = {}
    for device, check in (("cpu", "on"), ("emulate", "on"), ("emulate", "host")):
        good(*asked, "--device", device, "--check", check, cwd=tmp_path)
        ran = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])
        assert (ran["dtype"], ran["computed"], ran["operands"]) == (name, "float32", name if device == "emulate" else "float32")
        of[device, check] = np.load(tmp_path / "c.npy").view(numpy_type(name)).astype(float)
    np.testing.assert_array_equal(of["emulate", "on"], of["emulate", "host"])
    # Where a rounded sum lies between two neighbours, either is right.
    np.testing.assert_allclose(of["emulate", "on"], of["cpu", "on"], rtol=2**-7, atol=1e-4)


def test_explain_shows_the_real_product():
    machine = "--ranks", 2, "--gpus-per-node", 2, "--capability", "9.0"
    told = good(30, 20, 10, "--dtype", "float16", "--explain", *machine).stdout
    assert "kernel tensor_half on cuda" in told
    told = good(30, 20, 10, "--dtype", "complex64", "--explain").stdout
    assert told.startswith("30×20 · 20×10 complex64, computed as 30×40 · 40×20 float32")
    assert "computed as 30×20 · 20×10 float32" in good(30, 20, 10, "--dtype", "int32", "--explain").stdout
