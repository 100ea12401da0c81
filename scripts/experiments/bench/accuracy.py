# SPDX-License-Identifier: MIT
"""How large are the errors of products in every arithmetic? python scripts/bench.py accuracy [--sizes 512x1024x512]

For each kind of matrices and each type: errors of sampled elements of C as parts of (|A||B|)ij, in units of 2^-53 or 2^-24,
against sums in extended precision. Products go through the pipeline of hybrid.multiply: natively, by the kernel that auto
chooses; in the arithmetic that the guard chooses with --precision auto and fast, also where native kernels would be faster; and
on a GPU by cuBLAS. With --device emulate the CPU runs the same kernels, slowly. In brackets: what was chosen, and what is proved
of its errors.

--matrices N takes N random pairs of any of these kinds instead, one for each seed from --seed on, and counts those that are
accepted; the exit code is 1 where errors are larger than allowed.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from experiments.common import frame
from hybrid.core.problem import Problem, Span, Topology
from hybrid.core.text import rounded_up
from hybrid.devices.base import Buffers, Device, EmulatedDevice
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.remainders import ModularProduct
from hybrid.emulation.build import compiler
from hybrid.errors import UsageError
from hybrid.execution.pipeline import ShareRun
from hybrid.host.memory import RowView
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, MOST_TERMS, Kernel, fastest, named
from hybrid.planning.arithmetic import MOST_MODULI, Computed, joined
from hybrid.planning.plan import make_plan
from hybrid.planning.tiling import PlanRequest
from hybrid.transport.base import HostTransport, RankMatrices

Pair = tuple[np.ndarray, np.ndarray]
Make = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]  # a matrix

PART_OF_SPARSE, HUGE, SMALL = 0.05, 2.0**30, 2.0**-20


def spread(phi: float) -> Make:
    return lambda random, shape: (random.random(shape) - 0.5) * np.exp(phi * random.standard_normal(shape))


def normal(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape)


def huge_entry(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    numbers = random.standard_normal(shape)
    numbers[tuple(random.integers(shape))] *= HUGE
    return numbers


KINDS: dict[str, Make] = {
    "uniform": lambda random, shape: random.random(shape),
    "normal": normal,
    **{f"φ = {phi:g}": spread(phi) for phi in (0.5, 1, 2, 4)},
    "graded rows": normal,
    "graded k": normal,
    "Hilbert": lambda random, shape: 1 / (np.arange(shape[0])[:, None] + np.arange(shape[1]) + 1.0),
    "sparse": lambda random, shape: random.standard_normal(shape) * (random.random(shape) < PART_OF_SPARSE),
    "halves": normal,
    "orthogonal": normal,
    "one huge": huge_entry,
    "subnormals": normal,
    "integers": lambda random, shape: random.integers(-1000, 1001, shape).astype(np.float64),
}
ALL_KINDS = (*KINDS, "φ")  # any spread
SUBNORMAL = {"float64": 2.0**-1060, "float32": 2.0**-140}  # by which A's subnormal numbers are multiplied


def matrices_of(kind: str, dtype: str, n: int, l: int, m: int, random: np.random.Generator, *, varied: bool) -> Pair:
    """`varied`: multiplied by any number from 1 to 2 each: how much powers of two lose depends on it."""
    factors = random.uniform(1, 2, 2) if varied else np.ones(2)
    make = spread(random.uniform(0, 2.5)) if kind == "φ" else KINDS[kind]
    if kind == "orthogonal":
        lines = max(n, m)
        q = np.linalg.qr(make(random, (max(lines, l), min(lines, l))))[0]
        q = q if lines > l else q.T
        a, b = q[:n], q[:m].T
    else:
        a, b = make(random, (n, l)), make(random, (l, m))
    if kind == "graded rows":
        a, b = a * 2.0 ** random.integers(-20, 21, (n, 1)), b * 2.0 ** random.integers(-20, 21, (1, m))
    elif kind == "graded k":  # what is large along k in A is small in B
        grades = 2.0 ** np.linspace(-8, 8, l)
        a, b = a * grades, b / grades[:, None]
    elif kind == "halves":  # large elements of A meet only small ones of B
        a[:, : l // 2] *= SMALL
        b[l // 2 :] *= SMALL
    elif kind == "subnormals":
        a *= SUBNORMAL[dtype]
    with np.errstate(under="ignore", over="ignore"):
        a, b = (np.ascontiguousarray(each.astype(dtype)) for each in (a, b))
    if kind in ("integers", "subnormals"):
        return a, b
    return (a * factors[0]).astype(dtype), (b * factors[1]).astype(dtype)


MODES = ("auto", "fast")  # of --precision
NATIVE, CUBLAS = "native", "cublas"
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24}
# Times native's errors, root mean square and maximum; 1.8 and 2.3 were seen, where powers of two lose most.
_ALLOWED = {"14 moduli": (2.0, 3.0)}


def above(errors: Sequence[float], native: Sequence[float], arithmetic: str = "") -> bool:
    """Whether root mean square or maximum are larger than native's, or than what this arithmetic may have. Where native is not
    exact, an element may always err by one unit, as what is rounded once may."""
    rms, most = _ALLOWED.get(arithmetic, (1.0, 1.0))
    return errors[0] > rms * native[0] or errors[1] > max(most * native[1], 1.0 if native[1] else 0.0)


class Sample:
    """Some rows of A and columns of B, and the elements of C where they meet, in extended precision: 64 bits on x86, whose sums
    NumPy adds up pairwise, and whose exponents are large enough for all products of float64."""

    def __init__(self, a: np.ndarray, b: np.ndarray, most: int, random: np.random.Generator) -> None:
        rows, columns = (np.sort(random.permutation(length)[:most]) for length in (len(a), b.shape[1]))
        self._places, self._unit = np.ix_(rows, columns), UNITS[a.dtype.name]
        wide_a, wide_b = a[rows].astype(np.longdouble), np.ascontiguousarray(b[:, columns].T, np.longdouble)
        self._right = np.array([(row * wide_b).sum(axis=1) for row in wide_a])
        self._sizes = np.array([np.abs(row * wide_b).sum(axis=1) for row in wide_a])
        self.elements = self._right.size

    def errors(self, c: np.ndarray) -> list[float]:
        """Of the whole product: root mean square and maximum of |C - A·B| / |A||B|, in units of 2⁻⁵³ or 2⁻²⁴."""
        off = np.abs(c[self._places] - self._right)
        with np.errstate(all="ignore"):
            errors = np.where(off == 0, 0, off / self._sizes / self._unit).astype(np.float64)
        return [float(np.sqrt(np.square(errors).mean())), float(errors.max())]


class _Products:
    """Of one shape and type through the pipeline of `hybrid.multiply`, in the arithmetic that is asked for, whether or not it is
    the faster one: `hybrid.planning` has small matrices multiplied natively. `kernel`: of native tiles. `fast`: from remainders
    where the guard allows it, as --precision fast or as auto; None: all tiles are native."""

    def __init__(self, device: Device, kernel: Kernel, problem: Problem, *, fast: bool | None) -> None:
        moduli = 0 if fast is None else MOST_MODULI[problem.dtype]
        plan = make_plan(PlanRequest(problem, Topology.of_equal_nodes(1, 1), device=device.name, moduli=moduli))
        assert plan.moduli == moduli, "such panels leave no room for remainders"
        self._device, self._kernel, self._problem = device, kernel, problem
        (self._share,) = plan.shares
        memory: Any = device.reserve(self._share.layout.bytes, shared=False)
        device.poison(memory)
        self._modular = None if fast is None else ModularProduct(device, memory, self._share, problem, fast=fast)
        self._buffers = Buffers(device, memory, self._share, problem)

    def __call__(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, Computed]:
        """C, where NaN is what nobody wrote, and in which arithmetic it was computed; nothing of native products."""
        self._device.use_kernel(self._kernel, self._problem.dtype)
        c = np.full((self._problem.n, self._problem.m), np.nan, self._problem.dtype)
        transport = HostTransport(self._device, 0, RankMatrices(a, RowView(b, Span(0, len(b))), c))
        list(ShareRun(self._share, self._buffers, transport, self._device, lambda phase: None, modular=self._modular).run())
        return c, joined([self._modular.done if self._modular is not None else {}])


Sizes = tuple[int, int, int]
SAMPLED, SAMPLED_OF_RANDOM = 24, 16  # rows and columns: an exact element takes longer than a product
# n, l, m by default: of each kind, and of random matrices.
_WHOLE = ((256, 64, 256), (256, 1024, 256), (256, 8192, 256))
SIZES = {"cuda": _WHOLE, "emulate": ((40, 200, 50),)}
OF_RANDOM = {
    "cuda": ((512, 512, 512), (200, 333, 150), (384, 100, 256), (64, 2304, 96)),
    "emulate": ((40, 70, 50), (24, 300, 30)),
}


def _cases(options: argparse.Namespace) -> Iterator[tuple[int, str, str, Sizes]]:
    """Seed, kind, type and sizes."""
    if not options.matrices:
        yield from itertools.product([options.seed], options.kinds, options.dtypes, options.sizes)
    for seed in range(options.seed, options.seed + options.matrices):
        random = np.random.default_rng([seed, 1])  # beside that of the matrices, which are the same if all of this is given
        kind, dtype = random.choice(options.kinds), random.choice(options.dtypes)
        yield seed, str(kind), str(dtype), options.sizes[random.integers(len(options.sizes))]


def measured(options: argparse.Namespace) -> Iterator[frame.Line]:
    options.dtypes = [options.dtype] if options.dtype else list(UNITS)
    options.sizes = options.sizes or (OF_RANDOM if options.matrices else SIZES)[options.device]
    options.kinds = options.kinds or list(ALL_KINDS if options.matrices else KINDS)
    for n, l, m in options.sizes:
        if l > MOST_TERMS:
            raise UsageError(f"sums of more than {MOST_TERMS} terms are always native: --sizes takes an l up to that")
        frame.refuse_too_large(n, l, m, item=16)
    gpu = usable_gpus()[0] if options.device == "cuda" else None
    cuda = CudaDevice(gpu) if gpu else None
    if cuda is None:
        compiler()
    part, sampled = ("random", SAMPLED_OF_RANDOM) if options.matrices else ("errors", SAMPLED)
    about = {"part": part, "device": options.device, "gpu": gpu.name if gpu else None}
    for seed, kind, dtype, (n, l, m) in frame.shown(list(_cases(options)), "matrices"):
        random = np.random.default_rng(seed)
        a, b = matrices_of(kind, dtype, n, l, m, random, varied=part == "random")
        sample = Sample(a, b, sampled, random)
        errors, chosen, certified = {}, {}, {}
        for name, products in _ways(cuda, gpu.capability if gpu else EMULATED_CAPABILITY, Problem(n, l, m, dtype)).items():
            c, computed = products(a, b)
            errors[name] = sample.errors(c)
            if computed:
                proved = [error for _, error in computed.values() if error is not None]
                chosen[name] = " and ".join(arithmetic.name for arithmetic in computed)
                certified[name] = max(proved) if len(proved) == len(computed) else None  # a part of it is native
        size = {"n": n, "l": l, "m": m, **about, "seed": seed, "dtype": dtype, "kind": kind, "sampled": sample.elements}
        yield {**size, "errors": errors, "chosen": chosen, "certified": certified}


def _ways(cuda: CudaDevice | None, capability: int, problem: Problem) -> dict[str, _Products]:
    """Whole products by kernels: natively, from remainders where the guard allows it, and on a GPU by cuBLAS."""
    kernel = fastest("cuda" if cuda else "emulate", problem.dtype, problem.m, capability)
    device: Any = cuda or EmulatedDevice(kernel, problem.dtype)
    ways = {NATIVE: _Products(device, kernel, problem, fast=None)}
    if (cublas := named("cublas")) and cuda:
        ways[CUBLAS] = _Products(device, cublas, problem, fast=None)
    return ways | {mode: _Products(device, kernel, problem, fast=mode == "fast") for mode in MODES}


class Results(frame.Results):
    command, again = "accuracy", "python scripts/bench.py accuracy"

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
        yield frame.remarks(
            ["In brackets: the arithmetic that the guard chose, and what no element's error can exceed, in the same units."]
        )

    def _of_random(self) -> frame.Table:
        """How many the guard accepted, and whose errors exceed native ones."""
        seeds, rows = [line["seed"] for line in self.lines], []
        for dtype, how in itertools.product(UNITS, (*MODES, CUBLAS)):
            lines = [line for line in self.lines if line["dtype"] == dtype and how in line["errors"]]
            there = [line for line in lines if how == CUBLAS or _accepted(line, how)]
            if lines:
                exact = "–" if how == CUBLAS else str(sum(line["certified"][how] == 0 for line in there))
                larger = sum(above(line["errors"][how], line["errors"][NATIVE]) for line in there)
                rows.append([dtype, how, str(len(lines)), str(len(there)), exact, str(larger)])
        title = f"{len(self.lines)} pairs of random matrices, seeds from {min(seeds)} to {max(seeds)}; exact: proved to be so"
        heads = ["type", "computed by", "matrices", "from remainders", "exact", "above native"]
        return frame.Table(heads, "llrrrr", rows, title)

    def exit_code(self) -> int:
        """1 if errors of random matrices are larger than their arithmetic may have."""
        return int(
            any(
                _accepted(line, mode) and above(line["errors"][mode], line["errors"][NATIVE], line["chosen"][mode])
                for line in self.lines
                for mode in MODES
                if line["part"] == "random"
            )
        )


def _accepted(line: frame.Line, mode: str) -> bool:
    return NATIVE not in line["chosen"][mode]


def _cell(line: frame.Line, column: str) -> str:
    """Root mean square and maximum, what was chosen, and what is proved."""
    text = " / ".join(f"{value:.2g}" if value else "0" for value in line["errors"][column])
    if column not in MODES:
        return text
    proved = line["certified"][column]
    certain = f", ≤ {float(rounded_up(proved / UNITS[line['dtype']])):g}" if proved else ""
    return f"{text} ({line['chosen'][column]}{certain})"


main = frame.experiment(
    __doc__, Results, measured,
    frame.option("--sizes", nargs="+", type=frame.sizes, metavar="N",
                 help=f"N or NxLxM ({' '.join('x'.join(map(str, each)) for each in SIZES['cuda'])}; others for --matrices)"),
    frame.option("--kinds", nargs="+", choices=ALL_KINDS, metavar="KIND",
                 help=f"{', '.join(ALL_KINDS)}: any up to 2.5 (all but that)"),
    frame.option("--matrices", type=frame.positive, default=0, metavar="N", help="N random ones, of any kind"),
    frame.option("--dtype", choices=list(UNITS), help="only this one (both)"),
    frame.option("--seed", type=int, default=1, help="of matrices and samples (1)"),
    frame.option("--device", choices=SIZES, default="cuda", help="emulate: the GPU's kernels on the CPU (cuda)"),
)  # fmt: skip
