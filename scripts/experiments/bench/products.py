# SPDX-License-Identifier: MIT
"""Products in one process, several ways in turns: the cost of the check, precisions beside cuBLAS, element types."""

from __future__ import annotations

import argparse
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, ClassVar

import numpy as np

import hybrid
from experiments.common import frame
from experiments.common.cuda import ProductCheck, matrices
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus

Sizes = tuple[int, int, int]
Way = Callable[[], Any]  # returns C when it is complete
Kind = tuple[frame.Line, Any, Any, Mapping[str, Way]]  # of operands: keys of its lines, A, B, and the ways to multiply them
COMPLEX, INTEGERS, REAL = ("complex64", "complex128"), ("int8", "int16", "int32", "int64"), tuple(ITEM_SIZES)
PRECISIONS = ("native", "auto", "fast")


def _options(
    sizes: Sequence[int], rounds: int, devices: Sequence[str], dtypes: Sequence[str], *more: Sizes
) -> list[frame.Option]:
    usual = [*((n, n, n) for n in sizes), *more]
    told = " ".join("x".join(map(str, each if len(set(each)) > 1 else each[:1])) for each in usual)
    return [
        frame.option("--sizes", nargs="+", type=frame.sizes, default=usual, metavar="N", help=f"N or NxLxM ({told})"),
        frame.option("--rounds", type=frame.positive, default=rounds, help=f"timings of each way, in turns ({rounds})"),
        frame.option("--device", choices=devices, default="cuda", help=f"{', '.join(devices[1:])}: only as a test (cuda)"),
        frame.option("--dtypes", nargs="+", choices=dtypes, default=dtypes, metavar="TYPE", help=f"{', '.join(dtypes)} (all)"),
    ]


class Ways(frame.Experiment):
    """A table with a row for each kind of operands, and a column for each way to multiply them. Every way's product is compared
    with float64 (integers: exactly) before it is timed."""

    ways: ClassVar[Sequence[str]]  # the first is what the others are compared with
    calls_before = 0  # of a way, just before the call that is timed

    @staticmethod
    @abstractmethod
    def kinds(device: str, sizes: Sizes, dtype: str) -> Iterator[Kind]: ...

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        def seconds(way: Way) -> float:
            for _ in range(cls.calls_before):
                way()
            return frame.seconds_of(way)

        gpu = usable_gpus()[0].name if options.device == "cuda" else None
        for n, l, m in options.sizes:
            frame.refuse_too_large(n, l, m, item=16)
        for dtype, (n, l, m) in frame.shown([*product(options.dtypes, options.sizes)], "products"):
            about = {"n": n, "l": l, "m": m, "device": options.device, "gpu": gpu, "dtype": dtype}
            for keys, a, b, works in cls.kinds(options.device, (n, l, m), dtype):
                check = ProductCheck(a, b)
                for name, way in works.items():
                    for _ in range(2 + cls.calls_before):  # our second call records the work that later ones replay
                        check.refuse_wrong(name, way())
                times = frame.in_turns({name: partial(seconds, way) for name, way in works.items()}, options.rounds)
                yield from ({**about, **keys, "way": name, "seconds": frame.spread(each)} for name, each in times.items())

    def blocks(self) -> Iterator[frame.Table]:
        rows: dict[tuple[str, str, str], dict[str, float]] = {}
        for line in self.lines:
            operands = ", ".join(filter(None, (line.get(key) for key in ("fill", "elements", "place"))))
            of_kind = rows.setdefault((operands, line["dtype"], f"{line['n']}×{line['l']}×{line['m']}"), {})
            of_kind[line["way"]] = line["seconds"]["median"]
        first, *others = self.ways
        cells = []
        for kind, times in rows.items():
            beside = [f"{frame.number(1e3 * times[way])} ({times[way] / times[first]:.3f})" for way in others]
            cells.append([*kind, frame.number(1e3 * times[first]), *beside])
        heads = ["operands", "type", "n×l×m", *self.ways]
        yield frame.Table(heads, "lll" + "r" * len(self.ways), cells, f"ms (and times as long as {first})")


class Check(Ways):
    """What does the check of every product cost? python scripts/bench.py check [--sizes 4000 8000]

    hybrid.multiply with and without its check, in turns, medians, by one process: of arrays in host memory with out=, and of
    RowBlocks, on the GPU if there is one. Each is called twice in a row, and the second call is timed.
    """

    command, again = "bench_check", "python scripts/bench.py check"
    options = _options((4000, 8000), 9, ("cuda", "cpu", "emulate"), REAL)
    ways, calls_before = ("unchecked", "checked"), 1

    @staticmethod
    def kinds(device: str, sizes: Sizes, dtype: str) -> Iterator[Kind]:
        a, b = matrices("normal", dtype, *sizes)
        out = hybrid.empty((len(a), b.shape[1]), dtype)
        rows = [hybrid.RowBlock(import_module("cupy").asarray(each) if device == "cuda" else each) for each in (a, b)]

        def of_arrays(check: bool) -> Any:
            return hybrid.multiply(a, b, out=out, check=check, device=device)

        def of_rows(check: bool) -> Any:
            return hybrid.multiply(*rows, check=check, device=device).array

        for place, multiply in (("host", of_arrays), ("row blocks", of_rows)):
            yield {"place": place}, a, b, {"unchecked": partial(multiply, False), "checked": partial(multiply, True)}


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


class Precision(Ways):
    """How fast are products from remainders beside cuBLAS? python scripts/bench.py precision [--sizes 8192]

    For matrices on one GPU, with C there, too: cuBLAS as CuPy calls it, unchecked, beside hybrid.multiply with its check in each
    precision, in turns, medians.
    """

    command, again = "bench_precision", "python scripts/bench.py precision"
    options = _options((4096, 8192), 7, ("cuda", "emulate"), REAL, (1000, 8000, 8000))
    ways = ("cuBLAS", *PRECISIONS)

    @staticmethod
    def kinds(device: str, sizes: Sizes, dtype: str) -> Iterator[Kind]:
        (n, l, m), random = sizes, (import_module("cupy") if device == "cuda" else np).random.default_rng()
        for fill in ("normal", "integers"):
            a, b = (
                random.standard_normal(shape, dtype) if fill == "normal" else random.integers(-99, 100, shape).astype(dtype)
                for shape in ((n, l), (l, m))
            )
            ours = {name: partial(hybrid.multiply, a, b, precision=name, device=device) for name in PRECISIONS}
            yield {"fill": fill}, a, b, {"cuBLAS": partial(_by_library, device, a, b), **ours}


class Types(Ways):
    """How fast are products of complex numbers and of integers? python scripts/bench.py types [--sizes 4096 8192]

    hybrid.multiply with its check, beside the library's matmul (CuPy's on a GPU, NumPy's on a CPU) without one, in turns,
    medians: of operands and C on one GPU, and in host memory, where the library's time includes all copies. Integers have int64
    results: the library's time includes converting its operands. They fill their type, unless a sum could exceed int64.
    """

    command, again = "bench_types", "python scripts/bench.py types"
    options = _options((4096, 8192), 7, ("cuda", "cpu"), (*COMPLEX, *INTEGERS))
    ways = ("library", "hybrid")

    @staticmethod
    def kinds(device: str, sizes: Sizes, dtype: str) -> Iterator[Kind]:
        random, shapes = np.random.default_rng(), (sizes[:2], sizes[1:])
        if dtype in COMPLEX:
            elements, result = "normal", None
            on_host = [(random.standard_normal(each) + 1j * random.standard_normal(each)).astype(dtype) for each in shapes]
        else:
            elements, result, most = "large", "int64", min(np.iinfo(dtype).max, math.isqrt(2**62 // sizes[1]))
            on_host = [random.integers(-most, most, each, dtype, endpoint=True) for each in shapes]
        for place in ("gpu", "host") if device == "cuda" else ("host",):
            a, b = map(import_module("cupy").asarray, on_host) if place == "gpu" else on_host
            library = partial(_by_library, device, a, b, result, from_host=place == "host")
            ours = partial(hybrid.multiply, a, b, dtype=result, device=device)
            yield {"elements": elements, "place": place}, a, b, {"library": library, "hybrid": ours}
