# SPDX-License-Identifier: MIT
"""Stacks on a GPU in as many parts as its memory takes, with a stand-in for CuPy; tests/api/test_stacks.py has real GPUs."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from hybrid.devices import stacks
from hybrid.devices.cuda_gpus import Gpu
from hybrid.errors import DoesNotFit

GPU = Gpu(3, "uuid", "a GPU")


class OnGpu(np.ndarray):
    def get(self, out):
        assert out.flags.c_contiguous
        out[...] = self


@pytest.fixture
def copied(monkeypatch):
    """Sizes of all copies to the GPU, which has 1 MiB, 64 KiB of it in CuPy's pool."""
    sizes, inside = [], []

    @contextmanager
    def gpu_context(index):
        inside.append(index)
        yield
        inside.pop()

    def asarray(array):
        assert inside == [GPU.index]
        sizes.append(array.nbytes)
        return np.array(array).view(OnGpu)

    cupy = ModuleType("cupy")
    cupy.asarray, cupy.matmul = asarray, np.matmul
    runtime = SimpleNamespace(memGetInfo=lambda: ((1 << 20) - (1 << 16), 1 << 20))
    cupy.cuda = SimpleNamespace(runtime=runtime)
    monkeypatch.setattr(stacks, "gpu_context", gpu_context)
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 1 << 16)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return sizes


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("most_bytes", [0, 60_000, 3 * 8 * 256])
def test_as_many_products_at_a_time_as_have_room(copied, most_bytes, shared):
    random = np.random.default_rng()
    a, b = random.standard_normal((100, 16, 16)), random.standard_normal((1 if shared else 100, 16, 16))
    c = np.empty((100, 16, 16))
    stacks.multiply_on_gpu(GPU, np.swapaxes(a, 1, 2), b, c, most_bytes)
    np.testing.assert_allclose(c, np.swapaxes(a, 1, 2) @ b)
    assert sum(copied) == a.nbytes + b.nbytes
    room = most_bytes or (1 << 20) * 7 // 8
    at_once = (room - (b.nbytes if shared else 0)) // (2048 * (2 if shared else 3))
    assert max(copied) == max(2048 * min(100, at_once), b.nbytes if shared else 0)


def test_a_product_that_has_no_room_is_refused(copied):
    ones = np.ones((2, 16, 16))
    with pytest.raises(DoesNotFit, match=r"a product of the stack takes 6\.0 KiB of a GPU uuid, where 4\.9 KiB may be used"):
        stacks.multiply_on_gpu(GPU, ones, ones, np.empty_like(ones), 5000)
    assert copied == []


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_threads_take_whole_matrices(threads, count):
    random = np.random.default_rng()
    a, b = random.standard_normal((count, 7, 5)), random.standard_normal((1, 5, 3))
    c = np.empty((count, 7, 3))
    stacks.multiply_on_cpu(a, b, c, threads)
    np.testing.assert_allclose(c, a @ b)
