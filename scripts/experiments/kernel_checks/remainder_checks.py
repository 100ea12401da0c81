# SPDX-License-Identifier: MIT
"""Runs the kernels for products from remainders, perhaps changed ones, on small problems, and compares with exact integers.

`python -m experiments.kernel_checks.remainder_checks` is a child process, which may crash or hang: it reads tasks from standard
input and prints a verdict on each, as JSON.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np

from experiments.kernel_checks import remainder_models as models
from experiments.kernel_checks import remainder_runs as runs
from hybrid.emulation import checked
from hybrid.emulation.build import build
from hybrid.emulation.checked import Verdict
from hybrid.emulation.child import run_child
from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.errors import one_line
from hybrid.planning.arithmetic import MODULI, UNIT

Shape = tuple[int, int, int]  # n, l, m
PLAIN = {"forward": ("forward", "late"), "reverse": ("reverse", "early"), "shuffled": ("shuffled", "mixed")}
MOST_IN_32_BITS = 2**32 // 255**2  # products of remainders
_LIMIT, _BITS = 2.0**31 + 1, 63


@dataclass(frozen=True)
class Check:
    """`wrong`: says what is wrong, if anything is, with the kernels that a Runner launches."""

    source: str
    expressions: Sequence[str]
    wrong: Callable[[runs.Runner, Shape], str]
    shapes: Sequence[Shape]


def _remainders(run: runs.Runner, shape: Shape) -> str:
    n, l, m = shape
    for operand, count in (("A", n), ("B", m)):
        random = np.random.default_rng(count)
        lines = random.integers(-(2**45), 2**45, (count, l)) / 2.0  # ties among them
        lines[:, ::7] = random.choice([2.0**62, -(2.0**62), 2.0**62 - 512, 0.0, 254.0, -1.0], lines[:, ::7].shape)
        scales = 2.0 ** random.integers(-3, 1, (1, count))
        planes = models.remainders(models.integers(lines, scales.T), 3)
        got = runs.reduced(run, operand, run.copied(lines if operand == "A" else lines.T), scales, 3)
        for p, wanted, packed in zip(MODULI, planes, got, strict=False):
            if not np.array_equal(packed, models.packed(wanted, interleaved=operand == "B", filler=runs.POISON)):
                return f"{operand}'s remainders modulo {p}"
    return ""


def _norms(run: runs.Runner, shape: Shape) -> str:
    n, l, m = shape
    for operand, count in (("A", n), ("B", m)):
        random = np.random.default_rng(count)
        lines = random.integers(-99, 99, (count, l)) * 2.0 ** random.integers(-9, 9, (count, 1))
        lines[1::4], lines[2::4] = 0, 0
        lines[2::4, -1] = 4.0
        fingerprints = set()
        for fraction, out_of_range in ((0.0, 0.0), (0.5, 0.0), (0.0, 1e200)):
            matrix = np.rint(lines)
            matrix[-1, -1] += fraction + out_of_range
            found = runs.measured(run, operand, run.copied(matrix if operand == "A" else matrix.T))
            fingerprints.add(models.fingerprint(matrix))
            if found.summary[0, 4] != models.fingerprint(matrix):
                return f"{operand}'s fingerprint"
            wanted = [fraction > 0, out_of_range > 0]
            if found.summary[0, :1].view(float)[0] != np.abs(matrix).max() or list(found.summary[0, 1:3]) != wanted:
                return f"{operand}'s summary"
            if found.least != found.numbers[0][found.numbers[0] > 0].min():
                return f"{operand}'s least norm"
        if len(fingerprints) != 3:
            return "fingerprints of different matrices are the same"
        found = runs.measured(run, operand, run.copied(lines if operand == "A" else lines.T))
        if not np.allclose(found.numbers[0], np.sqrt((lines**2).sum(axis=1)), rtol=1e-13):
            return f"{operand}'s norms"
        for limit, bits in ((0.0, _BITS), (_LIMIT, _BITS), (_LIMIT, 31), (2.0**31, _BITS)):
            runs.scale(run, found, limit, bits)
            if not models.scaled_well(found.numbers, limit, bits).all():
                return f"{operand}'s powers of two"
    return ""


def _guard(run: runs.Runner, shape: Shape) -> str:
    """Never above the least ratio, and not far below it; also where one element of C, which may be any, has the least."""
    n, l, m = shape
    random = np.random.default_rng(shape)
    a = np.abs(random.standard_normal((n, l))) * 2.0 ** random.integers(-9, 9, (n, 1))
    b = np.abs(random.standard_normal((l, m))) * 2.0 ** random.integers(-9, 9, (1, m))
    a[1::9], b[:, 2::9] = 0, 0
    for every in (1, 2):
        ratio = runs.guarded_ratio(run, run.copied(a), run.copied(b), every)
        least = models.least_ratio(a, b, models.sampled(l, every))
        if not 0.75 * least < ratio <= least:
            return f"{ratio} for a least ratio of {least}, of {every} units one"
    for row, column in ((0, 0), (n - 1, m - 1), (n // 3, m // 2 + 2)) if run.aligned else ():
        a, b = 1 + np.zeros((n, l)), 1 + np.zeros((l, m))
        a[row, ::2], b[1::2, column] = 0, 0
        if runs.guarded_ratio(run, a, b, 1):
            return f"the least ratio is C[{row}, {column}]'s"
    return ""


def _planes(random: np.random.Generator, shape: tuple[int, int], count: int) -> np.ndarray:
    """Remainders modulo each modulus, half of them the largest; or all, in lines that are so long that sums have no room."""
    any_others = 2 if max(shape) <= MOST_IN_32_BITS else 1
    planes = [p - 1 - random.integers(0, p, shape) * random.integers(0, any_others, shape) for p in MODULI[:count]]
    return np.stack(planes).astype(np.uint8)


def _products(run: runs.Runner, shape: Shape) -> str:
    n, l, m = shape
    random = np.random.default_rng(shape)
    a, b = _planes(random, (n, l), 2), _planes(random, (l, m), 2)
    packed_a = np.stack([models.packed(plane, interleaved=False) for plane in a])
    packed_b = np.stack([models.packed(plane.T, interleaved=True) for plane in b])
    got = runs.multiplied(run, packed_a, packed_b, n, m, -(-l // UNIT))
    return "" if np.array_equal(got, models.products(a, b)) else "remainders of products"


def _byte_products(run: runs.Runner, shape: Shape) -> str:
    n, l, m = shape
    random = np.random.default_rng(shape)
    a, b = random.integers(-128, 128, (n, l)), random.integers(-128, 128, (l, m))
    packed = [models.packed(lines.astype(np.int8).view(np.uint8), interleaved=False)[None, :] for lines in (a, b.T)]
    got = runs.byte_product(run, *packed, n, m, -(-l // UNIT), "float64")
    return "" if np.array_equal(got, a @ b) else "products of signed bytes"


def _reconstruct(run: runs.Runner, shape: Shape, *, by_integers: bool = False) -> str:
    """Within what may be lost beside one rounding; by integers nothing is."""
    n, _, m = shape
    for count in (7, 15):
        random = np.random.default_rng(count)
        whole, largest = prod(MODULI[:count]), 2**53
        numbers = random.integers(-largest, largest, (n, m)) >> random.integers(0, 54, (n, m))
        planes = np.stack([numbers % p for p in MODULI[:count]]).astype(np.uint8)
        scales = [2.0 ** random.integers(-30, 30, (1, length)) for length in (n, m)]
        got = runs.put_together(run, planes, *scales, "float64", by_integers=by_integers) / scales[0].T / scales[1]
        lost = 0 if count <= 7 or by_integers else 2.0**-68 * whole + 2.0**-53 * np.abs(numbers)
        if (np.abs(got - numbers) > lost).any():
            return f"integers from {count} moduli"
        if (got[numbers == 0] != 0).any():
            return "0"
    return ""


def _reconstruct_by_integers(run: runs.Runner, shape: Shape) -> str:
    """And integers of all sizes up to nearly ±P/2, rounded once."""
    n, _, m = shape
    for count in _BY_INTEGERS:
        half, random = prod(MODULI[:count]) // 2, np.random.default_rng(count)
        most = half - (half >> 22)
        numbers = np.array(
            [int(random.integers(1, 2**62)) * most >> 62 + int(random.integers(0, 140)) for _ in range(n * m)], object
        )
        numbers = (numbers * random.choice([-1, 1], n * m)).reshape(n, m)
        numbers[0, :3] = most, -most, 0
        if count > 7:  # just above the middle between two doubles, in the 64 highest bits exactly in the middle
            numbers[0, 3:5] = ((2**52 + 2) << 50) + 2**49 + 1, -((2**52 + 2) << 50) - 2**49 - 1
        planes = np.stack([(numbers % p).astype(np.uint8) for p in MODULI[:count]])
        ones = np.ones((1, n)), np.ones((1, m))
        got = runs.put_together(run, planes, *ones, "float64", by_integers=True)
        if not np.array_equal(got, np.vectorize(float)(numbers)):
            return f"large integers from {count} moduli"
    return _reconstruct(run, shape, by_integers=True)


_BOTH = ("rows", "columns")
_BY_INTEGERS = (3, 7, 15)  # moduli, whose products take one, two and four words
_RAGGED = ((9, 131, 70),)
CHECKS = {
    "norms": Check("norms.cu", ["summarize", "scale_lines", *(f"measure_{x}<double>" for x in _BOTH)], _norms, ((9, 700, 40),)),
    "remainders": Check("remainders.cu", [f"remainders_of_{x}<double, 3>" for x in _BOTH], _remainders, _RAGGED),
    "guard": Check("guard.cu", ["least_ratio", *(f"magnitudes_of_{x}<double>" for x in _BOTH)], _guard, ((70, 270, 66),)),
    "products_mma": Check("products_mma.cu", ["products"], _products, ((130, 600, 150),)),
    "byte_products": Check("products_mma.cu", ["byte_products<double>"], _byte_products, ((130, 300, 133),)),
    "reconstruct": Check("reconstruct.cu", ["reconstruct<double, 7>", "reconstruct<double, 15>"], _reconstruct, ((5, 1, 1031),)),
    "reconstruct_by_integers": Check("reconstruct.cu", [f"reconstruct_by_integers<double, {count}>" for count in _BY_INTEGERS],
                                     _reconstruct_by_integers, ((5, 1, 1031),)),
}  # fmt: skip
# What a check needs of the right sources besides its own.
_BESIDE = {"guard": "norms"}


def sources_of(name: str) -> list[str]:
    """Of a check: its own, and what it needs besides."""
    return [CHECKS[each].source for each in (name, _BESIDE.get(name)) if each in CHECKS]


def tried(source: Path, name: str, shapes: Sequence[Shape], modes: Sequence[str], seconds: float = 600) -> list[Verdict]:
    """For each mode the first verdict that is not "ok", or an "ok"."""
    return [_tried(source, name, shapes, mode, seconds) for mode in modes]


def _tried(source: Path, name: str, shapes: Sequence[Shape], mode: str, seconds: float) -> Verdict:
    checks = "" if mode in PLAIN else mode
    try:
        libraries = _built(source, name, checks)
    except EmulationError as error:
        return Verdict(error.kind, one_line(error))
    task = {"name": name, "shapes": shapes, "mode": mode, "libraries": libraries}
    ended = run_child("experiments.kernel_checks.remainder_checks", [task], checks, seconds)
    for line in ended.out.splitlines():
        if line.startswith("{"):
            return Verdict(**json.loads(line))
    if ended.status is None:
        return Verdict("hang", f"not done within {seconds:g} s")
    return checked._cause_of_death(ended.err, f"exit status {ended.status}")


def _built(source: Path, name: str, checks: str) -> list[tuple[str, list[str]]]:
    """Paths of libraries, and the expressions in each. Here and not in the child, as in hybrid.emulation.checked."""
    wanted = [(source, CHECKS[name])]
    if beside := _BESIDE.get(name):
        wanted.append((source.with_name(CHECKS[beside].source), CHECKS[beside]))
    return [
        (str(build(path, together, capability=80, checks=checks)), together)
        for path, check in wanted
        for together in runs.in_libraries(check.expressions)
    ]


def _judged(task: dict) -> Verdict:
    mode = task["mode"]
    kernels: dict[str, EmulatedKernel] = {}
    for library, expressions in task["libraries"]:
        kernels |= EmulatedKernel.built(Path(library), expressions, "" if mode in PLAIN else mode)
    order, copies = PLAIN.get(mode, ("shuffled", "mixed"))
    for shape in map(tuple, task["shapes"]):
        for aligned in (True, False):
            run = runs.Runner(kernels, order, copies, fenced=mode == "address", aligned=aligned)
            try:
                wrong = CHECKS[task["name"]].wrong(run, shape)
            except EmulationError as error:
                return Verdict(error.kind, one_line(error))
            if not run.untouched():
                return Verdict("canary", "something beside a matrix was written to")
            if wrong:
                return Verdict("wrong", wrong)
    return Verdict("ok")


def main() -> None:
    for task in json.load(sys.stdin):
        print(json.dumps(asdict(_judged(task))), flush=True)


if __name__ == "__main__":
    main()
