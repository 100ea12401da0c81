# SPDX-License-Identifier: MIT
"""The planted faults that the check of a product finds."""

from __future__ import annotations

import argparse
import bisect
import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

import hybrid
import hybrid.testing
from experiments.common import frame
from hybrid.errors import CheckFailed, UsageError

Random = np.random.Generator

SMALLEST_TILE, LARGEST_TILE = 8, 64
BOUNDS = (1.0, 3.0, 10.0, 20.0, 100.0)  # sizes between which faults are counted together
NAMES = ("below 1", "1 to 3", "3 to 10", "10 to 20", "20 to 100", "above 100")
OPERANDS_KEPT = 100  # faults after which other matrices are multiplied
_ROWS_LOOKED_AT = 256  # at most, for the largest rounding error


def bits(least: int, most: int, old: np.ndarray, random: Random, rounding: float) -> Any:
    """Flip `least` to `most` random bits."""
    word = np.dtype(f"u{old.itemsize}").type
    flipped = random.choice(8 * old.itemsize, random.integers(least, most + 1), replace=False)
    return (old.view(word) ^ word(sum(1 << bit for bit in flipped.tolist()))).view(old.dtype)


def noise(old: np.ndarray, random: Random, rounding: float) -> Any:
    """Add noise whose largest element is between a tenth and 10,000 rounding errors; whole numbers for integers."""
    more = random.standard_normal(old.shape)
    more *= rounding * 10 ** random.uniform(-1, 4) / np.abs(more).max()
    return (old + (np.rint(more) if rounding == 1.0 else more)).astype(old.dtype)


# Each returns what replaces an element or a tile.
FAULTS: dict[str, Callable[[np.ndarray, Random, float], Any]] = {
    "one bit": partial(bits, 1, 1),
    "2 to 4 bits": partial(bits, 2, 4),
    "a tile": noise,
    "a sign": lambda old, random, rounding: -old,
    "a zero": lambda old, random, rounding: np.zeros_like(old),
}


def _is_refused(a: np.ndarray, b: np.ndarray) -> bool:
    with suppress(CheckFailed):
        hybrid.multiply(a, b, device="cpu", check="host")
        return False
    return True


def _operands(data: str, n: int, random: Random) -> tuple[np.ndarray, np.ndarray, float]:
    """A, B, and the largest rounding error of an element of their product; 1 for integers."""
    if data == "integers":
        a, b = random.integers(-99, 100, (2, n, n)).astype("float64")
        return a, b, 1.0
    a, b = random.standard_normal((2, n, n)).astype(data)
    wide = np.float64 if data == "float32" else np.longdouble
    rows = random.choice(n, min(n, _ROWS_LOOKED_AT), replace=False)
    exact = a[rows].astype(wide) @ b.astype(wide)
    return a, b, float(np.abs(hybrid.multiply(a, b, device="cpu")[rows] - exact).max())


def _with_fault(kind: str, a: np.ndarray, b: np.ndarray, rounding: float, random: Random) -> tuple[bool, float]:
    """Whether the product is refused, and the size of its fault."""
    size = 0.0

    def spoil(into: np.ndarray, source: Any, before: Any) -> None:
        nonlocal size
        while not size:  # changing the sign of a zero is no fault
            side = int(random.integers(SMALLEST_TILE, LARGEST_TILE + 1)) if kind == "a tile" else 1
            corner = random.integers(np.array(into.shape) - side + 1).tolist()
            where = tuple(slice(first, first + side) for first in corner)
            new = FAULTS[kind](into[where].copy(), random, rounding)
            with np.errstate(all="ignore"):
                change = np.abs(new.astype(np.longdouble) - into[where]).max()
            size = float(np.inf if np.isnan(change) else change / rounding)
            into[where] = new

    with hybrid.testing.plant("multiply", how=spoil):
        refused = _is_refused(a, b)
    assert size, "no multiplication could be spoiled"
    return refused, size


class Detection(frame.Experiment):
    """Which faults does the check find? python scripts/bench.py detection [--sizes 512 2000] [--faults 1000]

    Faults are planted into products of n×n matrices while CPUs compute them, and as many right products are checked. The size of
    a fault is its largest change of an element, in units of the right product's largest rounding error; of integers, the change
    itself. Ends with 1 if a right product was refused, or a fault above 20 rounding errors, or any of integers, was not found.
    """

    command, again = "detection", "python scripts/bench.py detection"
    options = (
        frame.option("--sizes", nargs="+", type=frame.positive, default=[512, 2000], metavar="N", help="from 64 up (512 2000)"),
        frame.option("--faults", type=frame.positive, default=1000, metavar="K", help="of each kind, type and size (1000)"),
        frame.option("--seed", type=int, default=secrets.randbits(32), help="of matrices and faults"),
    )

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        random = np.random.default_rng(options.seed)
        if min(options.sizes) < LARGEST_TILE:
            raise UsageError(f"--sizes must be {LARGEST_TILE} or more: that is the largest tile")
        for n, data in itertools.product(options.sizes, ("float32", "float64", "integers")):
            counts, alarms = {kind: [[0, 0] for _ in NAMES] for kind in FAULTS}, 0
            for number in frame.shown(range(options.faults), f"{n} {data}"):
                if number % OPERANDS_KEPT == 0:
                    a, b, rounding = _operands(data, n, random)
                alarms += _is_refused(a, b)
                for kind, of_kind in counts.items():
                    refused, size = _with_fault(kind, a, b, rounding, random)
                    of_size = of_kind[bisect.bisect_right(BOUNDS, size)]
                    of_size[0] += 1
                    of_size[1] += refused
            about = {"n": n, "data": data, "device": "cpu"}
            yield {**about, "part": "right", "products": options.faults, "alarms": alarms}
            yield from ({**about, "part": "faults", "kind": kind, "sizes": NAMES, "counts": of} for kind, of in counts.items())

    def _lines(self, part: str) -> list[frame.Line]:
        return [line for line in self.lines if line["part"] == part]

    def blocks(self) -> Iterator[frame.Table]:
        rows = [
            [str(line["n"]), line["data"], line["kind"], *(f"{found} of {of}" if of else "–" for of, found in line["counts"])]
            for line in self._lines("faults")
        ]
        title = "Found, of faults whose size in rounding errors is"
        yield frame.Table(["n", "elements", "fault", *NAMES], "rll" + "r" * len(NAMES), rows, title)
        products, alarms = (sum(line[key] for line in self._lines("right")) for key in ("products", "alarms"))
        yield frame.remarks([f"{alarms} of {products:,} right products were refused."])

    def exit_code(self) -> int:
        missed, large = 0, NAMES.index("20 to 100")
        for line in self._lines("faults"):
            missed += sum(of - found for of, found in line["counts"][0 if line["data"] == "integers" else large :])
        return int(missed > 0 or any(line["alarms"] for line in self._lines("right")))
