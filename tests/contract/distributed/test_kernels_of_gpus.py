# SPDX-License-Identifier: MIT
"""docs/use.md, Where kernels are kept: CuPy reads compiled kernels only from a folder to which nobody else can write. And kernels
on GPUs: each multiplies every shape right, also beyond 2³¹ elements."""

import os
import subprocess
import sys

import numpy as np
import pytest
from support.commands import ROOT, module, start, successful
from support.selection import exhaustive

import hybrid

CUPY = """
import os, sys
print(os.environ.get("CUPY_CACHE_DIR"), os.environ.get("CUPY_CACHE_IN_MEMORY", "0"))
class cuda: pass
class runtime:
    CUDARuntimeError = RuntimeError
    getDeviceCount = staticmethod(lambda: 0)
cuda.runtime = runtime
"""
PROGRAM = """
import sys, numpy, hybrid
if {imported}:
    import cupy
try:
    hybrid.multiply(numpy.eye(2), numpy.eye(2), device="cuda")
except hybrid.errors.DeviceUnavailable as error:
    import os
    print(os.environ.get("CUPY_CACHE_DIR"), os.environ.get("CUPY_CACHE_IN_MEMORY", "0"), error.code)
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine with a driver that does nothing, and a CuPy that finds no GPU."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "cupy.py").write_text(CUPY)
    (folder / "empty.c").write_text("")
    subprocess.run(["cc", "-shared", "-o", folder / "libcuda.so.1", folder / "empty.c"], check=True, timeout=240)
    return folder


def kept(machine, tmp_path, *, imported=False, **environment):
    """The folder from which CuPy would take kernels, whether in memory, and what was said."""
    here = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"], **environment}
    here |= {"PYTHONPATH": f"{machine}:{ROOT}", "LD_LIBRARY_PATH": str(machine)}
    program = [sys.executable, "-c", PROGRAM.format(imported=imported)]
    done = subprocess.run(program, env=here, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True)
    *_, last = done.stdout.splitlines()
    folder, memory, code = last.split()
    assert code == "no-gpu"
    return folder, memory == "1", done.stderr


def private(folder):
    folder.mkdir(mode=0o700)


def readable(folder):
    folder.mkdir(mode=0o755)
    (folder / "some.cubin").write_text("")


def writable(folder):
    (folder / "thesis").mkdir(parents=True)
    (folder / "thesis" / "chapter.tex").write_text("years of work")
    folder.chmod(0o777)


def planted(folder):
    folder.mkdir(mode=0o700)
    (folder / "planted.cubin").write_text("")
    (folder / "planted.cubin").chmod(0o666)


@pytest.mark.needs("c compiler")
@pytest.mark.parametrize("make", exhaustive([readable, writable, planted], [None, private, readable, writable, planted]))
def test_kernels_are_read_where_nobody_else_can_write_and_what_lies_there_is_left_alone(machine, tmp_path, make):
    folder, own = tmp_path / "kernels", tmp_path / "cache" / "hybrid-runner" / "cupy"
    if make:
        make(folder)
    before = {path: path.lstat().st_mode for path in folder.rglob("*")} if make else {}
    where, in_memory, said = kept(machine, tmp_path, CUPY_CACHE_DIR=str(folder))
    trusted = make not in (writable, planted)
    assert (where, in_memory) == (str(folder if trusted else own), False)
    assert ("CUPY_CACHE_DIR" in said) != trusted, "a line says so"
    assert (folder if trusted else own).stat().st_mode & 0o077 in (0, 0o055)
    assert {path: path.lstat().st_mode for path in before} == before
    if make is writable:
        assert kept(machine, tmp_path, imported=True, CUPY_CACHE_DIR=str(folder))[1], "CuPy has looked already: in memory"


@pytest.mark.needs("c compiler")
def test_a_folder_that_is_none_is_named_and_hybrid_cache_is_for_cupy_too(machine, tmp_path):
    for wrong in ("/dev/null/kernels", "kernels"):
        where, _, said = kept(machine, tmp_path, CUPY_CACHE_DIR=wrong)
        assert (where, wrong in said) == (str(tmp_path / "cache" / "hybrid-runner" / "cupy"), True)
    assert kept(machine, tmp_path)[0] == str(tmp_path / ".cupy" / "kernel_cache")
    assert kept(machine, tmp_path, HYBRID_CACHE=str(tmp_path / "named"))[0] == str(tmp_path / "named" / "cupy")
    assert kept(machine, tmp_path, CUPY_CACHE_IN_MEMORY="1", CUPY_CACHE_DIR="/dev/null")[1:] == (True, "")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_every_kernel_multiplies_every_shape_right(rng, dtype):
    said = successful(start(module("hybrid.matmul"), "--kernel", "list")).stdout
    names = [line.split()[0] for line in said.splitlines() if " cuda " in f" {line} "]
    done = 0
    for name in names:
        for number in range(60):
            n, l, m = (
                (int(size) for size in rng.integers(1, 700, 3))
                if number > 5
                else ((1, 1, 1), (7, 0, 3), (9000, 3, 5), (5, 3, 9000), (3, 90_000, 2), (700, 5, 1))[number]
            )
            a, b = rng.integers(-9, 10, (n, l)).astype(dtype), rng.integers(-9, 10, (l, m)).astype(dtype)
            try:
                c = hybrid.multiply(a, b, device="cuda", kernel=name, dtype="float32" if dtype == "float16" else None)
            except hybrid.errors.UsageError:  # not of this type or shape
                continue
            assert np.array_equal(c, a.astype(float) @ b.astype(float)), (name, n, l, m)
            done += 1
    assert done > 100


@pytest.mark.gpu
def test_positions_may_take_more_than_32_bits():
    """Rows of B are equal up to a sign, so that every element is known."""
    import cupy

    n = 46_400
    a, b = cupy.asarray(np.full((n, 3), 2, "float32")), np.ones((3, n), "float32")
    b[:, -1] = -1
    c = hybrid.multiply(a, cupy.asarray(b), device="cuda", precision="native")
    assert c.size > 2**31
    assert (float(c[:, :-1].min()), float(c[:, :-1].max()), float(c[:, -1].min()), float(c[:, -1].max())) == (6, 6, -6, -6)
