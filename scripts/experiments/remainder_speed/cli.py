# SPDX-License-Identifier: MIT
"""How fast are the kernels of products from remainders beside cuBLAS? python scripts/bench_remainders.py [--json lines.jsonl]

On one GPU, operands and C on it, by the GPU's clock, kernels alone: nothing is checked while it is timed, and no host waits for
the guard (scripts/bench_precision.py measures whole calls). "in turns": one way after the other, round by round, medians;
"alone": the same product for --alone seconds without a pause. Kinds:

  normal    float64 and float32 by so many moduli. "B ready": what is made of B is there from a product before
  integers  of float64 elements up to 99, by signed bytes, exactly
  bytes     int8 · int8 = int32, operands packed beforehand; cuBLAS gets them as it wants them, too
  halves    float32 as three products of float16, sums added to registers after 64 or 128 along k; on compute capability 9.0 alone
  errors    of cuBLAS, of halves and of 7 moduli: root mean square and maximum of 24×24 elements as parts of |A||B|, in 2⁻²⁴
  stages    how long each kernel takes, and C put together by integers, which GPUs with little float64 do

Each product is compared with a float64 product first. --check: are the goals reached? --device emulate runs it on the CPU,
slowly.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.accuracy.errors import Reference
from experiments.accuracy.kinds import matrices as matrices_of
from experiments.common import cli, records, timed_products
from experiments.common.product_check import IntegerCheck, ProductCheck
from experiments.common.timed_products import Sizes
from experiments.remainder_speed.bench import Bench
from experiments.remainder_speed.halves import CHUNKS, OfHalves
from experiments.remainder_speed.kernels import BytesAlone, Emulation
from experiments.remainder_speed.results import KINDS, YARDSTICK, Checked, Results
from experiments.remainder_speed.timing import Way, alone, enqueued, in_turns, seconds_of
from hybrid.devices.cuda_gpus import usable_gpus

SIZES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (1000, 8000, 8000))
MODULI = {"float64": (15, 14), "float32": (7, 8)}
_ROUNDINGS, _ROUNDINGS_OF_HALVES = 64, 1024  # matrix units do not round to nearest when they add
_SAMPLED = 24  # rows and columns whose errors are looked at
_DTYPES = {"bytes": ["int8"], "integers": ["float64"], "halves": ["float32"], "errors": ["float32"]}  # of kinds that have one


Ways = dict[str, tuple[Way, Any]]  # with the C of each


def _normal(bench: Bench, sizes: Sizes, dtype: str) -> tuple[Ways, Callable[[], Any]]:
    a, b, c = bench.matrices(sizes, dtype, "normal")
    ways: Ways = {YARDSTICK: (bench.yardstick((a, b, c)), c)}
    for moduli in MODULI[dtype]:
        emulation = Emulation(bench.device, a, b, c, moduli)
        for ready in (False, True):
            name = f"{moduli} moduli{', B ready' if ready else ''}"
            ways[name] = enqueued(bench.device, emulation.whole(b_ready=ready)), c
    return ways, lambda: ProductCheck(a, b, _ROUNDINGS)


def _integers(bench: Bench, sizes: Sizes, dtype: str) -> tuple[Ways, Callable[[], Any]]:
    a, b, c = bench.matrices(sizes, dtype, "integers")
    emulation = Emulation(bench.device, a, b, c, 1)
    ways: Ways = {YARDSTICK: (bench.yardstick((a, b, c)), c), "bytes": (enqueued(bench.device, emulation.whole()), c)}
    return ways, lambda: ProductCheck(a, b)


def _bytes(bench: Bench, sizes: Sizes) -> tuple[Ways, Callable[[], Any]]:
    a, b, _ = bench.matrices(sizes, "float32", "integers")
    ours, (of_a, of_b) = BytesAlone(bench.device, a, b), bench.as_bytes(a, b)
    ways: Ways = {}
    if bench.on_gpu:
        c = bench.integers32(sizes[0], sizes[2])
        ways[YARDSTICK] = bench.cublas_of_bytes(of_a, of_b, c), c
    ways["packed bytes"] = enqueued(bench.device, ours.product), ours.c
    return ways, lambda: IntegerCheck(of_a, of_b)


def _halves(bench: Bench, sizes: Sizes) -> tuple[Ways, Callable[[], Any]]:
    a, b, c = bench.matrices(sizes, "float32", "normal")
    ways: Ways = {YARDSTICK: (bench.yardstick((a, b, c)), c)}
    of_halves = OfHalves(bench.device, a, b, c)
    ways |= {f"halves, {64 * chunk} of k": (enqueued(bench.device, of_halves.whole(chunk)), c) for chunk in CHUNKS}
    return ways, lambda: ProductCheck(a, b, _ROUNDINGS_OF_HALVES)


def _errors(bench: Bench, sizes: Sizes) -> Iterator[records.Line]:
    """Of matrices of several kinds; where the GPU cannot multiply halves, of the others."""
    random = np.random.default_rng(1)
    for fill in ("uniform", "normal", "φ = 1", "φ = 2"):
        host = matrices_of(fill, "float32", *sizes, random)
        a, b, c = (bench.matrix(*shape, "float32") for shape in (host[0].shape, host[1].shape, sizes[::2]))
        for matrix, numbers in zip((a, b), host, strict=True):
            bench.device.copy_in(matrix, numbers, [])
        list(bench.device.finish())
        ways = {YARDSTICK: bench.yardstick((a, b, c))}
        if bench.multiplies_halves:
            of_halves = OfHalves(bench.device, a, b, c)
            ways |= {f"halves, {64 * chunk} of k": enqueued(bench.device, of_halves.whole(chunk)) for chunk in CHUNKS}
        ways["7 moduli"] = enqueued(bench.device, Emulation(bench.device, a, b, c, 7).whole())
        rows, columns = (np.sort(random.permutation(length)[:_SAMPLED]) for length in sizes[::2])
        reference = Reference(host[0][rows], np.ascontiguousarray(host[1][:, columns]))
        for name, way in ways.items():
            way([])
            list(bench.device.finish())
            rms, most = reference.rms_and_max(bench.on_host(c)[np.ix_(rows, columns)])
            yield {"part": "errors", "fill": fill, "way": name, "rms": float(rms), "most": float(most)}


def _timed(bench: Bench, options: argparse.Namespace, made: tuple[Ways, Callable[[], Any]]) -> Iterator[records.Line]:
    ways, make_check = made
    check = make_check()
    for name, (way, c) in ways.items():
        bench.refuse_wrong(way, c, name, check)
    del check
    spreads = in_turns(bench.device, {name: way for name, (way, _) in ways.items()}, options.rounds)
    for name, (way, _) in ways.items():
        yield {"part": "products", "way": name, "seconds": spreads[name], "alone": alone(bench.device, way, options.alone)}


def _stages(bench: Bench, sizes: Sizes, dtype: str, rounds: int) -> Iterator[records.Line]:
    a, b, c = bench.matrices(sizes, dtype, "normal")
    moduli = MODULI[dtype][0]
    emulation = Emulation(bench.device, a, b, c, moduli)
    device = bench.device
    found: dict[str, float] = {}
    for by_integers in (False, True):
        stages = emulation.stages(by_integers=by_integers)
        if by_integers:
            stages = {f"{name}, by integers": calls for name, calls in stages.items() if name.startswith("reconstruction")}
        for name, calls in stages.items():
            way = enqueued(device, device.together(calls))
            seconds_of(bench.device, way, 2)
            base, _, more = name.partition(", part")
            stage = base + (", by integers" if by_integers and more else "")
            found[stage] = found.get(stage, 0) + min(seconds_of(bench.device, way, 3) for _ in range(rounds))
    for stage, seconds in found.items():
        yield {"part": "stages", "stage": stage, "moduli": moduli, "took": seconds}


def _lines(bench: Bench, options: argparse.Namespace, sizes: Sizes, dtype: str, kind: str) -> Iterator[records.Line]:
    if kind == "stages":
        yield from _stages(bench, sizes, dtype, options.rounds)
    elif kind == "errors":
        yield from _errors(bench, sizes)
    elif kind != "halves" or bench.multiplies_halves:
        typed = {"normal": partial(_normal, dtype=dtype), "integers": partial(_integers, dtype=dtype)}
        make = {**typed, "bytes": _bytes, "halves": _halves}[kind]
        yield from _timed(bench, options, make(bench, sizes))


def _of_errors(l: int, n: int, m: int) -> Sizes:
    """An exact element takes long."""
    return min(n, 512), min(l, 8192), min(m, 512)


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    bench = Bench(options.device)
    gpu = usable_gpus()[0].name if bench.on_gpu else None
    cases = []
    for kind in options.kinds:
        dtypes = _DTYPES.get(kind, options.dtypes)
        longest = max((l, n, m) for n, l, m in options.sizes)
        listed = [_of_errors(*longest)] if kind == "errors" else options.sizes
        cases += [(sizes, dtype, kind) for dtype in dtypes for sizes in listed]
    for sizes, dtype, kind in cli.shown(cases, "products"):
        about = {"device": options.device, "gpu": gpu, "dtype": dtype, "kind": kind, **dict(zip("nlm", sizes, strict=True))}
        for line in _lines(bench, options, sizes, dtype, kind):
            yield {**about, **line}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    timed_products.add_options(parser, SIZES, rounds=5)
    timed_products.add_choice(parser, "--kinds", KINDS)
    parser.add_argument("--alone", type=float, default=0.5, metavar="S", help="seconds of products without a pause (0.5)")
    parser.add_argument("--device", choices=("cuda", "emulate"), default="cuda", help="emulate: on the CPU, to see that it runs")
    parser.add_argument("--check", action="store_true", help="say which goals are reached; 1 where one is not")
    return cli.command(parser, work, arguments)


def work(options: argparse.Namespace) -> int:
    return cli.present(options, Checked if options.check else Results, measured)
