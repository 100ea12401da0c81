# SPDX-License-Identifier: MIT
"""Whether a product is computed from remainders, by the matrix units for bytes, or natively: what takes less time."""

from __future__ import annotations

from dataclasses import replace

from hybrid.core.problem import Problem
from hybrid.core.record import record
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import Kernel, dotted
from hybrid.kernels.remainders import LEAST_FOR_BYTES, MOST_TERMS
from hybrid.plan.arithmetic import expected, most_moduli
from hybrid.plan.machine_model import H200, MachineModel
from hybrid.plan.request import TilingRequest
from hybrid.plan.tiling import soonest


@record
class Precision:
    """Whether a product is computed from remainders, and why."""

    moduli: int  # the most that the product may need; 0: it is computed natively
    reason: str
    speed: float = 1.0  # expected, relative to the machine model's native products


@record
class Rates:
    """A GPU's rates, a second."""

    bytes_multiplied: float  # operations of our kernels for bytes
    float64: float  # operations of native kernels
    float32: float
    memory: float  # bytes of its memory that are read or written


# By compute capability. 9.0 was measured on an H200. The others are from data sheets: of a T4, an A100, an A10, an L4 and an RTX
# 5090, of which all but the A100 have little float64. For bytes they have 0.4 of the units' peak, which the same kernel reached
# on an H200.
_RATES = {
    75: Rates(0.4 * 1.3e14, 2.5e11, 8.1e12, 2.6e11),
    80: Rates(0.4 * 6.24e14, 1.8e13, 1.8e13, 1.3e12),
    90: Rates(1.39e15, 5.6e13, 5.2e13, 3.5e12),
    86: Rates(0.4 * 2.5e14, 4.9e11, 3.1e13, 5e11),
    89: Rates(0.4 * 2.42e14, 4.7e11, 3.0e13, 2.5e11),
    120: Rates(0.4 * 8.38e14, 1.6e12, 1.05e14, 1.4e12),
}
_OVERHEAD = 3e-4  # seconds: launches, and the host's waits for what the guard found
_LEAST_GAIN = 1.05  # how many times as fast as native ones the kernels have to be
# The same of the simulated time, where operands come over links. The simulation allows for more launching than there is in small
# products, and native ones may come in k-slabs, and then take up to 8 % less than it says. On an H100 float32 at 4000 took 4.5 ms
# and natively 5.7 (simulated: 1.07 × as long), float64 at 10,000 45.6 and 49.2 (1.13), and at 8000 30.2 and 28.6 (1.066). On two,
# float32 at 5000 took 5.9 and 6.9 (1.14), and float64 at 10,000 33.0 and 31.8 (1.08).
_LEAST_GAIN_OVER_LINK, _LEAST_GAIN_OVER_LINKS = 1.07, 1.1
_PAIR = 256  # lines that a cluster of two thread blocks computes together


def choose_precision(
    settings: Settings, asked_for: Kernel | None, device: str, capability: int, tallest: TilingRequest
) -> Precision:
    """Choose between remainders and native arithmetic.

    `asked_for`: the kernel; None for auto. `tallest`: the tallest row block of a rank, on which the time depends. UsageError if
    precision `fast` is asked for together with a kernel.
    """
    problem = tallest.problem
    fast = settings.precision == "fast"
    if settings.precision == "native":
        return Precision(0, "asked for")
    if problem.short_operands:
        return Precision(0, f"{problem.short_operands} is multiplied as it is, with sums in float32")
    if not (problem.n and problem.l and problem.m):
        return Precision(0, "there is nothing to multiply")
    if problem.l > MOST_TERMS:
        return Precision(0, f"sums have more than {MOST_TERMS:,} terms")
    if asked_for is not None:
        if fast:
            raise UsageError(
                f"precision fast has kernels of its own: it goes with kernel auto, not with {asked_for.name}",
                code="option-combination",
            )
        return Precision(0, f"kernel {asked_for.name} was asked for")
    if device == "emulate":
        return Precision(most_moduli(problem.dtype), "asked for") if fast else Precision(0, "faster on an emulated GPU")
    if device != "cuda":
        return Precision(0, "only GPUs have units for bytes")
    rates = _rates(capability, tallest.model)
    if capability < LEAST_FOR_BYTES or rates is None:
        return Precision(0, f"nothing is gained on GPUs of compute capability {dotted(capability)}")
    gain = round(_gain(rates, problem, tallest.rows, expected(problem.dtype, fast=fast).moduli), 1)
    if gain < _LEAST_GAIN:
        return Precision(0, "faster for this shape")
    native, moduli = native_speed(capability, tallest) or 1.0, most_moduli(problem.dtype)
    if tallest.links and not fast:
        from_remainders = replace(tallest, speed=native * gain, moduli=moduli)
        least = _LEAST_GAIN_OVER_LINK if tallest.links == 1 else _LEAST_GAIN_OVER_LINKS
        if soonest(replace(tallest, speed=native))[0] < least * soonest(from_remainders)[0]:
            return Precision(0, "copies take as long as native kernels")
    return Precision(moduli, f"kernels {gain:.1f} × as fast are expected", native * gain)


def _rates(capability: int, model: MachineModel) -> Rates | None:
    """The rates that the doctor measured, or else those known of this compute capability; None where nothing is known of it."""
    if model.byte_multiply_adds_per_byte == H200.byte_multiply_adds_per_byte:
        return _RATES.get(capability)
    of_bytes, of_doubles, of_floats = (
        2 * model.link_bytes_per_second * each
        for each in (
            model.byte_multiply_adds_per_byte,
            model.float64_multiply_adds_per_byte,
            model.float32_multiply_adds_per_byte,
        )
    )
    return Rates(of_bytes, of_doubles, of_floats, model.link_bytes_per_second * model.memory_bytes_per_byte)


def native_speed(capability: int, tallest: TilingRequest) -> float | None:
    """The speed of native kernels on GPUs of this compute capability, relative to those of the machine model.

    It is 1 where the model was measured on these GPUs. Where it is an H200's, for want of a better one, the GPUs' rates tell;
    None where these are not known.
    """
    if tallest.model != H200:
        return 1.0
    if capability not in _RATES:
        return None
    return getattr(_RATES[capability], tallest.problem.dtype) / getattr(_RATES[90], tallest.problem.dtype)


def _gain(rates: Rates, problem: Problem, rows: int, moduli: int) -> float:
    """The time of native kernels divided by that of kernels from remainders, for a row block of so many rows."""
    n, l, m, item = rows, problem.l, problem.m, problem.item_size
    if not (n and l and m):
        return 0.0
    native = 2 * n * l * m / (rates.float64 if problem.dtype == "float64" else rates.float32)
    products = moduli * 2 * _whole(n) * _whole(l) * _whole(m) / rates.bytes_multiplied
    moved = (2 * item + moduli) * (n * l + l * m) + (item + 2 * moduli) * n * m
    return native / (_OVERHEAD + products + moved / rates.memory)


def _whole(length: int) -> int:
    """Rounded up to whole pairs of tiles."""
    return -(-length // _PAIR) * _PAIR
