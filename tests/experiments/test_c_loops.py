# SPDX-License-Identifier: MIT
"""The kernel `loops` of the CPU: right for any size and stride, asked for by name only, and never without a compiler."""

from __future__ import annotations

import numpy as np
import pytest
from support.commands import module, start, successful

import hybrid
from hybrid.devices.c_loops import compiled_loops
from hybrid.devices.cpu import CpuDevice
from hybrid.emulation.build import build_plain, c_compiler
from hybrid.emulation.errors import EmulationError
from hybrid.kernels.catalogue import AUTO, fastest, named

pytestmark = pytest.mark.needs("c compiler")

NAMES = ("loops", "loops_ikj")
DTYPES = ("float32", "float64")


def in_order(a, b):
    """Term after term, each product and each sum rounded."""
    c = np.zeros((len(a), b.shape[1]), a.dtype)
    for k in range(len(b)):
        c = c + a[:, k : k + 1] * b[k : k + 1, :]
    return c


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (33, 70, 41), (4, 0, 3), (0, 3, 2), (2, 3, 0)])
def test_every_bit_is_that_of_sums_in_order(name, dtype, shape):
    n, l, m = shape
    rng = np.random.default_rng()
    a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
    c = np.full((n, m), np.nan, dtype)
    compiled_loops(name, dtype)(a, b, c)
    np.testing.assert_array_equal(c, in_order(a, b))


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_wider_matrices(name):
    rng = np.random.default_rng()
    wide_a, wide_b, wide_c = (rng.standard_normal((rows, 30)) for rows in (9, 8, 9))
    before = wide_c.copy()
    a, b, c = wide_a[:, 3:11], wide_b[:, 5:11], wide_c[:, 7:13]
    compiled_loops(name, "float64")(a, b, c)
    np.testing.assert_array_equal(c, in_order(a, b))
    wide_c[:, 7:13] = before[:, 7:13]
    np.testing.assert_array_equal(wide_c, before)


def test_long_products_are_cut_into_calls(monkeypatch):
    monkeypatch.setattr("hybrid.devices.c_loops._AT_ONCE", 100)
    rng = np.random.default_rng()
    a, b, c = rng.standard_normal((13, 6)), rng.standard_normal((6, 5)), np.full((13, 5), np.nan)
    compiled_loops("loops", "float64")(a, b, c)
    np.testing.assert_array_equal(c, in_order(a, b))


@pytest.mark.parametrize("staged", [False, True])
def test_the_device_takes_them_and_the_library_again(staged):
    rng = np.random.default_rng()
    a, b, c = rng.standard_normal((20, 10)), rng.standard_normal((10, 30)), np.empty((20, 30))
    device = CpuDevice(staged)
    for name, right in (("loops_ikj", in_order(a, b)), ("blas", a @ b), ("loops", in_order(a, b))):
        device.use_kernel(named(name), "float64")
        c.fill(np.nan)
        device.multiply(a, b, c, after=[])
        np.testing.assert_array_equal(c, right)


def test_auto_never_takes_them():
    assert not set(NAMES) & set(AUTO)
    assert fastest("cpu", "float64", 100).kernel.name == "blas"


def test_they_run_on_the_cpu_only():
    with pytest.raises(hybrid.errors.UsageError, match="kernel loops runs on cpu, but the device asked for is emulate"):
        hybrid.multiply(np.ones((3, 3)), np.ones((3, 3)), device="emulate", kernel="loops")


def test_the_command():
    done = successful(start(module("hybrid.matmul"), 200, 200, 200, "--device", "cpu", "--kernel", "loops"))
    assert "kernel loops (asked for)" in done.stdout
    assert "check ok (exact" in done.stdout
    assert "kernel loops_ikj" in successful(start(module("hybrid.matmul"), 30, 20, 10, "--kernel", "loops_ikj")).stdout


@pytest.mark.launcher
def test_several_ranks():
    done = successful(start(module("hybrid.matmul"), 31, 20, 33, "--device", "cpu", "--kernel", "loops", ranks=2))
    assert "check ok" in done.stdout


def test_without_a_compiler_it_is_said_what_to_install():
    for environment, said in (
        ({"PATH": ""}, "(--kernel loops) need a C compiler: apt-get install gcc (or set CC)"),
        ({"CC": "no-such"}, "CC=no-such is not a program"),
    ):
        done = start(module("hybrid.matmul"), 9, 9, 9, "--kernel", "loops", hidden=("HYBRID_", "CC"), **environment)
        assert done.returncode == 1
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_does_not_compile_is_said(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("int f( { }")
    with pytest.raises(EmulationError, match=r"wrong\.c does not compile") as failed:
        build_plain(c_compiler(), source, ["-std=c99"])
    assert failed.value.kind == "build"


def test_a_changed_source_is_compiled_anew(tmp_path):
    source = tmp_path / "one.c"
    source.write_text("int one(void) { return 1; }")
    first = build_plain(c_compiler(), source, ["-std=c99"])
    assert build_plain(c_compiler(), source, ["-std=c99"]) == first
    source.write_text("int one(void) { return 2; }")
    assert build_plain(c_compiler(), source, ["-std=c99"]) != first
