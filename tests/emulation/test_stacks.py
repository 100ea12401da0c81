# SPDX-License-Identifier: MIT
"""The stacks of an emulated GPU's threads, which one launch may take over from another."""

from __future__ import annotations

import signal
import sys

import numpy as np
import pytest
from support.commands import start

from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import EmulatedKernel

pytestmark = pytest.mark.needs("compiler")

# The matrix tells whether a thread does not come to the barrier, and how deep each calls itself.
SOURCE = """#include "matrix.cuh"
template <typename T> __device__ T depth(T left)
{
    volatile T here[64];
    for (int i = 0; i < 64; ++i) here[i] = left;
    return left < 1 ? 0 : depth(left - 1) + here[63] / left;
}
template <typename T> __global__ void deep(Matrix<T> c)
{
    if (c(0, 0) < 0 && threadIdx.x == 3) return;
    __syncthreads();
    c(0, threadIdx.x) = depth(c(0, threadIdx.x));
}
"""
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from hybrid.emulation.kernel import EmulatedKernel
deep = EmulatedKernel(Path(sys.argv[1]), "deep<double>", 90, "")
for depth in map(float, sys.argv[2:]):
    c = np.full((1, 64), 3.0)
    c[0, 40] = depth
    deep((1, 1), (64, 1), 0, [c])
    print(c[0, 40], flush=True)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "deep.cu"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("fails", [False, True], ids=["right", "failed"])
def test_a_launch_begins_anew_whatever_came_before(source, fails):
    """With more threads or fewer, and also after one that failed, whose threads are still within the kernel."""
    deep = EmulatedKernel(source, "deep<double>", 90, "")
    for threads in (64, 64, 1024, 32, 512, 64):
        c = np.arange(threads, dtype=float)[None, :] % 100
        wanted = c.copy()
        deep((1, 1), (threads, 1), 0, [c])
        np.testing.assert_array_equal(c, wanted)
        if fails:
            c[0, 0] = -1
            with pytest.raises(EmulationError, match=r"thread \(3, 0\) has left"):
                deep((1, 1), (threads, 1), 0, [c])


@pytest.mark.parametrize("depths", [["700"], ["5", "700"], ["5", "7", "700"]], ids=" then ".join)
def test_a_thread_that_needs_more_ends_the_process_and_harms_no_other_thread(source, depths):
    """More by less than another stack, which lies below its own."""
    done = start([sys.executable, "-c", PROGRAM], source, *depths)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert done.stdout.split() == [f"{float(depth)}" for depth in depths[:-1]]
