# SPDX-License-Identifier: MIT
"""From matrices in host memory to their product at rank 0: how fast beside the program one writes by hand?

For each number of GPUs these are started, round by round and each round in another order, with `mpirun -n P`:
  handwritten  Scatter, Bcast, CuPy, Gather; every buffer made before (experiments/hosts/programs/handwritten.py)
  ours         python -m hybrid.matmul, its matrices in memory shared by the ranks
  wires        the same matrices copied to the GPUs and back, all at once and nothing multiplied: what the links allow; read as
               the check reads them; and both at once
  library      hybrid.multiply with rank 0's private arrays: checked, the same and new ones; unchecked, with and without out=
  cublasxt     cuBLASXt's own call of one process, the best of several block sizes (experiments/hosts/programs/cublasxt.py)
  larger       ours with a third of the matrices' bytes as --gpu-memory, on one GPU
  wall         the whole command with default flags, from the second start on (fewest and most GPUs); beside it mpirun alone,
               and a program that only loads mpi4py, NumPy and CuPy and makes its GPU ready
and after these, once:
  resident     hybrid.multiply of row blocks that lie on the GPUs, and stay there
  small        the same of small host arrays on one GPU, in turns with the same copies and cuBLAS
  jax, torch   host array, sharded over the GPUs, matmul, host array: for the picture

    python scripts/bench_hosts.py --gpus 1 2 4 --sizes 4000 8000 16000 --json hosts.jsonl

What a program has measured is recorded when it ends, also when it fails, takes too long or is interrupted. A part that
fails is named and left out of later rounds; the others go on, and the exit code is 1.

Anywhere: `--device cpu` or `emulate` runs the same with small matrices, to see that it runs. `--from hosts.jsonl` prints the
table of recorded lines, with --write it goes into docs/benchmarks.md and docs/hosts.svg, with --check it is compared with the
goals. `--choices SECONDS` prints another table, of shapes: whether `hybrid.multiply` takes the fastest device and number of GPUs
(experiments/hosts/programs/choices.py).
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from experiments.common import cli, plots, records, tables, targets
from experiments.hosts import goals
from experiments.hosts.results import Results
from experiments.hosts.runs import PARTS, SMALL_SIZES, Start, missing, run, starts
from experiments.start import ROOT
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import UsageError
from hybrid.ranks.launcher import mpirun

PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "hosts.svg"
SIZES, WALL_SIZE = (4000, 8000, 16000), 8000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("--gpus", nargs="+", type=int, default=[1], metavar="P", help="one rank for each (1)")
    sizes = " ".join(map(str, SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="N", help=f"multiples of all P ({sizes})")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each program (3)")
    parser.add_argument("--repeat", type=int, default=3, help="products timed in each start (3)")
    parser.add_argument("--limit", type=float, default=90.0, metavar="S", help="seconds a program may take (90)")
    parser.add_argument("--total", type=float, default=0.0, metavar="S", help="start nothing after so many seconds (0: no limit)")
    parser.add_argument("--device", choices=("cuda", "cpu", "emulate"), default="cuda", help="where all multiply (cuda)")
    parser.add_argument("--wall-size", type=int, metavar="N", help=f"of the whole command ({WALL_SIZE}; no GPU: the smallest)")
    small = " ".join(map(str, SMALL_SIZES))
    parser.add_argument("--small-sizes", nargs="+", type=int, default=SMALL_SIZES, metavar="N", help=f"({small})")
    launcher = os.environ.get("BENCH_LAUNCHER", "")
    more = "further arguments of mpirun, in one word (BENCH_LAUNCHER)"
    parser.add_argument("--launcher", default=launcher, metavar="ARGUMENTS", help=more)
    cli.add_lines(parser)
    parser.add_argument("--write", action="store_true", help="the table in docs/benchmarks.md, and docs/hosts.svg")
    parser.add_argument("--check", action="store_true", help="are the goals reached?")
    parser.add_argument("--choices", type=float, metavar="S", help="the table of shapes alone, in about so many seconds")
    return cli.command(parser, compare, arguments, failure=2)


def compare(options: argparse.Namespace) -> int:
    if options.write:  # not after minutes
        plots.refuse_without_matplotlib()
        tables.refuse_without_markers(PAGE, "hosts")
    if options.choices:
        program = ["-m", "mpi4py", "-m", "experiments.hosts.programs.choices", str(options.choices), options.json or ""]
        launch = [*mpirun(max(options.gpus)), *shlex.split(options.launcher), sys.executable]
        return subprocess.run([*launch, *program, options.device], check=False).returncode
    good = True
    if options.source:
        lines = Results.recorded(options.source)
    else:
        bench = Bench(options)
        good = bench.measure()
        lines = bench.recorder.lines
    if not lines:
        print("nothing was measured", file=sys.stderr)
        return 1
    results = Results(lines)
    print(results.markdown())
    if options.write:
        if not results.of_gpu:
            raise UsageError("these times are not of a GPU: nothing is written")
        results.draw(str(PICTURE))
        tables.write_between_markers(PAGE, "hosts", results.markdown(os.path.relpath(PICTURE, PAGE.parent)))
    return 0 if (not options.check or goals_reached(results)) and good else 1


def goals_reached(results: Results) -> bool:
    verdicts = goals.verdicts(results)
    good = targets.all_reached(verdicts)
    if not results.of_gpu:
        print("not of a GPU: the goals do not apply")
    elif not verdicts:
        print("nothing that has a goal was measured")
    return good


class Bench:
    """One run of all that is asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        gpus = self._gpus(options)
        self.recorder = records.Recorder(Results.command, options.words, options.json)
        self._until = time.monotonic() + options.total if options.total else float("inf")
        options.gpus, options.sizes = sorted(set(options.gpus)), list(dict.fromkeys(options.sizes))
        options.wall_size = options.wall_size or (WALL_SIZE if gpus else min(options.sizes))
        self._options = options
        gpu = gpus[0].name if gpus else None
        self._about = {"device": options.device, "gpu": gpu, "gpus_there": len(gpus), "dtype": "float64"}
        self._failed: set[str] = set()

    @staticmethod
    def _gpus(options: argparse.Namespace) -> list[Any]:
        """Of this machine, where they are asked for. UsageError for what cannot be measured."""
        if min(*options.gpus, *options.sizes, *options.small_sizes, options.rounds, options.repeat, options.limit) <= 0:
            raise UsageError("numbers of GPUs, sizes, rounds, repeats and seconds must be more than 0")
        if uneven := [(n, gpus) for n in options.sizes for gpus in options.gpus if n % gpus]:
            n, gpus = uneven[0]
            raise UsageError(f"{n} rows cannot be scattered evenly to {gpus} ranks")
        gpus = usable_gpus() if options.device == "cuda" else []
        if gpus and max(options.gpus) > len(gpus):
            raise UsageError(f"{max(options.gpus)} GPUs are asked for, this machine has {len(gpus)}")
        return gpus

    def measure(self) -> bool:
        """Whether all went well that had to."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is measured is printed in the end
        good = True
        try:
            jobs = list(starts(self._options))
            for start in tqdm(jobs, desc="programs", leave=False, disable=not sys.stderr.isatty()):
                good &= self._one(start)
        except KeyboardInterrupt:
            self._leave_out("what comes after the interruption")
            good = False
        finally:
            signal.signal(signal.SIGTERM, before)
        return good

    def _one(self, start: Start) -> bool:
        if {start.part, start.name} & self._failed:
            return True  # that was said
        if reason := missing(start.part, self._options.device):
            self._failed.add(start.part)
            self._leave_out(f"{start.part}: {reason}")
            return True
        if reason := self._run(start):
            self._failed.add(start.name)
            self._leave_out(f"{start.name}: {reason}")
        return start.optional or not reason

    def _run(self, start: Start) -> str:
        """Why it failed; empty where it did not."""
        left = self._until - time.monotonic()
        if left <= 0:
            return "no time was left"
        done = run(start, min(self._options.limit, left))
        strange = {line["ran_on"] for line in done.lines if line.get("ran_on", self._options.device) != self._options.device}
        if strange:
            return f"it ran on {', '.join(strange)}"
        for line in done.lines if start.wanted else []:
            self.recorder.keep({**self._about, **line})
            tqdm.write(as_text(line))
            sys.stdout.flush()
        if done.interrupted:
            raise KeyboardInterrupt
        return done.failure

    def _leave_out(self, what: str) -> None:
        self.recorder.keep({**self._about, "part": None, "gpus": None, "n": None, "seconds": None, "left_out": what})
        tqdm.write(f"left out: {what}", file=sys.stderr)


def as_text(line: records.Line) -> str:
    seconds = [f"{1e3 * line['seconds'][name]:.3f}" for name in ("median", "min", "max")]
    times = f"{seconds[0]:>11} ms ({seconds[1]} to {seconds[2]})"
    part = line["part"] + (f", blocks of {line['block']}" if "block" in line else "")
    return f"round {line['round']}  {part:37} {line['n']:6} on {line['gpus']}{times}"
