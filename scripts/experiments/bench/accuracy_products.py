# SPDX-License-Identifier: MIT
"""Products of a pair of matrices in every arithmetic, by the model in NumPy or on a device, and their exact errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from experiments.bench import remainder_model as model
from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.base import Buffers, Device
from hybrid.devices.cpu import EmulatedDevice
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.devices.remainders import ModularProduct
from hybrid.emulation.build import compiler
from hybrid.execution.pipeline import ShareRun
from hybrid.host.memory import RowView
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, Kernel, fastest, named
from hybrid.planning.arithmetic import MOST_MODULI, Arithmetic, Computed, joined
from hybrid.planning.arithmetic import NATIVE as NATIVE_ARITHMETIC
from hybrid.planning.plan import make_plan
from hybrid.planning.tiling import PlanRequest
from hybrid.transport.base import HostTransport, RankMatrices

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
            for j, parts in enumerate(np.concatenate(model.two_product(row, wide_b), axis=1).tolist()):
                self._high[i, j] = high = math.fsum(parts)
                self._low[i, j] = math.fsum([*parts, -high])

    def errors(self, c: np.ndarray) -> list[float]:
        """Of the whole product: root mean square and maximum of |C - A·B| / |A||B|, in units of 2⁻⁵³ or 2⁻²⁴."""
        return self._errors(c[np.ix_(self.rows, self.columns)])

    def modelled(self, arithmetic: Arithmetic) -> list[float]:
        return self._errors(
            model.from_remainders(self.a, self.b, arithmetic) if arithmetic.moduli else model.native(self.a, self.b)
        )

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
        chosen = {mode: model.chosen(a, b, fast=mode == "fast") for mode in MODES}
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
