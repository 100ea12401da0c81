# SPDX-License-Identifier: MIT
"""On a machine with a GPU: python -m pytest -m gpu, and mpirun -n P python -m pytest --with-mpi -m "gpu and mpi"."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.errors import CheckFailed, DeviceUnavailable, DoesNotFit

pytestmark = pytest.mark.gpu


@pytest.fixture
def poisoned_gpu(monkeypatch):
    """What is read before it was written shows."""
    monkeypatch.setenv("HYBRID_POISON", "1")


def bound(a, b):
    """What rounding may cost each element, for any order of summation."""
    eps = np.finfo(np.result_type(a, b)).eps
    return (a.shape[1] + 2) * eps * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)) + 1e-300


@pytest.mark.parametrize("kernel", ["auto", "cublas"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_random_shapes(rng, poisoned_gpu, dtype, kernel):
    for _ in range(60):
        n, l, m = (int(size) for size in rng.integers(1, 700, 3))
        a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
        c = hybrid.multiply(a, b, device="cuda", kernel=kernel)
        wanted = a.astype(np.longdouble) @ b if max(n, l, m) < 64 else a.astype(np.float64) @ b.astype(np.float64)
        assert c.dtype == dtype
        assert (np.abs(c - wanted) <= bound(a, b)).all(), (n, l, m)


@pytest.mark.parametrize(("row_panel", "column_panel"), [(1, 1), (7, 5), (64, 200), (1000, 3)])
def test_row_and_column_panels_of_any_size(rng, poisoned_gpu, monkeypatch, row_panel, column_panel):
    monkeypatch.setenv("HYBRID_PANEL_ROWS", str(row_panel))
    monkeypatch.setenv("HYBRID_PANEL_COLUMNS", str(column_panel))
    a, b = rng.standard_normal((150, 301)), rng.standard_normal((301, 77))
    assert (np.abs(hybrid.multiply(a, b, device="cuda") - a @ b) <= bound(a, b)).all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1)])
def test_empty_and_single(shape):
    n, l, m = shape
    np.testing.assert_array_equal(
        hybrid.multiply(np.ones((n, l)), np.ones((l, m)), device="cuda"), np.ones((n, l)) @ np.ones((l, m))
    )


def test_arrays_on_the_gpu_give_one(rng):
    import cupy

    a, b = cupy.asarray(rng.random((50, 40))), cupy.asarray(rng.random((40, 30)))
    c = hybrid.multiply(a, b)
    assert isinstance(c, cupy.ndarray)
    cupy.testing.assert_allclose(c, a @ b)
    mixed = hybrid.multiply(a, cupy.asnumpy(b))
    assert isinstance(mixed, np.ndarray)
    np.testing.assert_allclose(mixed, cupy.asnumpy(c))


@pytest.mark.parametrize("precision", ["native", "auto"])
def test_between_products_no_array_on_the_gpu_is_kept_alive(precision):
    import cupy

    def product():
        generate = cupy.random.default_rng()
        a, b = (hybrid.RowBlock(generate.standard_normal((2000, 2000), dtype=np.float32)) for _ in range(2))
        np.testing.assert_allclose(
            hybrid.multiply(a, b, precision=precision).array[0].get(), (a.array[0] @ b.array).get(), atol=1e-3
        )

    pool = cupy.get_default_memory_pool()
    product()  # makes the buffers, which stay
    used = pool.used_bytes()
    product()
    assert pool.used_bytes() == used


def test_arrays_of_other_libraries(rng):
    torch = pytest.importorskip("torch")
    a, b = torch.tensor(rng.random((20, 30), "float32"), device="cuda"), torch.tensor(rng.random((30, 10), "float32"))
    c = hybrid.multiply(a, b)
    np.testing.assert_allclose(c, a.cpu().numpy() @ b.numpy(), rtol=1e-5)


def test_nan_and_infinity_are_numpys():
    a, b = np.ones((4, 4)), np.ones((4, 4))
    a[1, 2], b[3, 0], a[0, 0] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(hybrid.multiply(a, b, device="cuda"), a @ b)


def test_long_sums_of_a_right_product_do_not_look_wrong(rng, monkeypatch):
    """The check's own sums must be as accurate as a product from remainders, or the host looks at it again."""
    looked_again = []
    monkeypatch.setattr("hybrid.execution.host_check.verify_at_root", lambda *given: looked_again.append(given))
    a, b = rng.standard_normal((3000, 12_000)), rng.standard_normal((12_000, 12_000))
    for precision in ("auto", "native"):
        hybrid.multiply(a, b, device="cuda", precision=precision)
    assert not looked_again


@pytest.fixture(params=["native", "fast"])
def precision(request, monkeypatch):
    """From remainders also where native kernels would be faster."""
    monkeypatch.setattr("hybrid.selection.precision._gain", lambda *_: 10.0)
    return request.param


def test_subnormal_numbers_are_not_taken_for_zeros(rng, precision):
    a = (rng.standard_normal((200, 300)) * 2.0**-140).astype(np.float32)  # CuPy compiles with -ftz=true
    b = (rng.standard_normal((300, 100)) * 2.0**100).astype(np.float32)
    for first, second in ((a, b), (b.T, a.T)):
        exact = first.astype(np.float64) @ second.astype(np.float64)
        c = hybrid.multiply(first, second, device="cuda", precision=precision)
        assert np.abs(c - exact).max() <= 1e-5 * np.abs(exact).max()


def test_results_may_be_subnormal(rng, precision):
    a, b = ((rng.standard_normal(shape) * 2.0**-68).astype(np.float32) for shape in ((50, 300), (300, 40)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    c = hybrid.multiply(a, b, device="cuda", precision=precision)
    assert np.abs(c - exact).max() <= 300 * 2.0**-150  # each of 300 sums may be rounded; zeros would err by up to 2^-126


@pytest.mark.parametrize("memory", ["100k", "10k", "3k"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_in_little_gpu_memory(rng, monkeypatch, memory, dtype):
    monkeypatch.setenv("HYBRID_GPU_MEMORY", memory)
    monkeypatch.setenv("HYBRID_POISON", "1")
    a, b = rng.standard_normal((150, 101)).astype(dtype), rng.standard_normal((101, 77)).astype(dtype)
    c = hybrid.multiply(a, b, device="cuda")
    assert (np.abs(c - a.astype(np.float64) @ b.astype(np.float64)) <= bound(a, b)).all()


def test_too_little_gpu_memory_is_refused_with_the_missing_amount(monkeypatch):
    monkeypatch.setenv("HYBRID_GPU_MEMORY", "1k")
    with pytest.raises(DoesNotFit, match=r"on the GPU of rank 0 .* are missing"):
        hybrid.multiply(np.ones((100, 100)), np.ones((100, 100)), device="cuda")


def test_auto_takes_the_gpu(real_gpus):
    from hybrid.core.problem import Problem
    from hybrid.core.settings import Settings
    from hybrid.ranks.team import Team
    from hybrid.selection.agreement import agree
    from hybrid.selection.decision import ProductRequest
    from hybrid.selection.inventory import take_inventory
    from hybrid.selection.session import Session

    session = Session(Team())
    decision = agree(session, ProductRequest(Problem(8, 8, 8)), Settings(), [take_inventory(session, Settings())])
    assert decision.plan.device == "cuda"
    assert decision.placements[0].gpu.uuid in {gpu.uuid for gpu in real_gpus}


@pytest.mark.mpi
@pytest.mark.parametrize("nodes", ["0", "1"], ids=["one node", "a node a rank"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_several_ranks(comm, rng, monkeypatch, poisoned_gpu, dtype, nodes):
    """More ranks than GPUs share them."""
    monkeypatch.setenv("HYBRID_RANKS_PER_NODE", nodes)
    for _ in range(20):
        n, l, m = (int(size) for size in rng.integers(0, 300, 3))
        a, b = rng.standard_normal((n, l)).astype(dtype), rng.standard_normal((l, m)).astype(dtype)
        root = int(rng.integers(comm.size))
        mine = (a, b) if comm.rank == root else (None, None)
        c = hybrid.multiply(*mine, comm=comm, root=root, device="cuda")
        if comm.rank == root:
            assert (np.abs(c - a.astype(np.float64) @ b.astype(np.float64)) <= bound(a, b)).all(), (n, l, m)


@pytest.mark.mpi(min_size=2)
def test_a_gpu_missing_on_one_rank_is_said_on_all(comm, monkeypatch):
    if comm.rank == 1:
        monkeypatch.setattr(hybrid.selection.inventory, "usable_gpus", _no_gpus)
    for device in ("cuda", "auto"):
        with pytest.raises(DeviceUnavailable, match="no usable GPU on rank 1: planted"):
            hybrid.multiply(np.ones((4, 4)), np.ones((4, 4)), comm=comm, device=device)


def _no_gpus():
    raise DeviceUnavailable("planted")


@pytest.mark.parametrize("dtype", [np.float32, np.complex128, np.int64, np.float16])
def test_arrays_on_the_gpu_are_transposed_scaled_and_added(rng, dtype):
    import cupy

    a, b, c = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((30, 20), (10, 30), (20, 10)))
    wanted = (2 * (a.T @ b.T) - c).astype(dtype)
    asked = {"transpose_a": True, "transpose_b": True, "alpha": 2, "beta": -1, "conjugate_a": True}
    for third in (cupy.asarray(c), c):
        found = hybrid.multiply(cupy.asarray(a), cupy.asarray(b), third, **asked)
        assert isinstance(found, cupy.ndarray)
        assert found.dtype == dtype
        np.testing.assert_array_equal(cupy.asnumpy(found), wanted)
    np.testing.assert_array_equal(hybrid.multiply(a, b, c, device="cuda", **asked), wanted)
    for of_a, of_b in (((20,), (20, 5)), ((3, 7, 20), (20, 5)), ((3, 7, 20), (3, 20, 5))):
        first, second = (rng.integers(-4, 5, shape).astype(dtype) for shape in (of_a, of_b))
        found = hybrid.multiply(cupy.asarray(first), cupy.asarray(second))
        assert isinstance(found, cupy.ndarray)
        np.testing.assert_array_equal(cupy.asnumpy(found), first @ second)


@pytest.mark.parametrize("types", [(np.complex64, np.complex64), (np.float64, np.complex128), (np.complex128, np.float32)])
def test_complex_matrices(rng, poisoned_gpu, types):
    import cupy

    for _ in range(10):
        n, l, m = (int(size) for size in rng.integers(0, 300, 3))
        a = (rng.standard_normal((n, l)) + 1j).astype(types[0]) if types[0] != np.float64 else rng.standard_normal((n, l))
        b = (rng.standard_normal((l, m)) - (2j if np.dtype(types[1]).kind == "c" else 0)).astype(types[1])
        wanted = a.astype(complex) @ b.astype(complex)
        c = hybrid.multiply(a, b, device="cuda")
        on_gpu = hybrid.multiply(cupy.asarray(a), cupy.asarray(b))
        assert isinstance(on_gpu, cupy.ndarray)
        for each in (c, cupy.asnumpy(on_gpu)):
            assert each.dtype == np.result_type(*types)
            assert (np.abs(each - wanted) <= 4 * bound(a.astype(each.dtype), b) + 4 * np.finfo(each.dtype).eps).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(
    "plan", [{}, {"PANEL_ROWS": "100", "PANEL_COLUMNS": "300"}, {"SLAB_ROWS": "200"}, {"GPU_MEMORY": "3M"}], ids=str
)
def test_transposed_matrices_are_turned_on_the_gpu(rng, monkeypatch, poisoned_gpu, dtype, plan):
    """Also where they arrive in several parts; and a fault is found where an element was turned to a wrong place."""
    from hybrid.devices import cuda_transposed

    for name, value in plan.items():
        monkeypatch.setenv(f"HYBRID_{name}", value)
    for at_once in (cuda_transposed._BYTES_AT_ONCE, 50_000):
        monkeypatch.setattr(cuda_transposed, "_BYTES_AT_ONCE", at_once)
        for _ in range(5):
            n, l, m = (int(size) for size in rng.integers(1, 900, 3))
            a, b = rng.standard_normal((l, n)).astype(dtype), rng.standard_normal((m, l)).astype(dtype)
            how = {"device": "cuda", "dtype": np.float32 if dtype == np.float16 else dtype}
            c = hybrid.multiply(a, b, transpose_a=True, transpose_b=True, **how)
            wide = a.T.astype(np.float64), b.T.astype(np.float64)
            assert (np.abs(c - wide[0] @ wide[1]) <= bound(*(each.astype(how["dtype"]) for each in wide))).all(), (n, l, m)
            straight = hybrid.multiply(np.ascontiguousarray(a.T), b, transpose_b=True, **how)
            np.testing.assert_array_equal(c, straight)
    copy = cuda_transposed.TransposedCopies.copy

    def exchanged(copies, into, source, stream):
        copy(copies, into, source, stream)
        with stream:
            into[:2] = into[1::-1].copy()

    monkeypatch.setattr(cuda_transposed.TransposedCopies, "copy", exchanged)
    a, b = rng.standard_normal((200, 300)).astype(dtype), rng.standard_normal((200, 100)).astype(dtype)
    with pytest.raises(CheckFailed):
        hybrid.multiply(a, b, transpose_a=True, device="cuda")


@pytest.mark.mpi
def test_transposed_matrices_are_turned_on_the_gpus_of_all_ranks(comm, rng, poisoned_gpu):
    a, b = np.random.default_rng(5).standard_normal((900, 800)), np.random.default_rng(6).standard_normal((700, 900))
    for _ in range(2):
        c = hybrid.multiply(
            *((a, b) if comm.rank == 0 else (None, None)), transpose_a=True, transpose_b=True, comm=comm, device="cuda"
        )
        if comm.rank == 0:
            assert (np.abs(c - a.T @ b.T) <= bound(a.T, b.T)).all()
