# SPDX-License-Identifier: MIT
"""On GPUs products are what they must be, whatever holds the operands: of CuPy arrays the result is one, on their GPU. NumPy
stands for CuPy, and the emulated GPU for kernels, where there is no GPU; `pytest -m gpu` shows the same on real ones."""

import sys

import numpy as np
import pytest
from support.cases import refused
from support.commands import ROOT, start, successful

import hybrid
import hybrid.testing
from hybrid.errors import DoesNotFit, Overflow

PROGRAM = ROOT / "tests/support/on_gpus.py"
MPIRUN, ALL = pytest.mark.launcher, pytest.mark.exhaustive
RUNS = [(1, 12), pytest.param(2, 16, marks=MPIRUN), pytest.param(1, 1000, marks=ALL), pytest.param(2, 600, marks=[MPIRUN, ALL])]


@pytest.mark.needs("compiler")
@pytest.mark.parametrize(("ranks", "count"), RUNS)
def test_what_is_special_and_products_at_random_on_what_stands_for_gpus(seed, ranks, count):
    """Faults are found, contexts left alone, integers stay on the GPU, what does not fit it goes through host memory."""
    command = [sys.executable, "-m", "hybrid.testing", "--gpus", str(ranks), PROGRAM]
    successful(start(command, "special", f"random:{seed}:{count}", ranks=ranks if ranks > 1 else 0, limit=550))


@pytest.mark.needs("compiler")
def test_gram_matrices_on_what_stands_for_a_gpu():
    successful(start([sys.executable, "-m", "hybrid.testing", "--gpus", "1", PROGRAM, "gram"]))


# Real GPUs


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.mark.gpu
@pytest.mark.parametrize(("ranks", "count"), [(1, 400), pytest.param(2, 100, marks=MPIRUN)])
def test_products_at_random(seed, ranks, count):
    successful(start([sys.executable, PROGRAM], f"random:{seed}:{count}", ranks=ranks if ranks > 1 else 0, limit=290))


@pytest.mark.gpu
def test_gram_matrices():
    successful(start([sys.executable, PROGRAM, "gram"]))


SIZES = [(1500, 2000, 1300), (301, 1001, 515), (4096, 4000, 3500), (129, 16384, 100)]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["native", "auto", "fast"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "complex64", "int8", "int64"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_large_products(rng, cupy, sizes, dtype, precision):
    """Of numbers whose sums no type rounds, from host memory, on the GPU and transposed; and of any: no right one is refused."""
    (n, l, m), wide = sizes, "int64" if dtype.startswith("int") else "float32" if dtype == "float16" else None
    a, b = (rng.integers(-9, 10, shape) for shape in ((n, l), (l, m)))
    wanted = (a.astype(float) @ b.astype(float)).astype(wide or dtype)
    first, second = a.astype(dtype), b.astype(dtype)
    how = {"device": "cuda", "dtype": wide, "precision": precision}
    np.testing.assert_array_equal(hybrid.multiply(first, second, **how), wanted)
    np.testing.assert_array_equal(hybrid.multiply(first.T.copy(), second, transpose_a=True, **how), wanted)
    on_gpu = hybrid.multiply(cupy.asarray(first), cupy.asarray(second), **how)
    assert isinstance(on_gpu, cupy.ndarray)
    np.testing.assert_array_equal(cupy.asnumpy(on_gpu), wanted)
    if not dtype.startswith("int"):
        a, b = (rng.standard_normal(shape, np.float32).astype(dtype) for shape in ((n, l), (l, m)))
        for holder in (np.asarray, cupy.asarray):
            c = cupy.asnumpy(hybrid.multiply(holder(a), holder(b), **how))
            exact, size = a[:50].astype(complex) @ b.astype(complex), np.abs(a[:50]).astype(float) @ np.abs(b).astype(float)
            assert (np.abs(c[:50] - exact) <= 4 * l * np.finfo(c.dtype).eps * size).all()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["native", "auto"])
def test_between_products_no_array_on_the_gpu_is_kept_alive(cupy, precision):
    def product():
        a, b = (cupy.random.default_rng(1).standard_normal((2000, 2000), dtype=np.float32) for _ in "ab")
        for kind in (lambda each: each, hybrid.RowBlock):
            hybrid.multiply(kind(a), kind(b), precision=precision)

    pool = cupy.get_default_memory_pool()
    product()  # makes the buffers, which stay
    used = pool.used_bytes()
    product()
    assert pool.used_bytes() == used


@pytest.mark.gpu
def test_arrays_of_other_libraries_and_mixed_ones(rng, cupy):
    a, b = rng.random((20, 30)), rng.random((30, 10))
    mixed = hybrid.multiply(cupy.asarray(a), b)
    assert isinstance(mixed, np.ndarray)
    np.testing.assert_allclose(mixed, a @ b)
    torch = pytest.importorskip("torch")
    c = hybrid.multiply(torch.tensor(a, device="cuda"), torch.tensor(b))
    np.testing.assert_allclose(c, a @ b)


@pytest.mark.gpu
def test_what_does_not_fit_a_gpu_is_refused_or_goes_through_host_memory(rng, cupy):
    with refused(DoesNotFit, "gpu-memory"):
        hybrid.multiply(np.ones((100, 100)), np.ones((100, 100)), device="cuda", gpu_memory="1k")
    a, b = rng.integers(-(2**40), 2**40, (200, 150)), rng.integers(-99, 99, (150, 100), "int32")
    found = hybrid.multiply(cupy.asarray(a), cupy.asarray(b), gpu_memory="300k")
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_array_equal(found.get(), a @ b)
    with refused(Overflow, "overflow"):
        hybrid.multiply(cupy.asarray(a), cupy.asarray(a.T.copy()))
