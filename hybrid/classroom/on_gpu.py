# SPDX-License-Identifier: MIT
"""What a named GPU would make of a student's kernel: its registers and shared memory, by NVIDIA's compiler where this machine has
one; its occupancy; and the rate that global memory allows (the roofline)."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hybrid.classroom.case import Examination, intensity
from hybrid.classroom.examination import Trials
from hybrid.classroom.gpu_models import GpuModel, Occupancy, occupancy
from hybrid.core.problem import record
from hybrid.core.text import counted
from hybrid.emulation.child import new_folder, own_headers, run_limited
from hybrid.emulation.errors import EmulationError
from hybrid.errors import HybridError, one_line


@record
class Resources:
    """What one instance of a kernel takes of a GPU, as NVIDIA's assembler (ptxas) says."""

    registers: int = 0  # of a thread
    shared: int = 0  # bytes that the source declares
    stack: int = 0  # bytes of a thread
    spill_stores: int = 0  # bytes
    spill_loads: int = 0
    most_threads: int = 0  # of a block, by its __launch_bounds__; 0: it has none


def resources_in(log: str, ptx: str = "") -> dict[str, Resources]:
    """By mangled name, what `--ptxas-options=-v` says in `log` of each kernel, with the functions that it calls. `ptx`: the
    kernels' PTX, for their __launch_bounds__."""
    bounds = {
        name: int(x) * int(y) * int(z)
        for name, x, y, z in re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), (\d+), (\d+)", ptx)
    }
    found = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = part.split("'")[1]
        local = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        if registers is None:
            raise HybridError(f"the compiler's log says nothing of the registers of {name}", code="compile-failed")
        stack, stores, loads = (sum(map(int, column)) for column in zip(*local, strict=True)) if local else (0, 0, 0)
        found[name] = Resources(int(registers[1]), int(shared[1]) if shared else 0, stack, stores, loads, bounds.get(name, 0))
    return found


def _taken(trials: Trials, capability: int) -> tuple[Resources | None, str]:
    """What the kernel takes on GPUs of this compute capability, times ten; and by which compiler that is known, or why not."""
    nvcc, path, instance = shutil.which("nvcc"), trials.file.path, trials.instance
    if nvcc is None:
        return None, "not known without nvcc"
    with new_folder() as folder:
        source = folder / path.name
        # A template is compiled where something refers to an instance.
        refers = f"\nvoid* lab_reference() {{ return reinterpret_cast<void*>(&{instance}); }}\n"
        source.write_bytes(path.read_bytes() + refers.encode())
        command = [nvcc, "-cubin", f"-arch=sm_{capability}", "-Xptxas", "-v", "-w", "-I", str(path.parent)]
        command += ["-o", str(folder / "cubin"), str(source)]
        try:
            reads = own_headers(path.resolve().parent)
            done = run_limited("the kernel", command, {**os.environ, "TMPDIR": str(folder)}, reads, folder)
        except EmulationError as error:
            return None, f"not known: {one_line(error)}"
    name = trials.kernel.name
    mangled = re.compile(rf"{name}|_Z(?:N\w*?)?{len(name)}{name}{'I' if '<' in instance else '(?!I)'}.*")
    logged = {} if done.returncode else resources_in(done.stderr)
    found = [resources for name, resources in logged.items() if mangled.fullmatch(name)]
    if len(found) != 1:
        return None, f"not known: nvcc does not compile it for sm_{capability}"
    return found[0], f"by nvcc for sm_{capability}"


@record
class OnGpu:
    """The kernel on a GPU, on the first of its shapes."""

    gpu: GpuModel
    registers: int | None  # of a thread
    how: str  # by which compiler the registers are known, or why they are not
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
        registers = "registers" if self.registers is None else f"{self.registers} registers a thread"
        resident, warps, most = counted(self.occupancy.blocks, "block"), self.occupancy.warps, self.occupancy.most_warps
        yield f"on {self.gpu}: {registers} ({self.how}), {self.shared} bytes of shared memory a block of {self.threads} threads"
        if not self.occupancy.blocks:
            yield f"  no block is resident on a multiprocessor: too much of {' and '.join(self.occupancy.limits)}"
            return
        yield (
            f"  occupancy: {100 * warps / most:.0f} %, {warps} of {most} warps: "
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
            "registers": self.registers,
            "shared": self.shared,
            **{f"occupancy_{key}": value for key, value in asdict(self.occupancy).items()},
            "intensity": self.intensity,
            "attainable_gflops": self.attainable,
            "peak_gflops": self.gpu.rate(self.dtype),
        }


def on_gpu(gpu: GpuModel, trials: Trials, examination: Examination) -> OnGpu:
    """What the GPU would make of the kernel, on the shape that consists of whole blocks."""
    case, (taken, how) = examination.cases[0], _taken(trials, gpu.capability)
    threads = math.prod(case.block)
    shared = ((taken.shared if taken else examination.static_shared) or 0) + case.shared
    registers = taken.registers if taken else None
    found = occupancy(gpu.multiprocessor, threads, registers, shared)
    return OnGpu(gpu, registers, how, threads, shared, found, examination.meaning.dtype, intensity(case))
