# SPDX-License-Identifier: MIT
"""The errors of products in every arithmetic."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments.common import cuda, frame
from hybrid.core.problem import Problem, Span, Topology
from hybrid.core.text import rounded_up
from hybrid.devices.base import Buffers, Device
from hybrid.devices.remainders import ModularProduct
from hybrid.errors import UsageError
from hybrid.execution.pipeline import ShareRun
from hybrid.host.memory import RowView
from hybrid.kernels.catalogue import MOST_TERMS, Kernel, fastest
from hybrid.planning.arithmetic import MOST_MODULI, Computed, joined
from hybrid.planning.plan import make_plan
from hybrid.planning.tiling import PlanRequest
from hybrid.transport.base import HostTransport, RankMatrices

Sizes = tuple[int, int, int]
Random = np.random.Generator
Make = Callable[[Random, tuple[int, int]], np.ndarray]  # a matrix


def spread(phi: float) -> Make:
    return lambda random, shape: (random.random(shape) - 0.5) * np.exp(phi * random.standard_normal(shape))


def normal(random: Random, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape)


MATRICES: dict[str, Make] = {
    "uniform": lambda random, shape: random.random(shape),
    "normal": normal,
    **{f"φ = {phi:g}": spread(phi) for phi in (0.5, 1, 2, 4)},
    **dict.fromkeys(("graded rows", "graded k"), normal),
    "Hilbert": lambda random, shape: 1 / (np.arange(shape[0])[:, None] + np.arange(shape[1]) + 1.0),
    "sparse": lambda random, shape: random.standard_normal(shape) * (random.random(shape) < 0.05),
    **dict.fromkeys(("halves", "orthogonal", "one huge", "subnormals"), normal),
    "integers": lambda random, shape: random.integers(-1000, 1001, shape).astype(np.float64),
}
ALL_MATRICES = (*MATRICES, "φ")  # any spread
SUBNORMAL = {"float64": 2.0**-1060, "float32": 2.0**-140}  # factors that make A's numbers subnormal


def matrices_of(kind: str, dtype: str, sizes: Sizes, random: Random, *, varied: bool) -> tuple[np.ndarray, np.ndarray]:
    """`varied`: A and B get random factors from 1 to 2, on which the loss by scaling with powers of two depends."""
    (n, l, m), factors = sizes, random.uniform(1, 2, 2) if varied else np.ones(2)
    make = spread(random.uniform(0, 2.5)) if kind == "φ" else MATRICES[kind]
    if kind == "orthogonal":
        lines = max(n, m)
        q = np.linalg.qr(make(random, (max(lines, l), min(lines, l))))[0]
        q = q if lines > l else q.T
        a, b = q[:n], q[:m].T
    else:
        a, b = make(random, (n, l)), make(random, (l, m))
    if kind == "graded rows":
        a, b = a * 2.0 ** random.integers(-20, 21, (n, 1)), b * 2.0 ** random.integers(-20, 21, (1, m))
    elif kind == "graded k":  # large along k in A, small in B
        grades = 2.0 ** np.linspace(-8, 8, l)
        a, b = a * grades, b / grades[:, None]
    elif kind == "halves":  # large elements of A meet only small ones of B
        a[:, : l // 2] *= 2.0**-20
        b[l // 2 :] *= 2.0**-20
    elif kind == "one huge":
        for matrix in (a, b):
            matrix[tuple(random.integers(matrix.shape))] *= 2.0**30
    elif kind == "subnormals":
        a *= SUBNORMAL[dtype]
    with np.errstate(under="ignore", over="ignore"):
        a, b = (np.ascontiguousarray(each.astype(dtype)) for each in (a, b))
    if kind in ("integers", "subnormals"):
        return a, b
    return (a * factors[0]).astype(dtype), (b * factors[1]).astype(dtype)


MODES = ("auto", "fast")  # of --precision
NATIVE = "native"
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24}
# Times native's root mean square and maximum error; 1.8 and 2.3 were seen, where scaling by powers of two loses most.
_ALLOWED = {"14 moduli": (2.0, 3.0)}


def above(errors: Sequence[float], native: Sequence[float], arithmetic: str = "") -> bool:
    """Whether root mean square or maximum exceed native's, or this arithmetic's allowance. If native is not exact, an element may
    always err by one unit, as after a single rounding."""
    rms, most = _ALLOWED.get(arithmetic, (1.0, 1.0))
    return errors[0] > rms * native[0] or errors[1] > max(most * native[1], 1.0 if native[1] else 0.0)


class Sample:
    """Sampled elements of C in extended precision: 64 bits on x86, summed pairwise by NumPy, with exponents large enough for all
    products of float64."""

    def __init__(self, a: np.ndarray, b: np.ndarray, most: int, random: Random) -> None:
        rows, columns = (np.sort(random.permutation(length)[:most]) for length in (len(a), b.shape[1]))
        self._places, self._unit = np.ix_(rows, columns), UNITS[a.dtype.name]
        wide_a, wide_b = a[rows].astype(np.longdouble), np.ascontiguousarray(b[:, columns].T, np.longdouble)
        self._right = np.array([(row * wide_b).sum(axis=1) for row in wide_a])
        self._sizes = np.array([np.abs(row * wide_b).sum(axis=1) for row in wide_a])
        self.elements = self._right.size

    def errors(self, c: np.ndarray) -> list[float]:
        """Root mean square and maximum of |C - A·B| / |A||B| in the sample, in units of 2⁻⁵³ or 2⁻²⁴."""
        off = np.abs(c[self._places] - self._right)
        with np.errstate(all="ignore"):
            errors = np.where(off == 0, 0, off / self._sizes / self._unit).astype(np.float64)
        return [float(np.sqrt(np.square(errors).mean())), float(errors.max())]


def _product(
    device: Device, kernel: Kernel, problem: Problem, a: np.ndarray, b: np.ndarray, *, fast: bool | None
) -> tuple[np.ndarray, Computed]:
    """C through the pipeline of `hybrid.multiply`, with NaN where nobody wrote, and the arithmetic of its tiles from remainders.
    `kernel`: of native tiles. `fast`: True or False: from remainders wherever the guard of --precision fast or auto allows it,
    even for small matrices; None: all tiles are native."""
    moduli = 0 if fast is None else MOST_MODULI[problem.dtype]
    plan = make_plan(PlanRequest(problem, Topology.of_equal_nodes(1, 1), device=device.name, moduli=moduli))
    assert plan.moduli == moduli, "such panels leave no room for remainders"
    (share,) = plan.shares
    memory: Any = device.reserve(share.layout.bytes, shared=False)
    device.poison(memory)
    modular = None if fast is None else ModularProduct(device, memory, share, problem, fast=fast)
    device.use_kernel(kernel, problem.dtype)
    c = np.full((problem.n, problem.m), np.nan, problem.dtype)
    transport = HostTransport(device=device, rank=0, matrices=RankMatrices(a, RowView(b, Span(0, len(b))), c))
    list(ShareRun(share, Buffers(device, memory, share, problem), transport, device, lambda phase: None, modular=modular).run())
    return c, joined([modular.done if modular is not None else {}])


SAMPLED, SAMPLED_OF_RANDOM = 24, 16  # rows and columns: few, since exact elements take longer than the product
SIZES = {"cuda": ((256, 64, 256), (256, 1024, 256), (256, 8192, 256)), "emulate": ((40, 200, 50),)}
OF_RANDOM = {"cuda": ((512, 512, 512), (200, 333, 150), (384, 100, 256), (64, 2304, 96)),
             "emulate": ((40, 70, 50), (24, 300, 30))}  # fmt: skip


def _pairs(options: argparse.Namespace) -> Iterator[tuple[int, str, str, Sizes]]:
    """Seed, kind, type and sizes."""
    if not options.matrices:
        yield from itertools.product([options.seed], options.kinds, UNITS, options.sizes)
    for seed in range(options.seed, options.seed + options.matrices):
        random = np.random.default_rng([seed, 1])  # independent of the matrices' generator
        kind, dtype = random.choice(options.kinds), random.choice(list(UNITS))
        yield seed, str(kind), str(dtype), options.sizes[random.integers(len(options.sizes))]


class Accuracy(frame.Experiment):
    """How large are the errors of products in every arithmetic? python scripts/bench.py accuracy [--sizes 512x1024x512]

    For each kind of matrices and each type: errors of sampled elements of C relative to (|A||B|)ij, in units of 2^-53 or 2^-24,
    against sums in extended precision: natively, and in the arithmetic that the guard chooses with --precision auto and fast,
    even if native kernels would be faster. In brackets: the chosen arithmetic, and its proved error bound.

    --matrices N takes N random pairs of any of these kinds instead, and ends with 1 if errors are larger than allowed.
    """

    command, again = "accuracy", "python scripts/bench.py accuracy"
    options = (
        frame.option("--sizes", nargs="+", type=frame.sizes, metavar="N",
                     help=f"N or NxLxM ({' '.join('x'.join(map(str, each)) for each in SIZES['cuda'])}; others for --matrices)"),
        frame.option("--kinds", nargs="+", choices=ALL_MATRICES, metavar="KIND",
                     help=f"{', '.join(ALL_MATRICES)}: any up to 2.5 (all but that)"),
        frame.option("--matrices", type=frame.positive, default=0, metavar="N", help="N random ones, of any kind"),
        frame.option("--seed", type=int, default=1, help="of matrices and samples (1)"),
        frame.option("--device", choices=SIZES, default="cuda", help="emulate: the GPU's kernels on the CPU (cuda)"),
    )  # fmt: skip

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        options.sizes = options.sizes or (OF_RANDOM if options.matrices else SIZES)[options.device]
        options.kinds = options.kinds or list(ALL_MATRICES if options.matrices else MATRICES)
        for n, l, m in options.sizes:
            if l > MOST_TERMS:
                raise UsageError(f"sums of more than {MOST_TERMS} terms are always native: --sizes takes an l up to that")
            frame.refuse_too_large(n, l, m, item=16)
        runtime = cuda.Runtime(options.device)
        part, sampled = ("random", SAMPLED_OF_RANDOM) if options.matrices else ("errors", SAMPLED)
        for seed, kind, dtype, (n, l, m) in frame.shown(list(_pairs(options)), "matrices"):
            random, problem = np.random.default_rng(seed), Problem(n, l, m, dtype)
            a, b = matrices_of(kind, dtype, (n, l, m), random, varied=part == "random")
            sample = Sample(a, b, sampled, random)
            kernel = fastest(runtime.device.name, dtype, m, runtime.capability)
            errors, chosen, certified = {}, {}, {}
            for name, fast in ((NATIVE, None), ("auto", False), ("fast", True)):
                c, computed = _product(runtime.device, kernel, problem, a, b, fast=fast)
                errors[name] = sample.errors(c)
                if computed:
                    proved = [error for _, error in computed.values() if error is not None]
                    chosen[name] = " and ".join(arithmetic.name for arithmetic in computed)
                    certified[name] = max(proved) if len(proved) == len(computed) else None  # None: a part is native
            about = {"n": n, "l": l, "m": m, **runtime.about, "part": part, "seed": seed, "dtype": dtype, "kind": kind}
            yield {**about, "sampled": sample.elements, "errors": errors, "chosen": chosen, "certified": certified}

    def blocks(self) -> Iterator[frame.Table]:
        if self.lines[-1]["part"] == "random":
            yield self._of_random()
            return
        for dtype, l in dict.fromkeys((line["dtype"], line["l"]) for line in self.lines):
            lines = [line for line in self.lines if (line["dtype"], line["l"]) == (dtype, l)]
            columns = list(lines[0]["errors"])
            heads = ["matrices", *(f"precision {name}" if name in MODES else name for name in columns)]
            rows = [[line["kind"], *(_cell(line, name) for name in columns)] for line in lines]
            unit = "2⁻⁵³" if dtype == "float64" else "2⁻²⁴"
            title = f"{dtype}, l = {l}: errors as parts of (|A||B|)ᵢⱼ, in units of {unit}, root mean square / maximum"
            yield frame.Table(heads, "l" + "r" * len(columns), rows, title)
        of_brackets = "the arithmetic that the guard chose, and what no element's error can exceed, in the same units."
        yield frame.remarks([f"In brackets: {of_brackets}"])

    def _of_random(self) -> frame.Table:
        """How many pairs the guard accepted, and how many have errors above native's."""
        seeds, rows = [line["seed"] for line in self.lines], []
        for dtype, mode in itertools.product(UNITS, MODES):
            lines = [line for line in self.lines if line["dtype"] == dtype]
            there = [line for line in lines if _accepted(line, mode)]
            exact = sum(line["certified"][mode] == 0 for line in there)
            larger = sum(above(line["errors"][mode], line["errors"][NATIVE]) for line in there)
            rows.append([dtype, mode, *map(str, (len(lines), len(there), exact, larger))])
        title = f"{len(self.lines)} pairs of random matrices, seeds from {min(seeds)} to {max(seeds)}; exact: proved to be so"
        heads = ["type", "precision", "matrices", "from remainders", "exact", "above native"]
        return frame.Table(heads, "llrrrr", rows, title)

    def exit_code(self) -> int:
        """1 if errors of random matrices are larger than their arithmetic may have."""
        tried = [(line, mode) for line in self.lines if line["part"] == "random" for mode in MODES if _accepted(line, mode)]
        return int(any(above(line["errors"][mode], line["errors"][NATIVE], line["chosen"][mode]) for line, mode in tried))


def _accepted(line: frame.Line, mode: str) -> bool:
    return NATIVE not in line["chosen"][mode]


def _cell(line: frame.Line, column: str) -> str:
    """Root mean square and maximum error, the chosen arithmetic, and its proved bound."""
    text = " / ".join(f"{value:.2g}" if value else "0" for value in line["errors"][column])
    if column not in MODES:
        return text
    proved = line["certified"][column]
    certain = f", ≤ {float(rounded_up(proved / UNITS[line['dtype']])):g}" if proved else ""
    return f"{text} ({line['chosen'][column]}{certain})"
