# SPDX-License-Identifier: MIT
"""The kernels that multiply: each instance of the catalogue is right on the emulated GPU, to the last bit where sums are exact,
for ragged shapes, unaligned rows and any order of threads; nothing beside C is written. `auto` takes the best of them that a GPU
can run, and a launch covers C within CUDA's limits."""

import re
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.remainder_tiles import Gpu, all_steps
from support.selection import exhaustive, pairs_first

from hybrid.core.problem import copy_width
from hybrid.emulation.kernel import COPIES, ORDERS, EmulatedKernel
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import (
    ALL,
    AUTO,
    CATALOGUE,
    KERNELS,
    MOST_BLOCKS_Y,
    fastest,
    launch_of,
    named,
    numbers_of,
    refusal,
    storage,
    sums_type,
)
from hybrid.testing.checked_kernels import Guarded, not_a_number, stored

OURS = [kernel for kernel in CATALOGUE if kernel.source]
INSTANCES = [(kernel, dtype) for kernel in OURS for dtype in kernel.dtypes]
# Up to which all integers are of the type, and what the type of the sums holds.
OF_TYPE = {"int8": 127, "float16": 2048, "bfloat16": 256, "float32": 2**12, "float64": 2**26}
OF_SUMS = {"int32": 2**31, "float32": 2**24, "float64": 2**53}
SHAPES = [(130, 37, 259), (1, 1, 1), (17, 150, 40), (5, 0, 3)]


def widest(kernel, dtype):
    """Of copies, in elements."""
    return 16 // storage(dtype).itemsize if kernel.forms[dtype][0].by_width else 1


@cache
def instances(kernel, dtype, capability, adds, folder, checks, widths):
    """Compiled together; not all, which might need more than 48 KiB of static shared memory."""
    launches = [launch_of(kernel, dtype, 1, 1, capability, width, adds=adds) for width in widths]
    return EmulatedKernel.several(folder / kernel.source, [each.expression for each in launches], capability, checks)


def multiplied(kernel, dtype, operands, capability, width, before=None, *, folder=KERNELS, checks="", **how):
    """By the instance for copies of so many elements. NaN lies around A and B and beforehand in C."""
    vectors, of_sums = width > 1, sums_type(dtype)
    nothing = -7 if of_sums == "int32" else np.nan
    a, b = (Guarded(*each.shape, storage(dtype).name, not_a_number(dtype), aligned=vectors) for each in operands)
    c = Guarded(len(operands[0]), operands[1].shape[1], of_sums, nothing, aligned=vectors)
    for guarded, matrix in zip((a, b), operands, strict=True):
        guarded.inner[...] = matrix if dtype == "int8" else stored(matrix, dtype)
    c.inner[...] = nothing if before is None else before
    launch = launch_of(kernel, dtype, *c.inner.shape, capability, width, adds=before is not None)
    widths = tuple({width, widest(kernel, dtype), 1} if width in (widest(kernel, dtype), 1) else {width})
    run = instances(kernel, dtype, capability, before is not None, folder, checks, widths)[launch.expression]
    run(launch.grid, launch.block, launch.shared_bytes, (a.inner, b.inner, c.inner), **how)
    assert all(guarded.untouched() for guarded in (a, b, c)), (launch.expression, how)
    return c.inner.copy()


def integers(rng, dtype, n, l, m):
    """Whose sums are exact, and use all bits of the type that these have room for."""
    largest = min(OF_TYPE[dtype], int((OF_SUMS[sums_type(dtype)] / max(1, l)) ** 0.5))
    a, b = (rng.integers(-largest, largest + 1, shape) for shape in ((n, l), (l, m)))
    if dtype == "int8":  # the one that has no opposite, too
        a[:1], b[:, -1:] = -128, -128
    return a, b


OF_WIDTHS = [(*each, copies) for each in INSTANCES for copies in ("widest", "halved")]
SOME = [each for each in OF_WIDTHS if each[1] != "bfloat16" and (each[2] == "widest" or each[0].name == "register_tiled")]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("kernel", "dtype", "copies"), exhaustive(SOME, OF_WIDTHS), ids=lambda x: getattr(x, "name", x))
def test_every_instance_multiplies_right(rng, kernel, dtype, copies):
    """With the widest copies and those of single elements, or with copies of half as many elements as the widest."""
    capabilities, most = [form.capability for form in kernel.forms[dtype]], widest(kernel, dtype)  # each with a form of its own
    for capability, width in product(capabilities, {most // 2 or 1} if copies == "halved" else {most, 1}):
        for n, l, m in SHAPES:
            a, b = integers(rng, dtype, n, l, 1 if kernel.vectors_only else m)
            how = {"order": str(rng.choice(ORDERS)), "copies": str(rng.choice(COPIES)), "seed": int(rng.integers(99))}
            about = f"{capability} {width} {n}x{l}x{m} {how}"
            right = a @ b
            np.testing.assert_array_equal(multiplied(kernel, dtype, (a, b), capability, width, **how), right, about)
            if kernel.adds:
                before = rng.integers(-9, 10, right.shape)
                np.testing.assert_array_equal(multiplied(kernel, dtype, (a, b), capability, width, before, **how), before + right)


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    ("kernel", "copies", "order"), pairs_first(["pipelined float32", "tensor float64", "tensor_half float16"], COPIES, ORDERS)
)
def test_threads_and_copies_may_come_in_any_order(rng, kernel, copies, order):
    name, dtype = kernel.split()
    a, b = integers(rng, dtype, 40, 300, 150)
    for width in (16 // storage(dtype).itemsize, 1):
        got = multiplied(named(name), dtype, (a, b), 90, width, order=order, copies=copies)
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.needs("compiler")
def test_what_bytes_and_halves_stand_for():
    every = np.arange(-128, 128)[:, None]
    np.testing.assert_array_equal(multiplied(named("tensor_int8"), "int8", (every, every.T), 90, 16), every * every.T)
    half, one = named("tensor_half"), np.ones((1, 1))
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    finite = np.where(np.isfinite(numbers), numbers, np.float16(0))  # infinity times zero is NaN
    np.testing.assert_array_equal(multiplied(half, "float16", (finite, np.eye(256)), 90, 8), finite)
    for special in (np.inf, -np.inf, np.nan):
        np.testing.assert_array_equal(multiplied(half, "float16", (np.full((1, 1), special), one), 90, 8), [[special]])
    upper = np.array([[1, -1, 3.14159, 1e-40, 3e38, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20]], np.float32)
    rounded = numbers_of(stored(upper, "bfloat16"))
    assert rounded[0, -3:].tolist() == [1, 1 + 2**-6, 1 + 2**-7], "ties to even, neighbours are 2⁻⁷ apart"
    assert (np.abs(rounded - upper) <= np.maximum(np.abs(upper) / 2**8, 2.0**-134)).all()
    np.testing.assert_array_equal(multiplied(half, "bfloat16", (rounded, np.eye(8)), 90, 8), rounded)


@pytest.mark.needs("compiler")
@pytest.mark.exhaustive
def test_c_may_have_more_rows_than_a_grid_of_blocks_covers(rng):
    a, b = integers(rng, "float64", 16 * MOST_BLOCKS_Y + 26, 1, 1)
    np.testing.assert_array_equal(multiplied(named("naive"), "float64", (a, b), 90, 1), a @ b)


@pytest.mark.needs("compiler")
@pytest.mark.exhaustive
def test_the_longest_sums_of_bytes_that_32_bits_hold():
    """131071 products of -128 · -128 are 2³¹ - 2¹⁴."""
    a, b = np.full((1, 131071), -128), np.repeat([[-128, 127]], 131071, axis=0)
    got = multiplied(named("tensor_int8"), "int8", (a, b), 80, 1)
    assert got[0].tolist() == [2**31 - 2**14, -131071 * 128 * 127]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(
    "kernel", exhaustive(["pipelined", "tensor_int8"], ["pipelined", "warp_tiled", "tensor", "tensor_half", "tensor_int8"])
)
def test_more_along_k_than_a_tile_copy_counts(rng, tmp_path, kernel):
    """What copies clamp to 2³⁰, here to 64, is the size across k. Along k nothing may be clamped."""
    for path in [KERNELS / named(kernel).source, *KERNELS.glob("*.cuh")]:
        (tmp_path / path.name).write_text(path.read_text().replace("MOST = 1 << 30", "MOST = 1 << 6"))
    assert "MOST = 1 << 6" in (tmp_path / "stages.cuh").read_text()
    dtype = named(kernel).dtypes[0]
    a, b = integers(rng, dtype, 2, 300, 2)
    for width in (16 // storage(dtype).itemsize, 1):
        np.testing.assert_array_equal(multiplied(named(kernel), dtype, (a, b), 90, width, folder=tmp_path), a @ b)


each_check = pytest.mark.parametrize("checks", ["undefined", "accesses"])


@pytest.mark.needs("compiler")
@pytest.mark.exhaustive
@each_check
@pytest.mark.parametrize("kernel", OURS, ids=lambda kernel: kernel.name)
def test_no_kernel_does_what_cpp_leaves_undefined_or_races(rng, capfd, kernel, checks):
    """One type of each, to save time: it changes widths, and both are seen. The second shape has full tiles and an edge."""
    dtype = kernel.dtypes[-1]
    for n, l, m in ((33, 19, 37), (130, 300, 129)):
        a, b = integers(rng, dtype, n, l, 1 if kernel.vectors_only else m)
        how = {"checks": checks, "order": "shuffled", "copies": "mixed"}
        for width, adds in product((16 // storage(dtype).itemsize, 1), {False, kernel.adds}):
            before = rng.integers(-9, 10, (n, b.shape[1])) if adds else None
            got = multiplied(kernel, dtype, (a, b), 90, width, before, **how)
            np.testing.assert_array_equal(got, a @ b + (before if adds else 0))
    assert capfd.readouterr().err == ""  # where UBSan tells


@pytest.mark.needs("compiler")
@pytest.mark.exhaustive
@each_check
def test_nor_do_the_kernels_of_products_from_remainders(capfd, checks):
    all_steps(Gpu(80, checks, order="shuffled", copies="mixed"))
    assert capfd.readouterr().err == ""


CHOICES = {  # type, columns of B, compute capability: what auto takes
    ("float64", 100, 90): "tensor", ("float64", 100, 80): "tensor", ("float64", 100, 75): "register_tiled",
    ("float64", 100, 60): "register_tiled", ("float32", 100, 90): "warp_tiled", ("float32", 100, 80): "warp_tiled",
    ("float32", 100, 70): "register_tiled", ("float32", 1, 90): "matvec_warp", ("float64", 1, 60): "matvec_warp",
    ("float16", 100, 90): "tensor_half", ("bfloat16", 1, 80): "tensor_half",
}  # fmt: skip


def test_auto_takes_the_best_that_the_gpu_can_run():
    for (dtype, columns, capability), name in CHOICES.items():
        for device in ("cuda", "emulate"):
            assert fastest(device, dtype, columns, capability).name == name
            assert not refusal(named(name), dtype, columns, capability)
    assert fastest("cpu", "float64", 9).name == "blas"
    assert not {"cublas", "loops", "loops_ikj"} & set(AUTO)
    with pytest.raises(UsageError) as refused:
        fastest("cuda", "float64", 9, 35)
    assert refused.value.code == "kernel-unfit"


@pytest.mark.parametrize(
    ("kernel", "case"),
    [
        ("tensor", ("float32", 5, 90)),
        ("tensor_half", ("float16", 5, 75)),
        ("tensor", ("float64", 5, 75)),
        ("matvec", ("float64", 5, 90)),
    ],
)
def test_what_a_kernel_cannot_do_is_refused(kernel, case):
    assert refusal(named(kernel), *case)
    assert not any(refusal(every, dtype, 1, 90) for every in CATALOGUE for dtype in every.dtypes)


@given(
    instance=st.sampled_from(INSTANCES),
    rows=st.integers(1, 10**7),
    columns=st.integers(1, 10**7),
    capability=st.sampled_from([80, 86, 90, 120]),
)
def test_the_blocks_cover_c_and_are_allowed(instance, rows, columns, capability):
    kernel, dtype = instance
    columns = 1 if kernel.vectors_only else columns
    launch = launch_of(kernel, dtype, rows, columns, capability)
    form = next(form for form in kernel.forms[dtype] if form.capability <= capability)
    down, across = (1 if tile == ALL else -(-size // tile) for size, tile in zip((rows, columns), form.tile, strict=True))
    x, y = launch.grid
    assert 1 <= y <= MOST_BLOCKS_Y
    assert 1 <= x < 2**31 or x == down * across  # such a C would take more memory than there is
    assert x * y == down * across or (x == across and y == MOST_BLOCKS_Y < down)
    assert launch.block[0] * launch.block[1] <= 1024


def test_copies_are_as_wide_as_addresses_and_strides_allow():
    cases = [(8, [], 2), (4, [], 4), (8, [16, 32], 2), (8, [16, 8], 1), (4, [16, 8], 2), (4, [4, 16], 1), (4, [0, 48], 4)]
    assert [copy_width(item, numbers) for item, numbers, _ in cases] == [width for _, _, width in cases]


def test_sources_open_with_their_idea_and_include_only_headers_that_are_hashed():
    """A changed header changes the key under which compiled kernels are kept, if it is one of ours; NVRTC has no others."""
    headers = {path.name for path in KERNELS.glob("*.cuh")} | {"twins.h", "hopper_twins.h"}
    for path in KERNELS.glob("*.cu*"):
        assert set(re.findall(r"#include (\S+)", path.read_text())) <= {f'"{name}"' for name in headers}, path.name
    for kernel in OURS:
        text = (KERNELS / kernel.source).read_text()
        opening = " ".join(re.match(r"(//.*\n)+", text)[0].splitlines())
        assert "Global loads per multiply-add:" in opening, kernel.name
        assert "Limit:" in opening, kernel.name
