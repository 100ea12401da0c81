# SPDX-License-Identifier: MIT
"""What is each mechanism worth?   python scripts/bench.py ablation --gpus 1 2 --sizes 8000 16000 --json ablation.jsonl

For each number of GPUs, one rank each, `mpirun` starts one program. It multiplies matrices of random numbers in shared
host memory (float64, not verified but for the first product), with and without each mechanism in turns, round by round:

  k-slabs, not column panels      whole rows of B cross the link
  several column panels           where B comes in column panels
  several interleaved row panels  arrive in turn with the k-slabs, instead of one
  peers fetch B                   from each other's GPUs, instead of over every rank's link
  out of core                     a third of the memory: which operand is stationary

The ratio is the time without by the time with, the median over the rounds. Anywhere: `--device emulate` or `cpu` runs it with
small matrices, to see that it runs; HYBRID_MACHINE=FILE gives the model that the mechanisms are switched in.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hybrid
from experiments.bench.hosts_program import uniform_rows
from experiments.common import cli, results
from hybrid.core.spans import block
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError, UsageError
from hybrid.planning import tiling
from hybrid.planning.machine_model import MachineModel
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

WORTH = 1.02  # what gains less, wherever it was measured, is not worth its code
DEVICES = ("cuda", "cpu", "emulate")
MEMORY_PART = 3  # out of core, a device may use 1/3 of what the matrices take on it
_OF_WRITER = ("schema", "date", "versions", "machine")
_LARGE = 1 << 40
_CANDIDATE = tiling._candidate


class Results(results.MachineResults):
    command, again = "ablation", "python scripts/bench.py ablation"

    def blocks(self) -> Iterator[results.Block]:
        rows, best = [], dict[str, float]()
        for line in self.lines:
            begin = [str(line["gpus"]), str(line["n"]), line["mechanism"]]
            if line["left_out"]:
                rows.append([*begin, "–", "–", line["left_out"]])
                continue
            ratio = line["ratio"]
            times = [f"{1e3 * line[key]['median']:.3f}" for key in ("with", "without")]
            rows.append([*begin, *times, f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"])
            best[line["mechanism"]] = max(ratio["median"], best.get(line["mechanism"], 0.0))
        yield results.Table(["GPUs", "n", "mechanism", "with, ms", "without, ms", "ratio (least to most)"], "rrlrrl", rows)
        weak = [name for name, most in best.items() if most < WORTH]
        yield results.Remarks([f"less than {100 * (WORTH - 1):.0f} % everywhere: {'; '.join(weak) or 'nothing'}"])


@dataclass(frozen=True)
class Variant:
    """How a product is carried out. Equal variants are measured once. `model`: fields of the machine model that differ."""

    model: tuple[tuple[str, Any], ...] = ()
    transport: str = "auto"
    out_of_core: bool = False
    only_a: bool = False  # A is stationary


NO_SLABS = Variant(model=(("least_slab_rows", _LARGE),))
MECHANISMS = {  # with and without each
    "k-slabs, not column panels": (Variant(), NO_SLABS),
    "several column panels (no slabs)": (NO_SLABS, Variant(model=(*NO_SLABS.model, ("most_column_panels", 1)))),
    "several interleaved row panels": (Variant(), Variant(model=(("adding_speed", 1e-6),))),
    "peers fetch B": (Variant(), Variant(transport="host")),
    "out of core: stationary operand chosen, not A": (Variant(out_of_core=True), Variant(out_of_core=True, only_a=True)),
}


def _only_a_stationary(request: Any, memory: int, stationary: str, part: int, halvings: int) -> tuple[tiling.Tiling, int]:
    found, streamed = _CANDIDATE(request, memory, stationary, part, halvings)
    return found, streamed if stationary == "A" else 0


def why_not(name: str, device: str, ranks: int) -> str | None:
    """Why a mechanism cannot be switched here."""
    if name != "peers fetch B":
        return None
    return "one rank" if ranks == 1 else None if device == "cuda" else "all memory is a CPU's own: nobody fetches"


class Products:
    """Of shared matrices of one size, filled with random numbers by all ranks. `folder`, the same on all ranks, gets the machine
    model of each variant."""

    def __init__(self, comm: Any, device: str, folder: str, n: int, variants: Sequence[Variant]) -> None:
        self._comm, self._device, self._n = comm, device, n
        self._models = {variant: Path(folder, str(number)) for number, variant in enumerate(variants)}
        base = MachineModel.read(os.environ.get("HYBRID_MACHINE", ""))
        for number, (variant, path) in enumerate(self._models.items() if comm.rank == 0 else ()):
            # Other ones for each variant, so that no plan is kept from one to the other: by a few bytes that decide nothing.
            own = replace(base, least_exchange_bytes=base.least_exchange_bytes + number, **dict(variant.model))
            path.write_text(json.dumps(vars(own)))
        self._a, self._b, self._c = (hybrid.empty((n, n), comm=comm) for _ in range(3))
        for matrix in (self._a, self._b):
            uniform_rows(matrix[block(n, comm.size, comm.rank).slice])
        comm.Barrier()

    @contextmanager
    def _as(self, variant: Variant) -> Iterator[None]:
        n, rows = self._n, -(-self._n // self._comm.size)
        memory = (2 * rows * n + n * n) * 8 // MEMORY_PART if variant.out_of_core else 0
        settings = {"DEVICE": self._device, "MACHINE": str(self._models[variant]), "GPU_MEMORY": str(memory)}
        settings |= {"TRANSPORT": variant.transport} | ({"STAGED": "1"} if self._device == "cpu" else {})
        candidate = _only_a_stationary if variant.only_a else _CANDIDATE
        with (
            patch.object(tiling, "_candidate", candidate),
            patch.dict(os.environ, {f"HYBRID_{name}": value for name, value in settings.items()}),
        ):
            yield

    def seconds(self, variant: Variant, repeat: int, *, check: bool) -> list[float]:
        """Of each product, until the last rank has ended. The first product after other ones is not timed."""
        with self._as(variant):
            return [self._once(check=check and not number) for number in range(repeat + 1)][1:]

    def _once(self, *, check: bool) -> float:
        comm = self._comm
        comm.Barrier()
        began = time.perf_counter()
        arrays = (self._a, self._b, self._c) if comm.rank == 0 else (None,) * 3
        hybrid.multiply(*arrays[:2], comm=comm, out=arrays[2], check=check)
        return max(comm.allgather(time.perf_counter() - began))


def measure(comm: Any, device: str, n: int, rounds: int, repeat: int, limit: float) -> Iterator[results.Line]:
    """A record for each mechanism. No round begins more than `limit` seconds after the first one, which sets everything up."""
    reasons = {name: why_not(name, device, comm.size) for name in MECHANISMS}
    variants = list(dict.fromkeys(each for name in MECHANISMS if not reasons[name] for each in MECHANISMS[name]))
    times: dict[Variant, list[list[float]]] = {variant: [] for variant in variants}
    with tempfile.TemporaryDirectory() as folder:
        products, first_ended = Products(comm, device, comm.bcast(folder), n, variants), 0.0
        for number in range(rounds):
            if comm.bcast(number > 0 and time.perf_counter() > first_ended + limit):
                break
            first = number % len(variants)
            for variant in variants[first:] + variants[:first]:
                times[variant].append(products.seconds(variant, repeat, check=number == 0))
            first_ended = first_ended if number else time.perf_counter()
        comm.Barrier()  # the folder is rank 0's
    for name, both in MECHANISMS.items():
        about: results.Line = {"mechanism": name, "left_out": reasons[name]}
        if not reasons[name]:
            having, without = (times[variant] for variant in both)
            ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(having, without, strict=True)]
            for what, turns in (("with", having), ("without", without), ("ratio", [ratios])):
                about[what] = results.spread([each for turn in turns for each in turn])
            about["rounds"] = len(ratios)
        yield about


def program() -> None:
    """What each rank runs; rank 0 writes the lines."""
    from mpi4py import MPI

    comm, (given,) = MPI.COMM_WORLD, sys.argv[1:]
    asked = json.loads(given)
    for n in asked["sizes"]:
        limit = asked["seconds"] * n**2 / sum(size**2 for size in asked["sizes"])
        for line in measure(comm, asked["device"], n, asked["rounds"], asked["repeat"], limit):
            if comm.rank == 0:
                jsonl.write({"gpus": comm.size, "n": n, "repeat": asked["repeat"], **line}, asked["json"])


def measured(options: argparse.Namespace) -> Iterator[results.Line]:
    if min(*options.gpus, *options.sizes, options.rounds, options.repeat, options.seconds) <= 0:
        raise UsageError("numbers of GPUs, sizes, rounds, repeats and seconds must be more than 0")
    gpus = usable_gpus() if options.device == "cuda" else []
    if gpus and max(options.gpus) > len(gpus):
        raise UsageError(f"{max(options.gpus)} GPUs are asked for, this machine has {len(gpus)}")
    about = {"part": "ablation", "device": options.device, "gpu": gpus[0].name if gpus else None, "dtype": "float64"}
    # What is asked for here is not to be changed from outside.
    inherited = {name: value for name, value in os.environ.items() if name == "HYBRID_MACHINE" or name[:7] != "HYBRID_"}
    for ranks in sorted(set(options.gpus)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lines.jsonl"
            asked = {name: getattr(options, name) for name in ("sizes", "device", "rounds", "repeat")}
            asked |= {"seconds": options.seconds / len(set(options.gpus)), "json": str(path)}
            python = [*mpirun(ranks), *shlex.split(os.environ.get("BENCH_LAUNCHER", "")), sys.executable, "-m", "mpi4py", "-m"]
            command = [*python, "experiments.bench.ablation", json.dumps(asked)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=inherited, check=False)
            for line in jsonl.read(str(path)) if path.exists() else ():
                yield about | {name: value for name, value in line.items() if name not in _OF_WRITER}
        if done.returncode:
            raise HybridError(f"the program on {ranks} ended with {done.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("--gpus", nargs="+", type=int, default=[1], metavar="P", help="one rank for each (1)")
    parser.add_argument("--sizes", nargs="+", type=int, default=[8000], metavar="N", help="square matrices (8000)")
    parser.add_argument("--rounds", type=int, default=7, help="in which everything is measured once (7)")
    parser.add_argument("--repeat", type=int, default=2, help="products timed in each round, after one that is not (2)")
    parser.add_argument("--seconds", type=float, default=100.0, metavar="S", help="for the rounds after the first ones (100)")
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="where all multiply (cuda)")
    return cli.experiment(parser, Results, measured, arguments, failure=2)


if __name__ == "__main__":
    program()
