# SPDX-License-Identifier: MIT
"""How many blocks are resident on a multiprocessor, and what limits them, is CUDA's arithmetic."""

from __future__ import annotations

import pytest

from hybrid.classroom.gpu_models import NAMES, named
from hybrid.classroom.occupancy import occupancy

# A GPU, the threads, registers and shared bytes of a block, how many are resident, and what limits them.
CASES = [
    # A lecture's: 2 kB of 16 are a tile's, which leaves room for 8 blocks, but 768 threads are 3 blocks of 256.
    ("8800GTX", 256, 10, 2048, 3, {"threads", "registers"}),
    ("8800GTX", 256, 11, 2048, 2, {"registers"}),  # 3 · 256 · 11 > 8192: one register more costs a third
    ("8800GTX", 64, 10, 2048, 8, {"blocks", "shared memory"}),
    ("8800GTX", 64, 10, 2049, 6, {"shared memory"}),  # given in units of 512 bytes
    ("C1060", 256, 16, 2048, 4, {"threads", "registers"}),
    ("C1060", 1024, 8, 0, 0, {"threads"}),  # 1024 are resident, but a block has 512 at most
    ("P100", 256, None, 49 << 10, 0, {"shared memory"}),  # of the 64 kB a block has 48 at most
    ("K40c", 256, 32, 2048, 8, {"threads", "registers"}),
    ("K40c", 1024, 32, 8192, 2, {"threads", "registers"}),
    ("K40c", 1024, 33, 8192, 1, {"registers"}),
    ("K40c", 32, 16, 0, 16, {"blocks"}),
    ("P100", 96, 40, 0, 16, {"registers"}),  # 1280 registers a warp: 51, of which two at a time 50, are 16 blocks of 3
    ("H200", 256, None, 113 << 10, 2, {"shared memory"}),  # with the block's 1 kB of the system's own
    ("H200", 256, None, (113 << 10) + 1, 1, {"shared memory"}),
    ("T4", 1000, 64, 0, 1, {"threads", "registers"}),  # 1000 threads are 32 warps
    ("H200", 1024, 65, 0, 0, {"registers"}),
    ("H200", 65, None, 0, 21, {"threads"}),  # 65 threads are 3 warps
]


@pytest.mark.parametrize(("gpu", "threads", "registers", "shared", "blocks", "limits"), CASES)
def test_blocks_that_are_resident(gpu, threads, registers, shared, blocks, limits):
    found = occupancy(named(gpu).multiprocessor, threads, registers, shared)
    assert (found.blocks, set(found.limits), found.warps) == (blocks, limits, blocks * -(-threads // 32))


def test_what_each_limit_by_itself_would_let_in():
    assert occupancy(named("8800GTX").multiprocessor, 256, None, 2048).alone == {"blocks": 8, "threads": 3, "shared memory": 8}


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [0, 1000, 40_000])
@pytest.mark.parametrize("threads", [32, 96, 250, 256, 768, 1024])
def test_the_driver_counts_the_same_blocks(real_gpus, threads, shared):
    import cupy

    for kernel in ("c[i] = i;", "double s[40]; for (int k = 0; k < 40; ++k) s[k] = sin(c[i + k]); c[i] = s[i % 7] * s[39];"):
        text = f'extern "C" __global__ void f(double* c) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {kernel} }}'
        function, capability = cupy.RawKernel(text, "f"), int(cupy.cuda.Device().compute_capability)
        model = next((each for each in map(named, NAMES) if each.capability == capability), None)
        if model is None:
            pytest.skip(f"the lab knows no GPU of compute capability {capability / 10}")
        driver = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.kernel.ptr, threads, shared)
        assert occupancy(model.multiprocessor, threads, function.num_regs, shared + function.shared_size_bytes).blocks == driver
