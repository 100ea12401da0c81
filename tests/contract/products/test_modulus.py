# SPDX-License-Identifier: MIT
"""docs/python.md, Integers: `multiply(a, b, modulus=p)` is exact for every p up to 2⁶³, whatever the operands and the way."""

import numpy as np
import pytest
from support.cases import refused

import hybrid
from hybrid.errors import CheckFailed, UsageError
from hybrid.testing import plant, pretend

MODULI = [1, 2, 11, 65521, 1 << 31, (1 << 61) - 1, 0x7FFF_FFFF_FFFF_FFE7, (1 << 63) - 1, 1 << 63]
KINDS = ["int64", "uint64", ">u8", "int8", "bool"]


def drawn(rng, kind, shape):
    if kind == "bool":
        return rng.random(shape) < 0.5
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max, shape, limits.dtype.name, endpoint=True).astype(kind)


def python_s(modulus, a, b, c=None, alpha=1, beta=0):
    wanted = alpha * (a.astype(object) @ b.astype(object)) + (0 if c is None else beta * c.astype(object))
    return (wanted % modulus).astype("int64")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("modulus", MODULI)
def test_any_product_is_python_s(rng, modulus, kind):
    a, b, c = (drawn(rng, kind, shape) for shape in ((9, 70), (70, 8), (9, 8)))
    np.testing.assert_array_equal(hybrid.multiply(a, b, modulus=modulus), python_s(modulus, a, b))
    more = {"alpha": -(1 << 62) - 5, "beta": 3}
    np.testing.assert_array_equal(hybrid.multiply(a, b, c, modulus=modulus, **more), python_s(modulus, a, b, c, **more))
    stack = np.stack([a, a[::-1]])
    np.testing.assert_array_equal(hybrid.multiply(stack, b, modulus=modulus)[1], python_s(modulus, a[::-1], b))
    np.testing.assert_array_equal(hybrid.multiply(a, a, transpose_b=True, modulus=modulus), python_s(modulus, a, a.T))


@pytest.mark.needs("compiler")
@pytest.mark.parametrize("modulus", [11, (1 << 61) - 1])
def test_on_the_emulated_gpu_and_what_is_wrong_is_found(rng, modulus):
    a, b = (drawn(rng, "int64", shape) for shape in ((9, 70), (70, 8)))
    with pretend(device="emulate"):
        np.testing.assert_array_equal(hybrid.multiply(a, b, modulus=modulus), python_s(modulus, a, b))
    for how in ({}, {"device": "emulate"}):
        with pretend(**how), plant("multiply", times=None), refused(CheckFailed, "check-product"):
            hybrid.multiply(a, b, modulus=modulus)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("modulus", [2, (1 << 63) - 1])
def test_of_ranks_at_a_root_and_by_rows(comm, rng, modulus):
    a, b = (drawn(rng, "int64", shape) for shape in ((90, 70), (70, 8)))
    c = hybrid.multiply(*((a, b) if comm.rank == 0 else (None, None)), comm=comm, modulus=modulus)
    if comm.rank == 0:
        np.testing.assert_array_equal(c, python_s(modulus, a, b))
    first, second = (hybrid.scatter(each if comm.rank == 0 else None, comm=comm) for each in (a, b))
    for product, wanted in (((first, second), (a, b)), ((first.T, first), (a.T, a))):
        gathered = hybrid.gather(hybrid.multiply(*product, modulus=modulus), root=None)
        np.testing.assert_array_equal(gathered, python_s(modulus, *wanted))


@pytest.mark.parametrize("modulus", [0, -7, 7.0, 7.5, True, "7", (1 << 63) + 1, [7]])
def test_what_is_no_modulus_is_refused(modulus):
    a = np.ones((3, 3), "int64")
    with refused(UsageError, "modulus"):
        hybrid.multiply(a, a, modulus=modulus)


def test_what_is_no_product_of_integers_that_hold_the_remainders_is_refused():
    a = np.ones((3, 3), "int64")
    for operand, more in ((a * 1.0, {}), (a * 1j, {}), (a, {"dtype": "float64"}), (a, {"dtype": "int8"})):
        with refused(UsageError, "modulus", "dtype"):
            hybrid.multiply(operand, a, modulus=1000, **more)
    assert hybrid.multiply(a, a, modulus=2, dtype="int8").dtype == "int8"
