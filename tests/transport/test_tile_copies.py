# SPDX-License-Identifier: MIT
"""Copies of tiles of C: of the last one in parts, which are told as they are there."""

from __future__ import annotations

import numpy as np
import pytest
from support.plans import planned

from hybrid.core.problem import Problem
from hybrid.core.spans import Span, Topology
from hybrid.devices.cpu import CpuDevice
from hybrid.transport.tile_copies import copy_out, last_tile

MIB = 1 << 17  # elements of float64


def copied(rows, columns, *, is_last, observed=True):
    told, source, into = [], np.random.default_rng(1).standard_normal((rows, columns)), np.full((rows, columns), np.nan)

    def tell(part, event):
        assert (into[part.slice] == source[part.slice]).all()
        told.append(part)

    copy_out(CpuDevice(staged=True), into, source, [], tell if observed else None, is_last=is_last)
    np.testing.assert_array_equal(into, source)
    return told


@pytest.mark.parametrize("is_last", [False, True])
def test_a_tile_that_nobody_hears_of_is_copied_at_once(is_last):
    assert copied(400, MIB // 10, is_last=is_last, observed=False) == []


def test_all_tiles_but_the_last_are_copied_at_once():
    assert copied(400, MIB // 10, is_last=False) == [Span(0, 400)]


@pytest.mark.parametrize(("rows", "columns"), [(0, 7), (1, 5), (3, 6 * MIB), (100, 1000), (333, MIB // 8), (512, MIB // 8)])
def test_the_last_tile_is_told_in_parts_that_get_smaller(rows, columns):
    told = copied(rows, columns, is_last=True)
    assert [part.lo for part in told] == [0, *(part.hi for part in told[:-1])]
    assert told[-1].hi == rows
    assert all(part.lo % 32 == 0 for part in told), "every 32nd row of a piece has weights"
    lengths = [len(part) for part in told]
    assert lengths[:-1] == sorted(lengths[:-1], reverse=True)
    if rows * columns >= 12 * MIB and rows >= 96:
        assert len(told) > 2
        assert lengths[-1] * columns < 12 * MIB


def test_the_last_tile_is_the_last_that_completes_rows():
    plan = planned(Problem(60, 40, 50, "float64"), Topology(((0,),)), staged=True, panel_rows=16, slab_rows=16, accumulates=True)
    order = plan.shares[0].order
    completing = [tile for arrival in order for tile in arrival.releases if tile.completes]
    assert last_tile(order) is completing[-1]
    assert last_tile(()) is None
