# SPDX-License-Identifier: MIT
"""The kernels for products from remainders, step by step on the emulated GPU, launched as the runner launches them.

`python -m support.remainder_runs` is a child process that a sanitizer may end: it launches each of them on a ragged problem.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hybrid.emulation.build import build
from hybrid.emulation.child import Ended, run_child
from hybrid.emulation.guarded import Guarded
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.kernels import remainders
from hybrid.kernels.catalogue import C_TYPES, KERNELS, Launch
from hybrid.planning.arithmetic import CHUNK_ROWS, MEASURES, MODULI, PAIR, SUMMARY_WORDS, UNIT

POISON = 0xAA  # in bytes that no kernel has written yet
NEARLY_ONE = 0.75  # where the search for the least ratio begins


@dataclass(frozen=True)
class Gpu:
    """One whose products are computed by products_mma.cu."""

    capability: int = 80
    multiprocessors: int = 1


_MMA = Gpu()


@dataclass
class Runner:
    """Launches instances of kernels. Matrices that it has made tell whether something beside them was written, and with
    `fenced` (under ASan) also whether it was read. `aligned`: they begin and have row strides as in the runner's buffers."""

    kernels: Mapping[str, EmulatedKernel]
    order: str = "forward"
    copies: str = "late"
    fenced: bool = False
    aligned: bool = True
    made: list[Guarded] = field(default_factory=list)

    @classmethod
    def compiled(cls, sources: Mapping[Path, Iterable[str]], capability: int = 80, checks: str = "") -> "Runner":
        """`sources`: the expressions of each."""
        kernels: dict[str, EmulatedKernel] = {}
        for source, expressions in sources.items():
            for together in in_libraries(expressions):
                kernels |= EmulatedKernel.several(source, together, capability=capability, checks=checks)
        return cls(kernels)

    def but(self, **changes: object) -> "Runner":
        return replace(self, made=[], **changes)  # type: ignore[arg-type]

    def __call__(self, launch: Launch, *arguments: np.ndarray) -> None:
        for each in self.made if self.fenced else ():
            each.guard()
        try:
            kernel = self.kernels[launch.expression]
            kernel(
                launch.grid,
                launch.block,
                launch.shared_bytes,
                arguments,
                order=self.order,
                copies=self.copies,
                cluster=launch.cluster,
            )
        finally:
            for each in self.made if self.fenced else ():
                each.guard(off=True)

    def empty(self, rows: int, columns: int, dtype: str, filler: float = np.nan, *, aligned: bool = True) -> np.ndarray:
        """Full of `filler`, which is also what lies around it."""
        self.made.append(Guarded(rows, columns, dtype, filler, aligned=aligned))
        return self.made[-1].inner

    def copied(self, matrix: np.ndarray) -> np.ndarray:
        inner = self.empty(*matrix.shape, matrix.dtype.name, aligned=self.aligned)
        inner[:] = matrix
        return inner

    def untouched(self) -> bool:
        """All that lies around the matrices."""
        return all(each.untouched() for each in self.made)


def in_libraries(expressions: Iterable[str]) -> list[list[str]]:
    """Those that are compiled together. Kernels of columns have 32 KiB of static shared memory, and the emulation takes that of
    all kernels in a library for one's."""
    alone = [[expression] for expression in expressions if "_of_columns" in expression]
    others = [expression for expression in expressions if "_of_columns" not in expression]
    return [*alone, others] if others else alone


@dataclass(frozen=True)
class Lines:
    """What is known of the lines of A ("A": rows) or B ("B": columns)."""

    numbers: np.ndarray  # rows: norm, largest magnitude, scale, its inverse, what brings the mean magnitude to 8
    steps: np.ndarray
    # The bits of the largest magnitude, whether there are fractions, whether a line is out of range, the inverted bits
    # of the least norm but 0, the fingerprint.
    summary: np.ndarray

    @property
    def least(self) -> float:
        """The least norm but 0."""
        return float((~self.summary[0, 3:4]).view(float)[0])


def number(value: float, dtype: str) -> np.ndarray:
    """A kernel's argument that is no matrix."""
    return np.array([[value]], dtype)


def measured(run: Runner, operand: str, matrix: np.ndarray) -> Lines:
    """Of a matrix whose scales are not chosen yet."""
    count, inner = matrix.shape if operand == "A" else matrix.shape[::-1]
    chunks = 1 if operand == "A" else -(-inner // CHUNK_ROWS)
    numbers, steps = run.empty(5, count, "float64"), run.empty(1, count, "float32")
    measures, summary = run.empty(chunks * count, MEASURES, "float64"), np.zeros((1, SUMMARY_WORDS), np.uint64)
    measuring = remainders.row_measuring if operand == "A" else remainders.column_measuring
    run(measuring(C_TYPES[matrix.dtype.name], *matrix.shape), matrix, measures)
    run(remainders.line_kernel("summarize", count), measures, numbers, steps, summary, number(inner, "f8"))
    return Lines(numbers, steps, summary)


def scale(run: Runner, lines: Lines, limit: float, bits: int) -> None:
    count = lines.numbers.shape[1]
    run(remainders.line_kernel("scale_lines", count), lines.numbers, number(limit, "f8"), number(bits, "i4"))


def reduced(run: Runner, operand: str, matrix: np.ndarray, scales: np.ndarray, moduli: int) -> np.ndarray:
    """Packed remainders: a plane for each modulus."""
    count, inner = matrix.shape if operand == "A" else matrix.shape[::-1]
    units = -(-inner // UNIT)
    planes = np.full((moduli, -(-count // UNIT) * UNIT * units * UNIT), POISON, np.uint8)
    packing = remainders.remainder_packing(operand, C_TYPES[matrix.dtype.name], moduli, count, units)
    run(packing, matrix, scales, planes)
    return planes


def multiplied(run: Runner, a: np.ndarray, b: np.ndarray, rows: int, columns: int, units: int) -> np.ndarray:
    """The products of packed planes: remainders of C, a matrix for each modulus."""
    moduli, width = len(a), -(-columns // 16) * 16
    c = run.empty(moduli * rows, width, "uint8", POISON)
    launch = remainders.products_of(Gpu(), "", rows, columns, moduli)
    run(launch, a, b, c[:, :columns], number(rows, "i8"), number(units * UNIT, "i8"))
    return c.reshape(moduli, rows, width)[:, :, :columns]


def byte_product(run: Runner, a: np.ndarray, b: np.ndarray, rows: int, columns: int, units: int, dtype: str) -> np.ndarray:
    c = run.empty(rows, columns, dtype)
    run(remainders.products_of(Gpu(), C_TYPES[dtype], rows, columns, 1), a, b, c, number(units * UNIT, "i8"))
    return c


def put_together(
    run: Runner, planes: np.ndarray, row_scales: np.ndarray, column_scales: np.ndarray, dtype: str, *, by_integers: bool = False
) -> np.ndarray:
    """C from its remainders. The scales are inverse powers of two, one row of them each."""
    moduli, rows, columns = planes.shape
    below = run.empty(moduli * rows, -(-columns // 16) * 16, "uint8", POISON)
    below[:, :columns] = planes.reshape(moduli * rows, columns)
    c = run.empty(rows, columns, dtype, aligned=run.aligned)
    launch = remainders.reconstruction(C_TYPES[dtype], moduli, rows, columns, by_integers=by_integers)
    run(launch, below, row_scales, column_scales, c)
    return c


def magnitudes(run: Runner, operand: str, matrix: np.ndarray, lines: Lines, every: int) -> np.ndarray:
    """One packed plane, as a row of as many bytes as each line has. There is room for whole pairs of units of lines."""
    count, inner = matrix.shape if operand == "A" else matrix.shape[::-1]
    there = -(-inner // UNIT)
    units = -(-there // every)
    plane = np.full((1, -(-count // PAIR) * PAIR * units * UNIT), POISON, np.uint8)
    packing = remainders.magnitude_packing(operand, C_TYPES[matrix.dtype.name], count, units)
    run(packing, matrix, lines.numbers[4:5], plane, number(every, "i4"))
    return plane[:, : units * UNIT]


def guarded_ratio(run: Runner, a: np.ndarray, b: np.ndarray, every: int, gpu: remainders.Gpu = _MMA) -> float:
    """What the guard says of the least ratio; at most NEARLY_ONE."""
    lines = measured(run, "A", a), measured(run, "B", b)
    packed = magnitudes(run, "A", a, lines[0], every), magnitudes(run, "B", b, lines[1], every)
    least = number(NEARLY_ONE, "f4")
    launch = remainders.guarding(gpu, len(a), b.shape[1])
    run(launch, *packed, *(each.steps for each in lines), least.view(np.int32))
    return float(least[0, 0])


_BOTH = ("rows", "columns")
_EVERY = {
    "norms.cu": ["summarize", "scale_lines", *(f"measure_{lines}<double>" for lines in _BOTH)],
    "remainders.cu": [f"remainders_of_{lines}<double, 3>" for lines in _BOTH],
    "guard.cu": ["least_ratio", *(f"magnitudes_of_{lines}<double>" for lines in _BOTH)],
    "products_mma.cu": ["products", "byte_products<double>"],
    "reconstruct.cu": ["reconstruct<double, 3>", "reconstruct_by_integers<double, 3>"],
}


def sanitized(checks: str) -> Ended:
    """How a child process ended that launches every kernel under a sanitizer: with 0 where it found nothing."""
    built = [
        (str(build(KERNELS / source, together, capability=80, checks=checks)), together)
        for source, expressions in _EVERY.items()
        for together in in_libraries(expressions)
    ]
    return run_child("support.remainder_runs", [{"libraries": built, "checks": checks}], checks, 600)


def main() -> None:
    (task,) = json.load(sys.stdin)
    kernels: dict[str, EmulatedKernel] = {}
    for library, expressions in task["libraries"]:
        kernels |= EmulatedKernel.built(Path(library), expressions, task["checks"])
    n, l, m = 70, 270, 133
    for aligned in (True, False):
        run, random = (
            Runner(kernels, "shuffled", "mixed", fenced=task["checks"] == "address", aligned=aligned),
            np.random.default_rng(),
        )
        a, b = run.copied(random.standard_normal((n, l))), run.copied(random.standard_normal((l, m)))
        for operand, matrix in (("A", a), ("B", b)):
            scale(run, measured(run, operand, matrix), 2.0**31, 63)
        guarded_ratio(run, a, b, 1)
        units = -(-l // UNIT)
        packed = [reduced(run, name, x, np.ones((1, count)), 3) for name, x, count in (("A", a, n), ("B", b, m))]
        multiplied(run, *packed, n, m, units)
        byte_product(run, *(planes[:1] for planes in packed), n, m, units, "float64")
        planes = np.stack([random.integers(0, p, (n, m)) for p in MODULI[:3]]).astype(np.uint8)
        for by_integers in (False, True):
            put_together(run, planes, np.ones((1, n)), np.ones((1, m)), "float64", by_integers=by_integers)
        if not run.untouched():
            sys.exit("something beside a matrix was written")


if __name__ == "__main__":
    main()
