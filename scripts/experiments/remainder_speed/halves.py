# SPDX-License-Identifier: MIT
"""float32 products as three products of float16 (fp16x3.cu), an experiment for GPUs of compute capability 9.0 alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.remainder_speed.kernels import Emulation, kept_with
from hybrid.devices.base import KernelCall, KernelDevice
from hybrid.kernels.catalogue import Launch
from hybrid.planning.arithmetic import PAIR, UNIT

SOURCE = str(Path(__file__).with_name("fp16x3.cu"))
CAPABILITY = 90
CHUNKS = (1, 2)  # units of 64 along k after which sums are added to registers
_HALVES, _PIECE, _THREADS = UNIT // 2, 8, 256
_STAGES = 3 * 4 * UNIT * UNIT  # bytes of shared memory
_TILE, _COLUMNS = 256, 128  # rows of a cluster of two blocks, and columns
_BITS = 16  # so largest magnitudes become 2¹⁴ to 2¹⁵


class OfHalves:
    """C = A · B of float32 matrices on the device."""

    def __init__(self, device: KernelDevice, a: Any, b: Any, c: Any) -> None:
        self._device, (n, l), m = device, a.shape, b.shape[1]
        units = -(-l // _HALVES)
        sizes = [-(-lines // PAIR) * PAIR * units * UNIT for lines in (n, m)]
        self._memory = memory = device.reserve(2 * sum(sizes), shared=False)
        planes = [device.matrix(memory, offset, 2, size, "uint8") for offset, size in zip((0, 2 * sizes[0]), sizes, strict=True)]
        self._norms = norms = Emulation(device, a, b, c, 1)
        numbers = norms.numbers
        splitting = []
        for matrix, plane, scales, lines, of_columns in zip((a, b), planes, numbers, (n, m), ("false", "true"), strict=True):
            blocks = -(-lines * units * (_HALVES // _PIECE) // _THREADS)
            launch = Launch(SOURCE, f"split<{of_columns}>", (blocks, 1), (_THREADS, 1), 0, "sm_90a", prefers_shared=True)
            splitting.append(self._device.kernel(launch, (matrix, scales[2:3], plane)))
        self._before = [*norms.scaling(1e300, _BITS), *splitting]
        pairs = -(-n // _TILE) * -(-m // _COLUMNS)
        inverses = [scales[3:4] for scales in numbers]
        self._products = {
            chunk: self._device.kernel(
                Launch(
                    SOURCE, f"products_of_halves<{chunk}>", (2 * pairs, 1), (288, 1), _STAGES, "sm_90a", 2, prefers_shared=True
                ),
                (*planes, *inverses, c, np.int64(units)),
            )
            for chunk in CHUNKS
        }

    def whole(self, chunk: int) -> KernelCall:
        return kept_with(self, self._device.together([*self._before, self._products[chunk]]))
