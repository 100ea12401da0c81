"""What arrives on a device when, and which strips of C that releases."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.partition import Span, even_pieces
from hybrid.pipeline import last_uses
from hybrid.schedule import arrivals

quick = settings(deadline=None, max_examples=200)
sizes = st.integers(0, 40)
few = st.integers(1, 12)


def spans(length, size):
    return even_pieces(Span(0, length), size)


@quick
@given(rows=sizes, columns=sizes, chunk=few, panel=few, held=st.none() | st.tuples(few, few))
def test_strips_cover_the_block_once_and_read_only_what_is_there(rows, columns, chunk, panel, held):
    chunks, panels = spans(rows, chunk), spans(columns, panel)
    chunks_held, panels_held = held or (max(1, len(chunks)), max(1, len(panels)))
    computed = np.zeros((rows, columns), int)
    row_there, column_there = {}, {}
    came = []
    for arrival in arrivals(chunks, panels, chunks_held, panels_held, side_by_side=held is None):
        if arrival.operand == "A":
            assert arrival.span == chunks[arrival.index]
            came.append(arrival.index)
            row_there.update(zip(range(*bounds(arrival.held)), range(*bounds(arrival.span)), strict=True))
        else:
            assert arrival.span == panels[arrival.index]
            assert arrival.slot < (panels_held if held else 1)
            of_slot = column_there.setdefault(arrival.slot, {})
            of_slot.update(zip(range(*bounds(arrival.held)), range(*bounds(arrival.span)), strict=True))
        for strip in arrival.releases:
            assert len(strip.rows)
            assert len(strip.columns)
            of_slot = column_there[strip.slot]
            assert [of_slot[within] for within in range(*bounds(strip.within))] == list(range(*bounds(strip.columns)))
            assert [row_there[held] for held in range(*bounds(strip.held))] == list(range(*bounds(strip.rows)))
            computed[strip.rows.slice, strip.columns.slice] += 1
    assert (computed == 1).all()
    assert came == list(range(len(chunks)))
    assert len(row_there) <= chunk * chunks_held
    assert all(len(of_slot) <= panel for of_slot in column_there.values()) or not held


def bounds(span):
    return span.lo, span.hi


@quick
@given(chunks=st.integers(1, 30), panels=st.integers(1, 30))
def test_where_all_fits_neither_operand_gets_ahead_by_more_than_one_piece(chunks, panels):
    here = {"A": 0, "B": 0}
    for arrival in arrivals(spans(chunks, 1), spans(panels, 1), chunks, panels, side_by_side=True):
        assert len(arrival.releases) == (here["B" if arrival.operand == "A" else "A"] > 0), "one strip each"
        here[arrival.operand] += 1
        assert abs(here["A"] / chunks - here["B"] / panels) <= max(1 / chunks, 1 / panels) + 1e-12
    assert here == {"A": chunks, "B": panels}


@quick
@given(chunks=st.integers(1, 20), panels=st.integers(1, 20), chunks_held=few, panels_held=few)
def test_panels_at_a_turn_are_loaded_once_for_two_stays(chunks, panels, chunks_held, panels_held):
    loads = [
        arrival for arrival in arrivals(spans(chunks, 1), spans(panels, 1), chunks_held, panels_held) if arrival.operand == "B"
    ]
    stays = -(-chunks // chunks_held)
    assert len(loads) == panels + (stays - 1) * max(0, panels - panels_held)


@quick
@given(chunks=st.integers(1, 20), columns=st.integers(1, 40), panel=few, chunks_held=few, panels_held=few)
def test_nothing_is_overwritten_before_its_last_use(chunks, columns, panel, chunks_held, panels_held):
    order = list(arrivals(spans(chunks, 1), spans(columns, panel), chunks_held, panels_held))
    for index, (arrival, last) in enumerate(zip(order, last_uses(order), strict=True)):
        assert last < index
        for earlier in range(index):
            for strip in order[earlier].releases:
                in_panel = strip.slot == arrival.slot and strip.within.meets(arrival.held)
                overwritten = strip.held.meets(arrival.held) if arrival.operand == "A" else in_panel
                if overwritten and (arrival.operand == "B" or order[earlier].stay < arrival.stay):
                    assert earlier <= last


@quick
@given(chunks=st.integers(1, 20), panels=st.integers(1, 20))
def test_where_all_fits_nothing_is_overwritten(chunks, panels):
    order = list(arrivals(spans(chunks, 1), spans(panels, 1), chunks, panels, side_by_side=True))
    assert set(last_uses(order)) == {-1}


def told(chunks_held, panels_held, **how):
    order = arrivals(spans(4, 2), spans(6, 2), chunks_held, panels_held, **how)
    return [
        f"{arrival.operand}{arrival.span} " + " ".join(f"{strip.rows}×{strip.columns}" for strip in arrival.releases)
        for arrival in order
    ]


def test_two_chunks_and_three_panels_come_in_turn_and_each_releases_all_it_can():
    assert told(2, 3) == ["A0:2 ", "B0:2 0:2×0:2", "B2:4 0:2×2:4", "A2:4 2:4×0:2 2:4×2:4", "B4:6 0:4×4:6"]
    assert told(2, 3, side_by_side=True) == ["A0:2 ", "B0:2 0:2×0:2", "B2:4 0:2×2:4", "A2:4 2:4×0:4", "B4:6 0:4×4:6"]


def test_with_room_for_one_chunk_and_two_panels_the_sweeps_go_there_and_back():
    assert told(1, 2) == [
        "A0:2 ",
        "B0:2 0:2×0:2",
        "B2:4 0:2×2:4",
        "B4:6 0:2×4:6",
        "A2:4 2:4×2:4 2:4×4:6",
        "B0:2 2:4×0:2",
    ]
