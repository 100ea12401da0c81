"""Several devices at one product: from one process, one device set after the other, and from as many ranks of the runner."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lecture_places import EmulatedPlace, GpuPlace, Place
from lecture_timing import kernel_of, refuse_wrong
from told import last_error

from hybrid.core.spans import block
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError
from hybrid.host.memory import available_host_bytes
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

PRETENDED = 2  # devices that a CPU stands for


def places_like(place: Place) -> list[Place]:
    """All GPUs of this machine, or where there is none some that the CPU stands for."""
    if place.device == "cuda":
        return [GpuPlace(gpu) for gpu in usable_gpus()]
    return [EmulatedPlace(available_host_bytes()) for _ in range(PRETENDED)]


def counts_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({*(2**power for power in range(most.bit_length()) if 2**power <= most), most})


def by_one_process(places: Sequence[Place], kernel: str, a: np.ndarray, b: np.ndarray, repeat: int) -> list[float]:
    """Seconds from the first launch until every device is done. Each has B and its share of A's rows, and makes those of C."""
    c = np.full((len(a), b.shape[1]), np.nan, a.dtype)
    spans = [block(len(a), len(places), index).slice for index in range(len(places))]
    try:
        operands: list[tuple[Any, Any, Any]] = []
        for place, rows in zip(places, spans, strict=True):
            shapes = (a[rows].shape, b.shape, c[rows].shape)
            on_a, on_b, on_c = (place.allocate(height, width, a.dtype.name) for height, width in shapes)
            place.copy(on_a, a[rows])
            place.copy(on_b, b)
            place.poison(on_c)
            operands.append((on_a, on_b, on_c))

        def once() -> float:
            began = time.perf_counter()
            for place, (on_a, on_b, on_c) in zip(places, operands, strict=True):
                place.launch(kernel_of(kernel), on_a, on_b, on_c)
            for place in places:
                place.synchronize()
            return time.perf_counter() - began

        first = once()
        for place, rows, (_, _, on_c) in zip(places, spans, operands, strict=True):
            place.copy(c[rows], on_c)
        refuse_wrong(f"{kernel} on {len(places)} devices", a, b, c)
        return [once() for _ in range(repeat)] if places[0].device == "cuda" else [first]
    finally:
        for place in places:
            place.release()


def by_ranks(ranks: int, device: str, kernel: str, n: int, repeat: int) -> dict[str, Any]:
    """The runner's own line of n×n float64 matrices on so many ranks, a device each."""
    with tempfile.TemporaryDirectory() as folder:
        line = Path(folder) / "run.jsonl"
        what = ["--device", device, "--kernel", kernel, "--fill", "uniform", "--repeat", str(repeat), "--json", str(line)]
        words = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3, *what]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HybridError(f"{ranks} ranks failed: {last_error(done.stderr, done.stdout)}")
        (run,) = jsonl.read(str(line))
        return run
