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
from experiments.common import cli, records, results, schema, tables, timed_products
from experiments.common.product_check import ProductCheck
from experiments.common.timed_products import Sizes, milliseconds
from experiments.common.timing import matrices

PLACES = ("host", "empty", "row blocks")
WAYS = ("unchecked", "checked")
DEVICES = ("cuda", "cpu", "emulate")
SIZES = ((4000, 4000, 4000), (8000, 8000, 8000))

Product = Callable[..., Any]


class Results(results.Results):
    command = "bench_check"
    schemas = {
        "check": {
            **timed_products.SCHEMA,
            "device": schema.among(*DEVICES),
            "place": schema.among(*PLACES),
            **dict.fromkeys(WAYS, schema.spread),
        }
    }

    def blocks(self) -> Iterator[tables.Block]:
        heads, rows = ["operands", "type", "n×l×m", "unchecked, ms", "checked, ms", "ratio"], []
        for line in self.lines:
            unchecked, checked = (line[way]["median"] for way in WAYS)
            times = [milliseconds(unchecked), milliseconds(checked), f"{checked / unchecked:.3f}"]
            rows.append([line["place"], line["dtype"], timed_products.sizes_of(line), *times])
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


def _line(options: argparse.Namespace, sizes: Sizes, dtype: str, place: str) -> Iterator[records.Line]:
    a, b = matrices("normal", dtype, *sizes)
    product = _product(place, a, b, options.device)
    ways = {f"{place}, {way}": partial(product, way == "checked") for way in WAYS}
    times = timed_products.checked_times(ProductCheck(a, b), ways, options.rounds, untimed=3, calls=2)
    yield {"place": place, **dict(zip(WAYS, map(records.spread, times), strict=True))}


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    cases = [(sizes, dtype, place) for sizes in options.sizes for dtype in options.dtypes for place in options.places]
    return timed_products.measured(options, "check", cases, partial(_line, options))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    timed_products.add_options(parser, SIZES, rounds=9)
    timed_products.add_choice(parser, "--places", PLACES)
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="cpu, emulate: anywhere (cuda)")
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments)
