# SPDX-License-Identifier: MIT
"""Matrices in files, as the tests of every format read them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybrid.core.spans import Span
from hybrid.host.matrix_file import open_matrix


def rows_of(name: str | Path, rows: Span, dtype: str = "float64") -> np.ndarray:
    file = open_matrix(str(name))
    into = np.full((len(rows), file.shape[1]), 99, dtype)
    file.read(rows, into)
    return into
