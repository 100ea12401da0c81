# SPDX-License-Identifier: MIT
"""What experiments share that time products of several sizes and types in one process, one way beside others."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.common import cli, records, schema
from experiments.common.product_check import ProductCheck
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus

Sizes = tuple[int, int, int]
Way = Callable[[], Any]  # returns C when it is complete

SCHEMA: schema.Schema = {**schema.ON_DEVICE, **schema.SIDES, "dtype": schema.among(*ITEM_SIZES)}


def add_options(parser: argparse.ArgumentParser, sizes: Sequence[Sizes], rounds: int) -> None:
    label = " ".join(map(_short, sizes))
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, default=sizes, metavar="N", help=f"N or NxLxM ({label})")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(ITEM_SIZES), default=list(ITEM_SIZES), metavar="T", help="(both)")
    parser.add_argument("--rounds", type=cli.at_least_1, default=rounds, help=f"timings of each way, in turns ({rounds})")
    cli.add_lines(parser)
    parser.set_defaults(picture=None)


def add_choice(parser: argparse.ArgumentParser, option: str, choices: Sequence[str]) -> None:
    """An option that takes some of these, and all of them by default."""
    listed = f"{', '.join(choices)} (all)"
    parser.add_argument(option, nargs="+", choices=choices, default=list(choices), metavar=option[2].upper(), help=listed)


def _short(sizes: Sizes) -> str:
    return "x".join(map(str, sizes if len(set(sizes)) > 1 else sizes[:1]))


def measured(
    options: argparse.Namespace,
    part: str,
    cases: Sequence[tuple[Sizes, str, str]],
    lines_of: Callable[[Sizes, str, str], Iterable[records.Line]],
) -> Iterator[records.Line]:
    """Of each case, which is sizes, type and something else, the lines; what they have in common is added."""
    gpu = usable_gpus()[0].name if options.device == "cuda" else None
    for n, l, m in options.sizes:
        cli.refuse_too_large(n, l, m, item=8)
    for sizes, dtype, more in cli.shown(cases, "products"):
        about = {"part": part, "device": options.device, "gpu": gpu, "dtype": dtype}
        for line in lines_of(sizes, dtype, more):
            yield {**dict(zip("nlm", sizes, strict=True)), **about, **line}


def checked_times(
    check: ProductCheck, ways: Mapping[str, Way], rounds: int, *, untimed: int, calls: int = 1
) -> list[list[float]]:
    """The seconds of each way, in turns, after so many calls of each that are not timed, whose products are checked. `calls`: as
    for `records.in_turns`."""
    for name, way in ways.items():
        for _ in range(untimed):
            check.refuse_wrong(name, way())
    return list(records.in_turns(ways, rounds, calls).values())


def sizes_of(line: records.Line) -> str:
    """n×l×m."""
    return f"{line['n']}×{line['l']}×{line['m']}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"
