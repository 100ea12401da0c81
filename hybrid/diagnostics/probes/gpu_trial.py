"""A GPU at work: python -m hybrid.diagnostics.probes.gpu_trial LIMIT INDEX. Compiles, runs, copies, page-locks."""

from __future__ import annotations

import os
import sys

from hybrid.diagnostics.probes.protocol import begin, say
from hybrid.errors import one_line

LOCKED_BYTES = (256 << 20, 64 << 20, 16 << 20, 1 << 20)  # the first that can be
_SOURCE = 'extern "C" __global__ void add_one(int* numbers) { numbers[threadIdx.x] += 1; }'


def main() -> None:
    begin(int(sys.argv[1]))
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # what is found in the cache would show nothing of the compiler
    import cupy
    import numpy as np

    cupy.cuda.Device(int(sys.argv[2])).use()
    say(stage="memory")
    numbers = cupy.asarray(np.arange(32, dtype=np.int32))
    say(stage="compiling")
    add_one = cupy.RawKernel(_SOURCE, "add_one")
    add_one.compile()
    say(stage="running")
    add_one((1,), (32,), (numbers,))
    say(works=bool((cupy.asnumpy(numbers) == np.arange(1, 33)).all()))
    for size in LOCKED_BYTES:
        trouble = _lock(size)
        if not trouble:
            say(locked=size)
            break
        if size == LOCKED_BYTES[0]:
            say(lock_error=trouble)


def _lock(size: int) -> str:
    """Why so much memory cannot be page-locked; "" if it can."""
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


if __name__ == "__main__":
    main()
