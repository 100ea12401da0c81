# SPDX-License-Identifier: MIT
"""Operands of which some rows tell nothing about others: sparse, or of very different scales; and a product's worst element."""

from __future__ import annotations

from typing import Any

import numpy as np

KINDS = ["zero rows", "single entries", "scaled rows", "even columns", "scaled both ways"]


def operands(rng: Any, kind: str, dtype: str, n: int, l: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    a, b = rng.standard_normal((n, l)), rng.standard_normal((l, m))
    if kind in ("zero rows", "single entries"):
        rows = np.arange(0, n, 1 if kind == "single entries" else 2)
        columns = rng.permutation(np.arange(len(rows)) % l)
        a = np.zeros((n, l))
        a[rows, columns] = 1 / (1 + columns)
    else:
        a *= np.logspace(8, -8, n)[:, None]
    if kind == "even columns":  # as a regression's constant term: next to nothing in the large rows, nearly all of the small
        a[:, 7::8] = 1
    if kind == "scaled both ways":
        b *= rng.permutation(np.logspace(8, -8, l))[:, None]
    return a.astype(dtype), b.astype(dtype)


def worst_element(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    """The largest error of an element of c = a·b, relative to the most that rounding errors may come to in this very element."""
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    sizes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))  # of positive terms float64 loses next to nothing
    most = (a.shape[1] + 1) * np.finfo(a.dtype).eps * sizes + np.finfo(a.dtype).tiny
    return float((np.abs(c - exact) / most).max())
