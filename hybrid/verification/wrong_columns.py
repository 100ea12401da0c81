# SPDX-License-Identifier: MIT
"""Which columns of C are wrong because some rows of B were: an error of B's row k is largest where A's column k is."""

from __future__ import annotations

import numpy as np

from hybrid.verification.group_sums import are_integers

_ROWS = 8  # of C that are computed again, at least
_MOST_USUAL = 4.0  # standard deviations of the differences between two right products; more are no rounding
_MEDIAN_OF_NORMAL = 0.6745  # of |z|


def wrong_columns(a: np.ndarray, b: np.ndarray, c: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The columns of c = a·b that were computed with other rows `inner` of b than these, as far as that changed any element by
    more than rounding errors do; and a few that are right."""
    weights = np.abs(a[:, inner])
    rows = np.unique(np.concatenate([weights[:, :_ROWS].argmax(axis=0), np.argsort(-weights.sum(axis=1))[:_ROWS]]))
    with np.errstate(all="ignore"):
        product = np.matmul(a[rows], b)
        differences = np.abs(product - c[rows])
        # What most columns have, unless most are wrong: then what plain summation would err.
        unit = float(np.finfo(a.dtype).eps) / 2
        plain = unit * (a.shape[1] / 9) ** 0.5 * np.sqrt(product**2 + (product**2).mean(axis=1, keepdims=True))
        usual = np.minimum(np.median(differences, axis=1, keepdims=True) / _MEDIAN_OF_NORMAL, plain)
        right = (differences <= _MOST_USUAL * usual).all(axis=0)  # which a NaN is not
        if are_integers(product):  # then a fraction is an error, however small, which a row's rounding may have hidden
            right &= (np.rint(c) == c).all(axis=0)
    return np.flatnonzero(~right)
