# SPDX-License-Identifier: MIT
"""A benchmark by name: python scripts/bench.py CASE [OPTION...]

Without a case, lists them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import hybrid
from experiments.common import frame
from experiments.start import main_of
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError, UsageError
from hybrid.host.threads import usable_cores
from hybrid.planning.machine_model import MachineModel
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

CASES = {  # a module of this folder and its function, and what it measures
    "hosts": ("hosts:main", "from host memory to host memory, beside the program one writes by hand"),
    "check": ("products:check", "what the check of a product costs"),
    "precision": ("products:precision", "products from remainders beside cuBLAS"),
    "types": ("products:types", "complex numbers and integers beside the library's matmul"),
    "cpu": ("commands:cpu", "on CPUs beside NumPy"),
    "nodes": ("nodes:main", "between nodes beside MPI_Allgatherv and ScaLAPACK"),
    "scaling": ("commands:scaling", "runs on more and more nodes"),
    "ablation": ("commands:ablation", "what each mechanism is worth"),
    "accuracy": ("errors:accuracy", "errors of products in every arithmetic"),
    "detection": ("errors:detection", "which faults the check finds"),
}


def main() -> int:
    case, *words = sys.argv[1:] or [""]
    if case in CASES:
        sys.argv = [f"{sys.argv[0]} {case}", *words]
        return main_of(f"bench.{CASES[case][0]}")()
    named = frame.option("case", nargs="?", choices=tuple(CASES), metavar="CASE", help=", ".join(CASES))
    return frame.command(frame.parser_of(__doc__, named), _list)


def _list(_: argparse.Namespace) -> int:
    print(*(f"{name:<11}{about}" for name, (_, about) in CASES.items()), sep="\n")
    return 0


def matmul(ranks: int, n: int, *options: str, environment: Mapping[str, str] | None = None) -> frame.Line:
    """The record of `mpirun -n RANKS python -m hybrid.matmul n n n`."""
    words = [*mpirun(ranks), sys.executable, "-m", "hybrid.matmul", *[str(n)] * 3, *options]
    lines, failure = frame.ran(words, environment=environment)
    if failure:
        raise HybridError(f"{ranks} ranks failed: {failure}")
    return lines[0]


# --- scaling

_SCALING = """How does a product scale to many nodes? python scripts/bench.py scaling LINES.jsonl

For runs of hybrid.matmul on several numbers of nodes, whose JSON lines slurm/scaling.sbatch collects: the seconds of the same
product (strong scaling), and of products with the same operations per node (weak scaling). The run on the fewest nodes is the
reference of both.
"""


def _scaled(options: argparse.Namespace) -> int:
    lines = [line for line in jsonl.read(options.lines) if line.get("command") == "matmul"]
    if not lines:
        raise UsageError(f"{options.lines} has no lines of hybrid.matmul")
    lines.sort(key=lambda line: line["nodes"])
    strong = [line for line in lines if line["n"] == lines[0]["n"]]
    scalings = {"strong": strong, "weak": [lines[0], *(line for line in lines if line not in strong)]}
    first = lines[0]["rate"] / lines[0]["nodes"]
    rows = [
        [name, str(line["nodes"]), str(line["n"]), f"{line['total']['median']:.3f}", f"{line['rate'] / 1e9:.1f}",
         f"{line['rate'] / line['nodes'] / first:.2f}"]
        for name, runs in scalings.items()
        for line in runs
    ]  # fmt: skip
    heads = ["scaling", "nodes", "n", "seconds", "GF/s", "of the first, a node"]
    print(*frame.printed([frame.Table(heads, "lrrrrr", rows)]), sep="\n")
    return 0


def scaling() -> int:
    lines = frame.option("lines", metavar="LINES", help="JSON lines of hybrid.matmul")
    return frame.command(frame.parser_of(_SCALING, lines), _scaled)


# --- ablation

_ABLATION = """What is each mechanism worth? python scripts/bench.py ablation [--gpus 1 2] [--sizes 8000 16000] [--json FILE]

hybrid.matmul with one rank for each GPU, random numbers in float64, not verified, with and without each mechanism in turns:

  k-slabs, not column panels      whole rows of B cross the link
  several column panels           where B comes in column panels
  several interleaved row panels  arrive in turn with the k-slabs, instead of one
  peers fetch B                   from each other's GPUs, instead of over every rank's link

The ratio is the time without the mechanism over the time with it, the median over the rounds. `--device emulate` or `cpu` runs it
anywhere with small matrices, as a test; HYBRID_MACHINE=FILE gives the machine model in which mechanisms are switched.
"""
_NO_SLABS, _PEERS = {"least_slab_rows": 1 << 40}, "peers fetch B"
# Fields of the machine model with and without each mechanism; --transport switches the last.
MECHANISMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "k-slabs, not column panels": ({}, _NO_SLABS),
    "several column panels (no slabs)": (_NO_SLABS, {**_NO_SLABS, "most_column_panels": 1}),
    "several interleaved row panels": ({}, {"adding_speed": 1e-6}),
    _PEERS: ({}, {}),
}


class Ablation(frame.MachineResults):
    command, again = "ablation", "python scripts/bench.py ablation"

    def blocks(self) -> Iterator[frame.Table]:
        rows = []
        for line in (line for line in self.lines if line["mechanism"] in MECHANISMS and line.get("ratio")):
            times = [f"{1e3 * line[key]['median']:.3f}" for key in ("with", "without")]
            ratio = "{median:.3f} ({min:.3f} to {max:.3f})".format(**line["ratio"])
            rows.append([str(line["gpus"]), str(line["n"]), line["mechanism"], *times, ratio])
        yield frame.Table(["GPUs", "n", "mechanism", "with, ms", "without, ms", "ratio (least to most)"], "rrlrrl", rows)


def _ablated(options: argparse.Namespace) -> Iterator[frame.Line]:
    gpu = usable_gpus()[0].name if options.device == "cuda" else None
    about = {"part": "ablation", "device": options.device, "gpu": gpu, "dtype": "float64", "repeat": options.repeat}
    cases = [(gpus, n, mechanism) for gpus in options.gpus for n in options.sizes for mechanism in MECHANISMS]
    for gpus, n, name in frame.shown(cases, "cases"):
        if name == _PEERS and (gpus == 1 or options.device != "cuda"):
            continue  # there are no peers
        ways = zip(("with", "without"), MECHANISMS[name], ("auto", "host" if name == _PEERS else "auto"), strict=True)
        works = {way: partial(_seconds, options, gpus, n, model, transport) for way, model, transport in ways}
        times = frame.in_turns(works, options.rounds)
        times["ratio"] = [without / having for having, without in zip(times["with"], times["without"], strict=True)]
        spreads = {key: frame.spread(each) for key, each in times.items()}
        yield {**about, "gpus": gpus, "n": n, "mechanism": name, **spreads, "rounds": options.rounds}


def _seconds(options: argparse.Namespace, gpus: int, n: int, model: dict[str, Any], transport: str) -> float:
    """The median seconds of a product in one start."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(vars(replace(MachineModel.read(os.environ.get("HYBRID_MACHINE", "")), **model)), file)
        file.flush()
        staged = {"HYBRID_STAGED": "1"} if options.device == "cpu" else {}
        how = ["--fill", "uniform", "--no-check", "--device", options.device, "--transport", transport]
        how += ["--repeat", str(options.repeat), "--warmup", "1"]
        line = matmul(gpus, n, *how, environment={"HYBRID_MACHINE": file.name, **staged})
    return float(line["total"]["median"])


ablation = frame.experiment(
    _ABLATION, Ablation, _ablated,
    frame.option("--gpus", nargs="+", type=frame.positive, default=[1], metavar="P", help="one rank for each (1)"),
    frame.option("--sizes", nargs="+", type=frame.positive, default=[8000], metavar="N", help="square matrices (8000)"),
    frame.option("--rounds", type=frame.positive, default=7, help="each round starts everything once (7)"),
    frame.option("--repeat", type=frame.positive, default=2, help="products timed in each start, after a warm-up (2)"),
    frame.option("--device", choices=("cuda", "cpu", "emulate"), default="cuda", help="of all programs (cuda)"),
)  # fmt: skip


# --- on CPUs

_CPU = """Is the runner as fast on CPUs as NumPy alone? python scripts/bench.py cpu [n] [--pairs 5] [--calls SECONDS]

In turn: a process that multiplies n×n matrices with NumPy and as many BLAS threads as there are ranks, and
`mpirun -n 2 python -m hybrid.matmul n n n`. Prints the medians, what the check takes, what the job spends around the
multiplication, and last `ratio R`: NumPy's time over ours.

With --calls a table of small and thin products, and of programs that call `multiply` again and again: each row runs for
SECONDS beside the same by hand, in turns.
"""
_NUMPY = """\
import sys, time, numpy
n = int(sys.argv[1])
rng = numpy.random.default_rng(0)
a, b = rng.random((n, n), sys.argv[2]), rng.random((n, n), sys.argv[2])
a[:256, :256] @ b[:256, :256]
began = time.perf_counter()
a @ b
print(time.perf_counter() - began)
"""
# Small and thin products: both sides of a row take turns, with new results each time.
THIN = ((1000, 64, 1500), (300, 200, 100), (64, 64, 64))
ROOT_SIZE, OF_ROWS = 3000, 4000
REST = 0.2  # seconds of a rest, and of a side's turn


def alone(seconds: float) -> None:
    """In one process, beside NumPy with as many BLAS threads as ours. BLAS threads spin for a tenth of a second after each
    product, so sides change after a rest."""
    random = np.random.default_rng(0)
    for n, l, m in THIN:
        a, b = random.random((n, l)), random.random((l, m))
        with threadpool_limits(len(usable_cores())):
            row(f"{n}×{l}×{m}", partial(np.matmul, a, b), partial(hybrid.multiply, a, b), seconds)
    a, b, c = (random.random((64, 64)) for _ in range(3))
    row("64×64 of slices", lambda: a[:, 1:] @ b[1:], lambda: hybrid.multiply(a[:, 1:], b[1:]), seconds)
    row("64×64, 2·a·b + 3·c", lambda: 2 * (a @ b) + 3 * c, partial(hybrid.multiply, a, b, c, alpha=2, beta=3), seconds)
    for dtype in ("complex128", "float16", "int32"):
        first, second = ((9 * each).astype(dtype) for each in (a, b))
        row(f"64×64 of {dtype}", partial(np.matmul, first, second), partial(hybrid.multiply, first, second), seconds)


def by_ranks(seconds: float) -> None:
    """On all ranks, beside mpi4py's collectives and NumPy, with one BLAS thread in each rank."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    random = np.random.default_rng(comm.rank)

    n = ROOT_SIZE - ROOT_SIZE % comm.size
    a, b, out = (random.random((n, n)) if comm.rank == 0 else None for _ in range(3))

    def scatter_and_gather() -> None:
        rows, right = np.empty((n // comm.size, n)), np.empty((n, n)) if b is None else b
        comm.Scatter(a, rows)
        comm.Bcast(right)
        comm.Gather(rows @ right, out)

    height = OF_ROWS // comm.size
    rows, x = (hybrid.RowBlock(random.random((height, width)), comm=comm) for width in (OF_ROWS, 1))

    def norm(y: np.ndarray) -> float:
        square, total = np.square(y).sum(keepdims=True), np.empty((1, 1))
        comm.Allreduce(square, total)
        return float(total[0, 0]) ** 0.5

    def step_by_hand() -> np.ndarray:
        whole = np.empty((OF_ROWS, 1))
        comm.Allgather(x.array, whole)
        y = rows.array @ whole
        return y / norm(y)

    def step() -> hybrid.RowBlock:
        y = rows @ x
        return y / norm(y.array)

    by_root = partial(hybrid.multiply, a, b, comm=comm, out=out)
    with threadpool_limits(1):
        row(f"rank 0's arrays, N = {n} with out", scatter_and_gather, by_root, seconds, comm)
        row(f"power method, {OF_ROWS}, RowBlocks", step_by_hand, step, seconds, comm)


def row(name: str, by_hand: Callable[[], object], ours: Callable[[], object], seconds: float, comm: Any = None) -> None:
    """Measure one row for `seconds`, and print it at rank 0."""
    times: list[list[float]] = [[], []]

    def all_go_on(goes_on: bool = True) -> bool:
        """A barrier that broadcasts rank 0's value."""
        return bool(goes_on if comm is None else comm.bcast(goes_on))

    for call in (by_hand, ours) * 3:
        call()
    began = time.perf_counter()
    while all_go_on(time.perf_counter() - began < seconds):
        for side, call in zip(times, (by_hand, ours), strict=True):
            all_go_on()
            if comm is None:
                time.sleep(REST)
            turn = time.perf_counter()
            side.append(frame.seconds_of(call))
            while comm is None and time.perf_counter() - turn < REST:
                side.append(frame.seconds_of(call))
    if comm is None or comm.rank == 0:
        hand, our = (1e3 * statistics.median(side) for side in times)
        print(f"| {name} | {hand:.3f} | {our:.3f} | {our / hand:.2f} |", flush=True)


def _beside_numpy(options: argparse.Namespace) -> int:
    n, ranks, dtype = options.n, options.ranks, options.dtype
    if options.calls:
        print("| | by hand, ms | ours, ms | ratio |\n| --- | ---: | ---: | ---: |", flush=True)
        program = "from experiments.bench.commands import {0}; {0}({1})"
        words = [
            [*before, sys.executable, "-c", program.format(name, options.calls)]
            for before, name in (([], "alone"), (mpirun(ranks), "by_ranks"))
        ]
        return max(subprocess.run(each, check=False).returncode for each in words)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(ranks), "MKL_NUM_THREADS": str(ranks)}
    by_numpy = [sys.executable, "-c", _NUMPY, str(n), dtype]
    names = f"numpy alone, {ranks} threads", f"multiply by {ranks} ranks", "check", "around the multiplication"
    times: list[list[float]] = [[], [], [], []]
    for _ in frame.shown(range(options.pairs), "pairs"):
        numpy = float(subprocess.run(by_numpy, capture_output=True, text=True, check=True, env=environment).stdout)
        began = time.perf_counter()
        phases = matmul(ranks, n, "--fill", "uniform", "--device", "cpu", "--dtype", dtype)["seconds"]
        multiply, check = (phases[phase]["median"] for phase in ("multiply", "check"))
        for of, seconds in zip(times, (numpy, multiply, check, time.perf_counter() - began - multiply), strict=True):
            of.append(seconds)
    for name, each in zip(names, times, strict=True):
        print(f"{name:27} {statistics.median(each):8.3f} s  ({min(each):.3f} to {max(each):.3f})")
    numpy, multiply, check, _ = map(statistics.median, times)
    print(f"with its check              {1 + check / multiply:8.3f} × the multiplication\nratio {numpy / multiply:.3f}")
    return 0


def cpu() -> int:
    parser = frame.parser_of(
        _CPU,
        frame.option("n", nargs="?", type=frame.positive, default=8000),
        frame.option("--pairs", type=frame.positive, default=5),
        frame.option("--ranks", type=frame.positive, default=2, help="ranks of ours and threads of NumPy's (2)"),
        frame.option("--calls", type=float, metavar="SECONDS", help="of each row of a table of small and thin products"),
        frame.option("--dtype", choices=tuple(ITEM_SIZES), default="float64"),
    )
    return frame.command(parser, _beside_numpy)
