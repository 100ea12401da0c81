# SPDX-License-Identifier: MIT
"""Within `hybrid.use` the products that NumPy and SciPy hand to BLAS are computed by hybrid.multiply: the same results, and after
it, in forked processes and wherever hybrid.multiply refuses, BLAS as ever."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.linalg import blas
from support.commands import ROOT, start, successful

import hybrid
import hybrid.testing
from hybrid.errors import DeviceUnavailable, UsageError

pytestmark = pytest.mark.needs("compiler")
TYPES = ("float32", "float64", "complex64", "complex128")


def matrix(rng, rows, columns, dtype):
    """Random elements, with rows or columns contiguous, or neither."""
    wide = rng.standard_normal((rows + 3, columns + 3)) + (1j * rng.standard_normal((1, 1)) if "c" in dtype else 0)
    part = wide.astype(dtype)[:rows, :columns]
    return [part, np.ascontiguousarray(part), np.asfortranarray(part)][rng.integers(3)]


def close(one, other):
    tolerance = 1e-4 if one.dtype in (np.float32, np.complex64) else 1e-10
    return np.allclose(one, other, rtol=tolerance, atol=tolerance)


def products(rng, dtype):
    """Products as programs write them, each a function without arguments."""
    n, l, m = rng.integers(1, 40, 3)
    a, b = matrix(rng, n, l, dtype), matrix(rng, l, m, dtype)
    room, c = np.full((m, n), np.nan, dtype).T, np.asfortranarray(matrix(rng, n, m, dtype))
    gemm, syrk = (blas.get_blas_funcs(name, dtype=dtype) for name in ("gemm", "syrk"))
    yield lambda: a @ b
    yield lambda: np.dot(b.T, a.T)
    yield lambda: np.matmul(a, b, out=room)
    yield lambda: np.einsum("ij,kj->ik", a, b.T.copy(), optimize=True)
    yield lambda: a @ a.T
    yield lambda: a.T @ a
    yield lambda: gemm(1.5, a, b)
    yield lambda: gemm(1.5, a, b, beta=-2, c=c)
    yield lambda: gemm(1, a, b.conj().T, trans_b=2)
    for trans in (0, 1):
        for lower in (0, 1):
            square = np.asfortranarray(matrix(rng, *(2 * [l if trans else n]), dtype))
            yield lambda trans=trans, lower=lower, c=square: syrk(1, a, beta=1, c=c, trans=trans, lower=lower)
            if "complex" in dtype:
                herk = blas.get_blas_funcs("herk", dtype=dtype)
                yield lambda trans=trans, lower=lower, herk=herk: herk(1, a, trans=2 * trans, lower=lower)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_are_what_blas_makes_of_them(seed, dtype):
    rng, taken = np.random.default_rng(seed), 0
    for _ in range(3):
        for number, product in enumerate(products(rng, dtype)):
            wanted = product().copy()
            with hybrid.use(threshold=0) as used:
                got = product()
            report = used.report()
            assert close(got, wanted), (dtype, number)
            assert (report.products, report.refused) == (report.calls, 0), (dtype, number, report)
            taken += report.products
    assert taken > 20  # those with a single row or column are matrix times vector


def test_no_warning_comes_of_how_a_product_is_checked():
    with hybrid.use(threshold=1), np.errstate(all="raise"):
        assert (np.full((50, 40), 1e-3) @ np.ones((40, 30))).shape == (50, 30)


def test_it_ends_with_the_block_the_function_or_stop_and_the_newest_counts():
    a = np.ones((20, 30))
    outer, inner = hybrid.use(threshold=1), hybrid.use(threshold=1e9)

    @outer
    def product():
        return a @ a.T[:, :10]

    def made():
        return outer.report().products, inner.report().products

    product(), product()
    assert made() == (2, 0)
    with pytest.raises(ZeroDivisionError), outer:
        a @ a.T[:, :10] / (1 // 0)
    with outer, inner:
        product()
        a @ a.T[:, :10]
    a @ a.T[:, :10]
    assert made() == (3, 0)
    assert (outer.start() is outer, (a @ a.T[:, :10]).shape, outer.stop()) == (True, (20, 10), None)
    assert made() == (4, 0)
    assert (outer.report().operations, outer.report().calls) == (4 * 2 * 20 * 30 * 10, 6)


def test_threads_and_calls_of_multiply_itself():
    rng = np.random.default_rng(1)
    pairs = [(rng.random((80, 70)), rng.random((70, 60))) for _ in range(40)]
    wanted = [a @ b for a, b in pairs]
    with hybrid.use(threshold=1) as used, ThreadPoolExecutor(4) as threads:
        got = list(threads.map(lambda pair: pair[0] @ pair[1], pairs))
        again = [hybrid.multiply(a, b) for a, b in pairs]
    assert all(map(np.allclose, got, wanted))
    assert all(map(np.allclose, again, wanted))
    assert used.report().products == 40


def test_what_is_wrong_or_refused_is_left_to_blas():
    a, b = np.random.default_rng(2).random((60, 50)), np.ones((50, 40))
    wanted = a @ b
    with hybrid.use(threshold=1) as used, hybrid.testing.plant("multiply"), pytest.warns(RuntimeWarning, match="BLAS"):
        assert np.allclose(a @ b, wanted)
    assert (used.report().faults, used.report().products) == (1, 0)
    with hybrid.use(threshold=1, host_memory=1) as used:
        assert np.allclose(a @ b, wanted)
        assert np.allclose(a @ b, wanted)
    assert (used.report().refused, used.report().products) == (1, 0)
    assert "memory" in used.report().why_refused


CALLER = """
__asm__(".globl words_kept; words_kept: push %rbx; push %r12; sub $8, %rsp; mov %rdi, %r12; mov %rsi, %rbx;"
        "push $7; push $7; push $7; push 96(%rbx); push 88(%rbx); push 80(%rbx); push 72(%rbx); push 64(%rbx); push 56(%rbx);"
        "push 48(%rbx); mov (%rbx), %rdi; mov 8(%rbx), %rsi; mov 16(%rbx), %rdx; mov 24(%rbx), %rcx; mov 32(%rbx), %r8;"
        "mov 40(%rbx), %r9; call *%r12; add $56, %rsp; pop %rax; pop %rcx; add %rcx, %rax; pop %rcx; add %rcx, %rax;"
        "add $8, %rsp; pop %r12; pop %rbx; ret");
"""  # calls a function with 13 arguments, and gives the sum of the three words behind them: 21, if these were kept


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the caller is in x86-64's assembly")
def test_callers_of_cython_blas_keep_the_words_behind_their_arguments(tmp_path):
    from scipy.linalg import cython_blas

    (tmp_path / "caller.c").write_text(CALLER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "caller.so", tmp_path / "caller.c"], check=True)
    words_kept, pointer = ctypes.CDLL(str(tmp_path / "caller.so")).words_kept, ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name, numbers = ctypes.pythonapi.PyCapsule_GetName, [ctypes.c_int(20), ctypes.c_double(1)]
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    n, one = (ctypes.addressof(number) for number in numbers)
    a, c = np.ones((20, 20)), np.zeros((20, 20))
    no = ctypes.cast(ctypes.c_char_p(b"N"), ctypes.c_void_p).value
    gemm = [no, no, n, n, n, one, a.ctypes.data, n, a.ctypes.data, n, one, c.ctypes.data, n]
    capsule = cython_blas.__pyx_capi__["dgemm"]
    for threshold in (1, 1e9):
        with hybrid.use(threshold=threshold) as used:
            assert words_kept(ctypes.c_void_p(pointer(capsule, name(capsule))), (ctypes.c_void_p * 13)(*gemm)) == 21
        assert (used.report().calls, used.report().products) == (1, threshold == 1)
    assert np.array_equal(c, np.full((20, 20), 40))


def test_an_exception_of_a_signals_handler_comes_when_the_product_is_complete(monkeypatch):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    a, c = np.asfortranarray(np.random.default_rng(3).random((300, 300))), np.zeros((300, 300), order="F")
    dropped, rung, done = [], 0, None
    # Python drops what a handler raises in a callback of its garbage collector. Hypothesis has one.
    monkeypatch.setattr(sys, "unraisablehook", lambda error: dropped.append(error.exc_type))

    def multiply_until_it_rings(seconds):
        nonlocal done
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while Alarm not in dropped:
            done = None
            c[...] = 1
            done = blas.dgemm(1.0, a, a, beta=1.0, c=c, overwrite_c=True)
        dropped.clear()
        multiply_until_it_rings(seconds)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with hybrid.use(threshold=1):
            blas.dgemm(1.0, a, a)  # nor is it raised while modules are loaded
            for number in range(20):
                with pytest.raises(Alarm):
                    multiply_until_it_rings(2e-4 * (number + 1))
                rung += 1
                if done is not None:
                    assert np.allclose(done, a @ a + 1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rung == 20


def test_a_forked_process_uses_blas_alone_and_modules_may_be_loaded_later():
    script = """
import os, hybrid
with hybrid.use(threshold=1) as used:
    import numpy, sys
    a = numpy.ones((30, 30))
    assert "hybrid.api" not in sys.modules
    a @ (a + 1)
    from scipy.linalg import blas
    blas.dgemm(1.0, a, a)
    if not os.fork():
        a @ (a + 1)
        print(used.report().products, flush=True)
        os._exit(0)
    os.wait()
    a @ (a + 1)
print(used.report().products)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (["2", "3"], "")


def test_wrong_usage_is_refused(monkeypatch, tmp_path):
    for wrong in ({"threshold": -1}, {"threshold": float("nan")}, {"threshold": "x"}):
        with pytest.raises(UsageError, match="multiply-adds"):
            hybrid.use(**wrong)
    with pytest.raises(TypeError, match="kernels"):
        hybrid.use(kernels="auto")
    for wrong in ({"device": "quantum"}, {"root": 1}, {"comm": "x"}):
        with pytest.raises(UsageError), hybrid.use(**wrong):
            pass
    no_blas = "import sys, types; sys.modules['numpy'] = n = types.ModuleType('numpy'); n.__file__, n.__version__ = '/n/n', '0'"
    other = "import platform; platform.machine = lambda: 'riscv64'"
    for first, compiler, error in ((no_blas, "cc", UsageError), (other, "cc", UsageError), ("", "none", DeviceUnavailable)):
        program = f"{first}\nimport hybrid; hybrid.use().start()"
        done = start([sys.executable, "-c", program], CC=compiler, HYBRID_CACHE=str(tmp_path), cwd=ROOT)
        assert error.__name__ in done.stderr.splitlines()[-1]


def test_a_gpu_is_used_when_products_gain_by_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
import hybrid, numpy
a, b = numpy.random.rand(120, 100), numpy.random.rand(100, 90)
with hybrid.use(threshold=1e5, device="cuda") as used:
    assert numpy.allclose(a @ b, numpy.einsum("ij,jk->ik", a, b))
    a[:9] @ b
with hybrid.use() as small:
    a @ b
print(used.report().products, small.report().products)
""")
    done = successful(start([sys.executable, "-m", "hybrid.testing", "--gpus", "1", program], PYTHONPATH=str(ROOT), limit=200))
    assert done.stdout.split() == ["1", "0"]


@pytest.mark.mpi(min_size=2)
def test_ranks_serve_the_products_of_the_root():
    from mpi4py import MPI

    comm, rng = MPI.COMM_WORLD, np.random.default_rng(4)
    a, b = rng.random((60, 50)), rng.random((50, 40)) + 1j
    for root in (0, comm.size - 1):
        used = hybrid.use(comm, root=root, threshold=1, stall=0)
        with used:
            if comm.rank == root:
                assert np.allclose(a @ b, np.einsum("ij,jk->ik", a, b))
                assert np.allclose(a.T @ a, np.einsum("ji,jk->ik", a, a))
                thread = threading.Thread(target=lambda: a @ a.T)  # whose MPI need not allow calls of other threads
                thread.start()
                thread.join()
        assert used.report().products == 2 * (comm.rank == root)
        assert used(lambda: comm.rank)() == (root if comm.rank == root else None)
    with hybrid.use(comm, threshold=1, host_memory=1) as refused:
        if comm.rank == 0:
            assert np.allclose(a @ b, np.einsum("ij,jk->ik", a, b))
    assert refused.report().refused == (comm.rank == 0)
    assert comm.allreduce(1) == comm.size
