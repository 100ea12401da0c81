# SPDX-License-Identifier: MIT
"""How fast are products of complex numbers and of integers? python scripts/bench_types.py [--sizes 4096 8192]

hybrid.multiply with its check, beside the library's matmul (CuPy's on a GPU, NumPy's on a CPU) without one: of operands that lie
on one GPU, where C stays as well, and of operands in host memory, where the library's time is that of all copies, too. One call
of each in turns, round by round, medians. Integers have results of int64: the library gets operands that are converted to it, as
a part of its time. "small" ones lie between -99 and 99; "large" ones fill their type, as far as no sum exceeds int64.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import hybrid
from experiments.common import cli, records, results, schema, tables
from experiments.common.product_check import IntegerCheck, ProductCheck
from hybrid.devices.cuda_gpus import usable_gpus

COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64")
DEVICES = ("cuda", "cpu")
PLACES = ("gpu", "host")
ELEMENTS = ("normal", "small", "large")
WAYS = ("library", "hybrid")
SIZES = ((4096, 4096, 4096), (8192, 8192, 8192))
_SMALL = 99

Way = Callable[[], Any]


class Results(results.Results):
    command = "bench_types"
    schemas = {
        "types": {
            **schema.ON_DEVICE,
            "device": schema.among(*DEVICES),
            **schema.SIDES,
            "dtype": schema.among(*COMPLEX, *INTEGERS),
            "elements": schema.among(*ELEMENTS),
            "place": schema.among(*PLACES),
            **dict.fromkeys(WAYS, schema.spread),
        }
    }

    def blocks(self) -> Iterator[tables.Block]:
        heads = ["type", "elements", "n×l×m", "operands", "library, ms", "hybrid, ms", "times as fast", "hybrid, Tflop/s"]
        rows = []
        for line in self.lines:
            library, ours = (line[way]["median"] for way in WAYS)
            operations = (8 if line["dtype"] in COMPLEX else 2) * line["n"] * line["l"] * line["m"]
            times = [f"{1e3 * one:.3g}" for one in (library, ours)]
            sizes = f"{line['n']}×{line['l']}×{line['m']}"
            place = "on the GPU" if line["place"] == "gpu" else "in host memory"
            rates = [f"{library / ours:.3g}", f"{operations / ours / 1e12:.3g}"]
            rows.append([line["dtype"], line["elements"], sizes, place, *times, *rates])
        yield tables.Table(heads, "llllrrrr", rows, "hybrid.multiply, checked, beside the library's matmul, unchecked")


def _operands(shape: tuple[int, int, int], dtype: str, elements: str) -> tuple[np.ndarray, np.ndarray]:
    n, l, m = shape
    random, sizes = np.random.default_rng(), ((n, l), (l, m))
    if dtype in COMPLEX:
        a, b = ((random.standard_normal(size) + 1j * random.standard_normal(size)).astype(dtype) for size in sizes)
        return a, b
    most = _SMALL if elements == "small" else min(np.iinfo(dtype).max, math.isqrt(2**62 // l))
    a, b = (random.integers(-most, most, size, dtype, endpoint=True) for size in sizes)
    return a, b


def _ways(a: Any, b: Any, device: str, place: str) -> dict[str, Way]:
    """Each returns C when it is complete."""
    result = None if a.dtype.kind == "c" else "int64"
    cupy = import_module("cupy") if device == "cuda" else None

    def product(first: Any, second: Any) -> Any:
        wide = (first, second) if result is None else (first.astype(result), second.astype(result))
        return wide[0] @ wide[1]

    def library() -> Any:
        if cupy is None:
            return product(a, b)
        if place == "host":
            return cupy.asnumpy(product(cupy.asarray(a), cupy.asarray(b)))
        c = product(a, b)
        cupy.cuda.Device().synchronize()
        return c

    return {"library": library, "hybrid": partial(hybrid.multiply, a, b, dtype=result, device=device)}


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    gpu = usable_gpus()[0].name if options.device == "cuda" else None
    for n, l, m in options.sizes:
        cli.refuse_too_large(n, l, m, item=16)
    cases = [
        (shape, dtype, elements)
        for dtype in options.dtypes
        for elements in (("normal",) if dtype in COMPLEX else ("small", "large"))
        for shape in options.sizes
    ]
    for shape, dtype, elements in cli.shown(cases, "products"):
        on_host = _operands(shape, dtype, elements)
        for place in PLACES if options.device == "cuda" else ("host",):
            a, b = map(import_module("cupy").asarray, on_host) if place == "gpu" else on_host
            ways = _ways(a, b, options.device, place)
            check = ProductCheck(a, b) if dtype in COMPLEX else IntegerCheck(a, b)
            for name, way in ways.items():
                for _ in range(2):  # the second call of ours builds what later ones launch
                    check.refuse_wrong(name, way())
            times = records.in_turns(ways, options.rounds)
            yield {
                **dict(zip("nlm", shape, strict=True)),
                "part": "types",
                "device": options.device,
                "gpu": gpu,
                "dtype": dtype,
                "elements": elements,
                "place": place,
                **{way: records.spread(times[way]) for way in WAYS},
            }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    label = " ".join(str(sizes[0]) for sizes in SIZES)
    types = [*COMPLEX, *INTEGERS]
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, default=SIZES, metavar="N", help=f"N or NxLxM ({label})")
    parser.add_argument("--dtypes", nargs="+", choices=types, default=types, metavar="T", help=f"{', '.join(types)} (all)")
    parser.add_argument("--rounds", type=cli.at_least_1, default=7, help="calls of each way in turns (7)")
    parser.add_argument("--device", choices=DEVICES, default="cuda", help="cpu: beside NumPy, whose integers use no BLAS (cuda)")
    cli.add_lines(parser)
    parser.set_defaults(picture=None)
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments)
