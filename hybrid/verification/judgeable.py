# SPDX-License-Identifier: MIT
"""Columns of C of which a sum cannot be judged, since another column in their group holds NaN, infinities or may overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hybrid.core.spans import Span
from hybrid.plan.check_layout import GROUP_COLUMNS
from hybrid.verification.comparison import columns_of
from hybrid.verification.group_sums import norms_of

if TYPE_CHECKING:
    from hybrid.verification.wrong_parts import WrongParts

_ROOM = 16.0  # a column counts as one that may overflow from this part of the largest number on


def groups_left_open(norms_b: np.ndarray, usual_a: float, largest: float) -> list[int]:
    """The groups of columns whose sums are not judged. `norms_b`: of B in each group; `usual_a`: the norm of a usual row of A;
    `largest`: what sums may be."""
    with np.errstate(all="ignore"):
        return np.flatnonzero(~(norms_b * usual_a < largest)).tolist()


def norms_of_columns(b: np.ndarray, groups: Sequence[int], columns: int) -> np.ndarray:
    """The norm of each column of these groups, in rows `b` of B."""
    with np.errstate(all="ignore"):
        parts = [columns_of(group, Span(0, columns)).slice for group in groups]
        return np.concatenate([norms_of(np.ascontiguousarray(b[:, part].T, np.float64)) for part in parts])


def finite_columns(groups: Sequence[int], norms: np.ndarray, usual_a: float, largest: float, columns: int) -> np.ndarray:
    """The numbers of the columns of these groups that can be judged beside each other, given the norms of all of them."""
    numbers = np.concatenate([np.arange(group * GROUP_COLUMNS, min(columns, (group + 1) * GROUP_COLUMNS)) for group in groups])
    with np.errstate(all="ignore"):
        return numbers[norms * usual_a < largest / _ROOM]


def usual_norm(norms_a: np.ndarray) -> float:
    """The median of those norms of rows that are finite; 1 where none is."""
    finite = norms_a[np.isfinite(norms_a)]
    return float(np.median(finite)) if len(finite) else 1.0


def mark(wrong: WrongParts, groups: Sequence[int], rows: int, columns: int) -> None:
    """Mark all rows of these groups as wrong."""
    for group in groups:
        wrong.add(np.arange(rows), columns_of(group, Span(0, columns)))
