# SPDX-License-Identifier: MIT
"""Which instances of the kernels for products from remainders a GPU launches."""

from collections.abc import Iterator
from dataclasses import dataclass

from hybrid.kernels import remainders
from hybrid.kernels.catalogue import C_TYPES, Launch
from hybrid.planning.arithmetic import Summary, choose

_EARLIER = 80  # a compute capability whose products are those of products_mma.cu, which compiles for all later ones, too
_MOST_EXPONENT = 53


@dataclass(frozen=True)
class Gpu:
    capability: int
    multiprocessors: int = 132


def launches(target: str, capability: int) -> Iterator[tuple[str, Launch, bool]]:
    """(type, or "" for no template; launch; whether that is what such a GPU launches), for a target as sm_90a.

    A kernel for one architecture alone is compiled for no other target."""
    if capability < remainders.LEAST_FOR_BYTES:
        return
    for dtype, launch in _of_any():
        yield dtype, launch, True
    ours, earlier = (list(_by_matrix_units(gpu)) for gpu in (Gpu(capability), Gpu(min(capability, _EARLIER))))
    for dtype, launch in dict.fromkeys(ours + earlier):
        if launch.architecture in ("", target):
            yield dtype, launch, (dtype, launch) in ours


def _by_matrix_units(gpu: Gpu) -> Iterator[tuple[str, Launch]]:
    yield "", remainders.guarding(gpu, 1, 1)
    for dtype in ("", *C_TYPES):
        yield dtype, remainders.products_of(gpu, C_TYPES.get(dtype, ""), 1, 1, 1)


def _of_any() -> Iterator[tuple[str, Launch]]:
    """Those that all GPUs launch."""
    for launch in (*(remainders.line_kernel(name, 1) for name in ("summarize", "scale_lines")), remainders.telling()):
        yield "", launch
    for dtype, element in C_TYPES.items():
        yield dtype, remainders.row_measuring(element, 1, 1)
        yield dtype, remainders.column_measuring(element, 1, 1)
        for operand in "AB":
            yield dtype, remainders.magnitude_packing(operand, element, 1, 1)
            for moduli in (1, *moduli_of(dtype)):
                yield dtype, remainders.remainder_packing(operand, element, moduli, 1, 1)
        for moduli in moduli_of(dtype):
            for by_integers in (False, True):
                yield dtype, remainders.reconstruction(element, moduli, 1, 1, by_integers=by_integers)


def moduli_of(dtype: str) -> list[int]:
    """How many moduli a product may take, but for one: of integers of all sizes, and of other numbers whatever their ratio."""
    integers = [Summary(2.0**exponent, integral=True, in_range=True) for exponent in range(_MOST_EXPONENT + 1)]
    one, other = Summary(1.0, integral=True, in_range=True), Summary(1.0, integral=False, in_range=True)
    chosen = {choose(a, one, 1, dtype, lambda: 0.0, fast=False)[0].moduli for a in integers}
    for ratio in (2.0**-exponent for exponent in range(_MOST_EXPONENT)):
        chosen |= {choose(other, other, 1, dtype, lambda ratio=ratio: ratio, fast=fast)[0].moduli for fast in (False, True)}
    return sorted(chosen - {0, 1})
