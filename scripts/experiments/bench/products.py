# SPDX-License-Identifier: MIT
"""Products in one process, several ways in turns: the cost of the check, precisions beside cuBLAS, element types.

Every way's product is compared with float64 (integers: exactly) before it is timed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

import hybrid
from experiments.common import frame
from experiments.common.cuda import ProductCheck, matrices
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus

Sizes = tuple[int, int, int]
Way = Callable[[], Any]  # returns C when it is complete
COMPLEX, INTEGERS = ("complex64", "complex128"), ("int8", "int16", "int32", "int64")


class Results(frame.Results):
    """A row for each kind of operands, and a column for each way."""

    ways: tuple[str, ...]

    def blocks(self) -> Iterator[frame.Table]:
        rows: dict[tuple[str, str, str], dict[str, float]] = {}
        for line in self.lines:
            operands = ", ".join(filter(None, (line.get(key) for key in ("fill", "elements", "place"))))
            key = operands, line["dtype"], f"{line['n']}×{line['l']}×{line['m']}"
            times = {line["way"]: line["seconds"]} if "way" in line else {way: line[way] for way in self.ways}
            rows.setdefault(key, {}).update((way, each["median"]) for way, each in times.items())
        first, *others = self.ways
        cells = []
        for key, times in rows.items():
            beside = [f"{frame.number(1e3 * times[way])} ({times[way] / times[first]:.3f})" for way in others]
            cells.append([*key, frame.number(1e3 * times[first]), *beside])
        heads = ["operands", "type", "n×l×m", *self.ways]
        yield frame.Table(heads, "lll" + "r" * len(self.ways), cells, f"ms (and times as long as {first})")


def _case(
    name: str,
    ways: Sequence[str],
    about: str,
    ways_of: Callable[..., Iterator[tuple[frame.Line, Any, Any, Mapping[str, Way]]]],
    sizes: Sequence[Sizes],
    rounds: int,
    devices: Sequence[str],
    dtypes: Sequence[str],
    choices: tuple[str, tuple[str, ...]] | None = None,
    *,
    twice: bool = False,
) -> Callable[[], int]:
    """A benchmark. `ways_of(device, sizes, type, choice)` yields the line's keys, the operands and the ways to multiply them. The
    first two calls are not timed, since our second call records the work that later ones replay. `twice`: each way is called once
    more just before it is timed."""

    class OfCase(Results):
        command, again = f"bench_{name}", f"python scripts/bench.py {name}"

    OfCase.ways = tuple(ways)

    def seconds(way: Way) -> float:
        if twice:
            way()
        return frame.seconds_of(way)

    def measured(options: argparse.Namespace) -> Iterator[frame.Line]:
        gpu = usable_gpus()[0].name if options.device == "cuda" else None
        for n, l, m in options.sizes:
            frame.refuse_too_large(n, l, m, item=16)
        cases = product(getattr(options, choices[0]) if choices else [""], options.dtypes, options.sizes)
        for choice, dtype, (n, l, m) in frame.shown(list(cases), "products"):
            for told, a, b, works in ways_of(options.device, (n, l, m), dtype, choice):
                check = ProductCheck(a, b)
                for each, way in works.items():
                    for _ in range(2 + twice):
                        check.refuse_wrong(each, way())
                times = frame.in_turns({each: partial(seconds, way) for each, way in works.items()}, options.rounds)
                line = {"n": n, "l": l, "m": m, "part": name, "device": options.device, "gpu": gpu, "dtype": dtype, **told}
                yield line | {each: frame.spread(seconds) for each, seconds in times.items()}

    label = " ".join("x".join(map(str, each if len(set(each)) > 1 else each[:1])) for each in sizes)
    return frame.experiment(
        about, OfCase, measured,
        frame.option("--sizes", nargs="+", type=frame.sizes, default=sizes, metavar="N", help=f"N or NxLxM ({label})"),
        frame.option("--rounds", type=frame.positive, default=rounds, help=f"timings of each way, in turns ({rounds})"),
        frame.option("--device", choices=devices, default="cuda", help=f"{', '.join(devices[1:])}: only as a test (cuda)"),
        *(frame.option(f"--{key}", nargs="+", choices=words, default=list(words), metavar=key.upper(),
                       help=f"{', '.join(words)} (all)") for key, words in filter(None, (("dtypes", dtypes), choices))),
    )  # fmt: skip


_CHECK = """What does the check of every product cost? python scripts/bench.py check [--sizes 4000 8000]

hybrid.multiply with and without its check, in turns, medians, by one process: of arrays in host memory with out=, and of
RowBlocks, on the GPU if there is one. Each is called twice in a row, and the second call is timed.
"""


def _checked(device: str, sizes: Sizes, dtype: str, place: str) -> Iterator[tuple[frame.Line, Any, Any, Mapping[str, Way]]]:
    a, b = matrices("normal", dtype, *sizes)
    operands: list[Any] = [a, b]
    out = None
    if place == "host":
        out = hybrid.empty((len(a), b.shape[1]), dtype)
    else:
        on_device = map(import_module("cupy").asarray, operands) if device == "cuda" else operands
        operands = [hybrid.RowBlock(array) for array in on_device]

    def multiplied(check: bool) -> Any:
        c = hybrid.multiply(*operands, out=out, check=check, device=device)
        return c if place == "host" else c.array

    yield {"place": place}, a, b, {"unchecked": partial(multiplied, False), "checked": partial(multiplied, True)}


_PRECISION = """How fast are products from remainders beside cuBLAS? python scripts/bench.py precision [--sizes 8192]

For matrices on one GPU, with C there, too: cuBLAS as CuPy calls it, unchecked, beside hybrid.multiply with its check in each
precision, in turns, medians.
"""
_PRECISIONS = ("native", "auto", "fast")


def _precise(device: str, sizes: Sizes, dtype: str, fill: str) -> Iterator[tuple[frame.Line, Any, Any, Mapping[str, Way]]]:
    (n, l, m), random = sizes, (import_module("cupy") if device == "cuda" else np).random.default_rng()
    a, b = (
        random.standard_normal(shape, dtype) if fill == "normal" else random.integers(-99, 100, shape).astype(dtype)
        for shape in ((n, l), (l, m))
    )
    ours = {name: partial(hybrid.multiply, a, b, precision=name, device=device) for name in _PRECISIONS}
    yield {"fill": fill}, a, b, {"cuBLAS": partial(_by_library, device, a, b), **ours}


def _by_library(device: str, a: Any, b: Any, dtype: str | None = None, *, from_host: bool = False) -> Any:
    """CuPy's product on a GPU, with all copies if `from_host`; else NumPy's. `dtype`: converts the operands."""
    cupy = import_module("cupy") if device == "cuda" else None
    there = map(cupy.asarray, (a, b)) if cupy else (a, b)
    first, second = (array.astype(dtype or array.dtype, copy=False) for array in there)
    c = first @ second
    if cupy is None:
        return c
    cupy.cuda.Device().synchronize()
    return cupy.asnumpy(c) if from_host else c


_TYPES = """How fast are products of complex numbers and of integers? python scripts/bench.py types [--sizes 4096 8192]

hybrid.multiply with its check, beside the library's matmul (CuPy's on a GPU, NumPy's on a CPU) without one, in turns, medians: of
operands and C on one GPU, and in host memory, where the library's time includes all copies. Integers have int64 results: the
library's time includes converting its operands. They fill their type, unless a sum could exceed int64.
"""


def _typed(device: str, sizes: Sizes, dtype: str, _: str) -> Iterator[tuple[frame.Line, Any, Any, Mapping[str, Way]]]:
    random, (n, l, m), result = np.random.default_rng(), sizes, None if dtype in COMPLEX else "int64"
    most = 0 if dtype in COMPLEX else min(np.iinfo(dtype).max, math.isqrt(2**62 // l))
    on_host = [
        (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
        if dtype in COMPLEX
        else random.integers(-most, most, shape, dtype, endpoint=True)
        for shape in ((n, l), (l, m))
    ]
    for place in ("gpu", "host") if device == "cuda" else ("host",):
        a, b = map(import_module("cupy").asarray, on_host) if place == "gpu" else on_host
        library = partial(_by_library, device, a, b, result, from_host=place == "host")
        ours = partial(hybrid.multiply, a, b, dtype=result, device=device)
        elements = "normal" if dtype in COMPLEX else "large"
        yield {"elements": elements, "place": place}, a, b, {"library": library, "hybrid": ours}


_SQUARES, _REAL = [(4096,) * 3, (8192,) * 3], tuple(ITEM_SIZES)
check = _case(
    "check", ("unchecked", "checked"), _CHECK, _checked, [(4000,) * 3, (8000,) * 3], 9, ("cuda", "cpu", "emulate"), _REAL,
    ("places", ("host", "row blocks")), twice=True,
)  # fmt: skip
precision = _case(
    "precision", ("cuBLAS", *_PRECISIONS), _PRECISION, _precise, [*_SQUARES, (1000, 8000, 8000)], 7, ("cuda", "emulate"), _REAL,
    ("fills", ("normal", "integers")),
)  # fmt: skip
types = _case("types", ("library", "hybrid"), _TYPES, _typed, _SQUARES, 7, ("cuda", "cpu"), (*COMPLEX, *INTEGERS))
