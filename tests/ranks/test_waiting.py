# SPDX-License-Identifier: MIT
"""How a rank that waits for another leaves the core to others, with a made-up clock."""

from __future__ import annotations

import pytest

from hybrid.ranks import polling


class Clock:
    """Time passes only where somebody gives way or sleeps."""

    def __init__(self):
        self.now, self.slice, self.did = 100.0, 1e-6, []

    def give_way(self):
        self.now += self.slice
        self.did.append("gave way")

    def sleep(self, seconds):
        self.now += seconds
        self.did.append("slept")

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(polling, "_give_way", clock.give_way)
    monkeypatch.setattr(polling, "time", clock)
    monkeypatch.setattr(polling, "_crowded_until", 0.0)
    return clock


def test_with_cores_to_spare_nobody_sleeps(clock):
    for _ in range(1000):
        polling.let_others_run()
    assert set(clock.did) == {"gave way"}


def test_beside_threads_that_keep_the_core_a_rank_sleeps_for_moments_and_tries_again(clock):
    clock.slice = 4e-3
    began = clock.now
    while clock.now < began + 1:
        polling.let_others_run()
    assert clock.did[:2] == ["gave way", "slept"]
    slices = clock.did.count("gave way")
    assert 10 < slices < 60, "each costs a time slice: most of the time goes into looking"
    assert clock.did.count("slept") > 100 * slices
    clock.slice = 1e-6
    clock.did.clear()
    clock.now += 1
    for _ in range(100):
        polling.let_others_run()
    assert set(clock.did) == {"gave way"}, "they rest again"
