"""Does MPI move a GPU's memory? python -m hybrid.diagnostics.probes.cuda_aware LIMIT INDEX

A process alone sends to itself. An MPI that does not know of GPUs takes the address for one of the host's, and dies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hybrid.diagnostics.probes.protocol import begin, say

SIZES = (1 << 10, 8 << 20)  # bytes: MPIs take other roads for short messages than for long ones


def main() -> None:
    begin(int(sys.argv[1]))
    move_host_and(lambda pattern: _on_gpu(int(sys.argv[2]), pattern))


def move_host_and(elsewhere: Callable[[Any], tuple[Any, Any, Callable[[], Any]]]) -> None:
    """Say how far it comes: MPI's start, host memory moved, then what `elsewhere` makes.

    Given the bytes to send that is: what to send, into what, and a function that brings what came back to the host.
    """
    import numpy as np
    from mpi4py import MPI

    def move(source: Any, into: Any) -> None:
        MPI.COMM_SELF.Sendrecv([source, MPI.BYTE], 0, recvbuf=[into, MPI.BYTE], source=0)

    say(stage="started")
    patterns = [np.arange(size, dtype=np.uint8) for size in SIZES]
    for pattern in patterns:
        move(pattern, np.zeros_like(pattern))
    say(stage="host memory moved")
    prepared = [elsewhere(pattern) for pattern in patterns]
    say(stage="moving")
    right = True
    for pattern, (source, into, back) in zip(patterns, prepared, strict=True):
        move(source, into)
        right = right and bool((back() == pattern).all())
    say(right=right)


def _on_gpu(index: int, pattern: Any) -> tuple[Any, Any, Callable[[], Any]]:
    import cupy

    cupy.cuda.Device(index).use()
    source, into = cupy.asarray(pattern), cupy.zeros(pattern.size, pattern.dtype)
    cupy.cuda.Device(index).synchronize()
    return source, into, lambda: cupy.asnumpy(into)


if __name__ == "__main__":
    main()
