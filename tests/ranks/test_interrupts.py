# SPDX-License-Identifier: MIT
"""Interrupts while ranks exchange results: noted, handled at the end, and not for ever."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from hybrid.ranks import interrupts


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_the_end():
    done = []

    def interrupted() -> None:
        with interrupts.deferred():
            interrupt()
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done


def test_what_the_body_raised_goes_before():
    def interrupted() -> None:
        with interrupts.deferred():
            interrupt()
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        interrupted()
    with interrupts.deferred():
        pass  # and it does not come again


def test_the_users_handler_handles_it_and_stays():
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        with interrupts.deferred():
            interrupt()
            assert not came
        assert came == [1]
        interrupt()
        assert came == [1, 1]
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(interrupts, "_PATIENCE", 0.0)

    def interrupted() -> None:
        with interrupts.deferred():
            assert not interrupts.overdue()
            interrupt()
            assert interrupts.overdue()

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not interrupts.overdue()


def test_another_thread_defers_nothing():
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with interrupts.deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
