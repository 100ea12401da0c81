# SPDX-License-Identifier: MIT
"""Products in one process, one way beside others, in turns: what the check costs, precisions beside cuBLAS, element types.

Every way's product is compared with float64 (integers: exactly) before it is timed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

import hybrid
from experiments.common import frame
from experiments.common.cuda import matrices
from experiments.common.product_check import ProductCheck
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus

Sizes = tuple[int, int, int]
Way = Callable[[], Any]  # returns C when it is complete
COMPLEX, INTEGERS = ("complex64", "complex128"), ("int8", "int16", "int32", "int64")


def _case(
    results: type[frame.Results],
    about: str,
    lines_of: Callable[..., Iterator[frame.Line]],
    sizes: Sequence[Sizes],
    rounds: int,
    devices: Sequence[str],
    choices: Mapping[str, Sequence[str]],
    order: Callable[[Any], Iterable[tuple[Any, ...]]],
) -> Callable[[], int]:
    """A benchmark's script. `lines_of`: the lines of a case, which begins with sizes and type; `choices`: options of which each
    takes some of these words, and all by default; `order`: the cases that the options ask for."""

    def measured(options: argparse.Namespace) -> Iterator[frame.Line]:
        gpu = usable_gpus()[0].name if options.device == "cuda" else None
        for n, l, m in options.sizes:
            frame.refuse_too_large(n, l, m, item=16)
        for (n, l, m), dtype, *others in frame.shown(list(order(options)), "products"):
            about = {"n": n, "l": l, "m": m, "part": results.command.removeprefix("bench_"), "device": options.device, "gpu": gpu}
            yield from ({**about, "dtype": dtype, **line} for line in lines_of(options, (n, l, m), dtype, *others))

    label = " ".join("x".join(map(str, each if len(set(each)) > 1 else each[:1])) for each in sizes)
    return frame.experiment(
        about, results, measured,
        frame.option("--sizes", nargs="+", type=frame.sizes, default=sizes, metavar="N", help=f"N or NxLxM ({label})"),
        frame.option("--rounds", type=frame.positive, default=rounds, help=f"timings of each way, in turns ({rounds})"),
        frame.option("--device", choices=devices, default="cuda", help=f"{', '.join(devices[1:])}: to see that it runs (cuda)"),
        *(frame.option(f"--{name}", nargs="+", choices=words, default=list(words), metavar=name.upper(),
                       help=f"{', '.join(words)} (all)") for name, words in choices.items()),
    )  # fmt: skip


def _times(check: ProductCheck, ways: Mapping[str, Way], rounds: int, *, untimed: int = 2, twice: bool = False) -> frame.Line:
    """The spread of each way's seconds. The first `untimed` calls are not timed, since our second one builds what later ones
    launch. `twice`: each is called once more just before it is timed."""
    for name, way in ways.items():
        for _ in range(untimed):
            check.refuse_wrong(name, way())

    def seconds(way: Way) -> float:
        if twice:
            way()
        return frame.seconds_of(way)

    times = frame.in_turns({name: partial(seconds, way) for name, way in ways.items()}, rounds)
    return {name: frame.spread(each) for name, each in times.items()}


def _settled(device: str) -> Way:
    return import_module("cupy").cuda.Device().synchronize if device == "cuda" else lambda: None


def _sizes(line: frame.Line) -> str:
    return f"{line['n']}×{line['l']}×{line['m']}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


# --- what the check costs

_CHECK = """What does the check of every product cost? python scripts/bench.py check [--sizes 4000 8000]

hybrid.multiply with its check and without it, in turns, medians, by one process: of arrays in host memory into an array that
is given (out=), and of RowBlocks, which lie on the GPU where there is one. Each kind is called twice in a row, and the second
call is timed, as in a program that makes the same kind of product again and again.
"""
_PLACES, _CHECKED = ("host", "row blocks"), ("unchecked", "checked")


class CheckResults(frame.Results):
    command, again = "bench_check", "python scripts/bench.py check"

    def blocks(self) -> Iterator[frame.Table]:
        heads, rows = ["operands", "type", "n×l×m", "unchecked, ms", "checked, ms", "ratio"], []
        for line in self.lines:
            unchecked, checked = (line[way]["median"] for way in _CHECKED)
            rows.append([line["place"], line["dtype"], _sizes(line), _ms(unchecked), _ms(checked), f"{checked / unchecked:.3f}"])
        yield frame.Table(heads, "lllrrr", rows, "hybrid.multiply by one process")


def _check_line(options: argparse.Namespace, sizes: Sizes, dtype: str, place: str) -> Iterator[frame.Line]:
    a, b = matrices("normal", dtype, *sizes)
    operands: Any = (a, b)
    out = None
    if place == "row blocks":
        operands = map(import_module("cupy").asarray, operands) if options.device == "cuda" else operands
        operands = [hybrid.RowBlock(array) for array in operands]
    else:
        out = hybrid.empty((len(a), b.shape[1]), dtype)

    def multiplied(way: str) -> Any:
        c = hybrid.multiply(*operands, out=out, check=way == "checked", device=options.device)
        return c.array if place == "row blocks" else c

    ways = {way: partial(multiplied, way) for way in _CHECKED}
    yield {"place": place, **_times(ProductCheck(a, b), ways, options.rounds, untimed=3, twice=True)}


check = _case(
    CheckResults, _CHECK, _check_line, [(4000,) * 3, (8000,) * 3], 9, ("cuda", "cpu", "emulate"),
    {"dtypes": tuple(ITEM_SIZES), "places": _PLACES}, lambda asked: product(asked.sizes, asked.dtypes, asked.places),
)  # fmt: skip


# --- precisions beside cuBLAS

_PRECISION = """How fast are products from remainders beside cuBLAS? python scripts/bench.py precision [--sizes 8192]

Of matrices that lie on one GPU, and C stays there: cuBLAS as CuPy calls it, unchecked, beside hybrid.multiply with its check, for
each precision: one call of each in turns, round by round, medians. Every way's product is compared with sampled rows and columns
in float64.
"""
_YARDSTICK, _PRECISIONS, _FILLS = "cuBLAS", ("native", "auto", "fast"), ("normal", "integers")


class PrecisionResults(frame.Results):
    command, again = "bench_precision", "python scripts/bench.py precision"

    def blocks(self) -> Iterator[frame.Table]:
        rows, base = [], self.lines[0]
        for line in self.lines:
            base, seconds = line if line["way"] == _YARDSTICK else base, line["seconds"]["median"]
            cells = [_ms(seconds), f"{base['seconds']['median'] / seconds:.2f}"]
            rows.append([f"{line['fill']}, {line['dtype']}", _sizes(line), line["way"], *cells])
        heads = ["elements", "n×l×m", "way", "ms", "× cuBLAS"]
        yield frame.Table(heads, "lllrr", rows, "operands on the GPU; ours is checked, cuBLAS is not")


def _precision_lines(options: argparse.Namespace, sizes: Sizes, dtype: str, fill: str) -> Iterator[frame.Line]:
    n, l, m = sizes
    random = (import_module("cupy") if options.device == "cuda" else np).random.default_rng()
    a, b = (
        random.standard_normal(shape, dtype) if fill == "normal" else random.integers(-99, 100, shape).astype(dtype)
        for shape in ((n, l), (l, m))
    )
    settle = _settled(options.device)

    def cublas() -> Any:
        c = a @ b
        settle()
        return c

    ours = {name: partial(hybrid.multiply, a, b, precision=name, device=options.device) for name in _PRECISIONS}
    ways: dict[str, Way] = {_YARDSTICK: cublas, **ours}
    for name, seconds in _times(ProductCheck(a, b), ways, options.rounds).items():
        yield {"fill": fill, "way": name, "seconds": seconds}


precision = _case(
    PrecisionResults, _PRECISION, _precision_lines, [(4096,) * 3, (8192,) * 3, (1000, 8000, 8000)], 7, ("cuda", "emulate"),
    {"dtypes": tuple(ITEM_SIZES), "fills": _FILLS},
    lambda asked: ((sizes, dtype, fill) for fill, dtype, sizes in product(asked.fills, asked.dtypes, asked.sizes)),
)  # fmt: skip


# --- complex numbers and integers

_TYPES = """How fast are products of complex numbers and of integers? python scripts/bench.py types [--sizes 4096 8192]

hybrid.multiply with its check, beside the library's matmul (CuPy's on a GPU, NumPy's on a CPU) without one: of operands that lie
on one GPU, where C stays as well, and of operands in host memory, where the library's time is that of all copies, too. One call
of each in turns, round by round, medians. Integers have results of int64: the library gets operands that are converted to it, as
a part of its time. They fill their type, as far as no sum exceeds int64.
"""
_WAYS = ("library", "hybrid")


class TypesResults(frame.Results):
    command, again = "bench_types", "python scripts/bench.py types"

    def blocks(self) -> Iterator[frame.Table]:
        heads = ["type", "elements", "n×l×m", "operands", "library, ms", "hybrid, ms", "times as fast", "hybrid, Tflop/s"]
        rows = []
        for line in self.lines:
            library, ours = (line[way]["median"] for way in _WAYS)
            operations = (8 if line["dtype"] in COMPLEX else 2) * line["n"] * line["l"] * line["m"]
            place = "on the GPU" if line["place"] == "gpu" else "in host memory"
            numbers = [_ms(library), _ms(ours), f"{library / ours:.3g}", f"{operations / ours / 1e12:.3g}"]
            rows.append([line["dtype"], line["elements"], _sizes(line), place, *numbers])
        yield frame.Table(heads, "llllrrrr", rows, "hybrid.multiply, checked, beside the library's matmul, unchecked")


def _types_lines(options: argparse.Namespace, sizes: Sizes, dtype: str) -> Iterator[frame.Line]:
    on_gpu, settle = options.device == "cuda", _settled(options.device)
    cupy = import_module("cupy") if on_gpu else None
    result = None if dtype in COMPLEX else "int64"
    random, (n, l, m) = np.random.default_rng(), sizes
    most = 0 if dtype in COMPLEX else min(np.iinfo(dtype).max, math.isqrt(2**62 // l))
    on_host = [
        (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
        if dtype in COMPLEX
        else random.integers(-most, most, shape, dtype, endpoint=True)
        for shape in ((n, l), (l, m))
    ]
    for place in ("gpu", "host") if on_gpu else ("host",):
        a, b = map(cupy.asarray, on_host) if cupy and place == "gpu" else on_host

        def library(a: Any = a, b: Any = b, place: str = place) -> Any:
            there = map(cupy.asarray, (a, b)) if cupy and place == "host" else (a, b)
            first, second = there if result is None else (array.astype(result) for array in there)
            c = first @ second
            settle()
            return cupy.asnumpy(c) if cupy and place == "host" else c

        ways: dict[str, Way] = {"library": library, "hybrid": partial(hybrid.multiply, a, b, dtype=result, device=options.device)}
        yield {
            "elements": "normal" if dtype in COMPLEX else "large",
            "place": place,
            **_times(ProductCheck(a, b), ways, options.rounds),
        }


types = _case(
    TypesResults, _TYPES, _types_lines, [(4096,) * 3, (8192,) * 3], 7, ("cuda", "cpu"), {"dtypes": (*COMPLEX, *INTEGERS)},
    lambda asked: ((sizes, dtype) for dtype, sizes in product(asked.dtypes, asked.sizes)),
)  # fmt: skip
