# SPDX-License-Identifier: MIT
"""SciPy's own tests of BLAS's GEMM, taken from the installed package, and all its flags and layouts, by hybrid.multiply."""

from itertools import cycle, product

import numpy as np
import pytest

import hybrid

scipy_blas = pytest.importorskip("scipy.linalg.blas")
theirs = pytest.importorskip("scipy.linalg.tests.test_blas")

PEER = "SciPy, test_blas gemm"
FLAGS = {0: {}, 1: {"transpose": True}, 2: {"transpose": True, "conjugate": True}}


class ByOurs:
    """SciPy's BLAS module with our GEMM."""

    def __init__(self, ledger, original):
        self._ledger, self._original = ledger, original

    def __getattr__(self, name):
        if name not in ("sgemm", "dgemm", "cgemm", "zgemm"):
            return getattr(self._original, name)
        gemm, dtype = (
            getattr(self._original, name),
            {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}[name[0]],
        )

        def ours(alpha, a, b, beta=0, c=None, trans_a=0, trans_b=0, overwrite_c=0):
            of_a = {f"{key}_a": value for key, value in FLAGS[trans_a].items()}
            of_b = {f"{key}_b": value for key, value in FLAGS[trans_b].items()}
            added = None if c is None else np.asarray(c, dtype)
            return self._ledger.judge(
                lambda: hybrid.multiply(
                    np.asarray(a, dtype), np.asarray(b, dtype), added, alpha=alpha, beta=beta, **of_a, **of_b
                ),
                lambda: gemm(alpha, a, b, beta, c, trans_a, trans_b, overwrite_c) if c is not None
                else gemm(alpha, a, b, trans_a=trans_a, trans_b=trans_b),
            )  # fmt: skip

        return ours


@pytest.fixture
def by_ours(ledger, monkeypatch):
    made = ByOurs(ledger, theirs.fblas)
    monkeypatch.setattr(theirs, "fblas", made)
    return made


class TestGemm(theirs.TestFBLAS3Simple):
    @pytest.fixture(autouse=True)
    def place(self, by_ours):
        """Their calls come to ours."""


@pytest.mark.parametrize("kind", "sdcz")
def test_all_flags_scalars_and_layouts(by_ours, rng, kind):
    """What BLAS's tester varies: flags of each operand, alpha, beta, both orders, leading dimensions beyond the width."""
    scalars = (0.0, 1.0, 0.7) if kind in "sd" else (0.0, 1.0, 0.7 - 0.9j)
    dtype = {"s": "f4", "d": "f8", "c": "c8", "z": "c16"}[kind]

    def matrix(rows, columns, order, transposed):
        rows, columns = (columns, rows) if transposed else (rows, columns)
        whole = rng.standard_normal((rows + 2, columns + 3)).astype(dtype, order=order)
        if kind in "cz":
            whole += 1j * rng.standard_normal(whole.shape).astype(whole.real.dtype)
        return whole[1:-1, 2:-1]

    sizes = cycle([(7, 9, 4), (1, 1, 1), (2, 3, 5), (7, 9, 4)])
    for order_a, order_b, trans_a, trans_b, alpha, beta in product("CF", "CF", FLAGS, FLAGS, scalars, scalars):
        n, l, m = next(sizes)
        a, b, c = matrix(n, l, order_a, trans_a), matrix(l, m, order_b, trans_b), matrix(n, m, "F", 0)
        getattr(by_ours, f"{kind}gemm")(alpha, a, b, beta=beta, c=c, trans_a=trans_a, trans_b=trans_b)
