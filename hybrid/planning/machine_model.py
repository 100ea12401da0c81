# SPDX-License-Identifier: MIT
"""The machine model: rates and limits that plans assume, the same on all ranks. They affect only a product's speed.

The defaults are of one NVIDIA H200 (132 SMs, 54.8 GB/s H2D and 55.0 GB/s D2H, docs/measured/doctor-h200.jsonl).
`python -m hybrid.doctor --json FILE` measures another machine; HYBRID_MACHINE=FILE uses the result.
"""

from __future__ import annotations

import os
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from hybrid.core.problem import Problem, record
from hybrid.errors import UsageError, one_line

KiB, MiB = 1 << 10, 1 << 20
RECORD_KEY = "machine_model"  # the model's key in the doctor's JSON lines
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-6, 1 << 60
_LONGEST = 200  # characters of a message


@record
class MachineModel:
    """Positive numbers. "Estimated" ones come from reasoning or single runs, without a recorded measurement."""

    link_bytes_per_second: float = 54.8e9  # H2D, of one GPU; measured (docs/measured/doctor-h200.jsonl)
    # Multiply-adds of a GPU per byte that its link copies; measured: 56.8 TF/s (docs/measured/ladder-h200.jsonl) over 2 × 54.8
    # GB/s are 518, 53.1 TF/s in float32 are 484. 16-bit operands: estimated; half of the data sheet's 990 TF/s are 4500. INT8,
    # for remainders: measured, without a recorded line; 1390 TOPS.
    float64_multiply_adds_per_byte: float = 512.0
    float32_multiply_adds_per_byte: float = 512.0
    half_multiply_adds_per_byte: float = 4096.0
    byte_multiply_adds_per_byte: float = 12_680.0
    # Bytes that kernels read and write in device memory per byte that the link copies; measured, without a recorded line: 3.5
    # TB/s.
    memory_bytes_per_byte: float = 64.0
    # The link's loss at each row of a column panel while a kernel runs, in bytes; measured, without a recorded line: rows of 16
    # KiB are copied at about 4/5 of the rate of whole rows.
    panel_row_overhead_bytes: int = 4 * KiB
    # Elements of the smallest tile of C that keeps all SMs busy: a thread-block tile of 128 × 128 for each of 128.
    least_tile_elements: int = 2 * MiB
    # For a GPU; estimated: 512 rows of 8192 columns are 256 thread-block tiles, two for each SM.
    least_panel_rows: int = 512
    # Including its part of C; estimated: the link copies this in 0.3 ms; smaller panels take longer to submit than to copy.
    least_panel_bytes: int = 16 * MiB
    most_column_panels: int = 8  # if all are resident; estimated: more would start little sooner
    least_column_panel_bytes: int = 32 * MiB  # if B has several column panels, perhaps from another node; estimated
    least_slab_rows: int = 1024  # of a k-slab; estimated: an accumulating kernel reads and writes its part of C for each slab
    most_slabs: int = 16  # if they have more than least_slab_rows rows; estimated
    adding_speed: float = 0.85  # of a kernel that accumulates into C, relative to one that overwrites C; estimated
    most_stationary_panels: int = 4  # the first is multiplied while the others are copied; estimated
    # Panels in the ring of the streamed operand: one is multiplied, one is prefetched, one is copied; reasoned.
    least_streamed_panels: int = field(default=3, metadata={"most": 64})
    half_tile_cost: float = 1 / 8  # relative extra time for each halving of tiles to fit into memory; estimated
    # Below this size of B, opening CUDA IPC handles costs more than an H2D copy of all of B on every rank; estimated.
    least_exchange_bytes: int = 8 * MiB
    # Multiply-adds of a CPU tile, after which progress is shown, and for which BLAS packs B again; estimated: seconds.
    cpu_tile_work: int = 30_000_000_000
    # Rows of a CPU tile: with 1200 instead of 2400 BLAS took 2 % longer, with 300 20 %; measured on 2 cores of an EPYC.
    least_cpu_panel_rows: int = 2000
    most_cpu_row_panels: int = 512  # estimated
    # The next seven decide between CPU, one GPU and several. From cubes of 64 to 8000 on one and two H200 and on 16 and 32 cores
    # of their hosts, without a recorded line.
    core_multiply_adds_per_second: float = 17e9  # of a CPU core with BLAS in float64; float32 doubles it
    core_edge: int = 36  # BLAS keeps at most E / core_edge cores busy, with E the edge of a cube of as many multiply-adds
    # For a product and its check in a CPU's memory, and for copies through staging buffers to any number of GPUs.
    cpu_bytes_per_second: float = 35e9
    # Fixed time of a checked product of host arrays, on a CPU and on a GPU.
    cpu_call_seconds: float = 0.9e-3
    gpu_call_seconds: float = 1.0e-3
    hidden_share: float = 2 / 3  # the longest of H2D copies, kernels and D2H copies hides this share of the other two
    joining_seconds: float = 3.5e-3  # fixed time for several ranks to share a product of the root's arrays on their GPUs
    # Of a node's network link; estimated: 200 Gbit/s; the doctor measures it in a job of several nodes.
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
        """Pickle the default by name: ranks exchange their models before each product, and most are the default."""
        return "H200" if self is H200 else (MachineModel, tuple(vars(self).values()))

    def multiply_adds_per_byte(self, dtype: str) -> float:
        """The machine balance of a roofline with the link in place of memory, for operands of this dtype."""
        known = {"float64": self.float64_multiply_adds_per_byte, "float32": self.float32_multiply_adds_per_byte}
        return known.get(dtype, self.half_multiply_adds_per_byte)

    def blas_seconds(self, problem: Problem, threads: int) -> float:
        """Time of BLAS with these threads for matrices in host memory."""
        multiply_adds = problem.n * problem.l * problem.m
        cores = min(threads, max(1.0, multiply_adds ** (1 / 3) / self.core_edge))
        return multiply_adds * problem.item_size / 8 / (self.core_multiply_adds_per_second * cores)

    def cpu_seconds(self, problem: Problem, threads: int) -> float:
        """Time of a CPU with these threads to multiply matrices in host memory and check the product."""
        in_memory = problem.bytes_of_matrices / self.cpu_bytes_per_second
        return self.cpu_call_seconds + self.blas_seconds(problem, threads) + in_memory

    def cpus_seconds(self, problem: Problem, threads: int) -> float:
        """Time of several ranks' CPUs, with these threads in all, to multiply one rank's matrices."""
        sent = problem.bytes_of_matrices / self.network_bytes_per_second
        return self.joining_seconds + self.cpu_seconds(problem, threads) + sent

    def gpu_seconds(self, problem: Problem, ranks: int, *, through_slots: int) -> float:
        """Time of ranks with one GPU each to multiply matrices in host memory. `through_slots`: bytes copied from or to unpinned
        memory through staging buffers."""
        brought = problem.bytes(problem.n, problem.m)
        worked = problem.n * problem.l * problem.m / self.multiply_adds_per_byte(problem.dtype)
        as_bytes = problem.bytes_of_matrices - brought, worked, brought
        longest, others = max(as_bytes), sum(as_bytes) - max(as_bytes)
        seconds = (longest + (1 - self.hidden_share) * others) / self.link_bytes_per_second
        seconds = max(seconds / ranks, through_slots / self.cpu_bytes_per_second)
        return self.gpu_call_seconds + seconds + (self.joining_seconds if ranks > 1 else 0.0)

    @classmethod
    def read(cls, path: str) -> MachineModel:
        """The model in a file; H200 for "". The file is a JSON object with some of this class's fields, the rest being H200's; or
        the doctor's JSON lines, whose last model is used. UsageError, in one line, for any other file."""
        if not path:
            return H200
        import json  # rarely needed

        try:
            if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe might block forever
                raise UsageError("it is no regular file")
            text = Path(path).read_bytes().decode()
            try:
                records = [json.loads(text)]
            except json.JSONDecodeError:  # perhaps JSON lines
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
