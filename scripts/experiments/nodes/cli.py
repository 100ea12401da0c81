# SPDX-License-Identifier: MIT
"""Is the runner as fast as the network between nodes? python scripts/bench_nodes.py [--nodes 2 4] [--rate 1gbit] [--json FILE]

Network namespaces stand for nodes, joined by links of that rate, with one rank on each. In turn run `python -m hybrid.matmul`,
whose product is checked, and the simplest program of mpi4py and NumPy: MPI_Allgatherv of B, a product, MPI_Gatherv of C. All on
CPUs, one thread a rank; both make their operands where they are needed. Beside the seconds of a product stands what the busiest
node received, by its interface's counter, and the seconds that its link needs for the least that it must receive. As root.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from experiments.common import cli, records, results, schema, tables
from experiments.nodes.network import Network, why_not
from hybrid.errors import DeviceUnavailable

Sizes = tuple[int, int, int]
SHAPES: dict[str, Sizes] = {
    "square": (4000, 4000, 4000),
    "long sums": (500, 20000, 500),
    "many rows": (20000, 500, 500),
    "many columns": (500, 500, 20000),
}
OURS, ALLGATHER = "ours, checked", "Allgatherv"
_PROGRAM = str(Path(__file__).with_name("programs") / "allgather.py")
_LIMIT = 300.0  # seconds that a run may take
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


class Results(results.Results):
    command = "bench_nodes"
    schemas = {
        "nodes": {
            "nodes": schema.count,
            "rate": schema.text,
            "shape": schema.name,
            "sizes": lambda value: isinstance(value, list) and len(value) == 3 and all(map(schema.count, value)),
            "program": schema.name,
            "seconds": lambda value: isinstance(value, dict) and all(map(schema.real, value.values())),
            "received": schema.count,
            "least_seconds": schema.real,
        }
    }

    def blocks(self) -> Iterator[tables.Block]:
        heads = ("nodes", "links", "shape", "program", "seconds", "of its link's least", "busiest node received")
        yield tables.Table(heads, "llllrrr", [_row(line) for line in self.lines])


def _row(line: records.Line) -> tuple[str, ...]:
    median, least = line["seconds"]["median"], line["least_seconds"]
    return (
        str(line["nodes"]),
        line["rate"] or "no limit",
        f"{line['shape']}, {'×'.join(map(str, line['sizes']))}",
        line["program"],
        f"{median:.2f}",
        f"{median / least:.2f} ×" if least else "–",
        f"{line['received'] / 1e6:.0f} MB",
    )


def bits_per_second(rate: str) -> float:
    """Of a rate as tc writes it; 0 where there is no limit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", rate or "0bit")
    if not found:
        raise argparse.ArgumentTypeError(f"{rate} is no rate, such as 1gbit or 100mbit")
    return float(found[1]) * _UNITS[found[2]]


def rate(text: str) -> str:
    bits_per_second(text)
    return text


def least_bytes(sizes: Sizes, nodes: int) -> int:
    """That the root's node receives at least, if all have rows of A, B and C: the others' rows of B and of C."""
    n, l, m = sizes
    return 8 * m * (n - n // nodes + l - l // nodes)


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    if reason := why_not():
        raise DeviceUnavailable(f"namespaces cannot stand for nodes here: {reason}")
    for nodes in options.nodes:
        with Network(nodes, options.rate) as network:
            for shape in options.shapes:
                yield from _compared(network, shape, options)


def _compared(network: Network, shape: str, options: argparse.Namespace) -> Iterator[records.Line]:
    programs: dict[str, Callable[[Network, Sizes], float]] = {OURS: _ours, ALLGATHER: _allgatherv}
    measured: dict[str, list[tuple[float, int]]] = {name: [] for name in programs}
    sizes, nodes = SHAPES[shape], len(network.names)
    for _ in cli.shown(range(options.pairs), f"{nodes} nodes, {shape}"):
        for name, run in programs.items():
            before = network.bytes_received()
            seconds = run(network, sizes)
            received = max(after - before[node] for node, after in network.bytes_received().items())
            measured[name].append((seconds, received))
    bits = bits_per_second(options.rate)
    least = 8 * least_bytes(sizes, nodes) / bits if bits else 0.0
    for name, each in measured.items():
        seconds, received = zip(*each, strict=True)
        yield {
            "part": "nodes", "nodes": nodes, "rate": options.rate, "shape": shape, "sizes": list(sizes), "program": name,
            "seconds": records.spread(seconds), "received": int(statistics.median(received)), "least_seconds": least,
        }  # fmt: skip


def _ours(network: Network, sizes: Sizes) -> float:
    options = ("--device", "cpu", "--threads", "1", "--fill", "uniform", "--json", "-")
    record = json.loads(network.run([sys.executable, "-m", "hybrid.matmul", *map(str, sizes), *options], _LIMIT))
    return float(record["total"]["median"])


def _allgatherv(network: Network, sizes: Sizes) -> float:
    one_thread = ("env", "OPENBLAS_NUM_THREADS=1", "MKL_NUM_THREADS=1")
    return float(network.run([*one_thread, sys.executable, _PROGRAM, *map(str, sizes)], _LIMIT))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("--nodes", nargs="+", type=cli.at_least_1, default=[2, 4], metavar="P", help="how many (2 4)")
    parser.add_argument("--rate", type=rate, default="1gbit", help='of each link, both ways, as tc has it; "" for none (1gbit)')
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=["square"], metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--pairs", type=cli.at_least_1, default=3, help="how often each program runs (3)")
    parser.set_defaults(picture=None)
    cli.add_lines(parser)
    return cli.command(parser, partial(cli.present, results=Results, measured=_measured), arguments)
