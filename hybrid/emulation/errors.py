# SPDX-License-Identifier: MIT
"""The error of the CUDA emulation, which runs CUDA kernels on a CPU.

A C++ compiler builds the unchanged .cu file against a header that defines CUDA's keywords and built-ins (cuda_on_cpu.h). Every
thread of a block is a fiber (runtime.cpp); blocks run one after the other. The emulation is slow, and stricter than a GPU: it
varies the order of threads and the completion of asynchronous copies, and undefined values are NaN.
"""

from __future__ import annotations

from hybrid.errors import HybridError

CODES_OF_KINDS = {
    "build": "compile-failed",
    "launch": "kernel-launch",
    "barrier": "kernel-barrier",
    "warp": "kernel-warp",
    "copy": "kernel-copy",
    "memory": "kernel-memory",
    "assert": "kernel-assert",
    "illegal": "illegal-address",
}


class EmulationError(HybridError, RuntimeError):
    """A kernel could not be built or launched, or did what CUDA leaves undefined.

    `kind`: "build", "launch", "barrier", "warp" (a *_sync operation that not all lanes of
    its mask call), "copy" (cp.async), "memory", "assert" or "illegal".
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text, code=CODES_OF_KINDS[kind])
        self.kind = kind
