# SPDX-License-Identifier: MIT
"""Which faults does the check find? python scripts/bench.py detection [--sizes 512 2000] [--faults 1000]

Faults are planted into products of n×n matrices while CPUs compute them: a bit of an element is flipped, or two to four; its sign
is turned, or it is set to zero; or a tile of 8×8 to 64×64 elements gets noise. The size of a fault is its largest change of an
element, in units of the largest rounding error of any element of the right product; of integers, whose products have none, it is
the change itself. As many right products are checked.
"""

import argparse
import bisect
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import hybrid
import hybrid.testing
from experiments.common import frame
from hybrid.errors import CheckFailed, UsageError

SMALLEST_TILE, LARGEST_TILE = 8, 64
BOUNDS = (1.0, 3.0, 10.0, 20.0, 100.0)  # sizes between which faults are counted together
NAMES = ("below 1", "1 to 3", "3 to 10", "10 to 20", "20 to 100", "above 100")
DATA = ("float32", "float64", "integers")
OPERANDS_KEPT = 100  # faults after which other matrices are multiplied
_ROWS_LOOKED_AT, _TERMS_LOOKED_AT = 256, 2 << 30  # at most, for the largest rounding error
_WORDS = {4: np.uint32, 8: np.uint64}


def bits(least: int, most: int, old: np.ndarray, random: np.random.Generator, rounding: float) -> Any:
    """So many bits are flipped."""
    word: Any = _WORDS[old.itemsize](0)
    for bit in random.choice(8 * old.itemsize, random.integers(least, most + 1), replace=False).tolist():
        word |= word.dtype.type(1 << bit)
    return (old.view(word.dtype) ^ word).view(old.dtype)


def noise(old: np.ndarray, random: np.random.Generator, rounding: float) -> Any:
    """Its largest element is between a tenth and 10,000 rounding errors; of integers, it is of integers."""
    more = random.standard_normal(old.shape)
    more *= rounding * 10 ** random.uniform(-1, 4) / np.abs(more).max()
    return (old + (np.rint(more) if rounding == 1.0 else more)).astype(old.dtype)


# What is there instead of an element, or a tile.
KINDS: dict[str, Callable[[np.ndarray, np.random.Generator, float], Any]] = {
    "one bit": partial(bits, 1, 1),
    "2 to 4 bits": partial(bits, 2, 4),
    "a tile": noise,
    "a sign": lambda old, random, rounding: -old,
    "a zero": lambda old, random, rounding: np.zeros_like(old),
}


class Product:
    """Random operands, and the largest rounding error of an element of their product."""

    def __init__(self, data: str, n: int, random: np.random.Generator) -> None:
        dtype = "float64" if data == "integers" else data
        draw = partial(random.integers, -99, 100) if data == "integers" else random.standard_normal
        self.a, self.b = (draw(size=(n, n)).astype(dtype) for _ in "AB")
        self.random, self.rounding = random, 1.0
        if data != "integers":
            wide = np.float64 if dtype == "float32" else np.longdouble
            rows = random.choice(n, min(n, _ROWS_LOOKED_AT, max(1, _TERMS_LOOKED_AT // n**2)), replace=False)
            exact = self.a[rows].astype(wide) @ self.b.astype(wide)
            self.rounding = float(np.abs(hybrid.multiply(self.a, self.b, device="cpu")[rows] - exact).max())

    def is_refused(self) -> bool:
        try:
            hybrid.multiply(self.a, self.b, device="cpu", check="host")
        except CheckFailed:
            return True
        return False

    def with_fault(self, kind: str) -> tuple[bool, float]:
        """Whether the product is refused, and the size of its fault."""
        size = 0.0

        def spoil(into: np.ndarray, source: Any, before: Any) -> None:
            nonlocal size
            while not size:  # a zero whose sign is turned is no fault
                side = int(self.random.integers(SMALLEST_TILE, LARGEST_TILE + 1)) if kind == "a tile" else 1
                corner = self.random.integers(np.array(into.shape) - side + 1).tolist()
                where = tuple(slice(first, first + side) for first in corner)
                new = KINDS[kind](into[where].copy(), self.random, self.rounding)
                with np.errstate(all="ignore"):
                    change = np.abs(new.astype(np.longdouble) - into[where]).max()
                size = float(np.inf if np.isnan(change) else change / self.rounding)
                into[where] = new

        with hybrid.testing.plant("multiply", how=spoil):
            refused = self.is_refused()
        assert size, "no multiplication could be spoiled"
        return refused, size


class Results(frame.Results):
    command, again = "detection", "python scripts/bench.py detection"

    def blocks(self) -> Iterator[frame.Table]:
        right = [line for line in self.lines if line["part"] == "right"]
        rows = [
            [str(line["n"]), line["data"], line["kind"], *(f"{found} of {of}" if of else "–" for of, found in line["counts"])]
            for line in self.lines
            if line["part"] == "faults"
        ]
        title = "Found, of faults whose size in rounding errors is"
        yield frame.Table(["n", "elements", "fault", *NAMES], "rll" + "r" * len(NAMES), rows, title)
        products, alarms = (sum(line[key] for line in right) for key in ("products", "alarms"))
        yield frame.remarks([f"{alarms} of {products:,} right products were refused."])

    def exit_code(self) -> int:
        """1 if a right product was refused, or a fault above 20 rounding errors, or any of integers, was not found."""
        alarms, missed = (line.get("alarms") for line in self.lines), 0
        for line in (line for line in self.lines if line["part"] == "faults"):
            first = 0 if line["data"] == "integers" else NAMES.index("20 to 100")
            missed += sum(of - found for of, found in line["counts"][first:])
        return int(any(alarms) or missed > 0)


def _measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    random = np.random.default_rng(options.seed)
    if len(options.faults) not in (1, len(options.sizes)):
        raise UsageError("--faults takes one number, or one for each of --sizes")
    if min(options.sizes) < LARGEST_TILE:
        raise UsageError(f"--sizes must be {LARGEST_TILE} or more: that is the largest tile")
    each = options.faults * len(options.sizes) if len(options.faults) == 1 else options.faults
    for (n, faults), data in ((case, data) for case in zip(options.sizes, each, strict=True) for data in DATA):
        counts, alarms = {kind: [[0, 0] for _ in NAMES] for kind in KINDS}, 0
        for number in frame.shown(range(faults), f"{n} {data}"):
            if number % OPERANDS_KEPT == 0:
                product = Product(data, n, random)
            alarms += product.is_refused()
            for kind, of_kind in counts.items():
                refused, size = product.with_fault(kind)
                of_size = of_kind[bisect.bisect_right(BOUNDS, size)]
                of_size[0] += 1
                of_size[1] += refused
        about = {"n": n, "data": data, "device": "cpu"}
        yield {**about, "part": "right", "products": faults, "alarms": alarms}
        yield from ({**about, "part": "faults", "kind": kind, "sizes": NAMES, "counts": of} for kind, of in counts.items())


main = frame.experiment(
    __doc__, Results, _measured,
    frame.option("--sizes", nargs="+", type=frame.positive, default=[512, 2000], metavar="N", help="from 64 up (512 2000)"),
    frame.option("--faults", nargs="+", type=frame.positive, default=[1000], metavar="K",
                 help="of each kind, type and size, or one number a size"),
    frame.option("--seed", type=int, default=secrets.randbits(32), help="of matrices and faults"),
)  # fmt: skip
