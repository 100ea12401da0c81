# SPDX-License-Identifier: MIT
"""Signs of life from supervisor to supervisor, and who counts as silent."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from hybrid.ranks import pulse
from hybrid.ranks.pulse import Neighbours, Pulse, Whereabouts, meet

KEY, OTHER_KEY = "ab" * 16, "cd" * 16


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(pulse, "time", clock)
    return clock


def two(their_key=KEY, near=False):
    """One that sends to another, which knows the key KEY."""
    sender, listener = Pulse(), Pulse()
    sender.start(Neighbours(their_key, listener.port, ("127.0.0.1",), 7, near, "node with spaces").as_line())
    listener.start(Neighbours(KEY, sender.port, ("127.0.0.1",), 3, near, "n3").as_line())
    return sender, listener


def beat(clock, *pulses, seconds=pulse.INTERVAL):
    clock.now += seconds
    for each in pulses:
        each.beat()
    time.sleep(0.02)  # until the datagrams are there
    pulses[-1].beat()


def test_silence_begins_with_the_last_sign_of_life(clock):
    sender, listener = two()
    assert listener.silence() == 0
    beat(clock, sender, listener)
    assert listener.silence() == 0
    beat(clock, listener, seconds=5)
    assert listener.silence() == 5
    assert (listener.watched, sender.watched) == ("rank 3 on n3", "rank 7 on node with spaces")
    listener.forgive()
    assert listener.silence() == 0


def test_one_that_was_never_heard_is_not_missed_where_mpi_reaches_it(clock):
    sender, listener = two(OTHER_KEY)
    for _ in range(3):
        beat(clock, sender, listener)
    listener.all_met()
    clock.now += 100
    assert listener.silence() == 0


def test_until_mpi_has_reached_all_ranks_one_is_missed_from_the_start(clock):
    sender, listener = two(OTHER_KEY)
    beat(clock, sender, listener, seconds=4)
    assert listener.silence() == 4


def test_one_that_is_heard_late_through_a_slow_network_is_missed_from_then_on(clock):
    sender, listener = two()
    listener.all_met()
    assert listener.silence() == 0
    beat(clock, sender, listener, seconds=4)
    beat(clock, listener, seconds=7)
    assert listener.silence() == 7


def test_the_first_sign_of_life_is_sent_at_once(clock):
    _, listener = two()
    beat(clock, listener, seconds=0)
    listener.all_met()
    clock.now += 4
    assert listener.silence() == 4


def test_one_on_the_same_node_is_missed_from_the_start(clock):
    _, listener = two(OTHER_KEY, near=True)
    clock.now += 4
    assert listener.silence() == 4


def test_one_that_has_ended_is_not_missed(clock):
    sender, listener = two()
    beat(clock, sender, listener)
    sender.end()
    beat(clock, listener)
    clock.now += 100
    assert listener.silence() == 0


def test_that_a_rank_has_failed_is_passed_on_once(clock):
    first, second = two()
    third = Pulse()
    third.start(Neighbours(KEY, second.port, ("127.0.0.1",), 7, False, "n7").as_line())
    second._neighbours = Neighbours(KEY, third.port, ("127.0.0.1",), 3, False, "n3")
    assert second.since_failure() == third.since_failure() == 0
    first.end(failed=True)
    beat(clock, second)
    beat(clock, third)
    clock.now += 4
    assert second.since_failure() == 4 + pulse.INTERVAL
    assert third.since_failure() == 4
    assert second.silence() == third.silence() == 0, "nobody is missed any more"


def test_datagrams_of_others_change_nothing(clock):
    sender, listener = two()
    stranger, _ = two(OTHER_KEY)
    stranger.start(Neighbours(OTHER_KEY, listener.port, ("127.0.0.1",), 1, False, "n").as_line())
    beat(clock, sender, listener)
    stranger.end()
    beat(clock, stranger, listener, seconds=4)
    assert listener.silence() == 4


def test_nowhere_to_send_to_is_no_error(clock):
    sender = Pulse()
    sender.beat()
    sender.start(Neighbours(KEY, 9, ("203.0.113.1", "nowhere.invalid"), 1, False, "n").as_line())
    clock.now += 10
    sender.beat()
    sender.end()


def test_who_has_ended_waits_for_the_end_of_a_neighbour_of_this_node():
    sender, listener = two(near=True)
    sender.end()
    assert listener.sees_end(patience=60)


def test_a_neighbour_that_stands_still_at_the_end_is_noticed():
    sender, listener = two(near=True)
    assert not listener.sees_end(patience=0.01)
    assert listener.watched == "rank 3 on n3"
    sender.close()


@pytest.mark.parametrize("near", [False, True])
def test_nobody_waits_for_another_node_or_for_one_that_cannot_be_heard(near):
    sender, listener = two(near=near)
    if near:
        listener._heard = None
    assert listener.sees_end(patience=-1)
    sender.close()


def test_who_was_stopped_itself_at_the_end_blames_no_neighbour(monkeypatch):
    sender, listener = two(near=True)
    waits = iter(range(3))

    def select(*given):  # it sleeps twice, then the word comes
        if next(waits) == 2:
            sender.end()
        else:
            listener._heard -= 100

    monkeypatch.setattr(pulse.select, "select", select)
    monkeypatch.setattr(pulse, "_STOOD_STILL", -1)
    assert listener.sees_end(patience=60)


def rounds(monkeypatch, everybody, node_ranks, others=()):
    """The pauses of rank 1 when it meets others and hears nothing, and what it has said. `others`: what the others say."""
    pauses, said = [], []

    @contextmanager
    def phase(name, timed):
        meeting = SimpleNamespace(mine=None, all=None)
        yield meeting
        said.append(meeting.mine)
        meeting.all = [*others, meeting.mine]

    monkeypatch.setattr(pulse.heartbeat, "neighbour_heard", lambda: False)
    monkeypatch.setattr(pulse.time, "sleep", pauses.append)
    meet(SimpleNamespace(rank=1, size=len(everybody), node_ranks=node_ranks, phase=phase), everybody)
    return pauses, said


def of(port=9, addresses=("203.0.113.1",)):
    return Whereabouts("n", port, addresses, KEY)


def test_ranks_meet_for_a_second_at_most(monkeypatch):
    pauses, said = rounds(monkeypatch, [of(), of(), of()], [1])
    assert sum(pauses) == pytest.approx(1, rel=0.1)
    assert pauses[0] < 0.01, "where all is well, they have met then"
    assert not any(said)


@pytest.mark.parametrize(
    ("everybody", "node_ranks"),
    [
        ([of(), of(), of()], [0, 1]),  # on this node MPI and datagrams take the same way
        ([of(port=0), of(), of()], [1]),  # the watched one does not listen, and so sends nothing
        ([of(), of(addresses=()), of()], [1]),  # it does not know where to send to
        ([of(), of(port=0), of()], [1]),
        ([of(), of(), of(port=0)], [1]),
    ],
)
def test_nobody_waits_for_whom_no_datagram_can_come_from(monkeypatch, everybody, node_ranks):
    assert rounds(monkeypatch, everybody, node_ranks) == ([], [True])


def test_a_rank_that_has_heard_its_neighbour_waits_for_those_that_have_not(monkeypatch):
    pauses, said = rounds(monkeypatch, [of(), of(), of()], [0, 1], others=[False])
    assert len(pauses) > 1
    assert all(said)


def test_a_supervisor_waits_for_datagrams_once_it_has_neighbours():
    lonely = Pulse()
    sender, _ = two()
    assert (lonely.sources(), sender.sources()) == ([], [sender])
