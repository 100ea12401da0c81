# SPDX-License-Identifier: MIT
"""No right product is refused, and none is changed: of matrices of any structure, type and size, in any form, in pieces of any
size, in any order of summation, checked where it is multiplied or by the host (docs/check.md, Is a difference rounding?)."""

import itertools

import numpy as np
import pytest
from support.checked import FORMS, KINDS, WAYS, WAYS_OF_RANKS, assert_right, forms_of, operands, product, way
from support.selection import exhaustive

import hybrid
from hybrid.errors import DoesNotFit
from hybrid.testing import plant

SHAPES = [(61, 171, 149), (130, 40, 70), (5, 900, 3), (1, 1, 1), (90, 7, 600)]
# Those of which a type of fewer bits still holds most elements.
NARROW = ["normal", "uniform", "sparse", "zero lines", "zeros", "Hilbert", "cosines", "cancelling", "constant columns",
          "integers"]  # fmt: skip


def passes(a, b, about, multiply=hybrid.multiply, **how):
    """The product is not refused, and right."""
    with np.errstate(all="ignore"):
        assert_right(a, b, multiply(a, b, **how), about)


@pytest.mark.parametrize("draw", exhaustive(range(1), range(4)))
@pytest.mark.parametrize("kind", KINDS)
def test_of_any_structure(rng, kind, draw):
    for name, dtype in itertools.product(WAYS, ["float32", "float64"]):
        shape, check = SHAPES[rng.integers(len(SHAPES))], (True, "host")[rng.integers(2)]
        with way(name):
            passes(*operands(rng, kind, shape, dtype), (name, dtype, shape, check), check=check)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(20))
def test_of_any_structure_thousands_of_times(rng, part):
    for _ in range(1000):
        kind, dtype = str(rng.choice(list(KINDS))), str(rng.choice(["float32", "float64"]))
        shape = tuple(int(2 ** rng.uniform(0, most)) for most in (8, 11, 8))
        with way(str(rng.choice(["in place", "staged"]))):
            passes(*operands(rng, kind, shape, dtype), (kind, dtype, shape), check=(True, "host")[rng.integers(2)])


def one_by_one(a, b):
    c = np.zeros((len(a), b.shape[1]), a.dtype)
    for k in range(len(b)):
        c += a[:, k, None] * b[k]
    return c


def flushed(matrix):
    return np.where(np.abs(matrix) < np.finfo(matrix.dtype).tiny, matrix.dtype.type(0), matrix)


ORDERS = {  # in which a kernel may add; float64 is more accurate than any, and some kernels take subnormal numbers for zero
    "one by one": one_by_one,
    "backwards": lambda a, b: one_by_one(a[:, ::-1], b[::-1]),
    "in eight lanes": lambda a, b: sum(one_by_one(a[:, lane::8], b[lane::8]) for lane in range(8)),
    "in blocks": lambda a, b: sum(one_by_one(a[:, k : k + 32], b[k : k + 32]) for k in range(0, len(b), 32)),
    "rounded once": lambda a, b: a.astype(np.longdouble) @ b.astype(np.longdouble),
    "without subnormal numbers": lambda a, b: flushed(one_by_one(flushed(a), flushed(b))),
}


# By default each kind in two orders.
SOME = [(kind, list(ORDERS)[number % 6]) for first, kind in enumerate(KINDS) for number in (first, first + 1 + first // 6)]


@pytest.mark.parametrize(("kind", "order"), exhaustive(SOME, itertools.product(KINDS, ORDERS)))
def test_in_any_order_of_summation(rng, kind, order):
    if order == "without subnormal numbers" and kind == "overflowing":
        pytest.skip("what overflows is not judged")

    def otherwise(into, source, before):
        with np.errstate(all="ignore"):
            into[...] = ORDERS[order](*source)

    for dtype, terms in (("float32", 700), ("float64", 171)):
        a, b = operands(rng, kind, (20, terms, 60), dtype)
        with way(str(rng.choice(["in place", "staged", "panels"]))), plant("multiply", times=None, how=otherwise):
            passes(a, b, (order, dtype, a.shape), check=(True, "host")[rng.integers(2)])


@pytest.mark.parametrize("way_", ["in place", "staged"])
@pytest.mark.parametrize("kind", ["cosines", "walks"])
@pytest.mark.parametrize("m", exhaustive([1], [1, 500]))
def test_of_smooth_matrices(rng, m, kind, way_):
    """Whose terms oscillate, so that some orders round much more than others."""
    for dtype in ("float32", "float64"):
        a, b = operands(rng, kind, (203, 500, m), dtype)
        lanes = sum(a[:, lane::8] @ b[lane::8] for lane in range(8))
        for c in (a @ b, lanes, a[:, ::-1] @ b[::-1]):
            with way(way_), plant("multiply", how=lambda into, source, before, c=c: np.copyto(into, c)):
                np.testing.assert_array_equal(hybrid.multiply(a, b), c)


@pytest.mark.parametrize("draw", exhaustive(range(5), range(60)))
def test_in_pieces_of_any_size(rng, draw):
    for _ in range(4):
        n, l, m = (int(rng.integers(1, most)) for most in (90, 90, rng.choice([150, 1300])))
        dtype, kind = (
            str(rng.choice(some)) for some in (["float32", "float64"], ["normal", "uniform", "integers", "large integers"])
        )
        pieces = {
            "panel_rows": rng.integers(1, 95),
            "panel_columns": rng.integers(40, 600),
            "slab_rows": rng.choice([0, 0, 7, 40]),
        }
        a, b = operands(rng, kind, (n, l, m), dtype)
        if rng.integers(2):  # out of core, where memory is a part of what the matrices take
            pieces["gpu_memory"] = (a.nbytes + b.nbytes + 8 * n * m) * rng.integers(30, 100) // 100
        with way("staged", **{name: int(value) for name, value in pieces.items() if value}):
            try:
                passes(a, b, (kind, dtype, a.shape, m, pieces))
            except DoesNotFit:
                assert "gpu_memory" in pieces


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float16", "float32", "float64"])
def test_of_any_type_and_form(rng, dtype, form):
    for kind in NARROW:
        a, b = operands(rng, kind, (31, 60, 45), dtype)
        with way(str(rng.choice(["in place", "staged"]))):
            passes(a, b, kind, lambda *given: product(None, form, *given))


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("precision", ["native", "fast"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_by_the_kernels_of_a_gpu(rng, dtype, precision):
    for kind in rng.choice([*NARROW, "graded along k", "NaN in A", "infinity in B", "walks"], 4, replace=False):
        passes(*operands(rng, kind, (50, 70, 45), dtype), kind, device="emulate", precision=precision)


@pytest.mark.exhaustive(above=2)
@pytest.mark.mpi
@pytest.mark.parametrize("name", WAYS_OF_RANKS)
def test_on_several_ranks(comm, rng, name):
    for form in rng.permutation(forms_of(name))[: 8 // comm.size].tolist():  # four ranks take longer than two
        kind, dtype = str(rng.choice(list(KINDS))), str(rng.choice(["float32", "float64"]))
        a, b = operands(rng, kind, (13 * comm.size + 4, 71, 149), dtype)
        with way(name):
            passes(a, b, (form, kind, dtype), lambda a, b, form=form: product(comm, form, a, b, comm.size - 1))
