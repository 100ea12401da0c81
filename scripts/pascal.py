"""Question 4 of the matrix multiplication lecture: how large may Pascal's triangle be? python scripts/pascal.py [--kernel NAME]

L[i][j] = C(i, j) and R[i][j] = (-1)^(i+j)·C(i, j) multiply to the identity. For each element type, the largest N of N×N with

  (a) fit     every entry held exactly by the type,
  (b) exact   every sum exact in whatever order it is added up: Σ|terms| stays within the integers that the type holds,
  (c) right   the identity in fact: all sizes up to N multiplied by the runner, with the kernel of choice.

(a) and (b) are computed, (c) is measured, in seconds and without a GPU; --quick stops at the first size that is wrong, else
larger ones that come out right by luck are looked for too.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import count

import lecture_picture
import numpy as np
import pascal_picture
from lecture_common import machine_of, processor_of
from lecture_names import TYPES
from report_table import Block, Remarks, Table, printed
from tqdm import tqdm

import hybrid
from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.errors import HybridError, UsageError, one_line
from hybrid.host import files
from hybrid.ranks.team import Team
from hybrid.reporting import jsonl
from hybrid.selection.agreement import agree
from hybrid.selection.decision import ProductRequest
from hybrid.selection.inventory import take_inventory
from hybrid.selection.session import Session

MULTIPLIED = ("float32", "float64")  # by the runner's kernels, as by the lecture's programs
LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1, "float32": 2**24, "float64": 2**53}  # of integers held without a gap

Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]


# --- what can be computed


def entry(row: int, column: int) -> int:
    return math.comb(row, column)


def magnitude(row: int, column: int) -> int:
    """Σ|terms| of an element of the product: Σ C(i, k)·C(k, j) = C(i, j)·2^(i-j)."""
    return math.comb(row, column) << (row - column) if row >= column else 0


def holds(dtype: str, number: int) -> bool:
    """Whether the type has this number, exactly; floating point also has large ones that end in enough zero bits."""
    if dtype.startswith("int"):
        return number <= LIMITS[dtype]
    odd_part = number >> ((number & -number).bit_length() - 1) if number else 0
    return odd_part <= LIMITS[dtype]


def largest_that_fits(dtype: str) -> int:
    """(a)"""
    return next(size for size in count(1) if not all(holds(dtype, entry(size, column)) for column in range(size + 1)))


def largest_exact(dtype: str) -> int:
    """(b)"""
    return next(size for size in count(1) if max(magnitude(size, column) for column in range(size + 1)) > LIMITS[dtype])


def triangles(size: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """L and R, each entry rounded once. UsageError for sizes whose entries exceed the type."""
    whole = np.array([[entry(row, column) for column in range(size)] for row in range(size)], object)
    signs = np.array([[(-1) ** (row + column) for column in range(size)] for row in range(size)], object)
    limit = LIMITS[dtype] if dtype.startswith("int") else int(np.finfo(dtype).max)
    if whole.max() > limit:
        raise UsageError(f"the triangle of size {size} has entries beyond the largest {dtype}: a smaller --size")
    return whole.astype(dtype), (whole * signs).astype(dtype)


@dataclass(frozen=True)
class Wrong:
    """An element of a product that should be the identity."""

    size: int
    row: int
    column: int
    value: float

    def __str__(self) -> str:
        due = int(self.row == self.column)
        return f"N = {self.size}: [{self.row}][{self.column}] is {self.value:.12g}, not {due}"


def first_wrong(product: np.ndarray) -> Wrong | None:
    """None for the identity."""
    wrong = product != np.eye(len(product), dtype=product.dtype)
    if not wrong.any():
        return None
    row, column = map(int, np.unravel_index(int(wrong.argmax()), wrong.shape))
    return Wrong(len(product), row, column, float(product[row, column]))


# --- what is measured


def products(dtype: str, multiply: Multiply, last: int) -> Iterator[tuple[int, Wrong | None]]:
    """For each size from 1 on, whether the product is right."""
    for size in range(1, last + 1):
        yield size, first_wrong(multiply(*triangles(size, dtype)))


@dataclass(frozen=True)
class Result:
    """A type's line. `right` is None where nothing multiplies this type."""

    dtype: str
    fit: int
    exact: int
    right: int | None
    kernel: str | None  # that was chosen for (c)
    reasons: tuple[str, str, str]


def bits(number: int) -> str:
    return f"2^{math.log2(number):.1f}"


def assess(dtype: str, multiply: Multiply, kernel: str, quick: bool) -> Result:
    """All three, each with its reason."""
    fit, exact = largest_that_fits(dtype), largest_exact(dtype)
    column = next(column for column in range(fit + 1) if not holds(dtype, entry(fit, column)))
    limit = f"2^{LIMITS[dtype].bit_length() - (not dtype.startswith('int'))}"
    why_fit = f"C({fit}, {column}) = {entry(fit, column)} of N = {fit + 1} is not among {dtype}'s numbers"
    worst = max(range(exact + 1), key=lambda column: magnitude(exact, column))
    why_exact = f"at N = {exact + 1} the terms of [{exact}][{worst}] add up to {bits(magnitude(exact, worst))}, past {limit}"
    if dtype not in MULTIPLIED:
        why_not = "no kernel multiplies integers; sums that wrap around are the identity for every N, so a product shows nothing"
        return Result(dtype, fit, exact, None, None, (why_fit, why_exact, why_not))
    right, wrong, again = 0, None, []
    with tqdm(total=fit, desc=dtype, leave=False, delay=2, disable=not sys.stderr.isatty()) as bar:
        for size, found in products(dtype, multiply, fit):
            bar.update()
            if found is None and wrong is None:
                right = size
            elif found is None:
                again.append(size)
            elif wrong is None:
                wrong = found
                if quick:
                    break
    why = f"{wrong}; its terms add up to {bits(magnitude(wrong.row, wrong.column))}" if wrong else "as far as the entries fit"
    if again:
        why += f"; right again at {', '.join(map(str, again))}"
    return Result(dtype, fit, exact, right, kernel, (why_fit, why_exact, why))


def kernel_for(dtype: str, size: int, options: argparse.Namespace) -> tuple[str, str | None]:
    """What the runner will take, and on what; the GPU's name."""
    settings, session = Settings.gather({"device": options.device, "kernel": options.kernel}), Session(Team())
    inventory = take_inventory(session, settings)
    decision = agree(session, ProductRequest(Problem(size, size, size, dtype)), settings, [inventory])
    gpu = inventory.gpus[0].name if decision.plan.device == "cuda" else None
    return f"{decision.kernel.name} ({decision.plan.device}, {decision.kernel_reason})", gpu


def blocks(results: Sequence[Result]) -> Iterator[Block]:
    rows = []
    for one in results:
        rows.append([one.dtype, str(one.fit), str(one.exact), "–" if one.right is None else str(one.right), one.kernel or "–"])
    yield Table(["type", "(a) fit", "(b) exact", "(c) right", "with kernel"], "lrrrl", rows)
    for one in results:
        yield Remarks([f"{one.dtype} ({letter})  {reason}" for letter, reason in zip("abc", one.reasons, strict=True)])


def about_one_size(dtype: str, size: int, wrong: Wrong | None) -> str:
    return f"{dtype}  N = {size}: the identity" if wrong is None else f"{dtype}  {wrong}"


# --- the command


def at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 up")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=TYPES, default=TYPES, help="only these (all)")
    parser.add_argument("--device", help="auto, cpu, cuda, or emulate: the GPU's kernels on the CPU (auto)")
    parser.add_argument("--kernel", help="auto, or a name: python -m hybrid.matmul --kernel list (auto)")
    parser.add_argument(
        "--size", type=at_least_1, metavar="N", help="only multiply the triangles of this size: is it the identity?"
    )
    parser.add_argument("--quick", action="store_true", help="stop at the first size that is wrong")
    parser.add_argument("--json", metavar="FILE", help="append a line for each type")
    parser.add_argument("--picture", metavar="FILE", help="draw the largest N of each type, as .png or .svg")
    options = parser.parse_args(arguments)
    options.words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return run(options)
    except (HybridError, OSError, KeyboardInterrupt) as error:
        print(f"{parser.prog}: {one_line(error)}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


def run(options: argparse.Namespace) -> int:
    if options.json:
        files.refuse_unwritable(options.json)
    if options.picture:
        if options.size:
            raise UsageError("--picture draws the largest sizes: not with --size")
        lecture_picture.refuse(options.picture)

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return hybrid.multiply(a, b, device=options.device, kernel=options.kernel)

    chosen = {"device": options.device, "kernel": options.kernel, "arguments": options.words}
    if options.size:
        verdicts = {}
        for dtype in [dtype for dtype in options.dtype if dtype in MULTIPLIED]:
            wrong = first_wrong(multiply(*triangles(options.size, dtype)))
            verdicts[dtype] = wrong is None
            print(about_one_size(dtype, options.size, wrong))
            if options.json:
                found = asdict(wrong) if wrong else None
                jsonl.write({"command": "pascal", "dtype": dtype, "size": options.size, "wrong": found, **chosen}, options.json)
        if not verdicts:
            raise UsageError("the runner multiplies float32 and float64: --dtype one of these")
        return 0 if all(verdicts.values()) else 1
    results, gpu = [], None
    for dtype in options.dtype:
        kernel = ""
        if dtype in MULTIPLIED:
            kernel, used = kernel_for(dtype, largest_that_fits(dtype), options)
            gpu = used or gpu
        results.append(assess(dtype, multiply, kernel, options.quick))
    print(*printed(blocks(results)), sep="\n", flush=True)
    if options.json:
        for one in results:
            jsonl.write({"command": "pascal", **chosen, "gpu": gpu, **asdict(one)}, options.json)
    if options.picture:
        here = {"machine": jsonl.machine(), "gpu": gpu}
        machine = machine_of([here]) if gpu else processor_of(here)
        pascal_picture.draw(results, options.picture, f"{machine}; {datetime.now(timezone.utc):%Y-%m-%d}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
