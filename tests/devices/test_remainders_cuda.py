# SPDX-License-Identifier: MIT
"""The kernels of products from remainders on a GPU: both engines, and both ways to put C together."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from experiments.remainder_speed.kernels import Emulation
from hybrid.devices.cuda_device import CudaDevice

pytestmark = pytest.mark.gpu


def multiplied(gpu, a, b, moduli, capability=None, **how):
    """On the GPU, perhaps by the kernels of another compute capability."""
    device = CudaDevice(gpu)
    queues = device.kernel_queues()
    queues.capability = capability or gpu.capability
    matrices = [
        device.matrix(device.reserve(8 * len(x) * (x.shape[1] + 16), shared=False), 0, *x.shape, "float64") for x in (a, b)
    ]
    c = device.matrix(device.reserve(8 * len(a) * (b.shape[1] + 16), shared=False), 0, len(a), b.shape[1], "float64")
    for matrix, numbers in zip(matrices, (a, b), strict=True):
        device.copy_in(matrix, numbers, [])
    list(device.finish())
    queues.enqueue([Emulation(device, *matrices, c, moduli).whole(**how)], [], "products")
    list(device.finish())
    return c.get()


@pytest.mark.parametrize("moduli", [1, 7, 15])
@pytest.mark.parametrize("shape", [(1, 1, 1), (300, 700, 530), (128, 40_000, 130), (1000, 333, 257)])
def test_mma_and_wgmma_give_the_same_bits(real_gpus, rng, shape, moduli):
    (gpu, *_), (n, l, m) = real_gpus, shape
    if gpu.capability != 90:
        pytest.skip("products.cu is for compute capability 9.0")
    a, b = (rng.integers(-50, 51, size) * (1.0 if moduli == 1 else rng.random()) for size in ((n, l), (l, m)))
    np.testing.assert_array_equal(multiplied(gpu, a, b, moduli, 80), multiplied(gpu, a, b, moduli, 90))


def test_integers_put_the_same_product_together(real_gpus, rng):
    """The same bits with 7 moduli; with 15 in all but a few elements, by less than the sum of their terms' magnitudes rounds."""
    gpu, *_ = real_gpus
    a, b = rng.standard_normal((700, 300)), rng.standard_normal((300, 900))
    seven = [multiplied(gpu, a, b, 7, by_integers=by_integers) for by_integers in (False, True)]
    np.testing.assert_array_equal(*seven)
    doubles, integers = (multiplied(gpu, a, b, 15, by_integers=by_integers) for by_integers in (False, True))
    differ = doubles != integers
    assert differ.mean() < 0.01
    assert (np.abs(doubles - integers) <= np.spacing(np.abs(a) @ np.abs(b))).all()


def test_what_is_made_of_b_is_kept_as_long_as_b_is_the_same(real_gpus):
    """Three products of arrays on the GPU, the last one of another B, beside those of arrays that nothing was kept of."""
    import cupy

    n, random = 4096, cupy.random.default_rng(3)
    (first, second), b = (random.standard_normal((n, n)) for _ in range(2)), random.standard_normal((n, n))

    def product(a):
        return hybrid.multiply(a, b, device="cuda", precision="fast")

    found = [product(a) for a in (first, second, second)]
    b[n - 1, 7] = 5
    found.append(product(second))
    assert (found[1] == found[2]).all()
    for a, c in ((second, found[3]), (first, product(first))):
        hybrid.multiply(first[:1000], b, device="cuda", precision="fast")  # takes the memory
        assert (product(a) == c).all()
    b[n - 1, 7] = random.standard_normal()
    assert not (product(second) == found[3]).all()
