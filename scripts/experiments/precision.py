# SPDX-License-Identifier: MIT
"""How fast are products from remainders beside cuBLAS? python scripts/bench_precision.py [--sizes 8192 1000x8000x8000]

Of matrices that lie on one GPU, and C stays there: cuBLAS as CuPy calls it, unchecked, beside hybrid.multiply with its check, for
each precision. "in turns": one call of each, round by round, medians. "alone": calls of one way for some seconds without a
pause, so that the GPU's power limit shows. Every way's product is compared with sampled rows and columns in float64.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import hybrid
from experiments.common import cli, records, results, schema, tables, timed_products
from experiments.common.product_check import ProductCheck
from experiments.common.timed_products import Sizes, Way, milliseconds

YARDSTICK = "cuBLAS"
PRECISIONS = ("native", "auto", "fast")
FILLS = ("normal", "integers")
SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (1000, 8000, 8000))


class Results(results.Results):
    command = "bench_precision"
    schemas = {
        "precision": {
            **timed_products.SCHEMA,
            "fill": schema.among(*FILLS),
            "way": schema.among(YARDSTICK, *PRECISIONS),
            "seconds": schema.spread,
            "alone": schema.positive,
        }
    }

    def blocks(self) -> Iterator[tables.Block]:
        heads = ["elements", "n×l×m", "way", "in turns, ms", "× cuBLAS", "alone, ms", "× cuBLAS"]
        rows, of_yardstick = [], self.lines[0]
        for line in self.lines:
            if line["way"] == YARDSTICK:
                of_yardstick = line
            cells = []
            for one, base in (
                (line["seconds"]["median"], of_yardstick["seconds"]["median"]),
                (line["alone"], of_yardstick["alone"]),
            ):
                cells += [milliseconds(one), f"{base / one:.2f}"]
            rows.append([f"{line['fill']}, {line['dtype']}", timed_products.sizes_of(line), line["way"], *cells])
        yield tables.Table(heads, "lllrrrr", rows, "operands on the GPU; ours is checked, cuBLAS is not")


def _operands(sizes: Sizes, dtype: str, fill: str, device: str) -> tuple[Any, Any]:
    n, l, m = sizes
    random = (import_module("cupy") if device == "cuda" else np).random.default_rng()
    a, b = (
        random.standard_normal(shape, dtype) if fill == "normal" else random.integers(-99, 100, shape).astype(dtype)
        for shape in ((n, l), (l, m))
    )
    return a, b


def _ways(a: Any, b: Any, device: str) -> dict[str, Way]:
    settle = import_module("cupy").cuda.Device().synchronize if device == "cuda" else lambda: None

    def cublas() -> Any:
        c = a @ b
        settle()
        return c

    ours = {name: partial(hybrid.multiply, a, b, precision=name, device=device) for name in PRECISIONS}
    return {YARDSTICK: cublas, **ours}


def _alone(way: Way, seconds: float) -> float:
    """Of a call."""
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not calls:
        way()
        calls += 1
    return (time.perf_counter() - began) / calls


def _lines(options: argparse.Namespace, sizes: Sizes, dtype: str, fill: str) -> Iterator[records.Line]:
    a, b = _operands(sizes, dtype, fill, options.device)
    ways = _ways(a, b, options.device)
    # The second call of ours builds what later ones launch.
    times = timed_products.checked_times(ProductCheck(a, b), ways, options.rounds, untimed=2)
    for (name, way), of_way in zip(ways.items(), times, strict=True):
        yield {"fill": fill, "way": name, "seconds": records.spread(of_way), "alone": _alone(way, options.alone)}


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    cases = [(sizes, dtype, fill) for fill in options.fills for dtype in options.dtypes for sizes in options.sizes]
    return timed_products.measured(options, "precision", cases, partial(_lines, options))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    timed_products.add_options(parser, SIZES, rounds=7)
    timed_products.add_choice(parser, "--fills", FILLS)
    parser.add_argument("--alone", type=float, default=1.0, metavar="S", help="seconds of calls without a pause (1)")
    parser.add_argument("--device", choices=("cuda", "emulate"), default="cuda", help="emulate: on the CPU, to see that it runs")
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments)
