"""A GPU at work: python -m hybrid.findings.probes.trial LIMIT INDEX. Compiles, runs, copies, page-locks."""

from __future__ import annotations

import os
import sys

from hybrid.errors import one_line
from hybrid.findings.probes import begin, say

LOCKED_BYTES = 64 << 20
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
    runtime = cupy.cuda.runtime
    memory = np.zeros(LOCKED_BYTES, np.uint8)
    try:
        runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
        runtime.hostUnregister(memory.ctypes.data)
    except runtime.CUDARuntimeError as error:
        say(lock_error=one_line(error))
    else:
        say(locked=LOCKED_BYTES)


if __name__ == "__main__":
    main()
