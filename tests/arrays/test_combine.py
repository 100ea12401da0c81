# SPDX-License-Identifier: MIT
"""alpha · product + beta · C."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.arrays import combine
from hybrid.arrays.combine import finished
from hybrid.arrays.gemm import Gemm
from hybrid.arrays.product_type import ProductType


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("part_bytes", [1, 100, 1 << 20])
def test_parts_by_several_threads_make_the_whole(monkeypatch, threads, part_bytes):
    monkeypatch.setattr(combine, "_PART_BYTES", part_bytes)
    product, c = np.arange(35.0).reshape(7, 5), np.ones((7, 5), np.int8)
    wanted = 3 * product - 2 * c
    made = finished(product, ProductType("float64", "float16"), Gemm(3, -2), c, None, threads)
    assert made.dtype == np.float16
    np.testing.assert_array_equal(made, wanted.astype(np.float16))


def test_what_was_computed_in_out_is_not_copied_to_it(monkeypatch):
    passes = []
    monkeypatch.setattr(combine, "combine", lambda product, gemm, c, into, threads: passes.append(into is product))
    out = np.ones((3, 3))
    finished(out[:], ProductType("float64", "float64"), Gemm(2), None, out, 1)
    finished(np.ones((3, 3)), ProductType("float64", "float64"), Gemm(2), None, out, 1)
    assert passes == [True, False]
