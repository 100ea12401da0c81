# SPDX-License-Identifier: MIT
"""The CPU's CUDA runtime keeps CUDA's rules: threads meet at barriers and in warps or are named, shared memory has no value at
first, copies complete when they are waited for, and every order of the threads is one that a GPU may take."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import COPIES, ORDERS, EmulatedKernel

pytestmark = pytest.mark.needs("compiler")

UNIT = """#include "hardware.cuh"
#include "matrix.cuh"
template <typename T> __global__ void NAME(Matrix<T> c)
{
    int x = threadIdx.x;
BODY
}
"""


def compiled(folder, bodies, capability=90, more=""):
    """A kernel for each of these bodies, compiled together; `c` is its matrix of double, `x` the thread."""
    source = folder / "unit.cu"
    text = UNIT.partition("template")[0] + more
    for number, body in enumerate(bodies):
        text += "template" + UNIT.partition("template")[2].replace("NAME", f"unit{number}").replace("BODY", body)
    source.write_text(text)
    names = [f"unit{number}<double>" for number in range(len(bodies))]
    kernels = EmulatedKernel.several(source, names, capability, "")
    return [kernels[name] for name in names]


def ran(kernel, *, grid=(1, 1), block=(32, 1), shape=(1, 32), shared=0, **how):
    """The matrix 0, 1, 2, … after a launch."""
    c = np.arange(shape[0] * shape[1], dtype=np.float64).reshape(shape)
    kernel(grid, block, shared, [c], **how)
    return c


def test_lanes_exchange_as_cuda_says_in_every_order(tmp_path):
    lanes = np.arange(32)
    expected = {
        "c(0, x) = __shfl_sync(~0u, double(x), 7);": np.full(32, 7),
        "c(0, x) = __shfl_sync(~0u, double(x), 3, 8);": lanes // 8 * 8 + 3,
        "c(0, x) = __shfl_xor_sync(~0u, double(x), 5);": lanes ^ 5,
        "c(0, x) = __shfl_down_sync(~0u, double(x), 4);": np.where(lanes < 28, lanes + 4, lanes),
        "c(0, x) = __shfl_up_sync(~0u, float(x), 4, 16);": np.where(lanes % 16 >= 4, lanes - 4, lanes),
        "if (x > 3) return; c(0, x) = __shfl_xor_sync(~0u, c(0, x), 1);": np.where(lanes < 4, lanes ^ 1, lanes),  # others left
        # Lanes of one warp that wait at the same time with different masks.
        "if (x < 16) c(0, x) = __shfl_xor_sync(0xffffu, c(0, x), 1); c(0, x) += __shfl_sync(~0u, double(x), 5);": np.where(
            lanes < 16, lanes ^ 1, lanes
        )
        + 5,
        "c(0, x) = __shfl_xor_sync(x < 16 ? 0xffffu : 0xffff0000u, c(0, x), 3);": lanes ^ 3,
        "c(0, x) = __ballot_sync(~0u, x % 3 == 0);": np.full(32, sum(1 << lane for lane in range(0, 32, 3))),
        "c(0, x) = __reduce_add_sync(~0u, x);": np.full(32, 496),
        "c(0, x) = __syncthreads_count(x < 5);": np.full(32, 5),
    }
    for (body, wanted), kernel in zip(expected.items(), compiled(tmp_path, expected), strict=True):
        for order in ORDERS:
            assert (ran(kernel, order=order)[0] == wanted).all(), (body, order)


def test_atomic_updates_change_memory_as_cuda_says_and_give_what_was_there(tmp_path):
    was = np.arange(32)
    updates = [
        ("Add", was + 5), ("Sub", (was - 5) % 2**32), ("Max", np.maximum(was, 5)), ("Min", np.minimum(was, 5)), ("Exch", 5),
        ("And", was & 5), ("Or", was | 5), ("Xor", was ^ 5), ("Inc", np.where(was < 5, was + 1, 0)),
        ("Dec", np.where((was > 0) & (was < 6), was - 1, 5)),
    ]  # fmt: skip
    bodies = [f"unsigned word = x; c(0, x) = atomic{name}(&word, 5u) + 100.0 * word;" for name, _ in updates]
    for (name, wanted), kernel in zip(updates, compiled(tmp_path, bodies), strict=True):
        assert (ran(kernel)[0] == was + 100 * wanted).all(), name


# What cannot go on, the kind of the error, and the line and thread that are named.
STUCK = [
    ("    if (x < 40) __syncthreads(); else\n    __syncthreads();", "barrier", r"waits at the barrier in unit.cu:(\d+)"),
    ("    if (x == 3) return;\n    __syncthreads();", "barrier", r"thread \(3, 0\) has left"),
    ("    if (x >= 32) return;\n    __syncthreads();", "barrier", r"thread \(32, 0\) has left"),
    ("    if (x != 3) c(0, x) = __shfl_sync(~0u, 1.0, 0); else __syncthreads();", "warp", "unit.cu"),
    ("    c(0, x) = x < 5 ? __shfl_sync(~0u, 1.0, 0) :\n    __shfl_sync(~0u, 2.0, 0);", "warp", "unit.cu"),
    ("    c(0, x) = __shfl_sync(0xffu, 1.0, 0);", "warp", "unit.cu|mask"),
    ("    c(0, x) = __shfl_sync(x ? ~0u : 3u, c(0, x), 0);", "warp", "mask"),
    (
        "    if (x >= 16 && x < 32) c(0, x) = __shfl_sync(~0u, 1.0, 0);\n"
        "    else if (x < 8) c(0, x) = __shfl_sync(0xffu, 2.0, 0);\n    __syncthreads();",
        "warp",
        r"thread \(16, 0\)",
    ),
]


def test_threads_that_do_not_meet_are_named(tmp_path):
    for (body, kind, said), kernel in zip(STUCK, compiled(tmp_path, [body for body, _, _ in STUCK]), strict=True):
        for order in ("forward", "shuffled"):
            with pytest.raises(EmulationError, match=said) as raised:
                ran(kernel, block=(64, 1), shape=(1, 64), order=order)
            assert raised.value.kind == kind, body


def test_shared_memory_has_no_value_before_each_block_and_a_bound(tmp_path):
    fills = """    __shared__ T fixed[32]; T* dynamic = dynamic_shared_memory<T>();
        T sum = fixed[x] + dynamic[x]; fixed[x] = dynamic[x] = 1; c(blockIdx.x, x) = sum == sum;"""
    nan, beyond = compiled(tmp_path, [fills, "    dynamic_shared_memory<T>()[x] = 1;"])
    assert (ran(nan, grid=(3, 1), shape=(3, 32), shared=256) == 0).all()
    with pytest.raises(EmulationError, match="128 bytes"):
        ran(beyond, shared=128)


def test_asynchronous_copies_complete_late_early_or_at_random(tmp_path):
    """Each thread copies its element, and writes what it finds before and after it waited. A short copy fills up with zeros."""
    copy = """    T* shared = dynamic_shared_memory<T>(); copy_async<8>(shared + x, &c(0, x)); copies_commit();
        T before = shared[x]; copies_wait<0>(); c(1, x) = before; c(2, x) = shared[x];"""
    short = """    T* shared = dynamic_shared_memory<T>();
        copy_async<16>(shared + 2 * x, &c(0, 2 * x), x % 3 * 8); copies_commit(); copies_wait<0>();
        c(1, 2 * x) = shared[2 * x]; c(1, 2 * x + 1) = shared[2 * x + 1];"""
    whole, part = compiled(tmp_path, [copy, short])
    for copies in COPIES:
        c = ran(whole, shape=(3, 32), shared=256, copies=copies)
        there = c[1] == c[0]
        assert (c[2] == c[0]).all()
        assert np.isnan(c[1][~there]).all()
        assert {"late": not there.any(), "early": there.all(), "mixed": 0 < there.sum() < 32}[copies]
    c, bytes_there = ran(part, block=(16, 1), shape=(2, 32), shared=256), np.arange(16) % 3
    assert (c[1, ::2] == np.where(bytes_there > 0, c[0, ::2], 0)).all()
    assert (c[1, 1::2] == np.where(bytes_there > 1, c[0, 1::2], 0)).all()


WRONG_COPIES = [
    "copy_async<16>(shared + x + 1, &c(0, x));",  # of a place that is no multiple of 16
    "copy_async<8>(&c(1, x), &c(0, x));",  # to global memory
    "copy_async<8>(shared + x, &c(0, x), 12);",  # of more than there are
    "copy_async<8>(shared + x, &c(0, x)); copies_commit(); copies_wait<1>();",  # never waited for
]


def test_wrong_copies_are_refused(tmp_path):
    for kernel in compiled(tmp_path, [f"    T* shared = dynamic_shared_memory<T>(); {wrong}" for wrong in WRONG_COPIES]):
        with pytest.raises(EmulationError) as raised:
            ran(kernel, shape=(2, 32), shared=512)
        assert raised.value.kind == "copy"


@pytest.mark.parametrize(("rows", "depth"), [(8, 4), (16, 8)])
def test_matrix_units_multiply(tmp_path, rows, depth):
    """C holds the operands as matrices, one below the other: a, b and d."""
    shape = (rows + depth + rows, 8)
    places = "&c(g, t), &c(g + 8, t), &c(g, t + 4), &c(g + 8, t + 4)"
    body = "T d[2] = {c(12 + g, 2 * t), c(12 + g, 2 * t + 1)}; mma_m8n8k4(d, c(g, t), c(8 + t, g));"
    if rows == 16:
        body = f"""T* from[4] = {{{places}}}; T a[4], b[2] = {{c(16 + t, g), c(20 + t, g)}}, d[4];
            for (int i = 0; i < 4; ++i) a[i] = *from[i], d[i] = c(24 + g + i / 2 * 8, 2 * t + i % 2);
            mma_m16n8k8(d, a, b);"""
    put = f"for (int i = 0; i < {rows // 4}; ++i) c({rows + depth} + g + i / 2 * 8, 2 * t + i % 2) = d[i];"
    (kernel,) = compiled(tmp_path, [f"    int g = x / 4, t = x % 4; {body} {put}"])
    before = np.arange(shape[0] * 8.0).reshape(shape)
    a, b, d = before[:rows, :depth], before[rows : rows + depth], before[rows + depth :]
    assert (ran(kernel, shape=shape)[rows + depth :] == d + a @ b).all()


@pytest.mark.parametrize(
    ("capability", "call"),
    [
        (70, "unsigned r[4]; load_matrices(r, &c(0, 0));"),
        (75, "T d[2]; mma_m8n8k4(d, 0, 0);"),
        (80, "T d[4], a[4], b[2]; mma_m16n8k8(d, a, b);"),
    ],
)
@pytest.mark.exhaustive
def test_what_an_older_gpu_lacks_does_not_compile_for_it(tmp_path, capability, call):
    with pytest.raises(EmulationError, match=r"unit.cu:\d+:\d+: error") as raised:
        compiled(tmp_path, [call], capability)
    assert raised.value.kind == "build"
    ran(*compiled(tmp_path, [call]))


def test_impossible_launches_are_refused_and_the_same_seed_gives_the_same_order(tmp_path):
    (kernel,) = compiled(tmp_path, ["    if (!threadIdx.y) return; c(0, x) = atomicAdd(&c(1, 0), 1.0);"])
    for grid, block in (((0, 1), (32, 1)), ((1, 70000), (32, 1)), ((1, 1), (32, 33))):
        with pytest.raises(EmulationError) as raised:
            ran(kernel, grid=grid, block=block)
        assert raised.value.kind == "launch"
    one, same, other = (ran(kernel, block=(32, 2), shape=(2, 32), order="shuffled", seed=seed)[0] for seed in (5, 5, 6))
    assert (one == same).all()
    assert (one != other).any()


DEEP = """template <typename T> __device__ T depth(T left)
{
    volatile T here[64];
    for (int i = 0; i < 64; ++i) here[i] = left;
    return left < 1 ? 0 : depth(left - 1) + here[63] / left;
}
"""
DEEP_BODY = "    if (c(0, 0) < 0 && x == 3) return;\n    __syncthreads();\n    c(0, x) = depth(c(0, x));"
PROGRAM = """import sys
from pathlib import Path
import numpy as np
from hybrid.emulation.kernel import EmulatedKernel
deep = EmulatedKernel(Path(sys.argv[1]), "unit0<double>", 90, "")
for depth in map(float, sys.argv[2:]):
    c = np.full((1, 64), 3.0)
    c[0, 40] = depth
    deep((1, 1), (64, 1), 0, [c])
    print(c[0, 40], flush=True)
"""


def test_a_launch_begins_anew_whatever_came_before_and_a_stack_that_is_too_small_ends_the_process(tmp_path):
    """With more threads or fewer, and after one that failed. A thread that needs more than its stack harms no other thread."""
    (deep,) = compiled(tmp_path, [DEEP_BODY], more=DEEP)
    for threads in (64, 1024, 32, 64):
        c = np.arange(threads, dtype=float)[None, :] % 100
        wanted = c.copy()
        deep((1, 1), (threads, 1), 0, [c])
        np.testing.assert_array_equal(c, wanted)
        c[0, 0] = -1
        with pytest.raises(EmulationError, match=r"thread \(3, 0\) has left"):
            deep((1, 1), (threads, 1), 0, [c])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "unit.cu", "5", "700"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (-signal.SIGSEGV, ["5.0"]), done.stderr
