# SPDX-License-Identifier: MIT
"""Products of float16 and bfloat16 on a GPU: python -m pytest -m gpu tests/api/test_half_cuda.py"""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
import hybrid.execution.product
import hybrid.execution.root_call
from hybrid.arrays.product_type import numpy_type
from hybrid.errors import CheckFailed, UsageError

pytestmark = pytest.mark.gpu
PLANS = {
    "in one piece": {},
    "panels": {"PANEL_ROWS": "256", "PANEL_COLUMNS": "384"},
    "slabs": {"PANEL_ROWS": "300", "SLAB_ROWS": "256"},
    "out of core": {"GPU_MEMORY": "4M"},
}


@pytest.fixture(params=["float16", "bfloat16"])
def dtype(request):
    try:
        return numpy_type(request.param)
    except UsageError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def seen(monkeypatch):
    """Each product's decision, and what its device's check said."""
    decisions, checks = [], []
    run_product, check = hybrid.execution.root_call.run_product, hybrid.execution.product.RankRun.check

    def run(session, decision, *others):
        decisions.append(decision)
        return run_product(session, decision, *others)

    def checked(run, *arguments):
        checks.append(check(run, *arguments))
        return checks[-1]

    monkeypatch.setattr(hybrid.execution.root_call, "run_product", run)
    monkeypatch.setattr(hybrid.execution.product.RankRun, "check", checked)
    return decisions, checks


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("sizes", [(700, 900, 800), (301, 1001, 515), (1, 1, 1), (129, 4000, 1)])
def test_integers_are_exact(rng, monkeypatch, seen, dtype, plan, sizes):
    for name, value in PLANS[plan].items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    n, l, m = sizes
    a, b = (rng.integers(-40, 41, shape) for shape in ((n, l), (l, m)))
    c = hybrid.multiply(a.astype(dtype), b.astype(dtype), device="cuda", dtype="float32")
    np.testing.assert_array_equal(c, a @ b)
    assert seen[0][0].kernel.name == "tensor_half"
    assert seen[0][0].plan.problem.operand_dtype == dtype.name


@pytest.mark.parametrize("l", [64, 2000, 16384, 60_000])
@pytest.mark.parametrize("kind", ["standard_normal", "random"])
def test_right_products_pass_their_check_on_the_gpu(rng, seen, dtype, kind, l):
    """However the matrix units round: the host need not look at them. A wrong element does not pass."""
    a, b = (getattr(rng, kind)(shape, np.float32).astype(dtype) for shape in ((1500, l), (l, 1300)))
    c = hybrid.multiply(a, b, device="cuda", dtype="float32")
    (check,) = seen[1]
    print(f"{dtype.name} {kind} {l}: error {check.error:.2f} of {check.tolerance}")
    assert check.ok
    assert not check.undecided
    exact = a[:50].astype(float) @ b.astype(float)
    size = np.abs(a[:50].astype(float)) @ np.abs(b.astype(float))
    assert (np.abs(c[:50] - exact) <= l * 2.0**-23 * size).all()


def test_a_wrong_product_is_refused(rng, monkeypatch):
    import cupy

    from hybrid.devices.cuda_device import CudaDevice

    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((1500, 2000), (2000, 1300)))
    original = CudaDevice.multiply

    def multiply(device, a, b, c, after, **how):
        event = original(device, a, b, c, after, **how)
        device.wait(event)
        c[len(c) // 2, c.shape[1] // 3] += 5
        cupy.cuda.get_current_stream().synchronize()
        return event

    monkeypatch.setattr(CudaDevice, "multiply", multiply)
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, device="cuda")
