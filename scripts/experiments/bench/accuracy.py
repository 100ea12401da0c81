# SPDX-License-Identifier: MIT
"""How large are the errors of products in every arithmetic? python scripts/accuracy.py [--sizes 512x1024x512] [--dtype float32]

For each kind of matrices and each type: errors of sampled elements of C as parts of (|A||B|)ij, in units of 2^-53 or 2^-24,
against an exact reference. Columns: native arithmetic, the arithmetic that the guard chooses with --precision auto and fast, and
numbers of moduli that are taken whatever the guard says. In brackets: what was chosen, and what is proved of its errors.

On the CPU a model in NumPy computes all of them, and native arithmetic is one chain of multiply-adds. With --device cuda the GPU
computes them by the kernels and the pipeline of hybrid.multiply, from remainders also where native kernels would be faster;
native is the kernel that auto chooses, and cuBLAS stands beside it. With --device emulate the CPU runs the same kernels, slowly.
Only the forced numbers of moduli are always the model's.

--matrices N takes N random pairs of any of these kinds instead, one for each seed from --seed on, counts those that are accepted,
and names each seed whose errors exceed native ones, with the command that repeats it. If any does that must not, the exit code
is 1.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from experiments.common import cli, plots, records, results, tables
from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.core.text import rounded_up
from hybrid.devices.base import Buffers, Device
from hybrid.devices.cpu import EmulatedDevice
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.remainders import ModularProduct
from hybrid.emulation.build import compiler
from hybrid.errors import UsageError
from hybrid.execution.pipeline import ShareRun
from hybrid.host.memory import RowView
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, Kernel, fastest, named
from hybrid.kernels.remainders import MOST_TERMS
from hybrid.planning.arithmetic import (
    INTEGER_BITS,
    MODULI,
    MOST_MODULI,
    UNIT,
    Arithmetic,
    Computed,
    Summary,
    choose,
    joined,
    sampling,
)
from hybrid.planning.arithmetic import NATIVE as NATIVE_ARITHMETIC
from hybrid.planning.plan import make_plan
from hybrid.planning.tiling import PlanRequest
from hybrid.transport.base import HostTransport, RankMatrices

Pair = tuple[np.ndarray, np.ndarray]
Make = Callable[[np.random.Generator, int, int, int], Pair]

_PART_OF_SPARSE = 0.05
_HUGE, _SMALL = 2.0**30, 2.0**-20


def _both(fill: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]) -> Make:
    return lambda random, n, l, m: (fill(random, (n, l)), fill(random, (l, m)))


def _normal(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape)


def _spread(random: np.random.Generator, shape: tuple[int, int], phi: float) -> np.ndarray:
    return (random.random(shape) - 0.5) * np.exp(phi * random.standard_normal(shape))


def _any_spread(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    return _both(partial(_spread, phi=random.uniform(0, 2.5)))(random, n, l, m)


def _sparse(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.standard_normal(shape) * (random.random(shape) < _PART_OF_SPARSE)


def _huge_entry(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    numbers = random.standard_normal(shape)
    numbers[tuple(random.integers(shape))] *= _HUGE
    return numbers


def _integers(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return random.integers(-1000, 1001, shape).astype(np.float64)


def _hilbert(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    def of(rows: int, columns: int) -> np.ndarray:
        return 1 / (np.arange(rows)[:, None] + np.arange(columns) + 1.0)

    return of(n, l), of(l, m)


def _graded_rows(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    a, b = _both(_normal)(random, n, l, m)
    return a * 2.0 ** random.integers(-20, 21, (n, 1)), b * 2.0 ** random.integers(-20, 21, (1, m))


def _graded_k(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    """What is large along k in A is small in B."""
    a, b = _both(_normal)(random, n, l, m)
    grades = 2.0 ** np.linspace(-8, 8, l)
    return a * grades, b / grades[:, None]


def _half_small(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    """Large elements of A meet only small ones of B."""
    a, b = _both(_normal)(random, n, l, m)
    a[:, : l // 2] *= _SMALL
    b[l // 2 :] *= _SMALL
    return a, b


def _orthogonal(random: np.random.Generator, n: int, l: int, m: int) -> Pair:
    lines = max(n, m)
    q = np.linalg.qr(random.standard_normal((max(lines, l), min(lines, l))))[0]
    q = q if lines > l else q.T
    return q[:n], q[:m].T


KINDS: dict[str, Make] = {
    "uniform": _both(lambda random, shape: random.random(shape)),
    "normal": _both(_normal),
    **{f"φ = {phi:g}": _both(partial(_spread, phi=phi)) for phi in (0.5, 1, 2, 4)},
    "graded rows": _graded_rows,
    "graded k": _graded_k,
    "Hilbert": _hilbert,
    "sparse": _both(_sparse),
    "halves": _half_small,
    "orthogonal": _orthogonal,
    "one huge": _both(_huge_entry),
    "subnormals": _both(_normal),  # A becomes so small
    "integers": _both(_integers),
}
ALL_KINDS: dict[str, Make] = {**KINDS, "φ": _any_spread}
_SUBNORMAL = {"float64": 2.0**-1060, "float32": 2.0**-140}  # by which A's subnormal numbers are multiplied


def matrices_of(kind: str, dtype: str, n: int, l: int, m: int, random: np.random.Generator) -> Pair:
    a, b = ALL_KINDS[kind](random, n, l, m)
    if kind == "subnormals":
        a = a * _SUBNORMAL[dtype]
    with np.errstate(under="ignore", over="ignore"):
        return np.ascontiguousarray(a.astype(dtype)), np.ascontiguousarray(b.astype(dtype))


def varied(kind: str, dtype: str, n: int, l: int, m: int, random: np.random.Generator) -> Pair:
    """Multiplied by any number from 1 to 2 each: how much powers of two lose depends on it."""
    factors = random.uniform(1, 2, 2)
    a, b = matrices_of(kind, dtype, n, l, m, random)
    if kind in ("integers", "subnormals"):
        return a, b
    return (a * factors[0]).astype(dtype), (b * factors[1]).astype(dtype)


_DIGIT = 21  # bits: products of two signed digits, added up along 8192 of k, are exact in float64
_LONGEST = 8192
_LOOSE, _NEARLY_ONE = 0.999999, np.uint32(0x3F3F3F3F).view(np.float32)  # of kernels/guard.cu, and its first ratio
_MEAN, _MOST = 8, 127  # of magnitudes


@dataclass(frozen=True)
class Lines:
    """A's rows, or B's columns, each of which is a row here."""

    numbers: np.ndarray

    @property
    def dtype(self) -> str:
        return self.numbers.dtype.name

    @property
    def inner(self) -> int:
        return self.numbers.shape[1]

    @property
    def wide(self) -> np.ndarray:
        return self.numbers.astype(np.float64)

    @property
    def squares(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.square(self.wide).sum(axis=1)

    @property
    def most(self) -> np.ndarray:
        return np.abs(self.wide).max(axis=1, initial=0)

    def summary(self) -> Summary:
        squares, most = self.squares, self.most
        with np.errstate(invalid="ignore"):
            integral = bool((self.numbers == np.rint(self.numbers)).all())
        in_range = (squares < 1e280) & ((most == 0) | (squares > 1e-280))
        least = np.sqrt(squares[most > 0]).min(initial=math.inf)
        return Summary(float(most.max(initial=0)), integral, bool(in_range.all()), float(least))

    def exponents(self, arithmetic: Arithmetic) -> np.ndarray:
        """Of the powers of two by which they are multiplied."""
        limit, norms, most = arithmetic.limit(self.inner), np.sqrt(self.squares), self.most
        if not limit:
            return np.zeros(len(norms), int)
        exponents = _floor_log2(limit) - _floor_log2(norms)
        exponents -= np.ldexp(norms, exponents) >= limit
        exponents = np.minimum(exponents, INTEGER_BITS[self.dtype] - 2 - _floor_log2(most))
        return np.where(most > 0, exponents, 0)

    def integers(self, exponents: np.ndarray) -> np.ndarray:
        """Nearest ones, ties to even."""
        return np.rint(self.wide * np.ldexp(1.0, exponents)[:, None]).astype(np.int64)

    def magnitudes(self) -> tuple[np.ndarray, np.ndarray]:
        """What the guard multiplies, of the units along k that it looks at, and what one step of them is, in norms."""
        sums = np.abs(self.wide).sum(axis=1)
        with np.errstate(all="ignore"):
            cuts = np.where(sums > 0, _MEAN * self.inner / sums, 0)
            steps = (sums / (_MEAN * self.inner * np.sqrt(self.squares))).astype(np.float32)  # NaN for a line of zeros
        every, there = sampling(self.inner, self.dtype), -(-self.inner // UNIT)
        places = [min(unit * every + (unit * 5 + 3) % every, there - 1) for unit in range(-(-there // every))]
        looked_at = np.isin(np.arange(self.inner) // UNIT, places)
        scaled = np.abs(self.wide[:, looked_at]) * (cuts * _LOOSE)[:, None]
        return np.floor(np.minimum(scaled, _MOST)), steps


def _floor_log2(x: np.ndarray | float) -> np.ndarray:
    return np.frexp(x)[1] - 1


def least_ratio(a: Lines, b: Lines) -> float:
    """As the guard finds it for a tile of all rows and columns."""
    (of_a, a_steps), (of_b, b_steps) = a.magnitudes(), b.magnitudes()
    sums = of_a.astype(np.float64) @ of_b.T.astype(np.float64)
    ratios = sums.astype(np.float32) * (a_steps[:, None] * b_steps[None, :])
    return float(np.fmin.reduce(ratios, axis=None, initial=_NEARLY_ONE))


def choice(a: np.ndarray, b: np.ndarray, *, fast: bool) -> tuple[Arithmetic, float | None]:
    """What a product as one tile is computed in, and its proved error."""
    rows, columns = Lines(a), Lines(b.T)
    return choose(rows.summary(), columns.summary(), rows.inner, rows.dtype, lambda: least_ratio(rows, columns), fast=fast)


def exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers below 2⁶² in magnitude, a · bᵀ, as Python's integers."""
    whole = np.zeros((len(a), len(b)), object)
    for first in range(0, a.shape[1], _LONGEST):
        of_a, of_b = (_digits(x[:, first : first + _LONGEST]) for x in (a, b))
        for place in range(len(of_a) + len(of_b) - 1):
            pairs = [(i, place - i) for i in range(len(of_a)) if 0 <= place - i < len(of_b)]
            parts = sum((of_a[i] @ of_b[j].T).astype(np.int64) for i, j in pairs)
            whole += np.asarray(parts).astype(object) << _DIGIT * place
    return whole


def _digits(x: np.ndarray) -> list[np.ndarray]:
    """To base 2²¹, from -2²⁰ to 2²⁰, the lowest first."""
    digits = []
    half = 1 << _DIGIT - 1
    for _ in range(2):
        digit = (x + half & (1 << _DIGIT) - 1) - half
        digits.append(digit.astype(np.float64))
        x = x - digit >> _DIGIT
    return [*digits, x.astype(np.float64)]


def integer_product(a: np.ndarray, b: np.ndarray, arithmetic: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
    """The integers whose remainders are multiplied: their product, and the exponents of two that bring it back to C."""
    rows, columns = Lines(a), Lines(np.ascontiguousarray(b.T))
    of_a, of_b = rows.exponents(arithmetic), columns.exponents(arithmetic)
    return exact_product(rows.integers(of_a), columns.integers(of_b)), -(of_a[:, None] + of_b[None, :])


def from_remainders(a: np.ndarray, b: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
    """The product, rounded as the last step rounds it: from an integer to float64, and from that to the type."""
    product, back = integer_product(a, b, arithmetic)
    if arithmetic.moduli > 1:
        of_all = math.prod(MODULI[: arithmetic.moduli])
        product = (product + of_all // 2) % of_all - of_all // 2
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(product.astype(np.float64), back).astype(a.dtype)


def native_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One chain of fused multiply-adds along k."""
    c = np.zeros((len(a), b.shape[1]), a.dtype)
    if a.dtype == np.float32:  # products are exact in float64
        for column, row in zip(a.T.astype(np.float64), b.astype(np.float64), strict=True):
            c = (c + np.multiply.outer(column, row)).astype(np.float32)
        return c
    for column, row in zip(a.T, b, strict=True):
        high, low = two_product(column[:, None], row[None, :])
        total = c + high
        rest = total - c
        c = total + (((c - (total - rest)) + (high - rest)) + low)
    return c


def two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a · b = high + low, exactly."""
    high = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of 26 bits each."""
    large = x * (2.0**27 + 1)
    high = large - (large - x)
    return high, x - high


MODES = ("auto", "fast")  # of --precision
NATIVE, CUBLAS = "native", "cublas"
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24}
# Times native's errors, root mean square and maximum; 1.8 and 2.3 were seen, where powers of two lose most.
_ALLOWED = {"14 moduli": (2.0, 3.0)}

Errors = dict[str, list[float] | None]  # root mean square and maximum, by what computed the product


def above(errors: Sequence[float], native: Sequence[float], arithmetic: str = "") -> bool:
    """Whether root mean square or maximum are larger than native's, or than what this arithmetic may have. Where native is not
    exact, an element may always err by one unit, as what is rounded once may."""
    rms, most = _ALLOWED.get(arithmetic, (1.0, 1.0))
    return errors[0] > rms * native[0] or errors[1] > max(most * native[1], 1.0 if native[1] else 0.0)


class Sample:
    """Some rows of A and columns of B, and the exact elements of C where they meet: products of two elements as sums of two
    doubles, which math.fsum adds up. Lines are brought near 1 by powers of two, so nothing underflows that counts."""

    def __init__(self, a: np.ndarray, b: np.ndarray, most: int, random: np.random.Generator) -> None:
        self.rows, self.columns = (np.sort(random.permutation(length)[:most]) for length in (len(a), b.shape[1]))
        self.a, self.b = a[self.rows], np.ascontiguousarray(b[:, self.columns])
        self.elements = len(self.rows) * len(self.columns)
        self._unit = UNITS[a.dtype.name]
        lines = self.a.astype(np.float64), self.b.T.astype(np.float64)
        exponents = [-np.frexp(np.abs(each).max(axis=1, initial=0))[1] for each in lines]
        self._exponents = exponents[0][:, None] + exponents[1][None, :]
        wide_a, wide_b = (np.ldexp(each, exponent[:, None]) for each, exponent in zip(lines, exponents, strict=True))
        self._sizes = np.abs(wide_a) @ np.abs(wide_b).T
        self._high, self._low = np.empty((2, len(wide_a), len(wide_b)))
        for i, row in enumerate(wide_a):
            for j, parts in enumerate(np.concatenate(two_product(row, wide_b), axis=1).tolist()):
                self._high[i, j] = high = math.fsum(parts)
                self._low[i, j] = math.fsum([*parts, -high])

    def errors(self, c: np.ndarray) -> list[float]:
        """Of the whole product: root mean square and maximum of |C - A·B| / |A||B|, in units of 2⁻⁵³ or 2⁻²⁴."""
        return self._errors(c[np.ix_(self.rows, self.columns)])

    def modelled(self, arithmetic: Arithmetic) -> list[float]:
        return self._errors(from_remainders(self.a, self.b, arithmetic) if arithmetic.moduli else native_product(self.a, self.b))

    def _errors(self, c: np.ndarray) -> list[float]:
        with np.errstate(all="ignore"):
            scaled = np.ldexp(c.astype(np.float64), self._exponents)
            errors = ((scaled - self._high) - self._low) / self._sizes / self._unit
        errors = np.abs(np.where((self._sizes == 0) & (scaled == 0), 0, errors))
        return [float(np.sqrt(np.square(errors).mean())), float(errors.max())]


class ByModel:
    """In NumPy, each product as one tile, and native arithmetic as one chain of multiply-adds."""

    name = "cpu"
    gpu: str | None = None

    def __call__(self, a: np.ndarray, b: np.ndarray, sample: Sample) -> tuple[Errors, dict[str, Computed]]:
        """Errors in the sample, and for each precision what was computed in which arithmetic."""
        chosen = {mode: choice(a, b, fast=mode == "fast") for mode in MODES}
        errors: Errors = {NATIVE: sample.modelled(NATIVE_ARITHMETIC)}
        errors |= {mode: sample.modelled(arithmetic) for mode, (arithmetic, _) in chosen.items()}
        size = len(a) * b.shape[1]
        return errors, {mode: {arithmetic: (size, error)} for mode, (arithmetic, error) in chosen.items()}


class OnDevice:
    """Whole products by kernels: natively, from remainders where the guard allows it, and on a GPU by cuBLAS. DeviceUnavailable
    without a GPU, or without a compiler for the emulated one."""

    def __init__(self, name: str) -> None:
        self.name, self._capability = name, EMULATED_CAPABILITY
        self.gpu: str | None = None
        self._cuda: Device | None = None
        if name == "cuda":
            gpu = usable_gpus()[0]
            self.gpu, self._capability, self._cuda = gpu.name, gpu.capability, CudaDevice(gpu)
        else:
            compiler()
        # Of one shape and type at a time: its kernels, buffers and graphs are made once for all of its matrices.
        self._ways = lru_cache(maxsize=1)(self._make_ways)

    def __call__(self, a: np.ndarray, b: np.ndarray, sample: Sample) -> tuple[Errors, dict[str, Computed]]:
        errors: Errors = {}
        computed: dict[str, Computed] = {}
        for name, products in self._ways(Problem(*a.shape, b.shape[1], a.dtype.name)).items():
            c, done = products(a, b)
            errors[name] = sample.errors(c)
            computed |= {name: done} if done else {}
        return errors, computed

    def _make_ways(self, problem: Problem) -> dict[str, _Products]:
        kernel = fastest(self.name, problem.dtype, problem.m, self._capability)
        device = self._cuda or EmulatedDevice(kernel, problem.dtype)
        ways = {NATIVE: _Products(device, kernel, problem, fast=None)}
        if (cublas := named("cublas")) and self.name == "cuda":
            ways[CUBLAS] = _Products(device, cublas, problem, fast=None)
        return ways | {mode: _Products(device, kernel, problem, fast=mode == "fast") for mode in MODES}


class _Products:
    """Of one shape and type through the pipeline of `hybrid.multiply`, in the arithmetic that is asked for, whether or not it is
    the faster one: `hybrid.selection` has small matrices multiplied natively. `kernel`: of native tiles. `fast`: from remainders
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
FORCED = {"float64": (13, 14, 15, 16), "float32": (6, 7, 8)}  # moduli, whatever the guard says
# n, l, m by default: of each kind, and of random matrices, which are few so that many have the same.
_WHOLE = ((256, 64, 256), (256, 1024, 256), (256, 8192, 256))
SIZES = {"cpu": _WHOLE, "cuda": _WHOLE, "emulate": ((40, 200, 50),)}
OF_RANDOM = {
    "cpu": ((40, 300, 30), (24, 64, 24), (24, 2304, 24)),
    "cuda": ((512, 512, 512), (200, 333, 150), (384, 100, 256), (64, 2304, 96)),
    "emulate": ((40, 70, 50), (24, 300, 30)),
}
_LEAST = 1e-3  # errors below are drawn there
_DRAWN = ("uniform", "normal", "φ = 1", "φ = 2", "Hilbert", "graded k")
_COLORS = (plots.HERE, plots.LECTURE, plots.OTHER, plots.GREY, "#8c6bb1", "#66ccee")


def _line(options: argparse.Namespace, measure: Any, kind: str, dtype: str, sizes: Sizes) -> records.Line:
    random = np.random.default_rng(options.seed)
    a, b = matrices_of(kind, dtype, *sizes, random)
    sample = Sample(a, b, options.sampled, random)
    rows, columns = Lines(a), Lines(np.ascontiguousarray(b.T))
    in_range = rows.summary().in_range and columns.summary().in_range
    line = _errors(measure, kind, a, b, sample)
    for count in FORCED[dtype]:
        line["errors"][str(count)] = sample.modelled(Arithmetic(count)) if in_range else None
    return {**line, "part": "errors", "ratio": least_ratio(rows, columns) if in_range else 0.0}


def _random_line(options: argparse.Namespace, measure: Any, seed: int, kind: str, dtype: str, sizes: Sizes) -> records.Line:
    random = np.random.default_rng(seed)
    a, b = varied(kind, dtype, *sizes, random)
    line = _errors(measure, kind, a, b, Sample(a, b, options.sampled, random))
    alone = {"seed": seed, "kinds": kind, "dtype": dtype, "sizes": "x".join(map(str, sizes)), "sampled": options.sampled}
    words = [str(word) for option, value in alone.items() for word in (f"--{option}", value)]
    repeat = shlex.join(["python", "scripts/accuracy.py", "--device", measure.name, "--matrices", "1", *words])
    return {**line, "part": "random", "seed": seed, "repeat": repeat}


def _errors(measure: Any, kind: str, a: np.ndarray, b: np.ndarray, sample: Sample) -> records.Line:
    errors, computed = measure(a, b, sample)
    return {
        **dict(zip("nlm", (*a.shape, b.shape[1]), strict=True)), "device": measure.name, "gpu": measure.gpu,
        "dtype": a.dtype.name, "kind": kind, "sampled": sample.elements, "errors": errors,
        "chosen": {mode: " and ".join(arithmetic.name for arithmetic in done) for mode, done in computed.items()},
        "certified": {mode: _certified(done) for mode, done in computed.items()},
    }  # fmt: skip


def _certified(computed: Computed) -> float | None:
    """Of a whole product; None where a part of it is native."""
    proved = [error for _, error in computed.values() if error is not None]
    return max(proved) if len(proved) == len(computed) else None


def _random_cases(options: argparse.Namespace) -> list[tuple[int, str, str, Sizes]]:
    """Seed, kind, type and sizes; in an order in which few plans follow each other."""
    cases = []
    for seed in range(options.seed, options.seed + options.matrices):
        random = np.random.default_rng([seed, 1])  # beside that of the matrices, which are the same if all of this is given
        kind, dtype = random.choice(options.kinds), random.choice(options.dtypes)
        cases.append((seed, str(kind), str(dtype), options.sizes[random.integers(len(options.sizes))]))
    return sorted(cases, key=lambda case: case[2:])


def measured(options: argparse.Namespace) -> Iterator[records.Line]:
    options.dtypes = [options.dtype] if options.dtype else list(UNITS)
    options.sizes = options.sizes or (OF_RANDOM if options.matrices else SIZES)[options.device]
    options.kinds = options.kinds or list(ALL_KINDS if options.matrices else KINDS)
    options.sampled = options.sampled or (SAMPLED_OF_RANDOM if options.matrices else SAMPLED)
    for n, l, m in options.sizes:
        if l > MOST_TERMS:
            raise UsageError(f"sums of more than {MOST_TERMS} terms are always native: --sizes takes an l up to that")
        cli.refuse_too_large(n, l, m, item=16)
    measure = ByModel() if options.device == "cpu" else OnDevice(options.device)
    if options.matrices:
        for random_case in cli.shown(_random_cases(options), "matrices"):
            yield _random_line(options, measure, *random_case)
        return
    cases = [(kind, dtype, sizes) for dtype in options.dtypes for sizes in options.sizes for kind in options.kinds]
    for case in cli.shown(cases, "kinds"):
        yield _line(options, measure, *case)


class Results(results.Results):
    command = "accuracy"

    def blocks(self) -> Iterator[tables.Block]:
        native = "one chain of multiply-adds" if self.lines[-1]["device"] == "cpu" else "the kernel that auto chooses"
        if self.lines[-1]["part"] == "random":
            yield from self._of_random(native)
            return
        for dtype, l in dict.fromkeys((line["dtype"], line["l"]) for line in self.lines):
            lines = [line for line in self.lines if (line["dtype"], line["l"]) == (dtype, l)]
            columns = list(dict.fromkeys(name for line in lines for name in line["errors"]))
            heads = ["matrices", "least ratio", *(_head(name) for name in columns)]
            rows = [[line["kind"], _short(line["ratio"]), *(_cell(line, name) for name in columns)] for line in lines]
            title = f"{dtype}, l = {l}: errors as parts of (|A||B|)ᵢⱼ, in units of {_unit(dtype)}, root mean square / maximum"
            yield tables.Table(heads, "lr" + "r" * len(columns), rows, title)
        in_brackets = (
            "In brackets: the arithmetic that the guard chose (in the model for the whole product as one tile), and what no "
            "element's error can exceed, in the same units."
        )
        yield tables.Remarks([f"Native is {native}. {in_brackets}", *self._named(strict=True)])

    def _of_random(self, native: str) -> Iterator[tables.Block]:
        """How many the guard accepted, and whose errors exceed native ones."""
        seeds, rows = [line["seed"] for line in self.lines], []
        for dtype in dict.fromkeys(line["dtype"] for line in self.lines):
            for how in (*MODES, CUBLAS):
                lines = [line for line in self.lines if line["dtype"] == dtype and how in line["errors"]]
                there = [line for line in lines if how == CUBLAS or _accepted(line, how)]
                if there or how != CUBLAS:
                    exact = "–" if how == CUBLAS else str(sum(line["certified"][how] == 0 for line in there))
                    larger = sum(above(line["errors"][how], line["errors"][NATIVE]) for line in there)
                    rows.append([dtype, how, str(len(lines)), str(len(there)), exact, str(larger)])
        title = f"{len(self.lines)} pairs of random matrices, seeds from {min(seeds)} to {max(seeds)}"
        heads = ["type", "computed by", "matrices", "from remainders", "exact", "above native"]
        yield tables.Table(heads, "llrrrr", rows, title)
        said = f"Native is {native}. Exact: those whose errors are proved to be 0."
        yield tables.Remarks(
            [said, *self._named(strict=False), *([] if self._failed() else ["No error is larger than allowed."])]
        )

    def _named(self, *, strict: bool) -> Iterator[str]:
        """Where a choice of the guard has larger errors than native arithmetic; unless `strict`, than its arithmetic may have."""
        for line in self.lines:
            for mode in MODES:
                chosen, native = line["errors"][mode], line["errors"][NATIVE]
                if _accepted(line, mode) and above(chosen, native, "" if strict else line["chosen"][mode]):
                    what = f"{line['dtype']}, l = {line['l']}, {line['kind']}: {line['chosen'][mode]}"
                    both = f"{_pair(chosen)} with precision {mode}, {_pair(native)} natively."
                    yield f"Above native arithmetic: {what}, {both}" + (f" Again: {line['repeat']}" if "repeat" in line else "")

    def _failed(self) -> bool:
        return any(True for _ in self._named(strict=False))

    def exit_code(self) -> int:
        return int(self.lines[-1]["part"] == "random" and self._failed())

    def has_picture(self) -> bool:
        return self.lines[-1]["part"] == "errors"

    def draw(self, path: str) -> None:
        """Root mean squares by number of moduli, and natively as dashed lines; a panel for each type, of the longest k."""
        if not self.has_picture():
            raise UsageError(f"random matrices have no picture for {path}")
        dtypes = list(dict.fromkeys(line["dtype"] for line in self.lines))
        longest = max(line["l"] for line in self.lines)
        with plots.figure(path, (4.6 * len(dtypes) + 1, 3.6), f"Errors of products, l = {longest}", self.caption()) as figure:
            for dtype, panel in zip(dtypes, figure.subplots(1, len(dtypes), squeeze=False)[0], strict=True):
                plots.plain(panel, f"{dtype}, root mean square in units of {_unit(dtype)}")
                there = {line["kind"]: line for line in self.lines if (line["dtype"], line["l"]) == (dtype, longest)}
                kinds = [kind for kind in _DRAWN if kind in there] or list(there)[: len(_COLORS)]
                for kind, color in zip(kinds, _COLORS, strict=False):
                    errors = there[kind]["errors"]
                    points = [(count, max(_LEAST, errors[str(count)][0])) for count in FORCED[dtype] if errors.get(str(count))]
                    if points:
                        panel.plot(*zip(*points, strict=True), "o-", ms=4, color=color, label=kind)
                    panel.axhline(max(_LEAST, errors[NATIVE][0]), color=color, linewidth=0.8, dashes=(4, 3))
                panel.set_yscale("log")
                panel.set_xticks(FORCED[dtype])
                panel.set_xlabel("moduli; natively: dashed")
            panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)  # beside the last one


def _accepted(line: records.Line, mode: str) -> bool:
    return NATIVE not in line["chosen"][mode]


def _short(value: float) -> str:
    return f"{value:.2g}" if value else "0"


def _pair(errors: list[float] | None) -> str:
    """Root mean square and maximum."""
    return " / ".join(map(_short, errors)) if errors else "–"


def _unit(dtype: str) -> str:
    return {"float64": "2⁻⁵³", "float32": "2⁻²⁴"}[dtype]


def _head(column: str) -> str:
    return f"precision {column}" if column in MODES else f"{column} moduli" if column.isdecimal() else column


def _cell(line: records.Line, column: str) -> str:
    text = _pair(line["errors"].get(column))
    if column not in MODES:
        return text
    proved = line["certified"][column]
    certain = f", ≤ {float(rounded_up(proved / UNITS[line['dtype']])):g}" if proved else ""
    return f"{text} ({line['chosen'][column]}{certain})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    label = " ".join("x".join(map(str, sizes)) for sizes in SIZES["cpu"])
    parser.add_argument("--sizes", nargs="+", type=cli.as_sizes, metavar="N", help=f"N or NxLxM ({label}; others for --matrices)")
    kinds = f"{', '.join(ALL_KINDS)}: any up to 2.5 (all but that)"
    parser.add_argument("--kinds", nargs="+", choices=ALL_KINDS, metavar="KIND", help=kinds)
    parser.add_argument("--matrices", type=cli.at_least_1, default=0, metavar="N", help="so many random ones, of any kind")
    parser.add_argument("--dtype", choices=list(UNITS), help="only this one (both)")
    sampled = f"rows and columns that are looked at ({SAMPLED}; of --matrices {SAMPLED_OF_RANDOM})"
    parser.add_argument("--sampled", type=cli.at_least_1, metavar="K", help=sampled)
    parser.add_argument("--seed", type=int, default=1, help="of matrices and samples (1)")
    parser.add_argument("--device", choices=SIZES, default="cpu", help="cpu: a model in NumPy (cpu)")
    parser.add_argument("--picture", metavar="FILE", help="draw the results, as .png or .svg")
    cli.add_lines(parser)
    return cli.command(parser, partial(cli.present, results=Results, measured=measured), arguments)
