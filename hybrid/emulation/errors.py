"""The project's CUDA kernels, compiled for a CPU: to run, and above all to be tested, where there is no GPU.

A C++ compiler builds the .cu file as it is, against a header that gives CUDA's words a meaning. A fiber stands for each
thread of a block; blocks run one after the other. Slow, and stricter than a GPU: what the program must not rely on varies.
"""

from __future__ import annotations

from hybrid.errors import HybridError


class EmulationError(HybridError, RuntimeError):
    """A kernel could not be built or launched, or did what CUDA forbids.

    `kind`: "build", "launch", "barrier", "warp" (a warp's lanes do not meet), "copy" or "memory".
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
