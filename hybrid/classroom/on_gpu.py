# SPDX-License-Identifier: MIT
"""What a named GPU would make of a student's kernel: its occupancy, and the rate that global memory allows (the roofline)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hybrid.classroom.case import Examination
from hybrid.classroom.counters import intensity
from hybrid.classroom.gpu_models import GpuModel
from hybrid.classroom.occupancy import Occupancy, occupancy
from hybrid.classroom.registers import Taken
from hybrid.core.problem import record
from hybrid.core.text import counted


@record
class OnGpu:
    """The kernel on a GPU, on the first of its shapes."""

    gpu: GpuModel
    taken: Taken
    threads: int  # of a block
    shared: int  # bytes of a block, dynamic ones included
    occupancy: Occupancy
    dtype: str
    intensity: float | None  # operations for each byte of global memory that requests move; None for a wrong kernel

    @property
    def attainable(self) -> float | None:
        """The attainable GF/s: limited by what memory can deliver, if no cache helps, and by the GPU's own rate."""
        if self.intensity is None:
            return None
        return min(float(self.gpu.rate(self.dtype)), self.intensity * self.gpu.bandwidth)

    def told(self) -> Iterator[str]:
        """The lines about it."""
        registers = (f"{self.taken.of.registers} registers a thread" if self.taken.of else "registers") + f" ({self.taken.how})"
        resident = counted(self.occupancy.blocks, "block")
        yield f"on {self.gpu}: {registers}, {self.shared} bytes of shared memory a block of {self.threads} threads"
        if not self.occupancy.blocks:
            yield f"  no block is resident on a multiprocessor: too much of {' and '.join(self.occupancy.limits)}"
            return
        yield (
            f"  occupancy: {100 * self.occupancy.share:.0f} %, {self.occupancy.warps} of {self.occupancy.most_warps} warps: "
            f"{resident} resident on a multiprocessor, limited by {' and '.join(self.occupancy.limits)}"
        )
        alone = ", ".join(f"{limit} {number}" for limit, number in self.occupancy.alone.items())
        yield f"  blocks that each limit by itself would let in: {alone}"
        rate, attainable = self.gpu.rate(self.dtype), self.attainable
        if attainable is None:
            return
        if not rate:
            yield f"  {self.gpu.name} has no {self.dtype} arithmetic"
            return
        bound = "global memory" if attainable < rate else "arithmetic"
        yield (
            f"  roofline: {self.intensity:.3g} operations a byte moved, {self.gpu.bandwidth} GB/s: at most {attainable:,.0f} of "
            f"{rate:,} GF/s in {self.dtype}, bound by {bound}; caches may deliver some of the bytes"
        )

    def as_record(self) -> dict[str, Any]:
        """The entries of a JSON line."""
        return {
            "gpu": self.gpu.name,
            "registers": self.taken.of.registers if self.taken.of else None,
            "shared": self.shared,
            **{f"occupancy_{key}": value for key, value in asdict(self.occupancy).items()},
            "intensity": self.intensity,
            "attainable_gflops": self.attainable,
            "peak_gflops": self.gpu.rate(self.dtype),
        }


def on_gpu(gpu: GpuModel, taken: Taken, examination: Examination) -> OnGpu:
    """What the GPU would make of the kernel, on the shape that consists of whole blocks."""
    case = examination.cases[0]
    threads = math.prod(case.block)
    static = taken.of.shared if taken.of else examination.static_shared
    shared = (static or 0) + case.shared
    found = occupancy(gpu.multiprocessor, threads, taken.of.registers if taken.of else None, shared)
    return OnGpu(gpu, taken, threads, shared, found, examination.meaning.dtype, intensity(case))
