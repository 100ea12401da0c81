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
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from experiments.ablation.program import DEVICES
from hybrid.commands.parser import Parser
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError, UsageError, one_line
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl
from hybrid.runs.files import refuse_unwritable

COMMAND = "ablation"  # says which lines of a file are ours
WORTH = 1.02  # what gains less, wherever it was measured, is not worth its code
PROGRAM = Path(__file__).with_name("program.py")
_OF_WRITER = ("schema", "date", "versions", "machine")

Line = Mapping[str, Any]


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="python scripts/ablation.py", description=__doc__)
    made.add_argument("--gpus", nargs="+", type=int, default=[1], metavar="P", help="one rank for each (1)")
    made.add_argument("--sizes", nargs="+", type=int, default=[8000], metavar="N", help="square matrices (8000)")
    made.add_argument("--rounds", type=int, default=7, help="in which everything is measured once (7)")
    made.add_argument("--repeat", type=int, default=2, help="products timed in each round, after one that is not (2)")
    made.add_argument("--seconds", type=float, default=100.0, metavar="S", help="for the rounds after the first ones (100)")
    made.add_argument("--device", choices=DEVICES, default="cuda", help="where all multiply (cuda)")
    made.add_argument("--json", metavar="FILE", help="append a line for each result")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    made = parser()
    try:
        return _measure(made.parse_args(arguments))
    except (HybridError, OSError) as error:
        print(f"{made.prog}: {one_line(error)}", file=sys.stderr)
        return max(2, getattr(error, "exit_code", 2))


def _measure(options: argparse.Namespace) -> int:
    if min(*options.gpus, *options.sizes, options.rounds, options.repeat, options.seconds) <= 0:
        raise UsageError("numbers of GPUs, sizes, rounds, repeats and seconds must be more than 0")
    if options.json:
        refuse_unwritable(options.json)
    gpus = usable_gpus() if options.device == "cuda" else []
    if gpus and max(options.gpus) > len(gpus):
        raise UsageError(f"{max(options.gpus)} GPUs are asked for, this machine has {len(gpus)}")
    about = {
        "command": COMMAND,
        "run": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        "arguments": sys.argv[1:],
        "device": options.device,
        "gpu": gpus[0].name if gpus else None,
        "dtype": "float64",
    }
    lines, good = [], True
    for ranks in sorted(set(options.gpus)):
        measured, code = _run(ranks, options)
        lines += measured
        if code:
            print(f"the program on {ranks} ended with {code}", file=sys.stderr)
            good = False
        for line in measured if options.json else []:
            jsonl.write(about | line, options.json)
    print(table(lines))
    return 0 if good else 1


def _run(ranks: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """What the program measured until it ended, and its exit code. What it says goes to standard error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        # What is asked for here is not to be changed from outside.
        environment = {name: value for name, value in os.environ.items() if name == "HYBRID_MACHINE" or name[:7] != "HYBRID_"}
        seconds = options.seconds / len(set(options.gpus))
        code = subprocess.run(
            [
                *mpirun(ranks), *shlex.split(os.environ.get("BENCH_LAUNCHER", "")), sys.executable, "-m", "mpi4py", str(PROGRAM),
                "--device", options.device, "--sizes", *map(str, options.sizes), "--rounds", str(options.rounds),
                "--repeat", str(options.repeat), "--seconds", str(seconds), "--json", str(path),
            ],
            stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, check=False,
        ).returncode  # fmt: skip
        lines = list(jsonl.read(str(path))) if path.exists() else []
    return [{name: value for name, value in line.items() if name not in _OF_WRITER} for line in lines], code


def table(lines: Iterable[Line]) -> str:
    """In ms. The last line names what gains less than 2 % wherever it was measured."""
    lines = list(lines)
    width = max([9, *(len(line["mechanism"]) for line in lines)])
    rows = [f"| GPUs | {'n':>6} | {'mechanism':{width}} | {'with':>9} | {'without':>9} | ratio (least to most) |"]
    rows.append(f"| ---: | {'---:':>6} | {'---':{width}} | {'---:':>9} | {'---:':>9} | --- |")
    best: dict[str, float] = {}
    for line in lines:
        begin = f"| {line['gpus']:4} | {line['n']:6} | {line['mechanism']:{width}} |"
        if line["left_out"]:
            rows.append(f"{begin} {'–':>9} | {'–':>9} | {line['left_out']} |")
            continue
        ratio = line["ratio"]
        times = " | ".join(f"{1e3 * line[key]['median']:9.3f}" for key in ("with", "without"))
        rows.append(f"{begin} {times} | {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f}) |")
        best[line["mechanism"]] = max(ratio["median"], best.get(line["mechanism"], 0.0))
    weak = [name for name, most in best.items() if most < WORTH]
    return "\n".join([*rows, f"less than {100 * (WORTH - 1):.0f} % everywhere: {'; '.join(weak) or 'nothing'}"])
