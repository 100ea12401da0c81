# SPDX-License-Identifier: MIT
"""How the check's operations are launched on CUDA GPUs, as far as it shows without one."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import numpy as np
import pytest

from hybrid.devices.cuda_check import CudaCheckOperations, grid_of_subtraction, subtraction
from hybrid.kernels.elements import storage


def test_only_what_runs_beside_the_other_operations_has_streams_of_its_own():
    operations = CudaCheckOperations(None, nullcontext(), 90, lambda after, launch, streams: (after, streams))
    both = [operations.clear(None), operations.clear(None)]
    assert both[0](["event"]) == (["event"], "check")
    assert operations.together(both, beside=False)(["event"]) == (["event"], "check")
    assert operations.together(both, beside=True)(["event"]) == (["event"], "check beside")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_vectors_are_copied_only_where_all_rows_of_both_operands_begin_at_their_multiples(dtype):
    def placed(dtype, first, width):
        """A matrix whose first row begins so many bytes behind a multiple of 16, and whose rows have so many bytes."""
        memory = np.zeros(1024, np.uint8)
        begin = -memory.ctypes.data % 16 + first
        return memory[begin : begin + 4 * width].view(dtype).reshape(4, -1)

    stored = storage(dtype)
    places = [*itertools.product((0, 8), (64, 72))]
    for of_a, of_y in itertools.product(places, places):
        aligned = of_a == of_y == (0, 64)
        assert subtraction(placed(stored, *of_a), placed(np.float64, *of_y)).endswith(f", {str(aligned).lower()}>")


# The blocks along y are as many as fill the GPU, or more if that rounds less; but none has only a few terms.
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "item_size", "grid"),
    [
        (0, 64, 4096, 8, (0, 16)),
        (64, 64, 0, 8, (1, 1)),
        (64, 64, 511, 8, (1, 1)),
        (65, 65, 1024, 8, (4, 4)),
        (64 * 66, 64, 1 << 20, 8, (66, 91)),
        (64 * 66, 64, 2048, 8, (66, 5)),
        (64 * 66, 64, 2048, 4, (66, 6)),
        (64 * 1000, 64, 16384, 4, (1000, 12)),
    ],
)
def test_sums_are_divided_among_blocks(rows, columns, depth, item_size, grid):
    assert grid_of_subtraction(rows, columns, depth, item_size) == grid
