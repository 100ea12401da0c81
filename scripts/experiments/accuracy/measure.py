# SPDX-License-Identifier: MIT
"""Products of a pair of matrices in every arithmetic, and their errors: by the model in NumPy, or on a device."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np

from experiments.accuracy import model
from experiments.accuracy.errors import Reference
from experiments.accuracy.products import Products
from experiments.accuracy.wording import CUBLAS, MODES, NATIVE
from hybrid.core.problem import Problem
from hybrid.devices.base import Device
from hybrid.devices.cpu import EmulatedDevice
from hybrid.devices.cuda_device import CudaDevice
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.emulation.build import compiler
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, fastest, named
from hybrid.planning.arithmetic import NATIVE as NATIVE_ARITHMETIC
from hybrid.planning.arithmetic import Arithmetic, Computed

Errors = dict[str, list[float] | None]  # root mean square and maximum, by what computed the product


class Measure(Protocol):
    """How the products are computed. `name`: of the device; `gpu`: its model."""

    name: str
    gpu: str | None

    def __call__(self, a: np.ndarray, b: np.ndarray, sample: Sample) -> tuple[Errors, dict[str, Computed]]:
        """Errors of the whole product in the sample, and for each precision what was computed in which arithmetic."""


class Sample:
    """Some rows of A and columns of B, and the exact elements of C where they meet."""

    def __init__(self, a: np.ndarray, b: np.ndarray, most: int, random: np.random.Generator) -> None:
        self.rows, self.columns = (np.sort(random.permutation(length)[:most]) for length in (len(a), b.shape[1]))
        self.a, self.b = a[self.rows], np.ascontiguousarray(b[:, self.columns])
        self._reference = Reference(self.a, self.b)

    @property
    def elements(self) -> int:
        return len(self.rows) * len(self.columns)

    def errors(self, c: np.ndarray) -> list[float]:
        """Of the whole product."""
        return self._errors(c[np.ix_(self.rows, self.columns)])

    def modelled(self, arithmetic: Arithmetic) -> list[float]:
        return self._errors(
            model.from_remainders(self.a, self.b, arithmetic) if arithmetic.moduli else model.native(self.a, self.b)
        )

    def _errors(self, c: np.ndarray) -> list[float]:
        return list(self._reference.rms_and_max(c))


class ByModel:
    """In NumPy, each product as one tile, and native arithmetic as one chain of multiply-adds."""

    name = "cpu"
    gpu: str | None = None

    def __call__(self, a: np.ndarray, b: np.ndarray, sample: Sample) -> tuple[Errors, dict[str, Computed]]:
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

    def _make_ways(self, problem: Problem) -> dict[str, Products]:
        kernel = fastest(self.name, problem.dtype, problem.m, self._capability)
        device = self._cuda or EmulatedDevice(kernel, problem.dtype)
        ways = {NATIVE: Products(device, kernel, problem, fast=None)}
        if self.name == "cuda":
            cublas = named("cublas")
            assert cublas is not None
            ways[CUBLAS] = Products(device, cublas, problem, fast=None)
        return ways | {mode: Products(device, kernel, problem, fast=mode == "fast") for mode in MODES}
