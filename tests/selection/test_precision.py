# SPDX-License-Identifier: MIT
"""Where products are computed from remainders, and where natively, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybrid.core.problem import Problem
from hybrid.core.settings import Settings
from hybrid.errors import UsageError
from hybrid.kernels.catalogue import named
from hybrid.plan.machine_model import H200, MachineModel
from hybrid.plan.request import TilingRequest
from hybrid.selection.precision import choose_precision

AUTO, NATIVE, FAST = (Settings(precision=precision) for precision in ("auto", "native", "fast"))


def block(n, dtype="float64", links=1, l=None, rows=None):
    return TilingRequest(Problem(n, l or n, l or n, dtype), rows or n, "cuda", links=links)


@pytest.mark.parametrize(
    ("settings", "device", "capability", "tallest", "moduli"),
    [
        (AUTO, "cuda", 90, block(16000), 15),
        (AUTO, "cuda", 90, block(8000, "float32"), 8),
        (AUTO, "cuda", 90, block(8000), 0),  # copies bind: on an H100 remainders took longer
        (AUTO, "cuda", 90, block(10000), 15),
        (AUTO, "cuda", 90, block(10000, links=2, rows=5000), 0),
        (AUTO, "cuda", 90, block(5000, "float32", links=2, rows=2500), 8),
        (AUTO, "cuda", 90, block(3500, "float32"), 0),
        (AUTO, "cuda", 90, block(4000, "float32"), 8),
        (FAST, "cuda", 90, block(8000), 15),
        (AUTO, "cuda", 90, block(8000, links=0), 15),  # on the GPU already
        (AUTO, "cuda", 90, block(500, links=0), 0),
        (AUTO, "cuda", 90, block(100, links=0, l=8000), 0),
        (NATIVE, "cuda", 90, block(16000), 0),
        (AUTO, "cuda", 89, block(2000), 15),  # little float64
        (AUTO, "cuda", 89, block(8000, "float32"), 0),
        (AUTO, "cuda", 75, block(2000), 15),
        (AUTO, "cuda", 75, block(8000, "float32"), 0),
        (AUTO, "cuda", 80, block(16000), 0),  # matrix units for float64
        (AUTO, "cuda", 80, block(8000, "float32", links=0), 8),
        (AUTO, "cuda", 70, block(16000), 0),
        (AUTO, "cuda", 100, block(16000), 0),
        (AUTO, "emulate", 90, block(16000), 0),
        (FAST, "emulate", 90, block(10), 15),
        (FAST, "emulate", 90, block(10, "float32"), 8),
        (AUTO, "cpu", 90, block(16000), 0),
    ],
)
def test_what_is_faster(settings, device, capability, tallest, moduli):
    chosen = choose_precision(settings, None, device, capability, tallest)
    assert chosen.moduli == moduli
    assert chosen.reason


@pytest.mark.parametrize(("of_bytes", "moduli"), [(40_000.0, 15), (1000.0, 0), (H200.byte_multiply_adds_per_byte, 0)])
def test_what_the_doctor_measured_counts_where_nothing_is_known_of_the_gpu(of_bytes, moduli):
    model = MachineModel(byte_multiply_adds_per_byte=of_bytes)
    assert choose_precision(AUTO, None, "cuda", 100, replace(block(8000, links=0), model=model)).moduli == moduli


def test_a_kernel_that_was_asked_for_is_native():
    assert choose_precision(AUTO, named("tensor"), "cuda", 90, block(16000)).moduli == 0
    with pytest.raises(UsageError, match="goes with kernel auto, not with tensor"):
        choose_precision(FAST, named("tensor"), "cuda", 90, block(16000))


def test_nothing_to_multiply_is_native():
    assert choose_precision(AUTO, None, "cuda", 90, TilingRequest(Problem(0, 5, 5), 0, "cuda")).moduli == 0
