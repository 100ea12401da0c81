# SPDX-License-Identifier: MIT
"""The memory of results that have gone serves the next ones, and never one that is still shown."""

from __future__ import annotations

import numpy as np
import pytest

import hybrid
from hybrid.host.page_memory import LEAST_BYTES, ResultPool

ROWS, COLUMNS = 512, LEAST_BYTES // 512


@pytest.fixture
def result_pool():
    return ResultPool()


def address(array):
    return array.ctypes.data


def test_memory_of_a_result_that_has_gone_is_used_again(result_pool):
    first = result_pool.empty(ROWS, COLUMNS, "float64")
    where = address(first)
    del first
    second = result_pool.empty(ROWS, COLUMNS - 1, "float64")
    assert address(second) == where
    assert second.shape == (ROWS, COLUMNS - 1)
    assert second.flags.c_contiguous
    assert second.flags.writeable
    assert second.flags.aligned


@pytest.mark.parametrize("kept", [LEAST_BYTES, 40 * LEAST_BYTES], ids=["too small", "far too large"])
def test_memory_that_comes_back_between_two_lines_is_looked_at_as_well(result_pool, kept):
    class ComesBack(list):
        """Another thread's result goes whenever one is looked for."""

        def pop(self):
            self.looks = getattr(self, "looks", 0) + 1
            if self.looks < 3:
                self.append(np.empty(kept, np.uint8))
            return super().pop()

    result_pool._free = ComesBack()
    array = result_pool.empty(4 * ROWS, COLUMNS, "uint8")
    array[...] = 7
    assert array.base.memory.nbytes == array.nbytes


@pytest.mark.parametrize(
    "shown_by",
    [
        lambda array: array[3:5],
        lambda array: array.T,
        lambda array: array[1:][1:].reshape(-1),
        lambda array: np.asarray(array.view(np.uint8)),
        lambda array: memoryview(array),
        lambda array: np.ascontiguousarray(array),
        lambda array: np.from_dlpack(array),
    ],
)
def test_memory_that_is_still_shown_is_not(result_pool, shown_by):
    first = result_pool.empty(ROWS, COLUMNS, "float64")
    first[...] = 1
    view = shown_by(first)
    del first
    second = result_pool.empty(ROWS, COLUMNS, "float64")
    second[...] = 2
    assert (np.asarray(view) != 2).all()
    where = address(second)
    del view, second
    third = result_pool.empty(ROWS, COLUMNS, "float64")
    assert address(third) == where


def test_only_one_block_is_kept_and_none_that_is_much_too_large(result_pool):
    many = [result_pool.empty(ROWS, COLUMNS, "float64") for _ in range(4)]
    del many
    assert result_pool.make_room(8 * ROWS * COLUMNS) == 8 * ROWS * COLUMNS
    assert result_pool.make_room(8 * ROWS * COLUMNS // 2 - 1) == 0


def test_small_results_are_ordinary_arrays(result_pool):
    assert result_pool.empty(3, 4, "float32").base is None
    assert result_pool.empty(0, 4, "float32").shape == (0, 4)


def test_products_of_the_same_size_share_the_memory_of_results_that_have_gone():
    size = 400
    a, b = np.ones((size, 2)), np.ones((2, size))
    first = hybrid.multiply(a, b)
    where = address(first)
    kept = first[5]
    second = hybrid.multiply(a, 2 * b)
    assert address(second) != where
    assert (kept == 2).all()
    del first, kept
    third = hybrid.multiply(a, 3 * b)
    assert address(third) == where
    assert (second == 4).all()
    assert (third == 6).all()
