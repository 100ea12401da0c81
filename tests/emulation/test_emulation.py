# SPDX-License-Identifier: MIT
"""The catalogue's kernels on the CPU, and the runtime that runs them there."""

from __future__ import annotations

import numpy as np
import pytest
from support.selection import exhaustive

from experiments.kernel_checks.faults import FAULTS
from hybrid.devices.emulated import EmulatedDevice
from hybrid.emulation.build import compiler
from hybrid.emulation.checked import Job, run_checked, verdict
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.errors import DeviceUnavailable
from hybrid.kernels.catalogue import CATALOGUE, launch_of, named
from hybrid.kernels.sources import KERNELS

pytestmark = pytest.mark.needs("compiler")

SHAPES = [(1, 1, 1), (2, 3, 5), (5, 0, 4), (1, 37, 1), (33, 7, 29), (1, 19, 131), (131, 17, 1), (64, 64, 64), (150, 45, 269)]
KERNELS_OF_OURS = [kernel for kernel in CATALOGUE if kernel.source]
NAMES = [kernel.name for kernel in KERNELS_OF_OURS]


def shapes_for(kernel):
    return list(dict.fromkeys((n, l, 1) for n, l, _ in SHAPES)) if kernel.vectors_only else SHAPES


def ways(kernel, mode):
    """Whether it adds to C. In some modes only, to save time."""
    return (False, True) if kernel.adds and mode in ("shuffled", "address") else (False,)


@pytest.mark.parametrize(
    ("mode", "share"), exhaustive([("shuffled", 3)], [("forward", 1), ("reverse", 1), ("shuffled", 1), ("shuffled", 3)])
)
def test_catalogue_is_right(mode, share, seed):
    """`share`: each form gets one shape in so many, others with another seed."""
    forms = [
        (kernel, dtype, capability)
        for kernel in KERNELS_OF_OURS
        for dtype in kernel.dtypes
        for capability in sorted({max(50, form.capability) for form in kernel.forms[dtype]})
    ]
    jobs = [
        Job(str(KERNELS / kernel.source), kernel.name, dtype, shape, capability, mode, adds)
        for number, (kernel, dtype, capability) in enumerate(forms)
        for shape in shapes_for(kernel)[(seed + number) % share :: share]
        for adds in ways(kernel, mode)
    ]
    found = run_checked(jobs)
    assert [(job, verdict) for job, verdict in zip(jobs, found, strict=True) if verdict.kind != "ok"] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["undefined", "address", "threads"])
def test_catalogue_under_sanitizers(mode):
    """One dtype each, to save time: it changes widths, and both are seen."""
    jobs = [
        Job(str(KERNELS / kernel.source), kernel.name, kernel.dtypes[i % len(kernel.dtypes)], shape, 90, mode, adds)
        for i, kernel in enumerate(KERNELS_OF_OURS)
        for shape in [(33, 19, 1 if kernel.vectors_only else 37)]
        for adds in ways(kernel, mode)
    ]
    found = run_checked(jobs)
    assert [(job, verdict) for job, verdict in zip(jobs, found, strict=True) if verdict.kind != "ok"] == []


@pytest.mark.parametrize(("name", "tile"), [("naive", 1), ("tiled", 16), ("tiled32", 32), ("register_tiled", 0), ("tensor", 128)])
def test_loads(name, tile):
    """Every element comes from global memory as often as the kernel's header says; C is written once and never read."""
    kernel = named(name)
    n, l, m = 70, 33, 139
    random = np.random.default_rng(1)
    a, b, c = random.standard_normal((n, l)), random.standard_normal((l, m)), np.empty((n, m))
    launch = launch_of(kernel, "float64", n, m, 90)
    rows, columns = (tile, tile) if tile else kernel.forms["float64"][0].tile
    emulated = EmulatedKernel(KERNELS / launch.source, launch.expression, checks="loads")
    emulated(launch.grid, launch.block, launch.shared_bytes, [a, b, c])
    loads = emulated.loads
    assert (loads.a == -(-m // columns)).all()
    assert (loads.b == -(-n // rows)).all()
    assert (loads.c_writes == 1).all()
    assert (loads.c_reads == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [32, 33])
def test_device(buffer_of, dtype, columns):
    device = EmulatedDevice(named("warp_tiled"), dtype)
    shapes = [(20, 9), (9, columns), (20, columns)]
    buffers = [buffer_of(device, rows, across, dtype) for rows, across in shapes]
    assert all(np.isnan(buffer).all() and buffer.strides[0] % 16 == 0 and buffer.ctypes.data % 16 == 0 for buffer in buffers)
    a, b = (np.random.default_rng(0).standard_normal(shape).astype(dtype) for shape in shapes[:2])
    device.copy_in(buffers[0], a, [])
    device.copy_in(buffers[1], b, [])
    device.multiply(*buffers, after=[])
    device.multiply(*buffers, after=[], adding=True)
    c = np.empty(shapes[2], dtype)
    device.copy_out(c, buffers[2], after=[])
    np.testing.assert_allclose(c, 2 * (a @ b), rtol=1e-4, atol=1e-4 if dtype == "float32" else 1e-12)
    assert [phase for phase, _, _ in device.finish()] == ["copy in", "copy in", "multiply", "multiply", "copy out"]


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(DeviceUnavailable, match="need a C\\+\\+ compiler: apt-get install g\\+\\+"):
        compiler()


UNIT = """#include "hardware.cuh"
#include "matrix.cuh"
template <typename T> __global__ void unit(Matrix<T> c)
{
int x = threadIdx.x;
BODY
}
"""


@pytest.fixture
def run(tmp_path):
    """Runs a body as a kernel of one matrix `c` of doubles, and gives the matrix back."""

    def run_it(body, block=(32, 1), shape=(1, 32), shared=0, grid=(1, 1), capability=90, checks="", **how):
        source = tmp_path / "unit.cu"
        source.write_text(UNIT.replace("BODY", body))
        c = np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)
        EmulatedKernel(source, "unit<double>", capability, checks)(grid, block, shared, [c], **how)
        return c

    return run_it


@pytest.mark.parametrize("order", ["forward", "reverse", "shuffled"])
def test_shuffles(run, order):
    lanes = np.arange(32.0)
    for call, wanted in [
        ("__shfl_sync(~0u, double(x), 7)", np.full(32, 7.0)),
        ("__shfl_sync(~0u, double(x), 3, 8)", lanes // 8 * 8 + 3),
        ("__shfl_xor_sync(~0u, double(x), 5)", np.arange(32) ^ 5),
        ("__shfl_down_sync(~0u, double(x), 4)", np.where(lanes < 28, lanes + 4, lanes)),
        ("__shfl_up_sync(~0u, float(x), 4, 16)", np.where(lanes % 16 >= 4, lanes - 4, lanes)),
    ]:
        assert (run(f"c(0, x) = {call};", order=order) == wanted).all(), call


def test_shared_memory_holds_nan_before_each_block(run):
    body = """__shared__ T fixed[32]; T* dynamic = dynamic_shared_memory<T>();
        T sum = fixed[x] + dynamic[x]; fixed[x] = dynamic[x] = 1; c(blockIdx.x, x) = sum == sum;"""
    assert (run(body, grid=(3, 1), shape=(3, 32), shared=256) == 0).all()


def test_writing_beyond_dynamic_shared_memory(run):
    with pytest.raises(EmulationError, match="beyond the 128 bytes"):
        run("dynamic_shared_memory<T>()[x] = 1;", shared=128)


# Each thread copies its element of C to shared memory, and writes what it finds there before and after it waited.
COPY = """T* shared = dynamic_shared_memory<T>();
    copy_async<8>(shared + x, &c(0, x)); copies_commit();
    T before = shared[x]; WAIT;
    c(1, x) = before; c(2, x) = shared[x];"""


@pytest.mark.parametrize("copies", ["late", "early", "mixed"])
def test_asynchronous_copies(run, copies):
    c = run(COPY.replace("WAIT", "copies_wait<0>()"), shape=(3, 32), shared=256, copies=copies)
    assert (c[2] == c[0]).all()
    there = c[1] == c[0]
    assert np.isnan(c[1][~there]).all()
    assert {"late": not there.any(), "early": there.all(), "mixed": 0 < there.sum() < 32}[copies]


def test_a_copy_fills_up_with_zeros(run):
    body = """T* shared = dynamic_shared_memory<T>();
        copy_async<16>(shared + 2 * x, &c(0, 2 * x), x % 3 * 8); copies_commit(); copies_wait<0>();
        c(1, 2 * x) = shared[2 * x]; c(1, 2 * x + 1) = shared[2 * x + 1];"""
    c = run(body, block=(16, 1), shape=(2, 32), shared=256)
    there = np.arange(16) % 3
    assert (c[1, ::2] == np.where(there > 0, c[0, ::2], 0)).all()
    assert (c[1, 1::2] == np.where(there > 1, c[0, 1::2], 0)).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("copy_async<16>(shared + x + 1, &c(0, x));", "no multiple of 16"),
        ("copy_async<8>(&c(1, x), &c(0, x));", "does not write to shared memory"),
        ("copy_async<8>(shared + x, &c(0, x), 12);", "reads 12 of 8 bytes"),
        ("copy_async<8>(shared + x, &c(0, x)); copies_commit(); copies_wait<1>();", "copies under way"),
    ],
)
def test_wrong_copies(run, wrong, says):
    with pytest.raises(EmulationError, match=says) as raised:
        run(f"T* shared = dynamic_shared_memory<T>(); {wrong}", shape=(2, 32), shared=512)
    assert raised.value.kind == "copy"


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (
            "if (x < 40) __syncthreads(); else\n __syncthreads();",
            "barrier",
            r"waits at the barrier in unit.cu:7, but .* in unit.cu:6",
        ),
        ("if (x < 40) __syncthreads(); else __syncthreads();", "barrier", r"unit.cu:6, but .* waits at another one in this line"),
        ("if (x == 3) return;\n __syncthreads();", "barrier", r"unit.cu:7, but thread \(3, 0\) has left the kernel"),
        ("if (x >= 32) return;\n __syncthreads();", "barrier", r"thread \(32, 0\) has left"),
        ("if (x != 3) c(0, x) = __shfl_sync(~0u, 1.0, 0); else __syncthreads();", "warp", "lanes of its warp that do not come"),
        ("c(0, x) = x < 5 ? __shfl_sync(~0u, 1.0, 0) :\n __shfl_sync(~0u, 2.0, 0);", "warp", "unit.cu:6, thread"),
        ("c(0, x) = __shfl_sync(0xffu, 1.0, 0);", "warp", "not in the mask"),
    ],
)
@pytest.mark.parametrize("order", ["forward", "shuffled"])
def test_threads_that_do_not_meet(run, body, kind, says, order):
    with pytest.raises(EmulationError, match=says) as raised:
        run(body, block=(64, 1), shape=(1, 64), order=order)
    assert raised.value.kind == kind


def test_lanes_that_left_are_not_waited_for(run):
    c = run("if (x > 3) return; c(0, x) = __shfl_xor_sync(~0u, c(0, x), 1);")
    assert list(c[0, :5]) == [1, 0, 3, 2, 4]


@pytest.mark.parametrize(("rows", "depth"), [(8, 4), (16, 8)])
def test_matrix_units(run, rows, depth):
    """C holds the operands as matrices, one below the other: a, b and d."""
    shape = (rows + depth + rows, 8)
    places = "&c(g, t), &c(g + 8, t), &c(g, t + 4), &c(g + 8, t + 4)"
    if rows == 8:
        body = "T d[2] = {c(12 + g, 2 * t), c(12 + g, 2 * t + 1)}; mma_m8n8k4(d, c(g, t), c(8 + t, g));"
    else:
        body = f"""T* from[4] = {{{places}}}; T a[4], b[2] = {{c(16 + t, g), c(20 + t, g)}}, d[4];
            for (int i = 0; i < 4; ++i) a[i] = *from[i], d[i] = c(24 + g + i / 2 * 8, 2 * t + i % 2);
            mma_m16n8k8(d, a, b);"""
    put = f"for (int i = 0; i < {rows // 4}; ++i) c({rows + depth} + g + i / 2 * 8, 2 * t + i % 2) = d[i];"
    before = np.arange(shape[0] * 8.0).reshape(shape)
    a, b, d = before[:rows, :depth], before[rows : rows + depth], before[rows + depth :]
    after = run(f"int g = x / 4, t = x % 4; {body} {put}", shape=shape)
    assert (after[rows + depth :] == d + a @ b).all()


@pytest.mark.parametrize(
    ("capability", "call"),
    [
        (70, "unsigned r[4]; load_matrices(r, &c(0, 0));"),
        (75, "T d[2]; mma_m8n8k4(d, 0, 0);"),
        (80, "T d[4], a[4], b[2]; mma_m16n8k8(d, a, b);"),
    ],
)
def test_what_an_older_gpu_lacks(run, capability, call):
    with pytest.raises(EmulationError, match=r"unit.cu:\d+:\d+: error") as raised:
        run(call, capability=capability)
    assert raised.value.kind == "build"
    run(call, capability=90)


@pytest.mark.parametrize(("grid", "block"), [((0, 1), (32, 1)), ((1, 70000), (32, 1)), ((1, 1), (32, 33))])
def test_refused_launches(run, grid, block):
    with pytest.raises(EmulationError) as raised:
        run("c(0, 0) = 1;", grid=grid, block=block)
    assert raised.value.kind == "launch"


def test_same_seed_same_order(run):
    body = "if (!threadIdx.y) return; c(0, x) = atomicAdd(&c(1, 0), 1.0);"
    one, same, other = (run(body, block=(32, 2), shape=(2, 32), order="shuffled", seed=seed)[0] for seed in (5, 5, 6))
    assert (one == same).all()
    assert (one != other).any()


# One fault of the catalogue for each mode that finds faults and each kind of them; all are planted by tests of the experiments.
PLANTED = list({(fault.found_by, fault.kind): fault for fault in reversed(FAULTS) if not fault.file}.values())


def changed(folder, file, text, instead):
    """A copy of a kernel's source in which something is wrong."""
    code = (KERNELS / file).read_text()
    assert text in code
    folder.mkdir()
    (folder / file).write_text(code.replace(text, instead, 1))
    return str(folder / file)


def test_each_of_many_jobs_gets_its_own_verdict(tmp_path):
    """Those that end the process they share as well as those that are only wrong, and one that is right."""
    jobs = [
        Job(changed(tmp_path / str(number), named(fault.kernel).source, fault.old, fault.new), fault.kernel, fault.dtype,
            fault.shapes[0], fault.capability, fault.found_by)
        for number, fault in enumerate(PLANTED)
    ]  # fmt: skip
    jobs.insert(3, Job(str(KERNELS / "naive.cu"), "naive", "float64", (35, 21, 37)))
    kinds = [fault.kind for fault in PLANTED]
    kinds.insert(3, "ok")
    found = run_checked(jobs)
    assert [one.kind for one in found] == kinds, found


@pytest.mark.parametrize(
    ("text", "instead", "mode", "kind"),
    [("T sum = 0;", "T sum = ;", "forward", "build"), ("row += gridDim.y * Size(blockDim.y)", "row += 8", "loads", "race")],
    ids=["no C++", "an element written twice"],
)
def test_what_is_found_before_and_beside_the_catalogues_modes(tmp_path, text, instead, mode, kind):
    source = changed(tmp_path / "changed", "naive.cu", text, instead)
    assert verdict(source, "naive", "float64", (35, 21, 37), mode=mode) == kind


def test_one_that_never_ends(tmp_path):
    source = changed(tmp_path / "changed", "naive.cu", "row += gridDim.y * Size(blockDim.y)", "row += 0")
    assert run_checked([Job(source, "naive", "float64", (3, 4, 5))], seconds=3)[0].kind == "hang"


def test_verdict():
    assert verdict(KERNELS / "naive.cu", "naive", "float32", (5, 6, 7)) == "ok"
