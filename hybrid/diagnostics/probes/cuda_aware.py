# SPDX-License-Identifier: MIT
"""Tries whether MPI can send a GPU's memory: a process alone sends to itself.

An MPI that is not CUDA-aware takes the device address for one of the host, and reading there ends the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybrid.diagnostics.probes.protocol import report
from hybrid.ranks.mpi import start_mpi

SIZES = (1 << 10, 8 << 20)  # bytes: MPI libraries send short and long messages by different protocols


def main(index: str) -> None:
    """`index`: of the GPU, in this process's numbering."""
    send_to_self(lambda pattern: _on_gpu(int(index), pattern))


def send_to_self(make_buffers: Callable[[Any], tuple[Any, Any, Callable[[], Any]]]) -> None:
    """Report each stage: MPI's start, host memory moved, then the buffers of `make_buffers` moved.

    Given the bytes to send, it returns a buffer that holds them, one to receive them, and a function that copies what was
    received to the host.
    """
    import numpy as np

    MPI = start_mpi()

    def move(source: Any, target: Any) -> None:
        MPI.COMM_SELF.Sendrecv([source, MPI.BYTE], 0, recvbuf=[target, MPI.BYTE], source=0)

    report(stage="started")
    patterns = [np.arange(size, dtype=np.uint8) for size in SIZES]
    for pattern in patterns:
        move(pattern, np.zeros_like(pattern))
    report(stage="host memory moved")
    prepared = [make_buffers(pattern) for pattern in patterns]
    report(stage="moving")
    correct = True
    for pattern, (source, target, to_host) in zip(patterns, prepared, strict=True):
        move(source, target)
        correct = correct and bool((to_host() == pattern).all())
    report(correct=correct)


def _on_gpu(index: int, pattern: Any) -> tuple[Any, Any, Callable[[], Any]]:
    from hybrid.devices.cuda_kernels import trust_own_cache_only

    trust_own_cache_only()
    import cupy

    cupy.cuda.Device(index).use()
    source, target = cupy.asarray(pattern), cupy.zeros(pattern.size, pattern.dtype)
    cupy.cuda.Device(index).synchronize()
    return source, target, lambda: cupy.asnumpy(target)
