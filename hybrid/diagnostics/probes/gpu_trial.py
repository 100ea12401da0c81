# SPDX-License-Identifier: MIT
"""Tries a GPU: compiles and runs a kernel, copies, and pins host memory."""

from __future__ import annotations

import os

from hybrid.devices.cuda_kernels import trust_own_cache_only
from hybrid.diagnostics.probes.protocol import report
from hybrid.errors import one_line

PINNED_BYTES = (256 << 20, 64 << 20, 16 << 20, 1 << 20)  # tried in this order until it works
_SOURCE = 'extern "C" __global__ void add_one(int* numbers) { numbers[threadIdx.x] += 1; }'


def main(index: str) -> None:
    """`index`: of the GPU, in this process's numbering."""
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # a kernel from the cache on disk would not show that the compiler works
    trust_own_cache_only()
    import cupy
    import numpy as np

    cupy.cuda.Device(int(index)).use()
    report(stage="memory")
    numbers = cupy.asarray(np.arange(32, dtype=np.int32))
    report(stage="compiling")
    add_one = cupy.RawKernel(_SOURCE, "add_one")
    add_one.compile()
    report(stage="running")
    add_one((1,), (32,), (numbers,))
    report(works=bool((cupy.asnumpy(numbers) == np.arange(1, 33)).all()))
    for size in PINNED_BYTES:
        trouble = _pin(size)
        if not trouble:
            report(pinned=size)
            break
        if size == PINNED_BYTES[0]:
            report(pin_error=trouble)


def _pin(size: int) -> str:
    """Why so much host memory cannot be pinned; "" if it can."""
    import cupy
    import numpy as np

    runtime = cupy.cuda.runtime
    try:
        memory = np.zeros(size, np.uint8)
        runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
        runtime.hostUnregister(memory.ctypes.data)
    except (MemoryError, runtime.CUDARuntimeError) as error:
        return one_line(error)
    return ""
