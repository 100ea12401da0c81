# SPDX-License-Identifier: MIT
"""The shapes on which an exercise's solutions are tried: one is the same for all, others are drawn by a seed, so that no solution
is right for known shapes alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybrid.classroom.case import Sizes

_WHOLE = range(32, 65)  # from which multiples of a tile are drawn
_SHORT, _LONG, _TINY = range(17, 32), range(150, 250), range(2, 8)
_EDGES = (67, 71, 79)  # odd, and beyond what two tiles of 32 cover


def of_kernel(tile: Sizes, seed: int, *, tiny: bool, vector: bool) -> tuple[Sizes, ...]:
    """Shapes for a kernel: one of whole tiles; the one with edges everywhere; one with a long sum; and with `tiny` one smaller
    than a tile.

    Odd sizes have edges for every usual tile. `vector`: m is 1.
    """
    random = np.random.default_rng([seed, *tile, vector])
    whole = tuple(_one_of(random, [size for size in _WHOLE if size % of == 0]) for of in tile)
    drawn = [whole, _EDGES, tuple(_odd(random, which) for which in (_SHORT, _LONG, _SHORT))]
    if tiny:
        drawn.append(tuple(_one_of(random, _TINY) for _ in tile))
    return tuple((n, l, 1 if vector else m) for n, l, m in drawn)


def of_ranks(seed: int) -> tuple[Sizes, ...]:
    """Shapes for a program of one to four ranks: with rows that they can share equally, with rows that they cannot, and with too
    few."""
    random = np.random.default_rng(seed)
    rows = (_one_of(random, (12, 24, 36)), _one_of(random, (7, 11, 13)), 2)
    return tuple((n, _one_of(random, range(5, 40)), _one_of(random, range(5, 40))) for n in rows)


def _one_of(random: np.random.Generator, which: Sequence[int]) -> int:
    return which[int(random.integers(len(which)))]


def _odd(random: np.random.Generator, which: range) -> int:
    return _one_of(random, [size for size in which if size % 2])
