# SPDX-License-Identifier: MIT
"""What does the check of every product cost? python scripts/bench_check.py [--sizes 4000 8000]

hybrid.multiply with its check and without it, in turns, medians, by one process: of arrays in host memory into an array that
is given (out=), of arrays of `hybrid.empty`, and of RowBlocks, which lie on the GPU where there is one. Two calls of each kind
follow each other, of which the second is timed: a program that multiplies again and again does not change its mind each time.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import hybrid
from experiments.common import cli, records, results, schema, tables
from experiments.common.product_check import ProductCheck
from experiments.common.timing import matrices
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus

PLACES = ("host", "empty", "row blocks")
WAYS = ("unchecked", "checked")
DEVICES = ("cuda", "cpu", "emulate")
SIZES = ((4000, 4000, 4000), (8000, 8000, 8000))

Product = Callable[..., Any]


class Results(results.Results):
    command = "bench_check"
    schemas = {
        "check": {
            **schema.ON_DEVICE,
            "device": schema.among(*DEVICES),
            **schema.SIDES,
            "dtype": schema.among(*ITEM_SIZES),
            "place": schema.among(*PLACES),
            **dict.fromkeys(WAYS, schema.spread),
        }
    }

    def blocks(self) -> Iterator[tables.Block]:
        heads, rows = ["operands", "type", "n×l×m", "unchecked, ms", "checked, ms", "ratio"], []
        for line in self.lines:
            unchecked, checked = (line[way]["median"] for way in WAYS)
            sizes = f"{line['n']}×{line['l']}×{line['m']}"
            times = [f"{1e3 * one:.3g}" for one in (unchecked, checked)]
            rows.append([line["place"], line["dtype"], sizes, *times, f"{checked / unchecked:.3f}"])
        yield tables.Table(heads, "lllrrr", rows, "hybrid.multiply by one process")


def _product(place: str, a: Any, b: Any, device: str) -> Product:
    """Takes whether it is checked, and returns C."""
    multiply = partial(hybrid.multiply, device=device)
    if place == "row blocks":
        if device == "cuda":
            a, b = map(import_module("cupy").asarray, (a, b))
        rows = hybrid.RowBlock(a), hybrid.RowBlock(b)
        return lambda check: multiply(*rows, check=check).array
    if place == "empty":
        copies = []
        for array in (a, b):
            copies.append(hybrid.empty(array.shape, array.dtype))
            copies[-1][...] = array
        a, b = copies
    return partial(_into, hybrid.empty((len(a), b.shape[1]), a.dtype), multiply, a, b)


def _into(out: Any, multiply: Product, a: Any, b: Any, check: bool) -> Any:
    return multiply(a, b, out=out, check=check)


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    gpu = usable_gpus()[0].name if options.device == "cuda" else None
    for n, l, m in options.sizes:
        cli.refuse_too_large(n, l, m, item=8)
    cases = [(sizes, dtype, place) for sizes in options.sizes for dtype in options.dtypes for place in options.places]
    for sizes, dtype, place in cli.shown(cases, "products"):
        a, b = matrices("normal", dtype, *sizes)
        product = _product(place, a, b, options.device)
        ways = {way: partial(product, way == "checked") for way in WAYS}
        right = ProductCheck(a, b)
        for way in WAYS:
            for _ in range(3):
                right.refuse_wrong(f"{place}, {way}", ways[way]())
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                ways[way]()
                times[way].append(records.seconds_of(ways[way]))
        yield {
            **dict(zip("nlm", sizes, strict=True)),
            "part": "check",
            "device": options.device,
            "gpu": gpu,
            "dtype": dtype,
            "place": place,
            **{way: records.spread(of_way) for way, of_way in times.items()},
        }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    label = " ".join(str(sizes[0]) for sizes in SIZES)
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, default=SIZES, metavar="N", help=f"N or NxLxM ({label})")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(ITEM_SIZES), default=list(ITEM_SIZES), metavar="T", help="(both)")
    parser.add_argument(
        "--places", nargs="+", choices=PLACES, default=list(PLACES), metavar="P", help=f"{', '.join(PLACES)} (all)"
    )
    parser.add_argument("--rounds", type=cli.at_least_1, default=9, help="calls of each way that are timed (9)")
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="cpu, emulate: anywhere (cuda)")
    cli.add_lines(parser)
    parser.set_defaults(picture=None)
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments)
