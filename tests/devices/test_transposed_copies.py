# SPDX-License-Identifier: MIT
"""Copies of transposed matrices, turned where they arrive: NumPy stands for CuPy."""

from __future__ import annotations

import types
from contextlib import AbstractContextManager

import numpy as np
import pytest

from hybrid.devices import cuda_transposed
from hybrid.devices.cuda_transposed import TransposedCopies, is_transposed
from hybrid.errors import DoesNotFit


def arrived(shape, dtype, memory):
    return np.ndarray(shape, dtype, memory)


class Stream(AbstractContextManager):
    """On which all is done at once."""

    def __init__(self):
        self.synchronized = 0

    def __exit__(self, *raised):
        return None

    def synchronize(self):
        self.synchronized += 1


CUPY = types.SimpleNamespace(ndarray=arrived, copyto=np.copyto)


def copies(free, made, reserved):
    def reserve(size):
        if size > free:
            raise DoesNotFit(f"{size} of {free}")
        reserved.append(size)
        return bytearray(size)

    def copy(into, source, stream):
        assert source.flags.c_contiguous or source.strides[1] == source.itemsize
        made.append(source.nbytes)
        np.copyto(into, source)

    return TransposedCopies(CUPY, reserve, copy)


@pytest.mark.parametrize("dtype", ["float64", "float32", "uint16"])
@pytest.mark.parametrize("part", [(slice(None), slice(None)), (slice(3, 9), slice(None)), (slice(None), slice(5, 40))])
@pytest.mark.parametrize(("at_once", "free"), [(1 << 20, 1 << 20), (1000, 1 << 20), (1 << 20, 500)])
def test_what_arrives_is_the_matrix(rng, monkeypatch, dtype, part, at_once, free):
    monkeypatch.setattr(cuda_transposed, "_BYTES_AT_ONCE", at_once)
    monkeypatch.setattr(cuda_transposed, "_LEAST_BYTES", 16)
    source = rng.integers(0, 100, (60, 20)).astype(dtype).T[part]
    into, made, reserved = np.zeros((30, 70), dtype), [], []
    assert is_transposed(source)
    copier = copies(free, made, reserved)
    for _ in range(2):
        copier.copy(into[: source.shape[0], : source.shape[1]], source, Stream())
    np.testing.assert_array_equal(into[: source.shape[0], : source.shape[1]], source)
    assert sum(made) == 2 * source.nbytes
    assert max(made) <= max(min(at_once, free), source.shape[0] * source.itemsize)
    assert len(reserved) == 1 or free < source.nbytes


def test_memory_is_given_back_only_when_nothing_uses_it(rng):
    stream, reserved, into = Stream(), [], np.empty((30, 40))
    copier = copies(1 << 20, [], reserved)
    for height in (10, 40, 20):
        copier.copy(into[:, :height], rng.random((height, 30)).T, stream)
    assert reserved == [10 * 30 * 8, 40 * 30 * 8]
    assert stream.synchronized == 1


def test_without_room_for_a_row_it_says_so(rng):
    source = rng.random((40, 30)).T
    with pytest.raises(DoesNotFit, match="of 100"):
        copies(100, [], []).copy(np.empty((30, 40)), source, Stream())


def test_rows_in_their_order_are_not_transposed(rng):
    matrix = rng.random((40, 30))
    assert not any(map(is_transposed, (matrix, matrix[::2], matrix[:, 3:9], matrix[:1], matrix[:, :1], matrix.T[:, :1])))
    assert all(map(is_transposed, (matrix.T, matrix.T[:1], matrix.T[:, 3:9])))
