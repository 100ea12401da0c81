# SPDX-License-Identifier: MIT
"""Calls a student's multiply(comm, a, b, product) on all ranks. mpirun starts one of these processes for each:

    python -m hybrid.classroom.rank_trial FILE.py RESULTS SEED N,L,M ...

Rank 0 writes a JSON line for each shape to RESULTS: C, and how many rows each rank has multiplied. Whether C is right is found
out by the process that reads the lines.
"""

from __future__ import annotations

import json
import resource
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.classroom.elements import encoded, operands
from hybrid.emulation.confined import LARGEST_FILE
from hybrid.ranks.mpi import all_processes, leave

DTYPE = "float64"


def main(file: str, results: str, seed: str, *shapes: str) -> None:
    comm = all_processes()
    # Only after MPI has started, since the memory that its ranks share is a larger file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    multiply = runpy.run_path(file).get("multiply")
    if not callable(multiply):
        raise AttributeError(f"{Path(file).name} has no function multiply(comm, a, b, product)")
    own = comm.Dup()  # so that what the student's collective calls leave over is not taken for ours
    for shape in shapes:
        sizes = tuple(map(int, shape.split(",")))
        outcome = _tried(multiply, comm, own, sizes, int(seed))
        if comm.rank == 0:
            with Path(results).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(outcome) + "\n")


def _tried(multiply: Callable[..., Any], comm: Any, own: Any, sizes: tuple[int, ...], seed: int) -> dict[str, Any]:
    given = operands(sizes, DTYPE, seed)[:2] if comm.rank == 0 else (None, None)
    multiplied: list[int] = []

    def product(rows: Any, right: Any) -> Any:
        multiplied.append(len(rows))
        return np.asarray(rows) @ np.asarray(right)

    c = multiply(comm, *given, product)
    outcome = {"sizes": sizes, "rows": own.gather(sum(multiplied)), "shape": None, "c": ""}
    if comm.rank == 0 and c is not None:
        got = np.asarray(c, DTYPE)
        outcome["shape"] = got.shape
        if got.shape == (sizes[0], sizes[2]):  # of a C of another shape only the shape is told
            outcome["c"] = encoded(got)
    return outcome


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
