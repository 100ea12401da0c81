# SPDX-License-Identifier: MIT
"""What is each mechanism worth? python scripts/bench.py ablation [--gpus 1 2] [--sizes 8000 16000] [--json ablation.jsonl]

hybrid.matmul with one rank for each GPU, random numbers in float64, not verified, with and without each mechanism in turns:

  k-slabs, not column panels      whole rows of B cross the link
  several column panels           where B comes in column panels
  several interleaved row panels  arrive in turn with the k-slabs, instead of one
  peers fetch B                   from each other's GPUs, instead of over every rank's link

The ratio is the time without by the time with, the median over the rounds. Anywhere: `--device emulate` or `cpu` runs it with
small matrices, to see that it runs; HYBRID_MACHINE=FILE gives the model that the mechanisms are switched in.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from experiments.bench.cpu import matmul
from experiments.common import frame
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.planning.machine_model import MachineModel

_NO_SLABS = {"least_slab_rows": 1 << 40}
MECHANISMS: dict[
    str, tuple[dict[str, Any], dict[str, Any]]
] = {  # fields of the machine model with and without each; the last is switched by --transport
    "k-slabs, not column panels": ({}, _NO_SLABS),
    "several column panels (no slabs)": (_NO_SLABS, {**_NO_SLABS, "most_column_panels": 1}),
    "several interleaved row panels": ({}, {"adding_speed": 1e-6}),
    "peers fetch B": ({}, {}),
}


class Results(frame.MachineResults):
    command, again = "ablation", "python scripts/bench.py ablation"

    def blocks(self) -> Iterator[frame.Table]:
        rows = []
        for line in (line for line in self.lines if line["mechanism"] in MECHANISMS and line.get("ratio")):
            times = [f"{1e3 * line[key]['median']:.3f}" for key in ("with", "without")]
            ratio = "{median:.3f} ({min:.3f} to {max:.3f})".format(**line["ratio"])
            rows.append([str(line["gpus"]), str(line["n"]), line["mechanism"], *times, ratio])
        yield frame.Table(["GPUs", "n", "mechanism", "with, ms", "without, ms", "ratio (least to most)"], "rrlrrl", rows)


def measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    gpu = usable_gpus()[0].name if options.device == "cuda" else None
    about = {"part": "ablation", "device": options.device, "gpu": gpu, "dtype": "float64", "repeat": options.repeat}
    cases = [(gpus, n, mechanism) for gpus in options.gpus for n in options.sizes for mechanism in MECHANISMS]
    for gpus, n, name in frame.shown(cases, "cases"):
        if name == "peers fetch B" and (gpus == 1 or options.device != "cuda"):
            continue  # nobody fetches
        ways = zip(("with", "without"), MECHANISMS[name], ("auto", "host" if name == "peers fetch B" else "auto"), strict=True)
        works = {way: partial(_seconds, options, gpus, n, model, transport) for way, model, transport in ways}
        times = frame.in_turns(works, options.rounds)
        times["ratio"] = [without / having for having, without in zip(times["with"], times["without"], strict=True)]
        spreads = {key: frame.spread(each) for key, each in times.items()}
        yield {**about, "gpus": gpus, "n": n, "mechanism": name, **spreads, "rounds": options.rounds}


def _seconds(options: argparse.Namespace, gpus: int, n: int, model: dict[str, Any], transport: str) -> float:
    """Of a product, the median of one start."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(vars(replace(MachineModel.read(os.environ.get("HYBRID_MACHINE", "")), **model)), file)
        file.flush()
        staged = {"HYBRID_STAGED": "1"} if options.device == "cpu" else {}
        how = ["--fill", "uniform", "--no-check", "--device", options.device, "--transport", transport]
        how += ["--repeat", str(options.repeat), "--warmup", "1"]
        line = matmul(gpus, n, *how, environment={"HYBRID_MACHINE": file.name, **staged})
    return float(line["total"]["median"])


main = frame.experiment(
    __doc__, Results, measured,
    frame.option("--gpus", nargs="+", type=frame.positive, default=[1], metavar="P", help="one rank for each (1)"),
    frame.option("--sizes", nargs="+", type=frame.positive, default=[8000], metavar="N", help="square matrices (8000)"),
    frame.option("--rounds", type=frame.positive, default=7, help="in which everything is started once (7)"),
    frame.option("--repeat", type=frame.positive, default=2, help="products timed in each start, after one that is not (2)"),
    frame.option("--device", choices=("cuda", "cpu", "emulate"), default="cuda", help="where all multiply (cuda)"),
)  # fmt: skip
