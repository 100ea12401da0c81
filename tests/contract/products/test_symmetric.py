# SPDX-License-Identifier: MIT
"""docs/python.md, GEMM: the product of a matrix and its own transpose is symmetric to the last bit, and checked as any other."""

from operator import attrgetter

import numpy as np
import pytest

import hybrid
from hybrid.errors import CheckFailed
from hybrid.testing import plant, pretend

N, L = 203, 71
LAYOUTS = {
    "a, a.T": lambda a: (a, a.T, {}),
    "a.T, a": lambda a: (a.T, a, {}),
    "flag of a": lambda a: (a, a, {"transpose_a": True}),
    "flag of b": lambda a: (a, a, {"transpose_b": True, "conjugate_b": True}),
    "not contiguous": lambda a: (a[::2, ::-1], a[::2, ::-1].T, {}),
    "in columns": lambda a: (np.asfortranarray(a), None, {}),
}
WAYS = {"CPU": {}, "small tiles": {"panel_rows": 16}, "loops": {"kernel": "loops"}}


def product(comm, layout, a, **how):
    """C at rank 0, None on the others; and the numbers that it must have."""
    first, second, flags = LAYOUTS[layout](a)
    second = first.T if second is None else second
    first, second = (each if comm is None or comm.rank == 0 else None for each in (first, second))
    kernel = {"kernel": how.pop("kernel")} if "kernel" in how else {}
    with pretend(**how):
        return hybrid.multiply(first, second, comm=comm, **flags, **kernel)


def assert_symmetric(comm, rng, layout, dtype, **how):
    a = rng.integers(-9, 10, (N, L)).astype(dtype) if np.dtype(dtype).kind == "i" else rng.standard_normal((N, L)).astype(dtype)
    first, second, flags = LAYOUTS[layout](a)
    second = first.T if second is None else second
    wide = [each.astype(np.int64 if a.dtype.kind == "i" else np.float64) for each in (first, second)]
    wanted = (wide[0].T if flags.get("transpose_a") else wide[0]) @ (wide[1].T if flags.get("transpose_b") else wide[1])
    for _ in range(2):  # the second is computed with what the first has found out
        c = product(comm, layout, a, **how)
        if c is not None:
            np.testing.assert_array_equal(c, c.T)
            np.testing.assert_allclose(c, wanted.astype(c.dtype), rtol=0, atol=20 * np.finfo("f4" if c.dtype.kind == "i" else c.dtype).eps * L)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_one_process(rng, layout, way):
    for dtype in ("float64", "float32", "int64", "float16"):
        assert_symmetric(None, rng, layout, dtype, **WAYS[way])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_ranks(comm, rng, layout, way):
    for dtype in ("float64", "int64"):
        assert_symmetric(comm, rng, layout, dtype, **WAYS[way])
