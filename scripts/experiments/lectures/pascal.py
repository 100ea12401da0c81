# SPDX-License-Identifier: MIT
"""Question 4 of the matrix multiplication lecture: how large may Pascal's triangle be? python -m hybrid.lectures pascal

L[i][j] = C(i, j) and R[i][j] = (-1)^(i+j)·C(i, j) multiply to the identity. For each element type, the largest N of N×N with
  (a) fit     every entry held exactly by the type,
  (b) exact   every sum exact in whatever order it is added up: Σ|terms| stays within the integers that the type holds,
  (c) right   the identity in fact: all sizes up to N multiplied by the runner, with the kernel of choice.

(a) and (b) are computed, (c) is measured, in seconds and without a GPU; --quick stops at the first size that is wrong, else
larger ones that come out right by luck are looked for too.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

import hybrid
from experiments.common import frame
from hybrid.core.text import aligned
from hybrid.errors import UsageError

LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1, "float32": 2**24, "float64": 2**53}  # of integers held without a gap
MOST_SHOWN = 20  # rows and columns


def multiplied(size: int, dtype: str, options: argparse.Namespace) -> list[np.ndarray]:
    """L and R, each entry rounded once, and L·R. UsageError for sizes whose entries exceed the type."""
    most = LIMITS[dtype] if dtype.startswith("int") else int(np.finfo(dtype).max)
    if math.comb(size - 1, (size - 1) // 2) > most:
        raise UsageError(f"the triangle of size {size} has entries beyond the largest {dtype}: a smaller --size")
    whole = np.array([[math.comb(row, column) for column in range(size)] for row in range(size)], object)
    signs = (-1) ** np.add.outer(range(size), range(size))
    left, right = whole.astype(dtype), (whole * signs).astype(dtype)
    return [left, right, hybrid.multiply(left, right, device=options.device, kernel=options.kernel)]


def first_wrong(product: np.ndarray) -> tuple[int, int, str] | None:
    """Row and column of the first element that is not the identity's, and what to say of it; None where all are."""
    wrong = np.argwhere(product != np.eye(len(product), dtype=product.dtype))
    if not len(wrong):
        return None
    row, column = map(int, wrong[0])
    said = f"N = {len(product)}: [{row}][{column}] is {float(product[row, column]):.12g}, not {int(row == column)}"
    return row, column, said


def magnitude(row: int, column: int) -> int:
    """Σ|terms| of an element of the product: Σ C(i, k)·C(k, j) = C(i, j)·2^(i-j)."""
    return math.comb(row, column) << (row - column) if row >= column else 0


def holds(dtype: str, number: int) -> bool:
    """Whether the type has this number, exactly; floating point also has large ones that end in enough zero bits."""
    if dtype.startswith("int"):
        return number <= LIMITS[dtype]
    odd_part = number >> ((number & -number).bit_length() - 1) if number else 0
    return odd_part <= LIMITS[dtype]


def assess(dtype: str, options: argparse.Namespace) -> frame.Line:
    """All three, and what is wrong first."""
    fit = next(size for size in count(1) if not all(holds(dtype, math.comb(size, each)) for each in range(size + 1)))
    exact = next(size for size in count(1) if max(magnitude(size, each) for each in range(size + 1)) > LIMITS[dtype])
    right, wrong, again = 0, None, []
    for size in frame.shown(range(1, fit + 1), dtype):
        found = first_wrong(multiplied(size, dtype, options)[2])
        if found is None and wrong is None:
            right = size
        elif found is None:
            again.append(size)
        wrong = wrong or found
        if wrong and options.quick:
            break
    why = "all that fit: the runner adds integers up exactly, and sums that wrap around would be the identity for every N"
    if wrong:
        why = f"{wrong[2]}; its terms add up to 2^{math.log2(magnitude(*wrong[:2])):.1f}"
    if again:
        why += f"; right again at {', '.join(map(str, again))}"
    return {"part": "all sizes", "dtype": dtype, "fit": fit, "exact": exact, "right": right, "why": why}


class Results(frame.Results):
    """The newest line of each type."""

    command, again = "pascal", "python -m hybrid.lectures pascal"

    @classmethod
    def selected(cls, lines: Sequence[frame.Line]) -> list[frame.Line]:
        return list({line["dtype"]: line for line in lines if line["part"] == "all sizes"}.values())

    def blocks(self) -> Iterator[frame.Table]:
        rows = [[line["dtype"], *(str(line[key]) for key in ("fit", "exact", "right")), line["why"]] for line in self.lines]
        yield frame.Table(["type", "(a) fit", "(b) exact", "(c) right", ""], "lrrrl", rows)


def measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    for dtype in options.dtype:
        yield {"device": options.device, **assess(dtype, options)}


def work(options: argparse.Namespace) -> int:
    if not options.show:
        return frame.present(options, Results, measured)
    if options.show > MOST_SHOWN or options.json or options.source:
        raise UsageError(f"--show takes one size to {MOST_SHOWN} and measures nothing: --dtype, --device and --kernel go with it")
    made = multiplied(options.show, options.dtype[-1], options)
    # Whole numbers in aligned columns, zeros as dots: the triangles can be seen.
    for name, matrix in zip(("L", "R", f"L·R, {options.dtype[-1]}"), made, strict=True):
        cells = [[f"{value:.12g}" if value else "·" for value in row] for row in matrix]
        print(name, *(f"  {line}" for line in aligned(cells)), "", sep="\n")
    found = first_wrong(made[2])
    print(found[2] if found else "the identity")
    return int(found is not None)


main = frame.experiment(
    __doc__, Results, measured,
    frame.option("--dtype", nargs="+", choices=LIMITS, default=list(LIMITS), metavar="TYPE", help="only these (all)"),
    frame.option("--device", help="auto, cpu, cuda, or emulate: the GPU's kernels on the CPU (auto)"),
    frame.option("--kernel", help="auto, or a name: python -m hybrid.matmul --kernel list (auto)"),
    frame.option("--show", type=frame.positive, metavar="N", help=f"only print L, R and L·R of size N, to {MOST_SHOWN}"),
    frame.option("--quick", action="store_true", help="stop at the first size that is wrong"),
    work=work,
)  # fmt: skip
