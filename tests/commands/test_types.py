# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul with --dtype, and with files, of every type that a product has: alone and by several ranks."""

from __future__ import annotations

import json
import os
from itertools import product

import numpy as np
import pytest
from support.commands import module, own_lines, start, successful
from support.selection import exhaustive

from hybrid.arrays.product_type import numpy_type
from hybrid.core.problem import DTYPES
from hybrid.core.spans import Span
from hybrid.host.matrix_file import open_matrix

pytestmark = pytest.mark.launcher

COMMAND = module("hybrid.matmul")
WAYS = {"alone": (0, {}), "on a node": (2, {}), "on two nodes": (3, {"HYBRID_RANKS_PER_NODE": "2"})}
PAGED = 100  # columns with which a matrix of a few rows is larger than a page of memory


def run(*arguments, way="alone", **options):
    ranks, environment = WAYS[way]
    return start(COMMAND, *arguments, ranks=ranks, **environment, **options)


def good(*arguments, **options):
    return successful(run(*arguments, **options))


def refused(*arguments, **options):
    """The line that says why, without the command's name."""
    done = run(*arguments, **options)
    assert done.returncode == 2, done
    (line,) = own_lines(done.stderr)
    return line.split(": ", 1)[1]


def elements_of(path):
    file = open_matrix(str(path))
    into = np.empty(file.shape, file.dtype)
    file.read(Span(0, file.shape[0]), into)
    return into


def matrix(rng, dtype, shape):
    numbers = rng.integers(0, 3, shape) if np.dtype(dtype).kind in "biu" else rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if "complex" in dtype else numbers).astype(dtype)


SOME = [("complex128", "on two nodes"), ("int8", "on a node"), ("float16", "alone")]


@pytest.mark.parametrize(("name", "way"), exhaustive(SOME, product([name for name in DTYPES if name != "bfloat16"], WAYS)))
def test_every_type_from_files_to_a_file(rng, tmp_path, name, way):
    a, b = matrix(rng, name, (31, 23)), matrix(rng, name, (23, PAGED))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    good("--a", "a.npy", "--b", "b.npy", "--out", "c.npy", way=way, cwd=tmp_path)
    c = np.load(tmp_path / "c.npy")
    wide = a @ b if a.dtype.kind not in "f" or name != "float16" else a.astype("float32") @ b.astype("float32")
    assert c.dtype == name
    np.testing.assert_allclose(c, wide, rtol=2e-3 if name == "float16" else 1e-4, atol=1e-2 if name == "float16" else 1e-4)


@pytest.mark.needs("ml_dtypes")  # for one of them
@pytest.mark.parametrize("name", exhaustive(["bool", "bfloat16", "complex64"], DTYPES))
def test_generated_matrices_are_of_the_type_and_the_same_for_any_ranks(tmp_path, name):
    dtype, found = numpy_type(name), []
    for number, way in enumerate(WAYS):
        good(30, 40, PAGED, "--dtype", name, "--out", f"{number}.npy", way=way, cwd=tmp_path)
        found.append(np.load(tmp_path / f"{number}.npy").view(dtype))
        np.testing.assert_array_equal(found[-1], found[0])
    if name == "bool":
        assert found[0].any()
    elif dtype.kind == "c":
        assert (found[0].imag > 0).all()
    else:
        assert (found[0].astype(float) > 5).all()


@pytest.mark.parametrize("way", exhaustive(["on a node"], WAYS))
def test_integers_of_64_bits_take_products_modulo_primes(rng, tmp_path, way):
    a, b = rng.integers(-(2**40), 2**40, (31, 23)), rng.integers(-(2**18), 2**18, (23, PAGED))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    told = good(
        "--a", "a.npy", "--b", "b.npy", "--out", "c.npy", "--json", "runs.jsonl", "--repeat", 2, way=way, cwd=tmp_path
    ).stdout
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ b)
    ran = json.loads((tmp_path / "runs.jsonl").read_text())
    assert {key: ran[key] for key in ("n", "l", "m", "dtype", "computed", "repeat")} == {
        "n": 31, "l": 23, "m": PAGED, "dtype": "int64", "computed": "float64", "repeat": 2,
    }  # fmt: skip
    assert ran["products"] > 1
    assert f"  computed as 31×23 · 23×{PAGED} float64, exactly, modulo each of {ran['products']} primes\n" in told
    assert ran["check"]["kind"] == "exact"
    assert ran["wall"]["convert"] > 0


def test_a_trace_shows_products_modulo_primes_one_after_the_other(rng, tmp_path):
    for name, shape in (("a", (31, 23)), ("b", (23, 10))):
        np.save(tmp_path / f"{name}.npy", rng.integers(-(2**40), 2**40, shape) // 2**10)
    good("--a", "a.npy", "--b", "b.npy", "--dtype", "int64", "--trace", "t.json", "--json", "runs.jsonl", cwd=tmp_path)
    multiplied = [each for each in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if each["name"] == "multiply"]
    begins, ends = ([each["ts"] + more * each["dur"] for each in multiplied] for more in (0, 1))
    assert len(multiplied) >= json.loads((tmp_path / "runs.jsonl").read_text())["products"] > 1
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))


@pytest.mark.parametrize("way", exhaustive(["on two nodes"], WAYS))
def test_an_overflow_is_refused_and_leaves_no_file(tmp_path, way):
    done = run(300, 200, 30, "--dtype", "int8", "--out", "c.npy", way=way, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = own_lines(done.stderr)
    assert "of the product is" in line
    assert "which int8 (-128 to 127) does not hold: dtype='int16' holds all" in line
    assert os.listdir(tmp_path) == []


def test_flops_of_complex_products_are_those_of_their_real_ones(tmp_path):
    good(30, 20, 10, "--dtype", "complex64", "--json", "runs.jsonl", cwd=tmp_path)
    np.save(tmp_path / "a.npy", np.ones((30, 20)))
    good(30, 20, 10, "--a", "a.npy", "--dtype", "complex128", "--json", "runs.jsonl", cwd=tmp_path)
    complex_a, real_a = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    for ran, factor, dtype, computed in ((complex_a, 8, "complex64", "float32"), (real_a, 4, "complex128", "float64")):
        assert ran["rate"] == pytest.approx(factor * 30 * 20 * 10 / ran["total"]["median"])
        assert (ran["n"], ran["l"], ran["m"], ran["dtype"], ran["computed"]) == (30, 20, 10, dtype, computed)


def test_what_is_printed_of_each_type(rng, tmp_path):
    index = good(2, 2, 2, "--fill", "index", "--dtype", "int16", "--print").stdout
    assert "A (2×2)\n0 1 \n2 3 \n\nB (2×2)\n0 1 \n2 3 \n\nC (2×2)\n2 3 \n6 11 \n\n" in index
    halves = good(2, 2, 2, "--fill", "uniform", "--dtype", "float16", "--print", 1).stdout
    shown = [float(line) for line in halves.splitlines() if line.startswith("0.") and len(line.split()) == 1]
    assert [np.float16(number) for number in shown[:2]] == pytest.approx(shown[:2], abs=1e-6)
    parts = good(2, 2, 2, "--fill", "index", "--dtype", "complex128", "--print").stdout
    assert "C (2×2)\n2.000000+0.000000j 3.000000+0.000000j \n6.000000+0.000000j 11.000000+0.000000j \n\n" in parts


@pytest.mark.needs("h5py", "zarr", "scipy")
@pytest.mark.parametrize("target", exhaustive(["C.h5:/g/C", "C.mtx"], ["C.npy", "C.h5:/g/C", "C.zarr", "C.mtx"]))
@pytest.mark.parametrize(
    "name", exhaustive(["complex128", "uint64"], ["complex64", "complex128", "int32", "uint64", "bool", "float16"])
)
def test_every_format_has_every_type(tmp_path, name, target):
    good(30, 20, 10, "--dtype", name, "--out", "plain.npy", cwd=tmp_path)
    good(30, 20, 10, "--dtype", name, "--out", target, way="on a node", cwd=tmp_path)
    c = elements_of(tmp_path / target)
    assert c.dtype == name or target == "C.mtx"
    np.testing.assert_array_equal(c, np.load(tmp_path / "plain.npy"))
    good(3, 30, 10, "--b", target, "--fill", "index", "--dtype", "complex128", "--out", "d.npy", cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "d.npy"), np.arange(90.0).reshape(3, 30) @ c)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("name", exhaustive(["complex64", "int32"], ["complex64", "complex128", "int32", "float16"]))
def test_on_the_emulated_gpu_they_are_the_same(tmp_path, name):
    arguments = 70, 60, 50, "--dtype", name, *([] if name == "int32" else ["--fill", "normal"]), "--out"
    good(*arguments, "cpu.npy", cwd=tmp_path)
    good(*arguments, "gpu.npy", "--device", "emulate", way="on a node", cwd=tmp_path)
    cpu, gpu = np.load(tmp_path / "cpu.npy"), np.load(tmp_path / "gpu.npy")
    np.testing.assert_allclose(gpu, cpu, atol=0 if name == "int32" else 2e-2 if name == "float16" else 1e-4)


@pytest.mark.needs("compiler", "ml_dtypes")
@pytest.mark.parametrize("way", exhaustive(["on a node"], WAYS))
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_operands_of_16_bits_are_multiplied_as_they_are_where_a_device_can(rng, tmp_path, way, name):
    """Made or read, they are the numbers that the CPU multiplies as float32; NaN in buffers and C would show what is left out."""
    numbers = matrix(rng, "float32", (70, 60)).astype(numpy_type(name))
    np.save(tmp_path / "a.npy", numbers)
    arguments = "--a", "a.npy", "--dtype", name, "--fill", "normal", 70, 60, PAGED, "--json", "runs.jsonl", "--out"
    for device, check in (("cpu", "on"), ("emulate", "on"), ("emulate", "host")):
        told = good(
            *arguments, f"{device}-{check}.npy", "--device", device, "--check", check, "--repeat", 2, way=way, cwd=tmp_path
        ).stdout
        ran = json.loads((tmp_path / "runs.jsonl").read_text().splitlines()[-1])
        stays = device == "emulate" and way != "on two nodes"
        assert (ran["dtype"], ran["computed"], ran["operands"]) == (name, "float32", name if stays else "float32")
        assert f"  computed {'with sums in' if stays else f'as 70×60 · 60×{PAGED}'} float32\n" in told
    cpu, gpu, by_host = (
        np.load(tmp_path / f"{which}.npy").view(numpy_type(name)).astype(float)
        for which in ("cpu-on", "emulate-on", "emulate-host")
    )
    np.testing.assert_array_equal(gpu, by_host)
    np.testing.assert_allclose(gpu, cpu, rtol=2**-7, atol=1e-4)  # where a rounded sum lies between two neighbours


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((3, 3, 3, "--dtype", "int128"), "unknown dtype 'int128': did you mean 'int"),
        ((3, 3, 3, "--dtype", "int8", "--fill", "normal"), "--fill normal makes fractions, which int8 does not hold"),
        ((30, 30, 3, "--dtype", "int8", "--fill", "index"), "--fill index makes numbers up to 899, which int8 does not hold"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, says):
    assert says in refused(*arguments)


def test_explain_shows_the_real_product():
    machine = "--ranks", 2, "--gpus-per-node", 2, "--capability", "9.0"
    told = good(30, 20, 10, "--dtype", "float16", "--explain", *machine).stdout
    assert told.startswith("30×20 · 20×10 float16, computed with sums in float32:\nC (30×10) = A (30×20) · B (20×10)  float16")
    assert "kernel tensor_half on cuda" in told
    told = good(30, 20, 10, "--dtype", "complex64", "--explain").stdout
    assert told.startswith(
        "30×20 · 20×10 complex64, computed as 30×40 · 40×20 float32:\nC (30×20) = A (30×40) · B (40×20)  float32"
    )
    assert (
        "30×20 · 20×10 int32, computed as 30×20 · 20×10 float32, exactly:"
        in good(30, 20, 10, "--dtype", "int32", "--explain").stdout
    )
