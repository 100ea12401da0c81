# SPDX-License-Identifier: MIT
"""Tiles of C from remainders on emulated GPUs of any compute capability, by the launches of a rank."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from hybrid.arrays.gemm import complex_view, product_type, real_operands
from hybrid.core.problem import Span
from hybrid.devices.base import EmulatedDevice
from hybrid.devices.remainders import RemainderLaunches
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.kernels.catalogue import KERNELS, Launch, named
from hybrid.planning.arithmetic import BYTES, Arithmetic, Summary, remainder_layout
from hybrid.testing.checked_kernels import Guarded


class Gpu(EmulatedDevice):
    """`checks`: of each kernel; `how`: the order of threads and of copies."""

    def __init__(self, capability: int, checks: str = "", **how: Any) -> None:
        super().__init__(named("naive"), "float64")
        self.capability, self._checks, self._how = capability, checks, how
        self.launched: list[Launch] = []

    def kernel(self, launch: Launch, arguments: Sequence[Any]) -> Callable[[None], None]:
        self.launched.append(launch)
        of_kind = launch.source.startswith("products") or launch.expression == "least_ratio"  # the others are the same for all
        key = launch.expression, self.capability if of_kind else 80
        if key not in self._kernels:
            self._kernels[key] = EmulatedKernel(KERNELS / launch.source, *key, self._checks)
        instance = self._kernels[key]
        matrices = [np.array([[each]]) if isinstance(each, np.generic) else each for each in arguments]
        how = {"cluster": launch.cluster, **self._how}
        return lambda stream: instance(launch.grid, launch.block, launch.shared_bytes, matrices, **how)


class Tile:
    """The only one of a product, whose panels are A and B. NaN lies around them. `aligned`: rows begin at multiples of 16 bytes;
    `unwritten`: the bytes of all memory that is not written yet, of a NaN as a rule."""

    def __init__(
        self, gpu: Gpu, a: np.ndarray, b: np.ndarray, *, by_integers: bool = False, aligned: bool = True, unwritten: int = 0xFF
    ) -> None:
        types = product_type(a.dtype, b.dtype)
        problem = types.problem(*a.shape, b.shape[1])
        a, b = real_operands(a, b, types, device="cpu", threads=1)
        n, m, dtype = problem.n, problem.m, problem.dtype
        layout = remainder_layout(0, problem, n, m, 1, 15)
        memory = gpu.reserve(layout.end, shared=False)
        memory.bytes[:] = unwritten
        self.launches = RemainderLaunches(gpu, memory, layout, problem, fast=True, by_integers=by_integers)
        self._given_back = complex_view if problem.is_complex else np.asarray
        self.guarded = [Guarded(*shape, dtype, np.nan, aligned=aligned) for shape in (a.shape, b.shape, (n, m))]
        self.a, self.b, self.c = (each.inner for each in self.guarded)
        self.a[...], self.b[...], self.c[...] = a, b, np.nan
        self._panels = {"A": (Span(0, n), self.a), "B": (Span(0, m), self.b)}
        for name, panel in self._panels.items():
            self._run(self.launches.measure(name, *panel))

    def summary(self, name: str) -> Summary:
        return self.launches.summary_of(name, self._panels[name][0])

    def ratio(self) -> float:
        """The least ratio, as the guard finds it."""
        for name, panel in self._panels.items():
            self._run(self.launches.pack_magnitudes(name, *panel))
        self._run(self.launches.guard(self._panels["A"][0], self._panels["B"][0], 0))
        return self.launches.ratio(0)

    def product(self, arithmetic: Arithmetic) -> np.ndarray:
        for name, (lines, matrix) in self._panels.items():
            self._run(self.launches.reduce(name, lines, arithmetic, matrix))
        self._run(self.launches.multiply(self._panels["A"][0], self._panels["B"][0], arithmetic, self.c))
        assert all(each.untouched() for each in self.guarded), "something beside a matrix was written"
        return self._given_back(self.c.copy())

    def _run(self, calls: Sequence[Callable[[None], object]]) -> None:
        for call in calls:
            call(None)


def ragged(gpu: Gpu, *, is_complex: bool = False, **how: Any) -> Tile:
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(shape) * (1 + 1j * is_complex) for shape in ((70, 270), (270, 133)))
    return Tile(gpu, a, b, **how)


def all_steps(gpu: Gpu) -> None:
    """With every kernel."""
    for aligned, is_complex in product((True, False), (False, True)):
        tile = ragged(gpu, aligned=aligned, by_integers=not aligned, is_complex=is_complex)
        tile.ratio()
        for arithmetic in (Arithmetic(3), BYTES):
            tile.product(arithmetic)
