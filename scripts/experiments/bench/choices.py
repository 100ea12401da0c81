# SPDX-License-Identifier: MIT
"""Does `hybrid.multiply` choose the fastest device and number of GPUs? A table of shapes: the program that
`bench_hosts.py --choices SECONDS` runs with a rank for each GPU.

For each shape, of rank 0's private arrays and of shared ones, each with `out`: milliseconds of rank 0's CPU and GPU alone, of
2, 4 ... GPUs, and of the default call. A model that is wrong in favour of a choice has it taken. Beside them stand the forecasts
of the true model. A row is right where the default call takes at most 1.1 times as long as the fastest choice (and 50 µs).
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

import hybrid
from hybrid.core.problem import Problem
from hybrid.host.threads import usable_cores
from hybrid.planning.machine_model import H200

CUBES = (96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3000, 4000, 6000, 8000, 12000, 16000)
THIN = ((8000, 800, 8000), (800, 8000, 800), (20000, 256, 256), (4096, 64, 4096), (8000, 8000, 8))
SINGLE = (256, 1024, 2048, 4000, 8000, 16000)  # in float32
TABLE = [
    *((n, n, n, "float64") for n in CUBES),
    *((*shape, "float64") for shape in THIN),
    *((n, n, n, "float32") for n in SINGLE),
]
LONGEST = 0.3  # seconds: the CPU is not measured where it is expected to take longer
TOLERANCE, LEAST = 1.1, 5e-5
# Calls of a choice, in each of two turns. Memory is staged when it is first seen and pinned the second time; then a product is
# set up for it.
WARM_UP, MOST = 4, 9
COMPILED = 4096  # rows of products that load or compile all kernels of a type first


def rows(comm: Any, models: str, seconds: float, device: str, divisor: int) -> Iterator[dict[str, Any]]:
    """The table's rows, at rank 0, as long as there is time. `seconds`: of measuring, for each row at most."""
    counts = [1 << k for k in range(1, comm.size.bit_length()) if 1 << k <= comm.size]
    teams = {count: comm if count == comm.size else comm.Split(0 if comm.rank < count else 1, comm.rank) for count in counts}
    for dtype in ("float64", "float32"):
        a, b, c = (_array(comm, (COMPILED // divisor,) * 2, dtype, shared=True) for _ in "abc")
        for name in ("1", str(comm.size)):
            with model_for(name, models):
                hybrid.multiply(a, b, out=c, comm=comm, device=device)
    del a, b, c
    for n, l, m, dtype in sorted(TABLE, key=lambda each: each[0] * each[1] * each[2]):
        shape = tuple(max(1, each // divisor) for each in (n, l, m))
        for shared in (False, True):
            yield _row(comm, teams, models, (*shape, dtype), shared, seconds, device)


def _row(
    comm: Any, teams: dict[int, Any], models: str, problem: tuple[int, int, int, str], shared: bool, seconds: float, device: str
) -> dict[str, Any]:
    n, l, m, dtype = problem
    of, cores = Problem(n, l, m, dtype), len(usable_cores()) // comm.size or 1
    a, b, c = (_array(comm, shape, dtype, shared) for shape in ((n, l), (l, m), (n, m)))
    forecasts = {"cpu": H200.cpu_seconds(of, cores), "1": H200.gpu_seconds(of, 1)}
    forecasts |= {str(count): H200.gpu_seconds(of, count) for count in teams}
    chosen = [name for name in forecasts if name != "cpu" or forecasts[name] < LONGEST]
    if shared:  # arrays of `comm` are private ones to others
        chosen = [name for name in chosen if name in ("cpu", "1", str(comm.size))]
    chosen.append("auto")
    alone, times = comm.rank == 0, {name: [] for name in chosen}
    for name in chosen + chosen[::-1]:
        team = teams.get(int(name), comm) if name.isdecimal() else comm
        how = {} if name in ("auto", "cpu") else {"device": device}
        with model_for(name, models):
            for turn in range(WARM_UP + MOST):
                if turn == WARM_UP:
                    began = time.perf_counter()
                if comm.bcast(turn > WARM_UP + 1 and time.perf_counter() - began > seconds / len(chosen) / 2):
                    break
                comm.Barrier()
                start = time.perf_counter()
                if comm.rank < team.size:
                    hybrid.multiply(a, b, out=c, comm=team, **how)
                if turn >= WARM_UP:
                    times[name].append(time.perf_counter() - start)
    took = _taken(hybrid.plan(a, b, comm=comm).explain())
    measured = {name: statistics.median(each) for name, each in times.items()}
    if alone:
        _refuse_wrong(a, b, c)
    choices = {name: each for name, each in measured.items() if name != "auto"}
    best = min(choices, key=choices.__getitem__)
    right = measured["auto"] <= TOLERANCE * choices[best] + LEAST
    return {
        "shape": f"{n}" if n == l == m else f"{n}×{l}×{m}", "dtype": dtype, "memory": "shared" if shared else "private",
        "forecast_ms": _in_ms(forecasts), "ms": _in_ms(measured), "took": took, "best": best, "right": right,
        "ratio": round(measured["auto"] / choices[best], 2),
    }  # fmt: skip


@contextmanager
def model_for(choice: str, models: str) -> Iterator[None]:
    """A context in which the machine model has products computed so: "cpu", by a number of GPUs, or "auto"."""
    before = os.environ.get("HYBRID_MACHINE", "")
    if choice != "auto":
        os.environ["HYBRID_MACHINE"] = os.path.join(models, choice if choice in ("cpu", "1") else "more")
    yield
    os.environ["HYBRID_MACHINE"] = before


def _write_models(folder: str) -> None:
    """A file for each choice, in which the machine model is so wrong that this choice seems best."""
    for name in ("cpu", "1", "more"):
        forced = {"joining_seconds": 1e-6 if name == "more" else 1e9, "cpu_call_seconds": 1e-6 if name == "cpu" else 1e9}
        if name == "cpu":
            forced |= {"core_multiply_adds_per_second": 1e18, "cpu_bytes_per_second": 1e18}
        with open(os.path.join(folder, name), "w") as file:
            json.dump({**vars(H200), **forced}, file)


def _array(comm: Any, shape: tuple[int, int], dtype: str, shared: bool) -> np.ndarray | None:
    """A matrix whose rows are like each other: making random ones takes longer than multiplying them."""
    here = comm.rank == 0
    made = hybrid.empty(shape, dtype, comm=comm) if shared else np.empty(shape, dtype) if here else None
    if here and made is not None:
        made[:] = np.random.default_rng(shape).standard_normal(shape[1])
        made *= np.random.default_rng(1).standard_normal((shape[0], 1))
    return made


def _refuse_wrong(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    row, eps = len(a) // 2, np.finfo(c.dtype).eps
    exact = a[row].astype(np.longdouble) @ b[:, :64].astype(np.longdouble)
    room = 4 * len(b) * eps * (abs(a[row]).astype(float) @ abs(b[:, :64]).astype(float))
    if not (abs(c[row, :64] - exact) <= room).all():
        raise SystemExit(f"a product of {a.shape} and {b.shape} is wrong")


def _taken(explained: str) -> str:
    """What the default call takes: "cpu", or the number of GPUs."""
    lines = explained.splitlines()
    cpu = any(line.startswith("kernel ") and " on cpu" in line for line in lines)
    ranks = sum(": rows " in line for line in lines)
    return ("cpu" if ranks == 1 else f"cpu, {ranks} ranks") if cpu else str(ranks)


def _in_ms(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(1e3 * each, 3) for name, each in seconds.items()}


def _text(row: dict[str, Any]) -> str:
    columns = [f"{row['forecast_ms'][name]:.4g}|{row['ms'].get(name, float('nan')):.4g}" for name in row["forecast_ms"]]
    mark = "" if row["right"] else f"  WRONG: {row['best']} × {row['ratio']}"
    where = f"{row['memory'][:4]} {row['dtype'][-2:]} {row['shape']:14}"
    return f"{where} {' '.join(f'{each:>13}' for each in columns)} {row['ms']['auto']:8.4g} took {row['took']}{mark}"


def main(seconds: float, path: str = "", device: str = "cuda", divisor: int = 1) -> None:
    comm, found = MPI.COMM_WORLD, []
    with tempfile.TemporaryDirectory() as folder:
        if comm.rank == 0:
            _write_models(folder)
        began, models = time.perf_counter(), comm.bcast(folder)
        for row in rows(comm, models, 0.5 * seconds / (2 * len(TABLE)), device, divisor):
            if comm.rank == 0:
                found.append(row)
                print(_text(row), flush=True)
            if comm.bcast(time.perf_counter() - began) > seconds:
                break
    if comm.rank == 0:
        right = sum(row["right"] for row in found)
        if path:
            with open(path, "w") as file:
                about = {"gpus": comm.size, "cores": len(usable_cores()), "right": right, "of": len(found)}
                json.dump({**about, "rows": found}, file)
        print(f"{right} of {len(found)} right", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:5]))
