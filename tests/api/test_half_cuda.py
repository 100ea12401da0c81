# SPDX-License-Identifier: MIT
"""Products of float16 and bfloat16 on a GPU: python -m pytest -m gpu tests/api/test_half_cuda.py"""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.errors import CheckFailed

pytestmark = pytest.mark.gpu
PLANS = {
    "in one piece": {},
    "panels": {"PANEL_ROWS": "256", "PANEL_COLUMNS": "384"},
    "slabs": {"PANEL_ROWS": "300", "SLAB_ROWS": "256"},
    "out of core": {"GPU_MEMORY": "4M"},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("sizes", [(700, 900, 800), (301, 1001, 515), (1, 1, 1), (129, 4000, 1)])
def test_integers_are_exact(rng, monkeypatch, decisions, half, plan, sizes):
    for name, value in PLANS[plan].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    n, l, m = sizes
    a, b = (rng.integers(-40, 41, shape) for shape in ((n, l), (l, m)))
    c = hybrid.multiply(a.astype(half), b.astype(half), device="cuda", dtype="float32")
    np.testing.assert_array_equal(c, a @ b)
    assert decisions[0].kernel.name == "tensor_half"
    assert decisions[0].plan.problem.operand_dtype == half.name


@pytest.mark.parametrize("l", [64, 2000, 16384, 60_000])
@pytest.mark.parametrize("kind", ["standard_normal", "random"])
def test_right_products_pass_their_check_on_the_gpu(rng, device_checks, half, kind, l):
    """However the matrix units round: the host need not look at them. A wrong element does not pass."""
    a, b = (getattr(rng, kind)(shape, np.float32).astype(half) for shape in ((1500, l), (l, 1300)))
    c = hybrid.multiply(a, b, device="cuda", dtype="float32")
    (check,) = device_checks
    print(f"{half.name} {kind} {l}: error {check.error:.2f} of {check.tolerance}")
    assert check.ok
    assert not check.undecided
    exact = a[:50].astype(float) @ b.astype(float)
    size = np.abs(a[:50].astype(float)) @ np.abs(b.astype(float))
    assert (np.abs(c[:50] - exact) <= l * 2.0**-23 * size).all()


@pytest.fixture
def wrong_element(monkeypatch):
    """In each product of the GPU."""
    import cupy

    from hybrid.devices.cuda_device import CudaDevice

    original = CudaDevice.multiply

    def multiply(device, a, b, c, after, **how):
        event = original(device, a, b, c, after, **how)
        device.wait(event)
        c[len(c) // 2, c.shape[1] // 3] += 5
        cupy.cuda.get_current_stream().synchronize()
        return event

    monkeypatch.setattr(CudaDevice, "multiply", multiply)


@pytest.mark.usefixtures("wrong_element")
def test_a_wrong_product_is_refused(rng):
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((1500, 2000), (2000, 1300)))
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, device="cuda")


@pytest.mark.parametrize("sizes", [(700, 904, 800), (301, 1001, 515)])  # rows that may lie where they are, and rows that may not
@pytest.mark.parametrize("out", [False, True])
def test_arrays_on_the_gpu_stay_of_16_bits(rng, decisions, sizes, out):
    import cupy

    n, l, m = sizes
    a, b = (rng.integers(-40, 41, shape) for shape in ((n, l), (l, m)))
    into = np.empty((n, m), np.float32) if out else None
    c = hybrid.multiply(*(cupy.asarray(each.astype(np.float16)) for each in (a, b)), device="cuda", dtype="float32", out=into)
    assert decisions[0].kernel.name == "tensor_half"
    assert decisions[0].plan.problem.operand_dtype == "float16"
    np.testing.assert_array_equal(c if out else c.get(), a @ b)


def test_row_blocks_stay_of_16_bits(rng, decisions, half):
    a, b = (rng.integers(-40, 41, shape) for shape in ((700, 900), (900, 800)))
    c = hybrid.multiply(*(hybrid.RowBlock(each.astype(half)) for each in (a, b)), device="cuda", dtype="float32")
    assert decisions[0].plan.problem.operand_dtype == half.name
    np.testing.assert_array_equal(c.array, a @ b)


@pytest.mark.usefixtures("wrong_element")
@pytest.mark.parametrize("check", ["on", "host"])
def test_a_wrong_product_of_arrays_on_the_gpu_is_repaired(rng, check):
    import cupy

    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((600, 800), (800, 500)))
    on_gpu = [cupy.asarray(each) for each in (a, b)]
    with pytest.warns(RuntimeWarning, match="repaired: "):
        c = hybrid.multiply(*on_gpu, device="cuda", dtype="float32", check=check, on_fault="repair")
    np.testing.assert_allclose(c.get(), a.astype(float) @ b.astype(float), rtol=1e-4, atol=1e-3)
