# SPDX-License-Identifier: MIT
"""What is each mechanism worth?   python scripts/ablation.py --gpus 1 2 --sizes 8000 16000 --json ablation.jsonl

For each number of GPUs, one rank each, `mpirun` starts one program. It multiplies matrices of random normal numbers in shared
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import hybrid
from experiments.common import cli, records, results, tables
from experiments.common.records import spread
from hybrid.core.problem import Problem
from hybrid.core.spans import Topology
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError, UsageError
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, fastest
from hybrid.planning import tiling
from hybrid.planning.machine_model import MachineModel
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

MEMORY_PART = 3  # out of core, a device may use 1/3 of what the matrices take on it
_LARGE = 1 << 40


def _only_a_stationary(request: PlanRequest, memory: int, stationary: str, part: int, halvings: int) -> tuple[tiling.Tiling, int]:
    found, streamed = _CANDIDATE(request, memory, stationary, part, halvings)
    return found, streamed if stationary == "A" else 0


_CANDIDATE = tiling._candidate
_ONLY_A = (tiling, "_candidate", _only_a_stationary)


@dataclass(frozen=True)
class Variant:
    """How a product is carried out. Equal variants are measured once."""

    model: tuple[tuple[str, Any], ...] = ()  # fields that differ
    settings: tuple[tuple[str, str], ...] = ()  # HYBRID_*, without the prefix
    patches: tuple[tuple[Any, str, Any], ...] = ()
    out_of_core: bool = False


@dataclass(frozen=True)
class Mechanism:
    """`of_tiling`: it shows in the tiling, so where the tiling is the same there is nothing to compare."""

    name: str
    having: Variant
    without: Variant
    of_tiling: bool = True


AS_PLANNED = Variant()
NO_SLABS = Variant(model=(("least_slab_rows", _LARGE),))
STREAMED = Variant(out_of_core=True)
MECHANISMS = (
    Mechanism("k-slabs, not column panels", AS_PLANNED, NO_SLABS),
    Mechanism(
        "several column panels (no slabs)", NO_SLABS, replace(NO_SLABS, model=(*NO_SLABS.model, ("most_column_panels", 1)))
    ),
    Mechanism("several interleaved row panels", AS_PLANNED, Variant(model=(("adding_speed", 1e-6),))),
    Mechanism("peers fetch B", AS_PLANNED, Variant(settings=(("TRANSPORT", "host"),)), of_tiling=False),
    Mechanism("out of core: stationary operand chosen, not A", STREAMED, replace(STREAMED, patches=(_ONLY_A,))),
)


def why_not(mechanism: Mechanism, device: str, ranks: int) -> str:
    """Why a mechanism cannot be switched here; "" if it can."""
    if mechanism.without.settings:
        if ranks == 1:
            return "one rank"
        if device != "cuda":
            return "all memory is a CPU's own: nobody fetches"
    return ""


@dataclass
class Machine:
    """Where and on what the variants run. `folder`, the same on all ranks, holds the model of each variant."""

    comm: Any
    device: str
    folder: str
    adds: bool = False  # the kernel
    base: MachineModel = field(default_factory=lambda: MachineModel.read(os.environ.get("HYBRID_MACHINE", "")))
    _numbers: dict[Variant, int] = field(default_factory=dict)

    def model_of(self, variant: Variant) -> MachineModel:
        """Another one for each variant, so that no plan is kept from one to the other: by a few bytes that decide nothing."""
        number = self._numbers.setdefault(variant, len(self._numbers))
        return replace(self.base, least_exchange_bytes=self.base.least_exchange_bytes + number, **dict(variant.model))

    def memory(self, variant: Variant, n: int) -> int:
        """Bytes that each rank may use on its device; 0: all."""
        rows = -(-n // self.comm.size)
        return (2 * rows * n + n * n) * 8 // MEMORY_PART if variant.out_of_core else 0

    def tiling_of(self, variant: Variant, n: int) -> dict[str, Any]:
        """As the plan will choose it."""
        p, ranks = Problem(n, n, n), self.comm.size
        with _patched(variant):
            request = PlanRequest(
                p, Topology.of_equal_nodes(ranks, ranks), device=self.device, staged=True, accumulates=self.adds,
                device_memory=self.memory(variant, n), model=self.model_of(variant),
            )  # fmt: skip
            return asdict(request.choose_tiling())

    def path_of(self, variant: Variant) -> str:
        return str(Path(self.folder) / f"{self._numbers[variant]}.json")

    @contextmanager
    def carrying_out(self, variant: Variant, n: int) -> Iterator[None]:
        settings = {"DEVICE": self.device, "MACHINE": self.path_of(variant), "GPU_MEMORY": str(self.memory(variant, n))}
        settings |= dict(variant.settings) | ({"STAGED": "1"} if self.device == "cpu" else {})
        with _patched(variant), patch.dict(os.environ, {f"HYBRID_{name}": value for name, value in settings.items()}):
            yield


@contextmanager
def _patched(variant: Variant) -> Iterator[None]:
    with ExitStack() as patches:
        for owner, name, value in variant.patches:
            patches.enter_context(patch.object(owner, name, value, create=True))
        yield


class Products:
    """Of shared matrices of one size, filled with random normal numbers by all ranks."""

    def __init__(self, machine: Machine, n: int) -> None:
        self._machine, self._n = machine, n
        comm = machine.comm
        self._a, self._b, self._c = (hybrid.empty((n, n), comm=comm) for _ in range(3))
        lo, hi = (n * rank // comm.size for rank in (comm.rank, comm.rank + 1))
        for number, matrix in enumerate((self._a, self._b)):
            _fill(matrix[lo:hi], number * comm.size + comm.rank)
        comm.Barrier()

    def seconds(self, variant: Variant, repeat: int, *, check: bool) -> list[float]:
        """Of each product, until the last rank has ended. The first product after other ones is not timed."""
        with self._machine.carrying_out(variant, self._n):
            self._once(check=check)
            return [self._once(check=False) for _ in range(repeat)]

    def _once(self, *, check: bool) -> float:
        comm = self._machine.comm
        root = comm.rank == 0
        comm.Barrier()
        began = time.perf_counter()
        arrays = (self._a, self._b) if root else (None, None)
        hybrid.multiply(*arrays, comm=comm, out=self._c if root else None, check=check)
        return max(comm.allgather(time.perf_counter() - began))


def _fill(rows: np.ndarray, seed: int) -> None:
    threads = min(16, os.cpu_count() or 1)
    parts = [part for part in np.array_split(rows, threads) if part.size]
    generators = np.random.default_rng(seed).spawn(len(parts))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda generator, part: generator.standard_normal(out=part), generators, parts))


def measure(machine: Machine, n: int, rounds: int, repeat: int, limit: float) -> list[dict[str, Any]]:
    """A record for each mechanism. No round begins more than `limit` seconds after the first one, which sets everything up."""
    tilings: dict[Variant, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    for each in MECHANISMS:
        reasons[each.name] = why_not(each, machine.device, machine.comm.size)
        if not reasons[each.name]:
            tilings |= {variant: machine.tiling_of(variant, n) for variant in (each.having, each.without)}
            if each.of_tiling and tilings[each.having] == tilings[each.without]:
                reasons[each.name] = "the same tiling"
    wanted = [variant for each in MECHANISMS if not reasons[each.name] for variant in (each.having, each.without)]
    times: dict[Variant, list[list[float]]] = {variant: [] for variant in wanted}
    variants = list(times)
    if machine.comm.rank == 0:
        for variant in variants:
            Path(machine.path_of(variant)).write_text(json.dumps(vars(machine.model_of(variant))))
    products, first_ended = Products(machine, n), 0.0
    for number in range(rounds):
        if machine.comm.bcast(number > 0 and time.perf_counter() > first_ended + limit):
            break
        first = number % len(variants) if variants else 0
        for variant in variants[first:] + variants[:first]:
            times[variant].append(products.seconds(variant, repeat, check=number == 0))
        first_ended = first_ended if number else time.perf_counter()
    return [_record(each, times, tilings, reasons[each.name]) for each in MECHANISMS]


def _record(
    mechanism: Mechanism, times: Mapping[Variant, Sequence[Sequence[float]]], tilings: Mapping[Variant, Any], left_out: str
) -> dict[str, Any]:
    """`ratio`: how many times as long it takes without, the median over the rounds."""
    about: dict[str, Any] = {"mechanism": mechanism.name, "left_out": left_out or None}
    if left_out:
        return about
    having, without = times[mechanism.having], times[mechanism.without]
    ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(having, without, strict=True)]
    return {
        **about,
        "with": spread([seconds for of_round in having for seconds in of_round]),
        "without": spread([seconds for of_round in without for seconds in of_round]),
        "ratio": spread(ratios),
        "rounds": len(ratios),
        "tilings": {"with": tilings[mechanism.having], "without": tilings[mechanism.without]},
    }


def program() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, required=True, metavar="N")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu", "emulate"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--json", required=True, metavar="FILE")
    options = parser.parse_args()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    capability = usable_gpus()[0].capability if options.device == "cuda" else EMULATED_CAPABILITY
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(comm, options.device, comm.bcast(folder))
        for n in options.sizes:
            machine.adds = fastest(options.device, "float64", n, capability).adds
            limit = options.seconds * n**2 / sum(size**2 for size in options.sizes)
            for record in measure(machine, n, options.rounds, options.repeat, limit):
                if comm.rank == 0:
                    jsonl.write({"gpus": comm.size, "n": n, "repeat": options.repeat, **record}, options.json)
        comm.Barrier()  # the folder is rank 0's


WORTH = 1.02  # what gains less, wherever it was measured, is not worth its code
DEVICES = ("cuda", "cpu", "emulate")
_OF_WRITER = ("schema", "date", "versions", "machine")


class Results(results.MachineResults):
    command = "ablation"

    def blocks(self) -> Iterator[tables.Block]:
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
        yield tables.Table(["GPUs", "n", "mechanism", "with, ms", "without, ms", "ratio (least to most)"], "rrlrrl", rows)
        weak = [name for name, most in best.items() if most < WORTH]
        yield tables.Remarks([f"less than {100 * (WORTH - 1):.0f} % everywhere: {'; '.join(weak) or 'nothing'}"])


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    if min(*options.gpus, *options.sizes, options.rounds, options.repeat, options.seconds) <= 0:
        raise UsageError("numbers of GPUs, sizes, rounds, repeats and seconds must be more than 0")
    gpus = usable_gpus() if options.device == "cuda" else []
    if gpus and max(options.gpus) > len(gpus):
        raise UsageError(f"{max(options.gpus)} GPUs are asked for, this machine has {len(gpus)}")
    about = {"part": "ablation", "device": options.device, "gpu": gpus[0].name if gpus else None, "dtype": "float64"}
    for ranks in sorted(set(options.gpus)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "lines.jsonl"
            # What is asked for here is not to be changed from outside.
            inherited = {name: value for name, value in os.environ.items() if name == "HYBRID_MACHINE" or name[:7] != "HYBRID_"}
            python = [*mpirun(ranks), *shlex.split(os.environ.get("BENCH_LAUNCHER", "")), sys.executable, "-m", "mpi4py", "-m"]
            words = {"device": options.device, "rounds": options.rounds, "repeat": options.repeat, "json": path}
            words["seconds"] = options.seconds / len(set(options.gpus))
            command = [*python, "experiments.bench.ablation", *(f"--{name}={value}" for name, value in words.items())]
            sizes = ["--sizes", *map(str, options.sizes)]
            done = subprocess.run([*command, *sizes], stdin=subprocess.DEVNULL, stdout=sys.stderr, env=inherited, check=False)
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
    cli.add_lines(parser)
    parser.set_defaults(picture=None)
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments, failure=2)


if __name__ == "__main__":
    program()
