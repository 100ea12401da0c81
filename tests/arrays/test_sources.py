# SPDX-License-Identifier: MIT
"""Where a matrix comes from."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid.arrays.sources import GeneratedMatrix, RotatedRows
from hybrid.core.spans import Span


def rows_of(source, rows):
    into, told = np.empty((len(rows), source.shape[1])), []
    source.rows(rows, into, 1, told.append)
    return into, told


@pytest.mark.parametrize("rows", [Span(0, 6), Span(2, 5), Span(4, 6), Span(3, 3)])
@pytest.mark.parametrize("first", [0, 2, 5])
def test_rotated_rows_are_the_same_matrix_from_another_row_on(rows, first):
    whole, _ = rows_of(GeneratedMatrix((6, 40000), "normal", 7, "A"), Span(0, 6))  # its blocks of random numbers cross rows
    part, told = rows_of(RotatedRows((6, 40000), 7, first), rows)
    assert np.array_equal(part, np.roll(whole, -first, axis=0)[rows.slice])
    assert told == sorted(told)
    assert not len(rows) or told[-1] == len(rows)
