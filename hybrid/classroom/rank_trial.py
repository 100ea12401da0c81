# SPDX-License-Identifier: MIT
"""What mpirun starts to try a student's multiply(comm, a, b, product): each rank is one process of it.

    python -m hybrid.classroom.rank_trial FILE.py RESULTS SEED N,L,M ...

Rank 0 writes a JSON line for each shape to RESULTS.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hybrid.ranks.world import all_processes, leave


def main(file: str, results: str, seed: str, *shapes: str) -> None:
    comm = all_processes()
    multiply = runpy.run_path(file).get("multiply")
    if not callable(multiply):
        raise AttributeError(f"{file} has no function multiply(comm, a, b, product)")
    own = comm.Dup()  # so that what the student's collective calls leave over is not taken for ours
    for shape in shapes:
        sizes = [int(size) for size in shape.split(",")]
        outcome = _tried(multiply, comm, own, sizes, np.random.default_rng(int(seed)))
        if comm.rank == 0:
            with Path(results).open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(outcome) + "\n")


def _tried(multiply: Callable[..., Any], comm: Any, own: Any, sizes: list[int], rng: np.random.Generator) -> dict[str, Any]:
    """Whole numbers, so that any right sum is exact."""
    n, l, m = sizes
    a, b = rng.integers(-9, 10, (n, l)).astype(float), rng.integers(-9, 10, (l, m)).astype(float)
    multiplied: list[int] = []

    def product(rows: Any, right: Any) -> Any:
        multiplied.append(len(rows))
        return np.asarray(rows) @ np.asarray(right)

    given = (a.copy(), b.copy()) if comm.rank == 0 else (None, None)
    c = multiply(comm, *given, product)
    rows = own.gather(sum(multiplied))
    return {"sizes": sizes, "rows": rows, "why": _fault(c, a @ b) if comm.rank == 0 else ""}


def _fault(c: Any, expected: np.ndarray) -> str:
    """What is wrong with C at rank 0, if anything."""
    if c is None:
        return "rank 0 returns None"
    got = np.asarray(c)
    if got.shape != expected.shape:
        return f"C is {'×'.join(map(str, got.shape)) or 'a number'}, and should be {'×'.join(map(str, expected.shape))}"
    wrong = np.argwhere(got != expected)
    return f"{len(wrong)} of {got.size} elements are wrong, the first is C[{wrong[0][0]}][{wrong[0][1]}]" if len(wrong) else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
