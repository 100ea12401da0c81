# SPDX-License-Identifier: MIT
"""Where a matrix comes from."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from hybrid.arrays import sources
from hybrid.arrays.sources import FileMatrix, GeneratedMatrix, RotatedRows
from hybrid.core.spans import Span
from hybrid.errors import DoesNotFit, UsageError
from hybrid.host import mtx_file


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


@pytest.mark.needs("scipy")
@pytest.mark.parametrize(("form", "at_once"), [("npy", False), ("mtx", True)])
def test_a_rank_that_reads_a_whole_text_is_not_taken_for_one_that_stands_still(tmp_path, monkeypatch, form, at_once):
    entered = []

    @contextmanager
    def busy():
        entered.append("busy")
        yield

    monkeypatch.setattr(sources, "busy", busy)
    np.save(tmp_path / "m.npy", np.eye(2))
    (tmp_path / "m.mtx").write_text("%%MatrixMarket matrix array real general\n2 2\n1\n0\n0\n1\n")
    into, told = rows_of(FileMatrix(str(tmp_path / f"m.{form}")), Span(0, 2))
    assert (into == np.eye(2)).all()
    assert told[-1] == 2
    assert bool(entered) == at_once


@pytest.mark.needs("scipy")
def test_what_a_file_is_not_is_said_with_the_name_that_was_given(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=rf"^{tmp_path}/none\.npy cannot be read: No such file"):
        FileMatrix(f"{tmp_path}/none.npy")
    (tmp_path / "m.mtx").write_text("%%MatrixMarket matrix array real general\n2 2\n1\n0\n0\n1\n")
    monkeypatch.setattr(mtx_file, "available_host_bytes", lambda: 127)
    with pytest.raises(DoesNotFit, match=rf"^{tmp_path}/m\.mtx takes 128 B to be read, 127 B are free"):
        FileMatrix(f"{tmp_path}/m.mtx", readers=4)
