# SPDX-License-Identifier: MIT
"""Products from remainders on the emulated GPU, without MPI."""

from __future__ import annotations

from experiments.accuracy.products import Products
from hybrid.core.problem import Problem
from hybrid.devices.emulated import EmulatedDevice
from hybrid.kernels.catalogue import named


def computed(a, b, *, fast=False, **more):
    """C, and its arithmetics, each with its elements and what is proved of them. `fast` None: natively. `more`: of Products."""
    problem = Problem(*a.shape, b.shape[1], a.dtype.name)
    kernel = named("tiled")
    return Products(EmulatedDevice(kernel, problem.dtype), kernel, problem, fast=fast, **more)(a, b)


def product(a, b, **more):
    """C, and how many of its elements were computed in which arithmetic."""
    c, arithmetics = computed(a, b, **more)
    return c, {arithmetic: elements for arithmetic, (elements, _) in arithmetics.items()}
