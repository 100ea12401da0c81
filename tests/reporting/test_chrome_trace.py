# SPDX-License-Identifier: MIT
"""Intervals of all ranks as Chrome trace events, and the timeline they come from."""

from __future__ import annotations

import json

import pytest

from hybrid.core.timeline import PHASES, Interval, Spread, Timeline, slowest
from hybrid.reporting.chrome_trace import write_trace


def events_of(path):
    return json.loads(path.read_text())["traceEvents"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.json"


def test_each_rank_is_a_process_and_each_phase_a_row_of_it(path):
    of_ranks = [[Interval("multiply", 0.5, 2.0, 0), Interval("gather", 2.0, 2.25, 0)], [Interval("copy in", 0.0, 1.0, 1)], []]
    write_trace(str(path), of_ranks, ["rank 0 on a", "rank 1 on b", "rank 2 on c"])
    events = events_of(path)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "rank 0 on a", 1: "rank 1 on b", 2: "rank 2 on c"}
    rows = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert sorted((rank, phase) for (rank, _), phase in rows.items()) == [
        (rank, phase) for rank in range(3) for phase in sorted(PHASES)
    ]
    assert [rows[0, row] for row in sorted(row for rank, row in rows if rank == 0)] == list(PHASES)
    pieces = [event for event in events if event["ph"] == "X"]
    assert [(event["pid"], event["name"], event["ts"], event["dur"], event["args"]["repeat"]) for event in pieces] == [
        (0, "multiply", 0.5e6, 1.5e6, 0),
        (0, "gather", 2.0e6, 0.25e6, 0),
        (1, "copy in", 0.0, 1e6, 1),
    ]
    assert all(rows[event["pid"], event["tid"]] == event["name"] for event in pieces)


def test_what_overlaps_in_one_phase_takes_rows_of_its_own(path):
    begins_and_ends = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (2.5, 2.6)]
    write_trace(str(path), [[Interval("multiply", begin, end, 0) for begin, end in begins_and_ends]], ["rank 0"])
    pieces = [event for event in events_of(path) if event["ph"] == "X"]
    rows = [event["tid"] for event in pieces]
    assert len(set(rows)) == 3
    assert rows[0] == rows[2]
    named = {event["tid"] for event in events_of(path) if event["name"] == "thread_name" and event["args"]["name"] == "multiply"}
    assert set(rows) <= named


def test_intervals_that_are_no_phase_are_left_out(path):
    write_trace(str(path), [[Interval("agree", 0.0, 1.0), Interval("check", 1.0, 2.0)]], ["rank 0"])
    assert [event["name"] for event in events_of(path) if event["ph"] == "X"] == ["check"]


def test_a_trace_that_cannot_be_made_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="shorter"):
        write_trace(str(tmp_path / "trace.json"), [[], []], ["only one name"])
    assert list(tmp_path.iterdir()) == []


def test_warm_ups_are_neither_summed_nor_shown():
    timeline = Timeline()
    timeline.zero = 10.0
    for repeat, begin in ((-1, 0.0), (0, 11.0), (0, 13.0), (1, 15.0), (None, 20.0)):
        timeline.repeat = repeat
        timeline.add("multiply", begin, begin + 1.5)
    assert timeline.seconds() == {("multiply", 0): 3.0, ("multiply", 1): 1.5, ("multiply", None): 1.5}
    assert [(entry.begin, entry.end, entry.repeat) for entry in timeline.since_zero()] == [
        (1.0, 2.5, 0),
        (3.0, 4.5, 0),
        (5.0, 6.5, 1),
        (10.0, 11.5, None),
    ]


def test_what_runs_at_the_same_time_in_one_phase_counts_once():
    timeline = Timeline()
    timeline.repeat = 0
    for begin, end in ((0.0, 2.0), (1.0, 3.0), (1.5, 1.75), (5.0, 6.0)):
        timeline.add("multiply", begin, end)
    timeline.add("exchange", 0.5, 1.0)
    assert timeline.seconds() == {("multiply", 0): 4.0, ("exchange", 0): 0.5}


def test_the_slowest_rank_of_each_repeat_counts():
    first = {("multiply", 0): 1.0, ("multiply", 1): 5.0, ("multiply", 2): 2.0, ("agree", None): 9.0}
    second = {("multiply", 0): 3.0, ("multiply", 1): 4.0, ("multiply", 2): 1.0, ("fill", None): 7.0}
    found = slowest([first, second], ["rank 0", "rank 1"])
    assert found == {"fill": Spread(7.0, 7.0, 7.0), "multiply": Spread(3.0, 2.0, 5.0)}
    assert list(found) == ["fill", "multiply"]


def test_ranks_that_share_a_device_take_turns_on_it():
    of_ranks = [{("multiply", 0): seconds, ("copy in", 0): 0.5, ("scatter", 0): seconds} for seconds in (1.0, 2.0, 2.5)]
    found = slowest(of_ranks, ["GPU-a", "GPU-a", "GPU-b"])
    assert {phase: spread.median for phase, spread in found.items()} == {"scatter": 2.5, "copy in": 1.0, "multiply": 3.0}
