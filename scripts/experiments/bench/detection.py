# SPDX-License-Identifier: MIT
"""Which faults does the check find? python scripts/detection.py [--sizes 512 2000] [--faults 1000] [--json F] [--picture F.svg]

Faults are put into right products of n×n matrices: a bit of an element is flipped, or two to four; its sign is turned, or it is
set to zero; or a tile of 8×8 to 64×64 elements gets noise. The size of a fault is its largest change of an element, in units of
the largest rounding error of any element of the right product; of integers, whose products have none, it is the change itself. As
many right products are checked.
--repair: the faults are put into products while they are computed, and it is counted what on_fault="repair" makes of them.
"""

import argparse
import bisect
import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import hybrid
from experiments.bench import repairs
from experiments.common import cli, plots, records, results, tables
from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.errors import UsageError
from hybrid.host.memory import RowView
from hybrid.host.threads import usable_cores
from hybrid.planning.plan import make_plan
from hybrid.planning.tiling import PlanRequest
from hybrid.ranks.team import Team
from hybrid.verification.check import Check
from hybrid.verification.freivalds import verify

Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]

DATA = ("float32", "float64", "integers")
BOUNDS = (1.0, 3.0, 10.0, 20.0, 100.0)  # sizes between which faults are counted together
NAMES = ("below 1", "1 to 3", "3 to 10", "10 to 20", "20 to 100", "above 100")
OPERANDS_KEPT = 100  # faults after which other matrices are multiplied
_ROWS_LOOKED_AT, _TERMS_LOOKED_AT = 256, 2 << 30  # at most, for the largest rounding error


class Product:
    """A right product, as `multiply` makes it, and the largest rounding error of its elements."""

    def __init__(self, data: str, n: int, random: np.random.Generator, multiply: Multiply = np.matmul) -> None:
        self.dtype = "float64" if data == "integers" else data
        if data == "integers":
            self.a, self.b = (random.integers(-99, 100, (n, n)).astype(self.dtype) for _ in "AB")
        else:
            self.a, self.b = (random.standard_normal((n, n)).astype(self.dtype) for _ in "AB")
        self.c = multiply(self.a, self.b)
        wide = np.float64 if self.dtype == "float32" else np.longdouble
        rows = random.choice(n, min(n, _ROWS_LOOKED_AT, max(1, _TERMS_LOOKED_AT // n**2)), replace=False)
        self.rounding = self.of_a_cpu = 1.0  # and that of a CPU's product: one from remainders errs less
        if data != "integers":
            exact = self.a[rows].astype(wide) @ self.b.astype(wide)
            self.rounding = float(np.abs(self.c[rows] - exact).max())
            self.of_a_cpu = float(np.abs(self.a[rows] @ self.b - exact).max())
        self._plan = make_plan(PlanRequest(Problem(n, n, n, self.dtype), Topology(((0,),)), check="host"))

    def checked(self) -> Check:
        a, b, c = (RowView(matrix, Span(0, len(matrix))) for matrix in (self.a, self.b, self.c))
        return verify(Team(), self._plan, (a, b, c), threads=len(usable_cores()))

    def fault(self, spoil: repairs.Spoil, random: np.random.Generator) -> float:
        """Puts it in, and returns its size."""
        self._where, new = spoil(self.c, random, self.rounding)
        self._right = np.copy(self.c[self._where])
        with np.errstate(all="ignore"):
            change = np.abs(np.asarray(new, np.longdouble) - self._right).max() / self.rounding
        self.c[self._where] = new
        return float(np.nan_to_num(change, nan=np.inf))

    def repair(self) -> None:
        self.c[self._where] = self._right


def sign_turned(c: np.ndarray, random: np.random.Generator, rounding: float) -> tuple[Any, Any]:
    where = tuple(random.integers(c.shape).tolist())
    return where, -c[where]


def zeroed(c: np.ndarray, random: np.random.Generator, rounding: float) -> tuple[Any, Any]:
    return tuple(random.integers(c.shape).tolist()), c.dtype.type(0)


KINDS: dict[str, repairs.Spoil] = {
    **{kind: repairs.KINDS[kind][2] for kind in ("one bit", "2 to 4 bits", "a tile")},
    "a sign": sign_turned,
    "a zero": zeroed,
}


def measured(n: int, data: str, faults: int, random: np.random.Generator) -> Iterator[records.Line]:
    """A line for each kind of fault, and one for right products."""
    alarms = looked_at = 0
    counts = {kind: [[0, 0] for _ in NAMES] for kind in KINDS}
    for number in cli.shown(range(faults), f"{n} {data}"):
        if number % OPERANDS_KEPT == 0:
            product = Product(data, n, random)
        right = product.checked()
        alarms, looked_at = alarms + (not right.ok), looked_at + bool(right.note)
        for kind, spoil in KINDS.items():
            size = product.fault(spoil, random)
            while not size:  # a zero whose sign is turned is no fault
                product.repair()
                size = product.fault(spoil, random)
            of_size = counts[kind][bisect.bisect_right(BOUNDS, size)]
            of_size[0] += 1
            of_size[1] += not product.checked().ok
            product.repair()
    about = {"n": n, "data": data, "device": "cpu"}
    yield {**about, "part": "right", "products": faults, "alarms": alarms, "noted": looked_at}
    for kind in KINDS:
        yield {**about, "part": "faults", "kind": kind, "sizes": list(NAMES), "counts": counts[kind]}


_VIOLET = "#8c6bb1"


class Results(results.Results):
    command = "detection"

    def blocks(self) -> Iterator[tables.Block]:
        yield from self._of_repairs() if self.lines[0]["part"] == "repairs" else self._of_checks()

    def _of_repairs(self) -> Iterator[tables.Block]:
        rows, total = [], np.zeros(len(repairs.OUTCOMES), int)
        for n, kind in dict.fromkeys((line["n"], line["kind"]) for line in self.lines):
            of_kind = [line for line in self.lines if (line["n"], line["kind"]) == (n, kind)]
            counts = np.sum([line["counts"] for line in of_kind], axis=0)
            ratios = [line["times_as_long"] for line in of_kind if line["times_as_long"]]
            rows.append([str(n), kind, *map(_outcomes, counts), f"{np.mean(ratios):.2f}" if ratios else "–"])
            total += counts.sum(axis=0)
        title = "What became of faults whose size in rounding errors is; and how long a repaired product took, a right one 1"
        yield tables.Table(["n", "fault", *repairs.NAMES, "time"], "rl" + "r" * (len(repairs.NAMES) + 1), rows, title)
        counted = ", ".join(f"{number:,} {name}" for name, number in zip(repairs.OUTCOMES, total, strict=True))
        yield tables.Remarks([f"{total.sum():,} faults: {counted}."])

    def _of_checks(self) -> Iterator[tables.Block]:
        right = [line for line in self.lines if line["part"] == "right"]
        rows = [
            [str(line["n"]), line["data"], line["kind"], *(_share(*each) for each in line["counts"])]
            for line in self.lines
            if line["part"] == "faults"
        ]
        title = "Found, of faults whose size in rounding errors is"
        yield tables.Table(["n", "elements", "fault", *NAMES], "rll" + "r" * len(NAMES), rows, title)
        products, alarms, noted = (sum(line[key] for line in right) for key in ("products", "alarms", "noted"))
        yield tables.Remarks([f"{alarms} of {products:,} right products were refused, and {noted} passed with a note."])

    def draw(self, path: str) -> None:
        """The share that was found against the size, a panel for each type; of the size with the most faults."""
        faults = [line for line in self.lines if line["part"] == "faults"]
        if not faults:
            raise UsageError("--repair has no picture")
        n = max(faults, key=lambda line: sum(injected for injected, _ in line["counts"]))["n"]
        kinds = dict(zip(KINDS, (plots.HERE, plots.LECTURE, plots.OTHER, plots.GREY, _VIOLET), strict=True))
        with plots.figure(path, (9.5, 3.2), f"Faults that the check finds, n = {n}", self.caption()) as figure:
            panels = figure.subplots(1, len(DATA), squeeze=False, sharey=True)[0]
            for data, panel in zip(DATA, panels, strict=True):
                plots.plain(panel, data)
                for line in (line for line in faults if (line["data"], line["n"]) == (data, n)):
                    drawn = [(place, 100 * found / of) for place, (of, found) in enumerate(line["counts"]) if of]
                    panel.plot(*zip(*drawn, strict=True), marker="o", ms=4, color=kinds[line["kind"]], label=line["kind"])
                panel.set_xticks(range(len(NAMES)), NAMES, rotation=40, fontsize=8)
            panels[0].set_ylabel("found, %")
            panels[-1].legend(fontsize=8, frameon=False, loc="lower right")  # where all is found the panel is empty below
            panels[1].set_xlabel("size of the fault, in units of the product's largest rounding error")

    def exit_code(self) -> int:
        """1 if a right product was refused, a fault above 20 rounding errors, or any of integers, not found, or a repair wrong"""
        first = NAMES.index("20 to 100")
        missed = (
            of - found
            for line in self.lines
            if line["part"] == "faults"
            for of, found in line["counts"][0 if line["data"] == "integers" else first :]
        )
        wrong = repairs.OUTCOMES.index("wrong")
        of_repairs = (of_size[wrong] for line in self.lines if line["part"] == "repairs" for of_size in line["counts"])
        return int(any(line.get("alarms") for line in self.lines) or any(missed) or any(of_repairs))


def _outcomes(counts: Sequence[int]) -> str:
    said = [f"{number} {name}" for name, number in zip(repairs.OUTCOMES, counts, strict=True) if number]
    return ", ".join(said) or "–"


def _share(injected: int, found: int) -> str:
    return f"{found} of {injected}" if injected else "–"


def _measured(options: argparse.Namespace) -> Iterator[records.Line]:
    random = np.random.default_rng(options.seed)
    if len(options.faults) not in (1, len(options.sizes)):
        raise UsageError("--faults takes one number, or one for each of --sizes")
    if options.device != "cpu" and not options.repair:
        raise UsageError("--device is for --repair: without it, right products are spoiled afterwards, on the host")
    least = repairs.BLOCK if options.repair else repairs.LARGEST_TILE
    if min(options.sizes) < least:
        raise UsageError(f"--sizes must be {least} or more: that is the largest tile")
    each = options.faults * len(options.sizes) if len(options.faults) == 1 else options.faults
    for n, faults in zip(options.sizes, each, strict=True):
        for data in DATA:
            if options.repair:
                product = Product(data, n, random, partial(hybrid.multiply, device=options.device))
                yield from repairs.measured(product, n, data, options.device, faults, random, options.kinds)
            else:
                yield from measured(n, data, faults, random)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    whole = cli.at_least_1
    parser.add_argument("--sizes", nargs="+", type=whole, default=[512, 2000], metavar="N", help="from 64 up (512 2000)")
    parser.add_argument(
        "--faults", nargs="+", type=whole, default=[1000], metavar="K", help="of each kind, type and size, or one number a size"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of matrices and faults")
    parser.add_argument("--repair", action="store_true", help="count what is repaired, and how long that takes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="with --repair: what multiplies (cpu)")
    parser.add_argument(
        "--kinds", nargs="+", choices=[*repairs.KINDS], default=[*repairs.KINDS], help="with --repair: of faults (all)"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")
    cli.add_lines(parser)
    return cli.command(parser, partial(cli.present, results=Results, measured=_measured), arguments)
