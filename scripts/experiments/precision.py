# SPDX-License-Identifier: MIT
"""How fast are products from remainders beside cuBLAS? python scripts/bench_precision.py [--sizes 8192 1000x8000x8000]

Of matrices that lie on one GPU, and C stays there: cuBLAS as CuPy calls it, unchecked, beside hybrid.multiply with its check, for
each precision. "in turns": one call of each, round by round, medians. "alone": calls of one way for some seconds without a
pause, so that the GPU's power limit shows. Every way's product is compared with sampled rows and columns in float64.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import hybrid
from experiments.common import cli, records, results, schema, tables
from experiments.common.product_check import ProductCheck
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus

YARDSTICK = "cuBLAS"
PRECISIONS = ("native", "auto", "fast")
FILLS = ("normal", "integers")
SIZES = ((4096, 4096, 4096), (8192, 8192, 8192), (1000, 8000, 8000))

Way = Callable[[], Any]


class Results(results.Results):
    command = "bench_precision"
    schemas = {
        "precision": {
            **schema.ON_DEVICE,
            **schema.SIDES,
            "dtype": schema.among(*ITEM_SIZES),
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
                cells += [f"{1e3 * one:.3g}", f"{base / one:.2f}"]
            rows.append([f"{line['fill']}, {line['dtype']}", f"{line['n']}×{line['l']}×{line['m']}", line["way"], *cells])
        yield tables.Table(heads, "lllrrrr", rows, "operands on the GPU; ours is checked, cuBLAS is not")


def _operands(shape: tuple[int, int, int], dtype: str, fill: str, device: str) -> tuple[Any, Any]:
    n, l, m = shape
    random = (import_module("cupy") if device == "cuda" else np).random.default_rng()
    a, b = (
        random.standard_normal(size, dtype) if fill == "normal" else random.integers(-99, 100, size).astype(dtype)
        for size in ((n, l), (l, m))
    )
    return a, b


def _ways(a: Any, b: Any, device: str) -> dict[str, Way]:
    """Each returns C when it is complete."""
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


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    gpu = usable_gpus()[0].name if options.device == "cuda" else None
    for n, l, m in options.sizes:
        cli.refuse_too_large(n, l, m, item=8)
    cases = [(shape, dtype, fill) for fill in options.fills for dtype in options.dtypes for shape in options.sizes]
    for shape, dtype, fill in cli.shown(cases, "products"):
        a, b = _operands(shape, dtype, fill, options.device)
        check, ways = ProductCheck(a, b), _ways(a, b, options.device)
        for name, way in ways.items():
            for _ in range(2):  # the second call of ours builds what later ones launch
                check.refuse_wrong(name, way())
        times = records.in_turns(ways, options.rounds)
        for name, way in ways.items():
            yield {
                **dict(zip("nlm", shape, strict=True)),
                "part": "precision",
                "device": options.device,
                "gpu": gpu,
                "dtype": dtype,
                "fill": fill,
                "way": name,
                "seconds": records.spread(times[name]),
                "alone": _alone(way, options.alone),
            }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    label = " ".join("x".join(map(str, sizes)) for sizes in SIZES)
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, default=SIZES, metavar="N", help=f"N or NxLxM ({label})")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(ITEM_SIZES), default=list(ITEM_SIZES), metavar="T", help="(both)")
    parser.add_argument(
        "--fills", nargs="+", choices=FILLS, default=list(FILLS), metavar="F", help=f"{' and '.join(FILLS)} (both)"
    )
    parser.add_argument("--rounds", type=cli.at_least_1, default=7, help="calls of each way in turns (7)")
    parser.add_argument("--alone", type=float, default=1.0, metavar="S", help="seconds of calls without a pause (1)")
    parser.add_argument("--device", choices=("cuda", "emulate"), default="cuda", help="emulate: on the CPU, to see that it runs")
    cli.add_lines(parser)
    parser.set_defaults(picture=None)
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments)
