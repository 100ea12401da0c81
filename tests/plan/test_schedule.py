# SPDX-License-Identifier: MIT
"""What arrives on a device when, and which strips of C that releases."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.selection import examples

from hybrid.core.spans import Span, pieces
from hybrid.plan.buffer_layout import Tiling
from hybrid.plan.residency import last_uses
from hybrid.plan.schedule import arrivals

quick = examples(100)
sizes = st.integers(0, 40)
few = st.integers(1, 12)
operands = st.sampled_from(["A", "B"])


def spans(length, size):
    return tuple(pieces(Span(0, length), size))


@quick
@given(
    rows=sizes,
    columns=sizes,
    row_panel=few,
    column_panel=few,
    held=st.none() | st.tuples(few, few),
    stationary=operands,
    separate_panels=st.booleans(),
    rows_first=st.booleans(),
)
def test_strips_cover_the_block_once_and_read_only_what_is_there(
    rows, columns, row_panel, column_panel, held, stationary, separate_panels, rows_first
):
    row_panels, column_panels = spans(rows, row_panel), spans(columns, column_panel)
    row_panels_held, column_panels_held = held or (max(1, len(row_panels)), max(1, len(column_panels)))
    separate_panels = separate_panels and held is None
    computed = np.zeros((rows, columns), int)
    there = {}  # rows of A and columns of B by where they lie
    arrived = {"A": [], "B": []}
    how = {"stationary": stationary, "separate_panels": separate_panels, "rows_first": rows_first and held is None}
    for arrival in arrivals(row_panels, column_panels, row_panels_held, column_panels_held, **how):
        assert arrival.span == {"A": row_panels, "B": column_panels}[arrival.operand][arrival.index]
        assert arrival.slot == (arrival.index if separate_panels and arrival.operand == "B" else 0)
        arrived[arrival.operand].append(arrival.index)
        of_buffer = there.setdefault((arrival.operand, arrival.slot), {})
        of_buffer.update(zip(range(*bounds(arrival.buffer_span)), range(*bounds(arrival.span)), strict=True))
        for tile in arrival.releases:
            assert len(tile.rows)
            assert len(tile.columns)
            rows_there, columns_there = there["A", 0], there["B", tile.slot]
            assert [rows_there[row] for row in range(*bounds(tile.buffer_rows))] == list(range(*bounds(tile.rows)))
            assert [columns_there[column] for column in range(*bounds(tile.buffer_columns))] == list(range(*bounds(tile.columns)))
            computed[tile.rows.slice, tile.columns.slice] += 1
    assert (computed == 1).all()
    assert arrived[stationary] == list(range(len(arrived[stationary])))
    all_pieces = (
        {"A": set(range(len(row_panels))), "B": set(range(len(column_panels)))} if rows and columns else {"A": set(), "B": set()}
    )
    assert {operand: set(indices) for operand, indices in arrived.items()} == all_pieces
    for (operand, _), of_buffer in there.items():
        assert max(of_buffer) < (row_panel * row_panels_held if operand == "A" else column_panel * column_panels_held)


@quick
@given(rows=sizes, columns=sizes, inner=few, row_panel=few, column_panel=few, held=st.tuples(few, few), slab=few)
def test_panels_that_stay_may_come_in_slabs(rows, columns, inner, row_panel, column_panel, held, slab):
    """What lies on the device is modelled element by element of A's rows and B's columns and rows."""
    row_panels, column_panels, slabs = spans(rows, row_panel), spans(columns, column_panel), spans(inner, slab)
    computed = np.zeros((rows, columns, inner), int)
    a_there, b_there = {}, {}
    for arrival in arrivals(row_panels, column_panels, *held, stationary="B", slabs=slabs):
        places = list(zip(range(*bounds(arrival.buffer_span)), range(*bounds(arrival.span)), strict=True))
        if arrival.operand == "A":
            a_there.update(places)
        else:
            b_there.update({(place, k): column for place, column in places for k in range(*bounds(arrival.slab[0]))})
        for tile in arrival.releases:
            along = range(*bounds(tile.inner or Span(0, inner)))
            assert [a_there[row] for row in range(*bounds(tile.buffer_rows))] == list(range(*bounds(tile.rows)))
            for k in along:
                there = [b_there[column, k] for column in range(*bounds(tile.buffer_columns))]
                assert there == list(range(*bounds(tile.columns)))
            part = computed[tile.rows.slice, tile.columns.slice]
            assert (part.any(axis=2) == tile.adds).all()
            part[:, :, along.start : along.stop] += 1
            assert tile.completes == (part == 1).all()
    assert (computed == 1).all()


def bounds(span):
    return span.lo, span.hi


@quick
@given(row_panels=st.integers(1, 30), column_panels=st.integers(1, 30))
def test_where_all_fits_neither_operand_gets_ahead_by_more_than_one_piece(row_panels, column_panels):
    here = {"A": 0, "B": 0}
    for arrival in arrivals(spans(row_panels, 1), spans(column_panels, 1), row_panels, column_panels):
        assert len(arrival.releases) == (here["B" if arrival.operand == "A" else "A"] > 0), "one strip each"
        here[arrival.operand] += 1
        assert abs(here["A"] / row_panels - here["B"] / column_panels) <= max(1 / row_panels, 1 / column_panels) + 1e-12
    assert here == {"A": row_panels, "B": column_panels}


@quick
@given(pieces_of=st.tuples(st.integers(1, 20), st.integers(1, 20)), held=st.tuples(few, few), stationary=operands)
def test_what_stays_comes_once_and_what_is_held_at_a_turn_serves_both_stays(pieces_of, held, stationary):
    order = list(arrivals(spans(pieces_of[0], 1), spans(pieces_of[1], 1), *held, stationary=stationary))
    of_a, of_b = [pieces_of[0], held[0]], [pieces_of[1], held[1]]
    (stays, stays_held), (passes, passes_held) = (of_a, of_b) if stationary == "A" else (of_b, of_a)
    turns = -(-stays // stays_held) - 1
    loads = [arrival.operand for arrival in order]
    assert loads.count(stationary) == stays
    assert len(loads) - stays == passes + turns * max(0, passes - passes_held)
    assert len(loads) == Tiling(1, 1, *held, stationary=stationary).loads(*pieces_of)


@quick
@given(rows=few, columns=st.integers(1, 40), column_panel=few, row_panels_held=few, column_panels_held=few, stationary=operands)
def test_nothing_is_overwritten_before_its_last_use(rows, columns, column_panel, row_panels_held, column_panels_held, stationary):
    order = list(
        arrivals(spans(rows, 1), spans(columns, column_panel), row_panels_held, column_panels_held, stationary=stationary)
    )
    for index, (arrival, last) in enumerate(zip(order, last_uses(order), strict=True)):
        assert last < index
        came_before = [earlier for earlier in range(index) if order[earlier].operand == arrival.operand]
        there = [earlier for earlier in came_before if order[earlier].buffer_span.meets(arrival.buffer_span)]
        for user in range(there[-1] if there else index, index):
            for tile in order[user].releases:
                if (tile.buffer_rows if arrival.operand == "A" else tile.buffer_columns).meets(arrival.buffer_span):
                    assert user <= last


@quick
@given(row_panels=st.integers(1, 20), column_panels=st.integers(1, 20))
def test_where_all_fits_nothing_is_overwritten(row_panels, column_panels):
    order = list(arrivals(spans(row_panels, 1), spans(column_panels, 1), row_panels, column_panels))
    assert set(last_uses(order)) == {-1}


def told(row_panels_held, column_panels_held, **how):
    order = arrivals(spans(4, 2), spans(6, 2), row_panels_held, column_panels_held, **how)
    return [
        f"{arrival.operand}{arrival.span} " + " ".join(f"{tile.rows}×{tile.columns}" for tile in arrival.releases)
        for arrival in order
    ]


def test_two_chunks_and_three_panels_come_in_turn_and_each_releases_all_it_can():
    assert told(2, 3) == ["A0:2 ", "B0:2 0:2×0:2", "B2:4 0:2×2:4", "A2:4 2:4×0:4", "B4:6 0:4×4:6"]
    assert told(2, 3, separate_panels=True) == ["A0:2 ", "B0:2 0:2×0:2", "B2:4 0:2×2:4", "A2:4 2:4×0:2 2:4×2:4", "B4:6 0:4×4:6"]


def test_with_room_for_one_chunk_and_two_panels_b_passes_there_and_back():
    assert told(1, 2) == [
        "A0:2 ",
        "B0:2 0:2×0:2",
        "B2:4 0:2×2:4",
        "B4:6 0:2×4:6",
        "A2:4 2:4×4:6 2:4×2:4",
        "B0:2 2:4×0:2",
    ]


def test_with_room_for_two_panels_and_one_chunk_a_may_pass():
    assert told(1, 2, stationary="B") == [
        "A0:2 ",
        "B0:2 0:2×0:2",
        "B2:4 0:2×2:4",
        "A2:4 2:4×0:4",
        "B4:6 2:4×4:6",
        "A0:2 0:2×4:6",
    ]


def test_a_strip_takes_no_more_of_what_passes_than_is_to_make_room_together():
    order = arrivals(spans(3, 1), spans(6, 1), 2, 3)
    of_next_stay = next(arrival for arrival in order if arrival.span == Span(2, 3) and arrival.operand == "A")
    assert [str(tile.columns) for tile in of_next_stay.releases] == ["4:6", "3:4"]


@quick
@given(row_panels=few, column_panels=few, separate_panels=st.booleans())
def test_column_panels_of_c_may_be_complete_one_after_the_other(row_panels, column_panels, separate_panels):
    """When the next column panel of B arrives, those of C before are: so they can leave."""
    order = arrivals(
        spans(row_panels, 1), spans(column_panels, 1), row_panels, column_panels, separate_panels=separate_panels, rows_first=True
    )
    computed = np.zeros((row_panels, column_panels), bool)
    for number, arrival in enumerate(order):
        assert (arrival.operand == "A") == (number == 0 or 2 <= number <= row_panels)
        if arrival.operand == "B":
            assert computed[:, : arrival.index].all()
        for tile in arrival.releases:
            computed[tile.rows.slice, tile.columns.slice] = True
    assert computed.all()
