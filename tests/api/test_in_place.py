# SPDX-License-Identifier: MIT
"""Row blocks that lie on the device are multiplied where they are: nothing is copied, and all is checked."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import hybrid
from hybrid.devices.emulated import EmulatedDevice
from hybrid.errors import CheckFailed

pytestmark = pytest.mark.needs("compiler")
PRECISIONS = ["native", "fast"]


@pytest.fixture
def copied(monkeypatch):
    """What is copied to and from the device, as (operation, shape)."""
    seen = []
    for name in ("copy_in", "copy_out"):
        original = getattr(EmulatedDevice, name)

        def copying(self, into, source, after, original=original, name=name):
            seen.append((name, source.shape))
            return original(self, into, source, after)

        monkeypatch.setattr(EmulatedDevice, name, copying)
    return seen


def product(a, b, **options):
    return hybrid.multiply(hybrid.RowBlock(a), hybrid.RowBlock(b), device="emulate", **options).array


def assert_right(c, a, b):
    exact = a.astype(np.float64) @ b.astype(np.float64)
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert (np.abs(c - exact) <= 4 * len(b) * np.finfo(c.dtype).eps * scale).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_copied(rng, copied, precision, dtype):
    for rows in (64, 40, 64):
        a, b = rng.standard_normal((rows, 96)).astype(dtype), rng.standard_normal((96, 72)).astype(dtype)
        before = a.copy(), b.copy()
        c = product(a, b, precision=precision)
        assert_right(c, a, b)
        np.testing.assert_array_equal(a, before[0])
        np.testing.assert_array_equal(b, before[1])
        assert not copied


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_arrays_again_and_others_between(rng, copied, precision):
    first, second = ([rng.standard_normal(shape) for shape in ((48, 80), (80, 56))] for _ in range(2))
    for a, b in (first, first, first, second, first):
        assert_right(product(a, b, precision=precision), a, b)
    first[0][:] = rng.standard_normal((48, 80))
    assert_right(product(*first, precision=precision), *first)
    assert not copied


@pytest.mark.parametrize(
    ("shape_a", "columns", "expected"),
    [
        ((30, 41), 20, [("copy_in", (30, 41))]),  # rows of 41 elements are not aligned for the widest copies
        ((30, 40), 21, [("copy_in", (40, 21)), ("copy_out", (30, 21))]),
    ],
)
def test_only_what_is_not_aligned_is_copied(rng, copied, shape_a, columns, expected):
    a, b = rng.standard_normal(shape_a), rng.standard_normal((shape_a[1], columns))
    assert_right(product(a, b), a, b)
    assert copied == expected


def test_arrays_of_the_root_are_copied(rng, copied):
    a, b = rng.standard_normal((32, 32)), rng.standard_normal((32, 32))
    assert_right(hybrid.multiply(a, b, device="emulate"), a, b)
    assert {name for name, _ in copied} == {"copy_in", "copy_out"}


def test_a_wrong_kernel_is_found_and_its_product_repaired(rng, monkeypatch):
    a, b = rng.standard_normal((64, 64)), rng.standard_normal((64, 64))
    original = EmulatedDevice.multiply

    def wrong(self, a, b, c, after, *, adding=False):
        event = original(self, a, b, c, after, adding=adding)
        c[17, 20] += 1e-6
        return event

    monkeypatch.setattr(EmulatedDevice, "multiply", wrong)
    with pytest.raises(CheckFailed, match="row 17"):
        product(a, b)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert_right(product(a, b, on_fault="repair"), a, b)
    assert any("repaired" in str(each.message) for each in said)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_of_several_ranks_only_b_is_exchanged(comm, copied, precision):
    rng, rows = np.random.default_rng(3), 32 * comm.size
    a, b = rng.standard_normal((rows, rows)), rng.standard_normal((rows, 48))
    own = slice(32 * comm.rank, 32 * (comm.rank + 1))
    for _ in range(2):
        c = hybrid.multiply(
            hybrid.RowBlock(a[own].copy()), hybrid.RowBlock(b[own].copy()), comm=comm, device="emulate", precision=precision
        )
        assert_right(c.array, a[own], b)
    assert {name for name, _ in copied} == {"copy_in"}
    assert {shape[1] for _, shape in copied} <= {48}, "rows of B"
