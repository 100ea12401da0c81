# SPDX-License-Identifier: MIT
"""Which kernel is taken, why, and how it is launched."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.core.problem import copy_width
from hybrid.devices.cuda_kernels import compile_options
from hybrid.devices.emulated import EmulatedDevice
from hybrid.emulation.checked import verdict
from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import ALL, AUTO, CATALOGUE, MOST_BLOCKS_Y, fastest, launch_of, named, refusal
from hybrid.kernels.sources import KERNELS

OURS = [kernel for kernel in CATALOGUE if kernel.source]


@pytest.mark.parametrize(
    ("dtype", "columns", "capability", "name"),
    [
        ("float64", 100, 90, "tensor"),
        ("float64", 100, 80, "tensor"),
        ("float64", 100, 120, "tensor"),
        ("float64", 100, 75, "register_tiled"),
        ("float64", 100, 60, "register_tiled"),
        ("float32", 100, 90, "warp_tiled"),
        ("float32", 100, 80, "warp_tiled"),
        ("float32", 100, 70, "register_tiled"),
        ("float32", 1, 90, "matvec_warp"),
        ("float64", 1, 60, "matvec_warp"),
        ("float16", 100, 90, "tensor_half"),
        ("bfloat16", 1, 80, "tensor_half"),
    ],
)
def test_auto_takes_what_exists_for_the_gpu_and_says_why(dtype, columns, capability, name):
    for device in ("cuda", "emulate"):
        choice = fastest(device, dtype, columns, capability)
        assert choice.kernel.name == name
        assert choice.reason


def test_auto_never_takes_a_library_on_a_gpu():
    assert "cublas" not in AUTO
    assert all(named(name).source for name in AUTO if named(name).device == "cuda")


def test_what_a_kernel_cannot_do_is_said():
    assert refusal(named("tensor"), "float32", 5, 90) == "kernel tensor does not take float32"
    assert refusal(named("tensor_half"), "float16", 5, 75).startswith("kernel tensor_half needs compute capability 8.0,")
    assert refusal(named("tensor"), "float64", 5, 75) == "kernel tensor needs compute capability 8.0, and this GPU has 7.5"
    assert refusal(named("matvec"), "float64", 5, 90) == "kernel matvec multiplies by a vector, and B has 5 columns"
    assert not any(refusal(kernel, dtype, 1, 90) for kernel in CATALOGUE for dtype in kernel.dtypes)


@given(
    kernel=st.sampled_from([(kernel, dtype) for kernel in OURS for dtype in kernel.dtypes]),
    rows=st.integers(1, 10**7),
    columns=st.integers(1, 10**7),
    capability=st.sampled_from([80, 86, 90, 120]),
)
def test_the_blocks_cover_c_and_are_allowed(kernel, rows, columns, capability):
    kernel, dtype = kernel
    columns = 1 if kernel.vectors_only else columns
    launch = launch_of(kernel, dtype, rows, columns, capability)
    form = next(form for form in kernel.forms[dtype] if form.capability <= capability)
    down, across = (1 if tile == ALL else -(-size // tile) for size, tile in zip((rows, columns), form.tile, strict=True))
    x, y = launch.grid
    assert 1 <= y <= MOST_BLOCKS_Y
    assert 1 <= x < 2**31 or x == down * across  # such a C would take more memory than there is
    assert x * y == down * across or (x == across and y == MOST_BLOCKS_Y < down)
    assert launch.block[0] * launch.block[1] <= 1024


@pytest.mark.parametrize("kernel", OURS, ids=lambda kernel: kernel.name)
def test_a_file_opens_with_its_idea_its_loads_and_its_limit(kernel):
    comment = []
    for line in (KERNELS / kernel.source).read_text().splitlines():
        if not line.startswith("//"):
            break
        comment.append(line)
    assert 2 <= len(comment) <= 10
    text = " ".join(comment)
    assert "Global loads per multiply-add:" in text
    assert "Limit:" in text


@pytest.mark.parametrize(
    ("item", "numbers", "width"),
    [(8, [], 2), (4, [], 4), (8, [16, 32], 2), (8, [16, 8], 1), (4, [16, 8], 2), (4, [4, 16], 1), (4, [0, 48], 4)],
)
def test_copies_are_as_wide_as_addresses_and_strides_allow(item, numbers, width):
    assert copy_width(item, numbers) == width


def test_a_changed_header_changes_how_kernels_are_compiled(tmp_path):
    (tmp_path / "one.cuh").write_text("int one;")
    before = compile_options(tmp_path)
    assert compile_options(tmp_path) == before
    (tmp_path / "one.cuh").write_text("int two;")
    assert compile_options(tmp_path) != before


def test_headers_are_included_by_their_names_alone():
    """So that all of them are among the headers whose content is a part of the options."""
    for path in Path(KERNELS).glob("*.cu*"):
        headers = {header.name for header in KERNELS.glob("*.cuh")} | {"twins.h", "hopper_twins.h"}
        assert set(re.findall(r'#include "(.*)"', path.read_text())) <= headers
        assert "#include <" not in path.read_text()  # NVRTC has none of these


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("capability", [60, 70, 75, 80, 86, 90, 120])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_auto_takes_on_each_gpu_is_right_on_its_twin(buffer_of, rng, capability, dtype):
    for n, l, m in [(70, 33, 41), (9, 140, 1)]:
        device = EmulatedDevice(fastest("emulate", dtype, m, capability).kernel, dtype, capability)
        a, b, c = (buffer_of(device, *shape, dtype) for shape in ((n, l), (l, m), (n, m)))
        a[...], b[...] = rng.integers(-9, 10, (n, l)), rng.integers(-9, 10, (l, m))
        device.multiply(a, b, c, after=[])
        np.testing.assert_array_equal(c, a.astype(int) @ b.astype(int))


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("kernel", ["pipelined", "warp_tiled", "tensor", "tensor_half", "tensor_int8"])
def test_more_along_k_than_a_tile_copy_counts(tmp_path, kernel):
    """What copies clamp to 2³⁰, here to 64, is the size across k. Along k nothing may be clamped."""
    for path in [KERNELS / named(kernel).source, *KERNELS.glob("*.cuh")]:
        (tmp_path / path.name).write_text(path.read_text().replace("MOST = 1 << 30", "MOST = 1 << 6"))
    assert "MOST = 1 << 6" in (tmp_path / "stages.cuh").read_text()
    source = tmp_path / named(kernel).source
    assert verdict(source, kernel, named(kernel).dtypes[0], (2, 300, 2)) == "ok"


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("kernel", [kernel.name for kernel in OURS if not kernel.vectors_only and "float64" in kernel.dtypes])
def test_multiply_on_the_emulated_gpu(rng, kernel):
    dtype = named(kernel).dtypes[-1]
    a, b = rng.integers(-9, 10, (50, 37)).astype(dtype), rng.integers(-9, 10, (37, 45)).astype(dtype)
    np.testing.assert_array_equal(hybrid.multiply(a, b, device="emulate", kernel=kernel), a @ b)


def test_without_a_compiler_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(DeviceUnavailable, match=r"\(--device emulate\) need a C\+\+ compiler: apt-get install g\+\+"):
        hybrid.multiply(np.ones((3, 3)), np.ones((3, 3)), device="emulate")


def test_a_compiler_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceUnavailable, match="CXX=no-such-compiler is not a program"):
        hybrid.multiply(np.ones((3, 3)), np.ones((3, 3)), device="emulate")


def test_a_gpu_too_old_is_refused():
    with pytest.raises(LookupError, match=r"no kernel for float64 on cuda, compute capability 3.5; 6.0 is the least"):
        fastest("cuda", "float64", 9, 35)


def test_a_library_cannot_be_emulated():
    with pytest.raises(hybrid.errors.UsageError, match="kernel cublas runs on cuda, but the device asked for is emulate"):
        hybrid.multiply(np.ones((3, 3)), np.ones((3, 3)), device="emulate", kernel="cublas")
