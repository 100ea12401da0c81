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

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from experiments.common import cli, records, results, tables
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError, UsageError
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

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
            command = [*python, "experiments.bench.ablation_program", *(f"--{name}={value}" for name, value in words.items())]
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
