# SPDX-License-Identifier: MIT
"""How does a product scale to many nodes, by the plan? python scripts/scaling.py [n l m] [--network RATE] [--picture FILE]

For 1, 2, 4, … nodes: how many elements a node receives from others with row blocks (every node needs all of B), in the best grid
of nodes, and in the best grid with layers, if A, B and C are distributed as each would have them; beside what is proven to be
the least. And the seconds that this takes over a node's link, or the multiplication does where that takes longer: nothing is run.
With --runs it is about runs of hybrid.matmul instead, whose JSON lines slurm/scaling.sbatch collects: the seconds on more nodes,
of the same product (strong scaling) and of products with as many operations a node (weak scaling).
With --measured the picture also shows what nodes have received, of recorded lines of bench_nodes.py: programs that keep 2-D
blocks.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.bench.nodes import OURS_2D
from experiments.bench.nodes import Results as NodesResults
from experiments.common import cli, plots, tables
from hybrid.commands.explain import least_received
from hybrid.commands.matmul import rate
from hybrid.core.problem import Problem
from hybrid.errors import UsageError
from hybrid.planning.grid import Grid, candidates
from hybrid.reporting import jsonl

ROWS, GRID, LAYERS, LEAST = "row blocks", "grid", "grid with layers", "the least"
_COLORS = {ROWS: plots.LECTURE, GRID: plots.HERE, LAYERS: plots.OTHER, LEAST: plots.GREY}


def received_where_it_suits(grid: Grid, problem: Problem) -> float:
    """The elements that a node receives if A, B and C are distributed as suits the grid best: each element on one of the nodes
    that need it."""
    of_a, of_b, of_c = (of(0, problem).elements for of in (grid.of_a, grid.of_b, grid.of_c))
    shared = ((of_a, grid.columns), (of_b, grid.rows), (of_c, grid.layers))
    return sum(elements * (nodes - 1) / nodes for elements, nodes in shared)


@dataclass(frozen=True)
class Scaled:
    """So many nodes: by way, the grid, and the elements that a node receives."""

    nodes: int
    grids: dict[str, Grid]
    received: dict[str, float]

    def seconds(self, way: str, problem: Problem, network: float, flops: float) -> float:
        """The longer of both: they overlap."""
        return max(problem.item_size * self.received[way] / network, problem.operations / self.nodes / flops)


def scaled(problem: Problem, nodes: int) -> Scaled:
    def best(grids: Sequence[Grid]) -> Grid:
        return min(grids, key=lambda grid: received_where_it_suits(grid, problem))

    every = list(candidates(nodes))
    grids = {ROWS: Grid(nodes, 1), GRID: best([grid for grid in every if grid.layers == 1]), LAYERS: best(every)}
    received = {way: received_where_it_suits(grid, problem) for way, grid in grids.items()}
    return Scaled(nodes, grids, {**received, LEAST: least_received(problem, nodes)})


def table(lines: Sequence[Scaled], options: argparse.Namespace) -> tables.Table:
    n, l, m = options.sizes
    title = f"{n}×{l} · {l}×{m} float64, {options.network / 1e9:g} GB/s a node, {options.flops / 1e12:g} TF/s a node"
    rows = []
    for line in lines:
        cells, least = [str(line.nodes)], line.received[LEAST]
        for way in (ROWS, GRID, LAYERS):
            seconds = line.seconds(way, options.problem, options.network, options.flops)
            cells += [str(line.grids[way]), f"{line.received[way] / least:.2f} ×" if least else "–", f"{seconds:.3g} s"]
        rows.append([*cells, f"{8 * least / 1e9:.3g} GB"])
    return tables.Table(
        ["nodes", *(cell for way in (ROWS, GRID, LAYERS) for cell in (way, "", "")), LEAST], "r" * 11, rows, title
    )


def measured(path: str, problem: Problem) -> list[tuple[int, float]]:
    """Nodes, and what the busiest received as a part of C, in products of the same shape."""
    shape = (problem.l / problem.n, problem.m / problem.n)
    found = []
    for line in NodesResults.recorded(path):
        n, l, m = line["sizes"]
        if line["program"] == OURS_2D and (l / n, m / n) == shape:
            found.append((line["nodes"], line["received"] / 8 / (n * m)))
    return found


def draw(path: str, lines: Sequence[Scaled], options: argparse.Namespace) -> None:
    problem, several = options.problem, [line for line in lines if line.nodes > 1]
    nodes, whole = [line.nodes for line in several], problem.n * problem.m
    with plots.figure(
        path, (8.0, 3.6), caption="computed by the plan; nothing was run" + " but what is marked" * bool(options.measured)
    ) as drawn:
        words, time = drawn.subplots(1, 2)
        plots.plain(words, "a node receives, as a part of C's elements")
        plots.plain(time, "seconds of a product")
        for way, color in _COLORS.items():
            of_c = [line.received[way] / whole for line in several]
            words.plot(nodes, of_c, color=color, label=way, dashes=(2, 1) if way == LEAST else ())
            if way != LEAST:
                seconds = [line.seconds(way, problem, options.network, options.flops) for line in lines]
                time.plot([line.nodes for line in lines], seconds, color=color, label=way)
        if options.measured and (there := measured(options.measured, problem)):
            words.plot(*zip(*there, strict=True), "o", color=plots.TEXT, markersize=5, label="measured, 2-D blocks")
        for panel in (words, time):
            panel.set_yscale("log")
            _of_nodes(panel, [line.nodes for line in lines])


@dataclass(frozen=True)
class Run:
    """Of hybrid.matmul."""

    nodes: int
    n: int
    seconds: float
    flops: float  # a second

    @property
    def of_node(self) -> float:
        return self.flops / self.nodes


def runs_in(path: str) -> dict[str, list[Run]]:
    """By kind of scaling; the run on the fewest nodes is the first of both."""
    lines = [line for line in jsonl.read(path) if line.get("command") == "matmul"]
    runs = sorted(
        (Run(line["nodes"], line["n"], line["total"]["median"], line["rate"]) for line in lines), key=lambda run: run.nodes
    )
    if not runs:
        raise UsageError(f"{path} has no lines of hybrid.matmul")
    first = runs[0]
    strong = [run for run in runs if run.n == first.n]
    return {"strong": strong, "weak": [first, *(run for run in runs if run.n != first.n)]}


def _of_runs(options: argparse.Namespace) -> int:
    scalings = runs_in(options.runs)
    parts = {name: [run.of_node / runs[0].of_node for run in runs] for name, runs in scalings.items()}
    rows = [
        [name, str(run.nodes), str(run.n), f"{run.seconds:.3f}", f"{run.flops / 1e9:.1f}", f"{part:.2f}"]
        for name, runs in scalings.items()
        for run, part in zip(runs, parts[name], strict=True)
    ]
    heads = ["scaling", "nodes", "n", "seconds", "GF/s", "of the first, a node"]
    print(*tables.printed([tables.Table(heads, "lrrrrr", rows)]), sep="\n")
    if options.picture:
        with plots.figure(options.picture, (5.0, 3.4)) as drawn:
            panel = drawn.subplots()
            plots.plain(panel, "operations a second and node, as a part of the first run's")
            for (name, runs), color in zip(scalings.items(), (plots.HERE, plots.OTHER), strict=True):
                panel.plot([run.nodes for run in runs], parts[name], "o-", color=color, label=f"{name} scaling")
            _of_nodes(panel, sorted({run.nodes for runs in scalings.values() for run in runs}))
            panel.set_ylim(bottom=0)
    return 0


def _of_nodes(panel: Any, nodes: Sequence[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(nodes, map(str, nodes), fontsize=8)
    panel.set_xlabel("nodes")
    panel.legend(fontsize=8, frameon=False)


def _work(options: argparse.Namespace) -> int:
    if options.runs:
        return _of_runs(options)
    if len(options.sizes) != 3:
        raise UsageError(f"three sizes n l m are needed, {len(options.sizes)} given")
    options.problem = Problem(*options.sizes)
    lines = [scaled(options.problem, 2**power) for power in range(options.most.bit_length())]
    print(*tables.printed([table(lines, options)]), sep="\n")
    if options.picture:
        draw(options.picture, lines, options)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument(
        "sizes", nargs="*", type=cli.at_least_1, default=[100_000] * 3, metavar="n l m", help="(100000 three times)"
    )
    parser.add_argument("--most", type=cli.at_least_1, default=1024, metavar="P", help="nodes (1024)")
    parser.add_argument("--network", type=rate, default=25e9, metavar="RATE", help="of a node's link (25GB/s)")
    parser.add_argument("--flops", type=float, default=2e12, metavar="F", help="operations a second of a node's CPUs (2e12)")
    parser.add_argument("--runs", metavar="FILE", help="JSON lines of hybrid.matmul on some numbers of nodes")
    parser.add_argument("--measured", metavar="FILE", help="lines of bench_nodes.py, for the picture")
    parser.add_argument("--picture", metavar="FILE", help="draw to this file, .svg or .png")
    return cli.command(parser, _work, arguments)
