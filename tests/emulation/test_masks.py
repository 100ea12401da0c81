# SPDX-License-Identifier: MIT
"""Lanes of a warp that wait at the same time in operations with different masks."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.emulation.errors import EmulationError
from hybrid.emulation.kernel import ORDERS, EmulatedKernel

pytestmark = pytest.mark.needs("compiler")

KERNEL = """#include "hardware.cuh"
#include "matrix.cuh"
__global__ void unit(Matrix<double> c)
{
int x = threadIdx.x;
BODY
}
"""


def ran(folder, body, order):
    source = folder / "unit.cu"
    source.write_text(KERNEL.replace("BODY", body))
    c = np.arange(32.0).reshape(1, 32)
    EmulatedKernel(source, "unit")((1, 1), (32, 1), 0, [c], order=order)
    return c[0]


@pytest.mark.parametrize("order", ORDERS)
def test_a_half_goes_on_while_lanes_of_the_other_wait_for_the_whole_warp(tmp_path, order):
    body = "if (x < 16) c(0, x) = __shfl_xor_sync(0xffffu, c(0, x), 1); c(0, x) += __shfl_sync(~0u, double(x), 5);"
    lanes = np.arange(32)
    assert (ran(tmp_path, body, order) == np.where(lanes < 16, lanes ^ 1, lanes) + 5).all()


@pytest.mark.parametrize("order", ORDERS)
def test_each_half_exchanges_by_its_own_mask(tmp_path, order):
    body = "c(0, x) = __shfl_xor_sync(x < 16 ? 0xffffu : 0xffff0000u, c(0, x), 3);"
    assert (ran(tmp_path, body, order) == np.arange(32) ^ 3).all()


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_that_name_different_masks_in_one_operation_are_told(tmp_path, order):
    with pytest.raises(EmulationError, match="with another mask") as raised:
        ran(tmp_path, "c(0, x) = __shfl_sync(x ? ~0u : 3u, c(0, x), 0);", order)
    assert raised.value.kind == "warp"


@pytest.mark.parametrize("order", ORDERS)
def test_who_waits_in_vain_is_told_and_not_who_might_go_on(tmp_path, order):
    body = """if (x >= 16) c(0, x) = __shfl_sync(~0u, 1.0, 0);
        else if (x < 8) c(0, x) = __shfl_sync(0xffu, 2.0, 0);
        __syncthreads();"""
    with pytest.raises(EmulationError, match=r"thread \(16, 0\): waits in unit.cu:6 for lanes of its warp that do not come"):
        ran(tmp_path, body, order)
