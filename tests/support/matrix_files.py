# SPDX-License-Identifier: MIT
"""Matrices in files, as the tests of every format read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.errors import UsageError
from hybrid.host.matrix_file import open_matrix


def rows_of(name: str | Path, rows: Span, dtype: str = "float64") -> np.ndarray:
    file = open_matrix(str(name))
    into = np.full((len(rows), file.shape[1]), 99, dtype)
    file.read(rows, into)
    return into


def assert_refused(name: str | Path, said: str) -> None:
    """In a line that begins so."""
    with pytest.raises(UsageError) as found:
        open_matrix(str(name))
    assert str(found.value).startswith(said)
    assert "\n" not in str(found.value)


def assert_rows_are_read(names: list[str | Path], matrix: np.ndarray) -> None:
    """Some in the middle, by any of the names and in any type."""
    for wanted in ("float64", "float32"):
        for name in names:
            np.testing.assert_array_equal(rows_of(name, Span(3, 10), wanted), matrix[3:10].astype(wanted))
