# SPDX-License-Identifier: MIT
"""docs/python.md, GEMM: the product of a matrix and its own transpose is symmetric to the last bit, and checked as any other."""

import numpy as np
import pytest

import hybrid
from hybrid.errors import CheckFailed
from hybrid.testing import count, plant, pretend

N, L = 203, 71
LAYOUTS = {  # the operands, flags, and the matrix whose product with its transpose that is
    "a, a.T": lambda a: (a, a.T, {}, a),
    "a.T, a": lambda a: (a.T, a, {}, a.T),
    "flag of a": lambda a: (a, a, {"transpose_a": True}, a.T),
    "flag of b": lambda a: (a, a, {"transpose_b": True, "conjugate_b": True}, a),
    "not contiguous": lambda a: (a[::2, ::-1], a[::2, ::-1].T, {}, a[::2, ::-1]),
}
WAYS = {"CPU": {}, "small tiles": {"panel_rows": 16}, "loops": {"kernel": "loops"}, "staged": {"staged": 1, "panel_rows": 48}}
LOOPS = [pytest.mark.needs("c compiler")]


def assert_symmetric(comm, rng, layout, dtype, **way):
    a = rng.integers(-9, 10, (N, L)) if dtype == "int64" else rng.standard_normal((N, L)).astype(dtype)
    first, second, flags, matrix = LAYOUTS[layout](a)
    wide = matrix.astype(np.int64 if dtype == "int64" else np.float64)
    for _ in range(2):  # the second is computed with what the first has found out
        operands = (first, second) if comm is None or comm.rank == 0 else (None, None)
        with pretend(**way):
            c = hybrid.multiply(*operands, comm=comm, **flags)
        if c is not None:
            np.testing.assert_array_equal(c, c.T)
            rounded = 0 if dtype == "int64" else 20 * L * np.finfo(dtype).eps
            np.testing.assert_allclose(c, (wide @ wide.T).astype(c.dtype), rtol=0, atol=rounded)


@pytest.mark.parametrize("way", [pytest.param(way, marks=LOOPS * (way == "loops")) for way in WAYS])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_one_process(rng, layout, way):
    for dtype in ("float64", "float32", "int64", "float16"):
        assert_symmetric(None, rng, layout, dtype, **WAYS[way])


@pytest.mark.exhaustive(above=2)
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", ["CPU", "small tiles", pytest.param("loops", marks=LOOPS)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_ranks(comm, rng, layout, way):
    for dtype in ("float64", "int64"):
        assert_symmetric(comm, rng, layout, dtype, **WAYS[way])


@pytest.mark.mpi(min_size=2)
def test_in_shared_memory_and_beside_a_product_of_the_same_shapes(comm, rng):
    a, c = hybrid.empty((N, L), comm=comm), hybrid.empty((N, N), comm=comm)
    if comm.rank == 0:
        a[...] = rng.standard_normal((N, L))
    comm.Barrier()
    for second in (a.T, a.T.copy(), a.T):
        hybrid.multiply(a, second, out=c, comm=comm)
        np.testing.assert_allclose(c, a @ a.T, atol=1e-12)
        comm.Barrier()
    np.testing.assert_array_equal(c, c.T)


@pytest.mark.mpi(min_size=2)
def test_what_any_rank_multiplies_wrong_is_found(comm, rng):
    a = rng.standard_normal((N, L)) if comm.rank == 0 else None
    for victim in range(comm.size):
        for at in range(2):  # on the diagonal, and beside it
            with plant("multiply", rank=victim, at=at), pytest.raises(CheckFailed) as refusal:
                hybrid.multiply(a, None if a is None else a.T, comm=comm)
            assert refusal.value.code == "check-product"


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("precision", ["native", "fast"])
def test_a_gpu_gets_the_matrix_once_and_computes_half(rng, precision):
    """On the emulated GPU, of a matrix that lies by rows or by columns; and what it multiplies wrong, or copies, is found."""
    a = rng.standard_normal((3 * 64, 3 * 64))
    for first, second in ((a, a.T), (a.T, a)):
        with pretend(panel_rows=64, device="emulate", precision=precision):
            with count() as counts:
                c = hybrid.multiply(first, second)
            np.testing.assert_array_equal(c, c.T)
            np.testing.assert_allclose(c, first @ second, atol=1e-11)
            assert (counts.copied_in, counts.copied_out, counts.multiplications) == (a.nbytes, c.nbytes, 5)
            for kind, code in (("multiply", "check-product"), ("copy in", "check-copy"), ("copy out", "check-copy")):
                with plant(kind), pytest.raises(CheckFailed) as refusal:
                    hybrid.multiply(first, second)
                assert refusal.value.code == code
