# SPDX-License-Identifier: MIT
"""Faults that computing a product may have: each is found, in both types, from few terms to 100,000."""

from __future__ import annotations

import numpy as np
import pytest
from support.plans import planned
from support.selection import exhaustive

from hybrid.core.problem import Problem
from hybrid.core.spans import Span
from hybrid.host.row_view import RowView
from hybrid.ranks.team import Team
from hybrid.verification.freivalds import verify

SIZES = [("float32", 600, 8000, 512), ("float64", 600, 8000, 512), ("float32", 64, 100_000, 64), ("float64", 64, 100_000, 64)]
TRIALS = 2  # with few terms; of 100,000 one has to do
# Two columns that are exchanged change the sums by the difference of their x, and that may be 1 where x is 64 to 127: then it may
# be less than rounding errors of 100,000 terms of one sign in float32, once in 20 checks. Each check draws x anew.
MOST_CHECKS = {"columns swapped": 4}


def check(a, b, c):
    team = Team()
    plan = planned(Problem(a.shape[0], a.shape[1], b.shape[1], c.dtype.name), team.topology)
    return verify(team, plan, *(RowView(matrix, Span(0, len(matrix))) for matrix in (a, b, c)), 2)


def an_element(rng, c):
    """At random, of the larger half: very small ones may be less than what rounding changes."""
    rows, columns = np.nonzero(np.abs(c) >= np.median(np.abs(c)))
    one = rng.integers(len(rows))
    return rows[one], columns[one]


def element_zero(rng, a, b, c):
    c[an_element(rng, c)] = 0


def sign_turned(rng, a, b, c):
    c[an_element(rng, c)] *= -1


def of_another_place(rng, a, b, c):
    here = an_element(rng, c)
    far = np.argwhere(np.abs(c - c[here]) >= np.median(np.abs(c - c[here])))
    c[here] = c[tuple(far[rng.integers(len(far))])]


def columns_swapped(rng, a, b, c):
    one, other = rng.choice(c.shape[1], 2, replace=False)
    c[:, [one, other]] = c[:, [other, one]]


def tile_zero(size):
    def spoil(rng, a, b, c):
        row, column = (rng.integers(extent - size + 1) for extent in c.shape)
        c[row : row + size, column : column + size] = 0

    return spoil


def without_last(terms):
    def spoil(rng, a, b, c):
        c[...] = a[:, :-terms] @ b[:-terms]

    return spoil


def one_off(fraction):
    def spoil(rng, a, b, c):
        c[an_element(rng, c)] *= 1 + fraction

    return spoil


def rounded_to(bits):
    """`bits` of a float32 are kept."""

    def rounded(matrix):
        words = matrix.astype(np.float32).view(np.uint32)
        unit = np.uint32(1 << (32 - bits))
        return ((words + unit // 2) & ~(unit - np.uint32(1))).view(np.float32).astype(matrix.dtype)

    def spoil(rng, a, b, c):
        c[...] = rounded(a) @ rounded(b)

    return spoil


OF_NORMAL = {
    "an element zero": element_zero,
    "a sign turned": sign_turned,
    "an element of another place": of_another_place,
    "columns swapped": columns_swapped,
    "an 8×8 tile zero": tile_zero(8),
    "a 16×16 tile zero": tile_zero(16),
    "the last 64 of k left out": without_last(64),
    "operands in bfloat16": rounded_to(16),
    "operands in TF32": rounded_to(19),
}
OF_UNIFORM = {"10 % off": one_off(0.1), "columns swapped": columns_swapped, "the last 8 of k left out": without_last(8)}


@pytest.mark.parametrize(("dtype", "n", "l", "m"), exhaustive(SIZES[:2], SIZES))
@pytest.mark.parametrize("faults", [OF_NORMAL, pytest.param(OF_UNIFORM, marks=pytest.mark.exhaustive)], ids=["normal", "uniform"])
def test_faults_are_found(rng, faults, dtype, n, l, m):
    draw = rng.standard_normal if faults is OF_NORMAL else rng.random
    a, b = draw((n, l), dtype), draw((l, m), dtype)
    right = a @ b
    clean = check(a, b, right)
    assert (clean.kind, clean.ok) == ("freivalds", True), clean
    missed = []
    for name, spoil in faults.items():
        for _ in range(TRIALS if l < 100_000 else 1):
            c = right.copy()
            spoil(rng, a, b, c)
            if all(check(a, b, c).ok for _ in range(MOST_CHECKS.get(name, 1))):
                missed.append(name)
    assert not missed
