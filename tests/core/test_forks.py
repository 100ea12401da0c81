# SPDX-License-Identifier: MIT
"""A fork waits until no thread computes."""

from __future__ import annotations

import threading

from hybrid.core import forks


def others_may_compute():
    found = []

    def look():
        found.append(forks.one_at_a_time.acquire(blocking=False))
        if found[0]:
            forks.one_at_a_time.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    return found[0]


def test_a_turn_ends_as_often_as_it_was_waited_for_and_no_more():
    """While a fork waits another thread may register the functions once more, so that more are called after it than before."""
    forks._wait_for_turn()
    forks._wait_for_turn()
    assert not others_may_compute()
    forks._end_turn()
    assert not others_may_compute()
    for _ in range(3):
        forks._end_turn()
    assert others_may_compute()
    with forks.one_at_a_time:
        forks._end_turn()
        assert not others_may_compute()
