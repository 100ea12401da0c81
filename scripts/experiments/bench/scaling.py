# SPDX-License-Identifier: MIT
"""How does a product scale to many nodes? python scripts/bench.py scaling LINES.jsonl

Of runs of hybrid.matmul on some numbers of nodes, whose JSON lines slurm/scaling.sbatch collects: the seconds on more nodes, of
the same product (strong scaling) and of products with as many operations a node (weak scaling). The run on the fewest nodes is
the first of both.
"""

import argparse
from collections.abc import Sequence

from experiments.common import frame
from hybrid.errors import UsageError
from hybrid.reporting import jsonl


def table(lines: Sequence[frame.Line]) -> frame.Table:
    lines = sorted(lines, key=lambda line: line["nodes"])
    strong = [line for line in lines if line["n"] == lines[0]["n"]]
    scalings = {"strong": strong, "weak": [lines[0], *(line for line in lines if line not in strong)]}
    first = lines[0]["rate"] / lines[0]["nodes"]
    rows = [
        [name, str(line["nodes"]), str(line["n"]), f"{line['total']['median']:.3f}", f"{line['rate'] / 1e9:.1f}",
         f"{line['rate'] / line['nodes'] / first:.2f}"]
        for name, runs in scalings.items()
        for line in runs
    ]  # fmt: skip
    return frame.Table(["scaling", "nodes", "n", "seconds", "GF/s", "of the first, a node"], "lrrrrr", rows)


def work(options: argparse.Namespace) -> int:
    lines = [line for line in jsonl.read(options.lines) if line.get("command") == "matmul"]
    if not lines:
        raise UsageError(f"{options.lines} has no lines of hybrid.matmul")
    print(*frame.printed([table(lines)]), sep="\n")
    return 0


def main() -> int:
    lines = frame.option("lines", metavar="LINES", help="JSON lines of hybrid.matmul")
    return frame.command(frame.parser_of(__doc__, lines), work)
