# SPDX-License-Identifier: MIT
"""The machine model: the rates and limits that plans assume, the same on all ranks. They decide the speed of a product only.

The defaults are those of one NVIDIA H200 (132 multiprocessors, 54.8 GB/s H2D and 55.0 GB/s D2H, docs/measured/doctor-h200.jsonl).
`python -m hybrid.doctor --json FILE` measures another machine; HYBRID_MACHINE=FILE uses what it wrote.
"""

from __future__ import annotations

import os
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from hybrid.core.problem import Problem, record
from hybrid.errors import UsageError, one_line

KiB, MiB = 1 << 10, 1 << 20
RECORD_KEY = "machine_model"  # under which the doctor's JSON lines have a model
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-6, 1 << 60
_LONGEST = 200  # characters of a message


@record
class MachineModel:
    """Positive numbers. Estimated ones were chosen by reasoning or single runs, without a recorded measurement."""

    link_bytes_per_second: float = 54.8e9  # H2D, of one GPU; measured (docs/measured/doctor-h200.jsonl)
    # Multiply-adds of a GPU while its link copies one byte; measured: 56.8 TF/s (docs/measured/ladder-h200.jsonl) over 2 × 54.8
    # GB/s are 518, 53.1 TF/s in float32 are 484. With operands of 16 bits: estimated; half of the data sheet's 990 TF/s are 4500.
    # In INT8, for remainders: measured, without a recorded line; 1390 TOPS.
    float64_multiply_adds_per_byte: float = 512.0
    float32_multiply_adds_per_byte: float = 512.0
    half_multiply_adds_per_byte: float = 4096.0
    byte_multiply_adds_per_byte: float = 12_680.0
    # Bytes that its kernels read and write in memory meanwhile; measured, without a recorded line: 3.5 TB/s.
    memory_bytes_per_byte: float = 64.0
    # What the link loses at each row of a column panel while a kernel runs, as bytes; measured, without a recorded line: rows of
    # 16 KiB are copied at about 4/5 of the rate of whole rows.
    panel_row_overhead_bytes: int = 4 * KiB
    # Elements of the smallest tile of C that keeps all multiprocessors busy: a thread-block tile of 128 × 128 for each of 128.
    least_tile_elements: int = 2 * MiB
    # Of a GPU; estimated: 512 rows of 8192 columns are 256 thread-block tiles, two for each multiprocessor.
    least_panel_rows: int = 512
    # With its part of C; estimated: these are copied in 0.3 ms, and smaller ones take longer to submit than to copy.
    least_panel_bytes: int = 16 * MiB
    most_column_panels: int = 8  # where all are resident; estimated: more would start little sooner
    least_column_panel_bytes: int = 32 * MiB  # where B comes in several, perhaps from another node; estimated
    least_slab_rows: int = 1024  # of a k-slab; estimated: a kernel that adds reads and writes its part of C once for each slab
    most_slabs: int = 16  # where they have more than least_slab_rows rows; estimated
    adding_speed: float = 0.85  # of a kernel that adds a slab to C, beside one that computes C at once; estimated
    most_stationary_panels: int = 4  # the first is multiplied while the others are copied; estimated
    # Panels of the streamed operand on the device, a ring: one is multiplied, one is prefetched, one is copied; reasoned.
    least_streamed_panels: int = field(default=3, metadata={"most": 64})
    half_tile_cost: float = 1 / 8  # of the time, added each time that tiles are halved to fit into memory; estimated
    # Of B: below, opening CUDA IPC handles costs more than an H2D copy of all of B on every rank; estimated.
    least_exchange_bytes: int = 8 * MiB
    # Multiply-adds of a tile on a CPU, after which progress is shown, and for which BLAS packs B anew; estimated: seconds.
    cpu_tile_work: int = 30_000_000_000
    # Rows of such a tile: with 1200 instead of 2400 BLAS took 2 % longer, with 300 20 %; measured on 2 cores of an EPYC.
    least_cpu_panel_rows: int = 2000
    most_cpu_row_panels: int = 512  # estimated
    # The next seven decide between CPU, one GPU and several. They follow from cubes of 64 to 8000 on one and two H200, on 16 and
    # 32 cores of their hosts, without a recorded line.
    # Multiply-adds of a CPU core by BLAS in float64; in float32 it does twice as many.
    core_multiply_adds_per_second: float = 17e9
    core_edge: int = 36  # BLAS keeps a core busy for each of these in the edge of a cube, of as many multiply-adds as there are
    # At which a product and its check go through the matrices in a CPU's memory, and copies through slots, to any number of GPUs.
    cpu_bytes_per_second: float = 35e9
    # What a checked product of host arrays takes on a CPU, and on a GPU, beside all that follows from its size.
    cpu_call_seconds: float = 0.9e-3
    gpu_call_seconds: float = 1.0e-3
    hidden_share: float = 2 / 3  # what the longest of H2D copies, kernels and D2H copies hides of the other two
    joining_seconds: float = 3.5e-3  # what several ranks take to share a product of the root's arrays on their GPUs
    # Of a node's link to others; estimated: 200 Gbit/s; the doctor measures it in a job of several nodes.
    network_bytes_per_second: float = 25e9

    def __post_init__(self) -> None:
        for known in fields(self):
            value, kind, most = getattr(self, known.name), type(known.default), known.metadata.get("most", LARGEST_NUMBER)
            if type(value) not in ((float, int) if kind is float else (int,)):
                noun = "number" if kind is float else "whole number"
                raise UsageError(f"{known.name} must be a {noun}, not {value!r}", code="machine-model")
            least = SMALLEST_NUMBER if kind is float else 1
            if not least <= value <= most:
                raise UsageError(f"{known.name} must be from {least} to {most}, not {value!r}", code="machine-model")

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle the default by its name. Before each product the ranks send each other their models, and most are this one."""
        return "H200" if self is H200 else (MachineModel, tuple(vars(self).values()))

    def multiply_adds_per_byte(self, dtype: str) -> float:
        """The machine balance of a roofline with the link in place of the memory, for operands of this type."""
        known = {"float64": self.float64_multiply_adds_per_byte, "float32": self.float32_multiply_adds_per_byte}
        return known.get(dtype, self.half_multiply_adds_per_byte)

    def blas_seconds(self, problem: Problem, threads: int) -> float:
        """How long BLAS multiplies matrices in host memory with these threads."""
        multiply_adds = problem.n * problem.l * problem.m
        cores = min(threads, max(1.0, multiply_adds ** (1 / 3) / self.core_edge))
        return multiply_adds * problem.item_size / 8 / (self.core_multiply_adds_per_second * cores)

    def cpu_seconds(self, problem: Problem, threads: int) -> float:
        """How long a CPU with these threads multiplies matrices in host memory, and checks the product."""
        in_memory = problem.bytes_of_matrices / self.cpu_bytes_per_second
        return self.cpu_call_seconds + self.blas_seconds(problem, threads) + in_memory

    def cpus_seconds(self, problem: Problem, threads: int) -> float:
        """How long the CPUs of several ranks, with these threads in all, multiply matrices of one of them."""
        sent = problem.bytes_of_matrices / self.network_bytes_per_second
        return self.joining_seconds + self.cpu_seconds(problem, threads) + sent

    def gpu_seconds(self, problem: Problem, ranks: int, *, through_slots: int) -> float:
        """How long ranks multiply matrices in host memory, each with a GPU to which it copies. `through_slots`: bytes in memory
        that is not pinned."""
        brought = problem.bytes(problem.n, problem.m)
        worked = problem.n * problem.l * problem.m / self.multiply_adds_per_byte(problem.dtype)
        as_bytes = problem.bytes_of_matrices - brought, worked, brought
        longest, others = max(as_bytes), sum(as_bytes) - max(as_bytes)
        seconds = (longest + (1 - self.hidden_share) * others) / self.link_bytes_per_second
        seconds = max(seconds / ranks, through_slots / self.cpu_bytes_per_second)
        return self.gpu_call_seconds + seconds + (self.joining_seconds if ranks > 1 else 0.0)

    @classmethod
    def read(cls, path: str) -> MachineModel:
        """The model in a file, H200 for "": a JSON object of this class's fields, where an H200's stand for those left out; or
        the doctor's JSON lines, whose last one with a model counts. UsageError, in one line, for any other file."""
        if not path:
            return H200
        import json  # only who has such a file needs it

        try:
            if os.path.exists(path) and not os.path.isfile(path):  # nobody may ever close the other end of a pipe
                raise UsageError("it is no regular file")
            text = Path(path).read_bytes().decode()
            try:
                records = [json.loads(text)]
            except json.JSONDecodeError:  # not one object, but perhaps one a line
                records = [json.loads(line) for line in text.splitlines() if line.strip()]
            told = (each.get(RECORD_KEY) if "command" in each else each for each in records)
            models = [each for each in told if each is not None]
            if not models:
                raise UsageError(f"it has no {RECORD_KEY}: run python -m hybrid.doctor --json FILE on a machine with a GPU")
            return cls(**models[-1])
        except OSError as error:
            why = str(error.strerror)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:  # no JSON, no object, or no such fields
            why = one_line(error)
        raise UsageError(f"the machine model {path} cannot be read: {why}"[:_LONGEST], code="machine-model")


H200 = MachineModel()
