# SPDX-License-Identifier: MIT
"""How a matrix in chunks is read: every element once, and every chunk by one read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.core.spans import Span
from hybrid.errors import HybridError, UsageError
from hybrid.host import chunked_matrix
from hybrid.host.chunked_matrix import ChunkedMatrix, rectangles

SIZES = st.integers(1, 40)
AT_ONCE = 800


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.tuples(SIZES, SIZES), st.sampled_from([1, 4, 8]))
def test_every_element_is_read_once_and_no_chunk_by_two_reads(lo, height, width, chunk, item):
    rows, seen, chunks = Span(lo, lo + height), np.zeros((lo + height, width), int), set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_matrix, "BYTES_AT_ONCE", AT_ONCE)
        for part, columns in rectangles(rows, width, chunk, item):
            seen[part.slice, columns.slice] += 1
            touched = {
                (row // chunk[0], column // chunk[1])
                for row in range(part.lo, part.hi)
                for column in range(columns.lo, columns.hi)
            }
            assert not touched & chunks
            chunks |= touched
            assert len(part) * len(columns) * item <= max(AT_ONCE, chunk[0] * chunk[1] * item)
    assert (seen[lo:] == 1).all()
    assert (seen[:lo] == 0).all()


class Failing:
    """As a damaged dataset: what libraries raise for it is of many kinds."""

    name, shape, dtype = "/g/a", (6, 4), np.dtype("float64")

    def __getitem__(self, part):
        raise RuntimeError("error -3\nwhile decompressing")


def test_what_cannot_be_read_is_named_with_its_rows(tmp_path):
    matrix = ChunkedMatrix(str(tmp_path / "A.h5"), Failing(), (6, 4))
    with pytest.raises(HybridError, match=rf"^{tmp_path}/A\.h5:/g/a cannot be read, rows 2:5: RuntimeError: error -3") as found:
        matrix.read(Span(2, 5), np.empty((3, 4)))
    assert not isinstance(found.value, UsageError)
