# SPDX-License-Identifier: MIT
"""GPU models of lectures and clusters, the limits of their multiprocessors, and the occupancy of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hybrid.core.problem import record
from hybrid.core.text import aligned
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import dotted

KB = 1 << 10
WARP = 32  # threads


@record
class Multiprocessor:
    """The limits of a multiprocessor, from NVIDIA's programming guide."""

    threads: int
    blocks: int
    registers: int
    shared: int  # bytes
    shared_unit: int  # allocation granularity
    reserved: int = 0  # bytes of shared memory that the system takes for each block
    most_threads: int = 1024  # of a block
    most_shared: int = 1 << 20  # bytes of a block, if less than `shared`


_G80 = Multiprocessor(768, 8, 8192, 16 * KB, 512, most_threads=512)
_GT200 = replace(_G80, threads=1024, registers=16384)
_BY_CAPABILITY = {
    10: _G80,
    11: _G80,
    12: _GT200,
    13: _GT200,
    20: Multiprocessor(1536, 8, 32768, 48 * KB, 128),
    35: Multiprocessor(2048, 16, 65536, 48 * KB, 256),
    60: Multiprocessor(2048, 32, 65536, 64 * KB, 256, most_shared=48 * KB),
    70: Multiprocessor(2048, 32, 65536, 96 * KB, 256),
    75: Multiprocessor(1024, 16, 65536, 64 * KB, 256),
    80: Multiprocessor(2048, 32, 65536, 164 * KB, 128, KB),
    86: Multiprocessor(1536, 16, 65536, 100 * KB, 128, KB),
    89: Multiprocessor(1536, 24, 65536, 100 * KB, 128, KB),
    90: Multiprocessor(2048, 32, 65536, 228 * KB, 128, KB),
    100: Multiprocessor(2048, 32, 65536, 228 * KB, 128, KB),
    120: Multiprocessor(1536, 24, 65536, 100 * KB, 128, KB),
}
_CORES = dict.fromkeys(_BY_CAPABILITY, 128) | {10: 8, 11: 8, 12: 8, 13: 8, 20: 32, 35: 192, 60: 64, 70: 64, 75: 64, 80: 64}


@record
class GpuModel:
    """A model with its published figures."""

    name: str
    capability: int  # compute capability, times ten
    multiprocessors: int
    float32: int  # GF/s without matrix units
    float64: int  # GF/s without matrix units; 0 for none
    bandwidth: int  # of global memory, GB/s
    memory: float  # GB of global memory; some models come in several sizes
    int8: int = 0  # GOP/s of matrix units, without sparsity
    link: int = 0  # GB/s each way to host memory; 0 if unknown to plans
    matrix_float64: int = 0  # GF/s of matrix units; 0 for none
    source: str = ""  # of int8, link and matrix_float64

    @property
    def multiprocessor(self) -> Multiprocessor:
        return _BY_CAPABILITY[self.capability]

    @property
    def cores(self) -> int:
        """The number of float32 units."""
        return self.multiprocessors * _CORES[self.capability]

    def rate(self, dtype: str) -> int:
        """GF/s in this type."""
        return self.float32 if dtype == "float32" else self.float64

    def __str__(self) -> str:
        return f"{self.name} (compute capability {dotted(self.capability)})"


MODELS = (
    GpuModel("8800GTX", 10, 16, 346, 0, 86, 0.75),
    GpuModel("GT9600M", 11, 4, 80, 0, 25, 0.5),
    GpuModel("GT330M", 12, 6, 121, 0, 25, 0.5),
    GpuModel("C1060", 13, 30, 622, 78, 102, 4),
    GpuModel("C2050", 20, 14, 1030, 515, 144, 3),
    GpuModel("C2075", 20, 14, 1030, 515, 144, 6),
    GpuModel("M2070", 20, 14, 1030, 515, 150, 6),
    GpuModel("K40c", 35, 15, 4290, 1430, 288, 12),
    GpuModel("P100", 60, 56, 9300, 4700, 732, 16),
    GpuModel("V100", 70, 80, 15700, 7800, 900, 16),
    GpuModel("T4", 75, 40, 8100, 254, 320, 16, 130_000, 16, 0, "NVIDIA's data sheet of the T4"),
    GpuModel("A100", 80, 108, 19500, 9700, 2039, 80, 624_000, 32, 19500, "NVIDIA's data sheet of the A100"),
    GpuModel("RTX3090", 86, 82, 35600, 556, 936, 24, 284_000, 32, 0, "NVIDIA's white paper on Ampere GA102"),
    GpuModel("RTX4090", 89, 128, 82600, 1290, 1008, 24, 660_600, 32, 0, "NVIDIA's white paper on Ada"),
    GpuModel("H100", 90, 132, 66900, 33500, 3350, 80, 1_979_000, 64, 66900, "NVIDIA's data sheet of the H100 SXM"),
    GpuModel("H200", 90, 132, 66900, 33500, 4800, 141, 1_979_000, 64, 66900, "NVIDIA's data sheet of the H200"),
    GpuModel("B200", 100, 148, 75000, 37000, 7700, 180, 4_500_000, 64, 37000, "NVIDIA's data sheet of the HGX B200"),
    GpuModel("RTX5080", 120, 84, 56300, 880, 960, 16, 450_200, 64, 0, "NVIDIA's white paper on RTX Blackwell"),
    GpuModel("RTX5090", 120, 170, 104800, 1640, 1792, 32, 838_000, 64, 0, "NVIDIA's white paper on RTX Blackwell"),
)


def model_of(name: str) -> GpuModel:
    """The model of this name, in any case. UsageError with all names if there is none."""
    wanted = "".join(each for each in name.lower() if each.isalnum())
    for model in MODELS:
        if model.name.lower() == wanted:
            return model
    raise UsageError(f"no GPU {name!r} here: one of {', '.join(model.name for model in MODELS)}", code="setting")


def table() -> Iterator[str]:
    """The lines of a table of all models."""
    rows = [
        ["GPU", "capability", "SMs", "cores", "memory", "GB/s", "float32", "float64", "threads", "blocks", "registers", "shared"]
    ]
    for model in MODELS:
        holds, rates = model.multiprocessor, (model.bandwidth, model.float32, model.float64)
        rows.append([
            model.name, dotted(model.capability), str(model.multiprocessors), str(model.cores), f"{model.memory:g} GB",
            *(f"{rate:,}" if rate else "–" for rate in rates),
            *map(str, (holds.threads, holds.blocks, holds.registers, holds.shared // KB)),
        ])  # fmt: skip
    yield from aligned(rows, "l" + "r" * len(rows[0][1:]))
    yield "float32, float64: GF/s without matrix units"
    yield "threads, blocks, registers and shared memory, in KiB: what a multiprocessor (SM) holds"


@record
class Occupancy:
    """Resident blocks and warps of a multiprocessor."""

    blocks: int
    warps: int
    most_warps: int  # of any kernel
    limits: tuple[str, ...]  # names of the limits that are reached
    alone: dict[str, int]  # resident blocks if this limit were the only one


def occupancy(of: Multiprocessor, threads: int, shared: int) -> Occupancy:
    """The occupancy by blocks of `threads` threads and `shared` bytes, disregarding registers."""
    warps = -(-threads // WARP)
    allowed = {"blocks": of.blocks, "threads": of.threads // (warps * WARP) if threads <= of.most_threads else 0}
    if taken := shared + of.reserved:
        allowed["shared memory"] = of.shared // (-(-taken // of.shared_unit) * of.shared_unit) if shared <= of.most_shared else 0
    blocks = min(allowed.values())
    limits = tuple(name for name, number in allowed.items() if number == blocks)
    return Occupancy(blocks, blocks * warps, of.threads // WARP, limits, allowed)
