# SPDX-License-Identifier: MIT
"""Is the runner as fast as the network between nodes? python scripts/bench.py nodes [--nodes 2 4] [--rate 1gbit] [--json FILE]

Network namespaces stand for nodes, joined by links of that rate, with one rank on each, or --ranks. In turn run our programs,
whose products are checked, the simplest ones of mpi4py and NumPy (MPI_Allgatherv of B, a product, and MPI_Gatherv of C), and
ScaLAPACK's pdgemm, where it is installed. All on CPUs, one thread a rank. Either operands are made where they are needed and C is
gathered at rank 0; or operands lie on all ranks, in blocks of rows (pdgemm: block-cyclically), and C stays there. Beside the
seconds of a product stands what the busiest node received, by its interface's counter. As root.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from experiments.bench.network import Network, why_not
from experiments.common import frame
from experiments.start import ROOT, SCRIPTS
from hybrid.core.problem import block
from hybrid.emulation.build import c_compiler
from hybrid.errors import DeviceUnavailable, HybridError

Sizes = tuple[int, int, int]
Program = Callable[[Network, Sizes], float]  # its seconds
SHAPES: dict[str, Sizes] = {
    "square": (4000, 4000, 4000),
    "long sums": (500, 20000, 500),
    "many rows": (20000, 500, 500),
    "many columns": (500, 500, 20000),
}
OURS, ALLGATHER = "ours, checked", "Allgatherv"
OURS_STAYS, ALLGATHER_STAYS = f"{OURS}, C stays", f"{ALLGATHER}, C stays"
OURS_2D, PDGEMM = f"{OURS}, 2-D blocks, C stays", "pdgemm, C stays"
_HERE = Path(__file__).parent
_LIMIT = 300.0  # seconds that a run may take
_BLOCKS = (64, 128, 256)  # rows and columns of pdgemm's blocks that are tried


class Results(frame.Results):
    command, again = "bench_nodes", "python scripts/bench.py nodes"

    def blocks(self) -> Iterator[frame.Table]:
        rows = []
        for line in self.lines:
            several = f" of {line['ranks_per_node']} ranks" if line["ranks_per_node"] > 1 else ""
            shape = f"{line['shape']}, {'×'.join(map(str, line['sizes']))}"
            about = [f"{line['nodes']}{several}", line["rate"] or "no limit", shape, line["program"]]
            rows.append([*about, f"{line['seconds']['median']:.2f}", f"{line['received'] / 1e6:.0f} MB"])
        yield frame.Table(("nodes", "links", "shape", "program", "seconds", "busiest node received"), "llllrr", rows)


def _grid_of(processes: int) -> tuple[int, int]:
    """The one nearest to a square."""
    rows = max(divisor for divisor in range(1, math.isqrt(processes) + 1) if processes % divisor == 0)
    return rows, processes // rows


def _measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    if reason := why_not():
        raise DeviceUnavailable(f"namespaces cannot stand for nodes here: {reason}")
    import mpi4py

    mpi4py.rc.initialize = False  # every line says which MPI it is, but this process is no rank
    import mpi4py.MPI

    programs: dict[str, Program] = {
        OURS: _ours,
        ALLGATHER: partial(_python, "allgather"),
        OURS_STAYS: partial(_python, "rows"),
        OURS_2D: partial(_python, "blocks"),
        ALLGATHER_STAYS: partial(_python, "stays"),
    }
    with tempfile.TemporaryDirectory(prefix=f"hybrid-pdgemm-{os.getpid()}-") as folder:
        try:
            built = _pdgemm_in(Path(folder))
            programs |= {f"{PDGEMM}, blocks of {size}": partial(_pdgemm, built, size) for size in _BLOCKS}
        except HybridError as missing:
            print(f"bench_nodes: {missing}: it is not measured", file=sys.stderr)
        for nodes in options.nodes:
            with Network(nodes, options.rate, options.ranks) as network:
                for shape in options.shapes:
                    yield from _compared(network, shape, programs, options)


def _compared(network: Network, shape: str, programs: Mapping[str, Program], options: argparse.Namespace) -> Iterator[frame.Line]:
    measured: dict[str, list[tuple[float, int]]] = {name: [] for name in programs}
    sizes, nodes = SHAPES[shape], len(network.names)
    for _ in frame.shown(range(options.pairs), f"{nodes} nodes, {shape}"):
        for name, run in programs.items():
            before = network.bytes_received()
            seconds = run(network, sizes)
            received = max(after - before[node] for node, after in network.bytes_received().items())
            measured[name].append((seconds, received))
    of_pdgemm = [name for name in measured if name.startswith(PDGEMM)]
    slower = sorted(of_pdgemm, key=lambda name: statistics.median(seconds for seconds, _ in measured[name]))[1:]
    for name, each in measured.items():
        if name in slower:  # with another size of blocks it is faster
            continue
        times, counts = [seconds for seconds, _ in each], [received for _, received in each]
        yield {
            "part": "nodes", "nodes": nodes, "rate": options.rate, "ranks_per_node": options.ranks, "shape": shape,
            "sizes": list(sizes), "program": name, "seconds": frame.spread(times),
            "received": int(statistics.median(counts)),
        }  # fmt: skip


def _ours(network: Network, sizes: Sizes) -> float:
    options = ("--device", "cpu", "--threads", "1", "--fill", "uniform", "--json", "-")
    record = json.loads(network.run([sys.executable, "-m", "hybrid.matmul", *map(str, sizes), *options], _LIMIT))
    return float(record["total"]["median"])


def _python(way: str, network: Network, sizes: Sizes) -> float:
    alone = ("env", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1", "HYBRID_THREADS=1", f"PYTHONPATH={ROOT}:{SCRIPTS}")
    program = [sys.executable, "-m", "mpi4py", "-c", f"from experiments.bench.nodes import on_nodes; on_nodes({way!r}, *{sizes})"]
    return float(network.run([*alone, *program], _LIMIT))


def on_nodes(way: str, n: int, l: int, m: int) -> None:
    """A product of operands that lie on the ranks, of which rank 0 prints the seconds.

    allgather: the simplest program that is right: rows of A and B, all of B gathered, C gathered at rank 0; stays: C is not.
    rows: hybrid.multiply on row blocks, whose product stays on the ranks, and is checked; blocks: on those of a grid.
    """
    import numpy as np
    from mpi4py import MPI

    import hybrid

    comm = MPI.COMM_WORLD
    random, (down, across) = np.random.default_rng(comm.rank), _grid_of(comm.size)
    row, column = divmod(comm.rank, across)
    of_a, of_b = ([len(block(length, comm.size, rank)) for rank in range(comm.size)] for length in (n, l))

    def multiplied(*operands: Any) -> None:
        hybrid.multiply(*operands, comm=comm, device="cpu")

    def of_grid(height: int, width: int) -> Any:
        rows, columns = block(height, down, row), block(width, across, column)
        array = random.random((len(rows), len(columns)))
        return hybrid.Block2D(array, (height, width), [(rows.lo, rows.hi)], [(columns.lo, columns.hi)])

    if way == "blocks":
        a, b, few = of_grid(n, l), of_grid(l, m), of_grid(comm.size, comm.size)
    else:
        a, b, few = random.random((of_a[comm.rank], l)), random.random((of_b[comm.rank], m)), np.ones((1, comm.size))
        whole, c = np.empty((l, m)), np.empty((n if comm.rank == 0 else 0, m))
    if way == "rows":
        a, b, few = map(hybrid.RowBlock, (a, b, few))

    def gathered() -> None:
        comm.Allgatherv(b, [whole, [m * each for each in of_b]])
        part = a @ whole
        if way == "allgather":
            comm.Gatherv(part, [c, [m * each for each in of_a]])

    if way in ("rows", "blocks"):
        multiplied(few, few)  # what is made once, such as communicators
    comm.Barrier()
    began = time.perf_counter()
    if way in ("rows", "blocks"):
        multiplied(a, b)
    else:
        gathered()
    comm.Barrier()
    if comm.rank == 0:
        print(time.perf_counter() - began)


def _pdgemm_in(folder: Path) -> Path:
    """ScaLAPACK's product, compiled in this folder. HybridError that says what is missing."""
    try:
        compiler = c_compiler()
    except DeviceUnavailable:
        raise HybridError("pdgemm needs a C compiler (apt-get install gcc)") from None
    words = [compiler, "-O2", "-o", str(folder / "pdgemm"), str(_HERE / "pdgemm.c"), "-lscalapack-mpich", "-lopenblas", "-lm"]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        raise HybridError("pdgemm needs ScaLAPACK (apt-get install libscalapack-mpich-dev libopenblas-dev)")
    return folder / "pdgemm"


def _pdgemm(program: Path, size: int, network: Network, sizes: Sizes) -> float:
    numbers = map(str, (*sizes, *_grid_of(network.ranks), size))
    return float(network.run(["env", "OPENBLAS_NUM_THREADS=1", str(program), *numbers], _LIMIT))


main = frame.experiment(
    __doc__, Results, _measured,
    frame.option("--nodes", nargs="+", type=frame.positive, default=[2, 4], metavar="P", help="how many (2 4)"),
    frame.option("--ranks", type=frame.positive, default=1, metavar="R", help="on each node (1)"),
    frame.option("--rate", default="1gbit", help='of each link, both ways, as tc has it; "" for none (1gbit)'),
    frame.option("--shapes", nargs="+", choices=tuple(SHAPES), default=["square"], metavar="SHAPE", help=", ".join(SHAPES)),
    frame.option("--pairs", type=frame.positive, default=3, help="how often each program runs (3)"),
)  # fmt: skip
