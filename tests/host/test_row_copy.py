# SPDX-License-Identifier: MIT
"""Copies of matrices into rows."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.host import row_copy
from hybrid.host.row_copy import copy_rows, tiles_of


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(row_copy, "_TILE", 3)


@pytest.mark.parametrize("view", [lambda x: x, np.asfortranarray, lambda x: x[::-1, ::2], lambda x: x.T[::-1].T])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (7, 8), (20, 5)])
@pytest.mark.parametrize("threads", [1, 3])
def test_every_element_is_copied_and_converted(small_tiles, view, shape, threads):
    source = view(np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape))
    into = np.full(source.shape, np.nan)
    copy_rows(into, source, threads)
    np.testing.assert_array_equal(into, source)


def test_a_number_is_written_everywhere():
    into = np.zeros((5, 3))
    copy_rows(into, 7.0, 2)
    assert (into == 7).all()


def test_a_matrix_whose_columns_are_contiguous_is_read_in_tiles_and_another_one_at_once(small_tiles):
    x = np.zeros((7, 4))
    assert len(list(tiles_of(np.asfortranarray(x), Span(0, 7)))) == 6
    assert list(tiles_of(x, Span(2, 7))) == [(slice(2, 7), slice(0, 4))]
