# SPDX-License-Identifier: MIT
"""How often each element of A and B is loaded from global memory: by formula, and counted on the CPU."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from experiments.common.tables import Table
from hybrid.core.problem import copy_width
from hybrid.emulation.kernel import EmulatedKernel
from hybrid.kernels.catalogue import EMULATED_CAPABILITY, KERNELS, OPERAND_SIZES, Form, Kernel, launch_of, storage, sums_type

Shape = tuple[int, int, int]  # n, l, m

ALONE = ("naive", "row_per_thread", "column_per_thread")  # in these every thread loads all that it multiplies


@dataclass(frozen=True)
class Loads:
    """Loads of an element of A and of B: the least, the most, the mean; and what they should be."""

    kernel: str
    dtype: str
    a: tuple[float, float, float]
    b: tuple[float, float, float]
    per_multiply_add: float
    formula: tuple[int, int]
    formula_per_multiply_add: float

    @property
    def as_they_should_be(self) -> bool:
        return self.a == (self.formula[0],) * 3 and self.b == (self.formula[1],) * 3


def form_of(kernel: Kernel, dtype: str, capability: int) -> Form:
    """The form that is launched on a GPU of that compute capability (times ten)."""
    return next(form for form in kernel.forms[dtype] if form.capability <= capability)


def loads_of_elements(kernel: str, tile: Sequence[int], shape: Shape) -> tuple[int, int]:
    """Of each element of A and of B, by the kernel's tile of C."""
    n, _, m = shape
    return (m, n) if kernel in ALONE else (-(-m // tile[1]), -(-n // tile[0]))


def loads_per_multiply_add(kernel: str, tile: Sequence[int]) -> Fraction:
    """For whole tiles."""
    return Fraction(2) if kernel in ALONE else Fraction(1, tile[0]) + Fraction(1, tile[1])


def count_loads(kernel: Kernel, dtype: str, shape: Shape, capability: int = EMULATED_CAPABILITY) -> Loads:
    """Run the kernel on the emulated GPU, which counts. DeviceUnavailable without a C++ compiler."""
    n, l, m = shape
    types = storage(dtype), storage(dtype), sums_type(dtype)
    matrices = [np.ones(shape, of_matrix) for shape, of_matrix in zip(((n, l), (l, m), (n, m)), types, strict=True)]
    numbers = [number for matrix in matrices for number in (matrix.ctypes.data, matrix.strides[0])]
    launch = launch_of(kernel, dtype, n, m, capability, copy_width(OPERAND_SIZES[dtype], numbers))
    run = EmulatedKernel(KERNELS / launch.source, launch.expression, capability, checks="loads")
    run(launch.grid, launch.block, launch.shared_bytes, matrices)
    assert run.loads is not None
    formula = loads_of_elements(kernel.name, form_of(kernel, dtype, capability).tile, shape)
    a, b = ((float(count.min()), float(count.max()), float(count.mean())) for count in (run.loads.a, run.loads.b))
    total = float(run.loads.a.sum() + run.loads.b.sum())
    return Loads(kernel.name, dtype, a, b, total / (n * l * m), formula, formula[0] / m + formula[1] / n)


def loads_table(counted: Iterable[Loads]) -> Table:
    """What was counted beside what the formulas say."""
    of_matrices = (f"{matrix}: {what}" for matrix in "AB" for what in ("least", "most", "mean", "formula"))
    heads = ["rung", "dtype", *of_matrices, "per multiply-add", "formula", ""]
    rows = []
    for one in counted:
        parts = [
            text
            for (least, most, mean), formula in zip((one.a, one.b), one.formula, strict=True)
            for text in (f"{least:g}", f"{most:g}", f"{mean:.2f}", str(formula))
        ]
        totals = [f"{one.per_multiply_add:.4f}", f"{one.formula_per_multiply_add:.4f}"]
        rows.append([one.kernel, one.dtype, *parts, *totals, "" if one.as_they_should_be else "differs"])
    return Table(heads, "ll" + "r" * 10 + "l", rows, "loads of an element")
