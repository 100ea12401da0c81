# SPDX-License-Identifier: MIT
"""Calls that belong together, made by threads that wait for them."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from contextlib import suppress
from unittest import mock

import numpy as np
import pytest

from hybrid.host import call_queue
from hybrid.host.call_queue import Calls


def test_all_calls_are_made_by_other_threads():
    calls, made = Calls(3), []
    for number in range(200):
        calls.soon(lambda number=number: made.append((number, threading.get_ident())))
    calls.wait()
    assert sorted(number for number, _ in made) == list(range(200))
    assert threading.get_ident() not in {thread for _, thread in made}


def test_the_first_failure_is_raised_when_all_have_ended():
    calls, made = Calls(2), []

    def fail(number):
        raise ValueError(f"planted {number}")

    for number in range(20):
        calls.soon(lambda number=number: made.append(number) if number % 7 else fail(number))
    with pytest.raises(ValueError, match="planted"):
        calls.wait()
    assert len(made) == 17
    calls.wait()  # nothing is left of it
    calls.soon(lambda: made.append(-1))
    calls.wait()
    assert made[-1] == -1


def test_groups_do_not_hear_of_each_others_failures():
    failing, right, made = Calls(2), Calls(2), []
    for _ in range(10):
        failing.soon(lambda: 1 / 0)
        right.soon(lambda: made.append(1))
    right.wait()
    assert len(made) == 10
    with pytest.raises(ZeroDivisionError):
        failing.wait()


def test_abandoned_calls_are_not_made_and_those_under_way_end_before():
    calls, begun, may_end, made = Calls(1), threading.Event(), threading.Event(), []

    def first():
        begun.set()
        may_end.wait(10)
        made.append("first")

    # All threads there are, so that the calls behind these wait.
    waiting = [Calls(1) for _ in range(threading.active_count())]
    calls.soon(first)
    for group in waiting:
        group.soon(lambda: may_end.wait(10))
    for _ in range(50):
        calls.soon(lambda: made.append("later"))
    assert begun.wait(10)
    ending = threading.Thread(target=calls.abandon)
    ending.start()
    ending.join(0.05)
    assert ending.is_alive()
    may_end.set()
    ending.join(10)
    assert not ending.is_alive()
    assert made == ["first"]
    for group in waiting:
        group.wait()
    other = Calls(1)
    other.soon(lambda: made.append("other"))
    other.wait()
    assert made == ["first", "other"]


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_call_refers_to_is_freed_when_it_has_ended(fails):
    array, calls = np.zeros(3), Calls(1)
    there = weakref.ref(array)

    def use(array=array):
        if fails:
            raise ValueError(array)

    calls.soon(use)
    del array, use
    with suppress(ValueError):
        calls.wait()
    gc.collect()
    assert there() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_process_has_threads_of_its_own():
    Calls(2).wait()
    child = os.fork()
    if child == 0:
        made = []
        calls = Calls(2)
        calls.soon(lambda: made.append(1))
        calls.wait()
        os._exit(0 if made == [1] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_thread_that_could_not_be_started_is_not_counted(monkeypatch):
    monkeypatch.setattr(call_queue, "_threads", call_queue._Threads())
    made, started, start = [], [], threading.Thread.start

    def at_most_one(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="can't start"):
            Calls(4)
        patch.setattr(threading.Thread, "start", at_most_one)
        calls = Calls(4)  # of which one thread makes all
    calls.soon(lambda: made.append(1))
    waiting = threading.Thread(target=calls.wait, daemon=True)
    waiting.start()
    waiting.join(10)
    assert made == [1]
    assert not waiting.is_alive()


def test_calls_that_an_interrupted_wait_leaves_are_waited_for_when_they_are_abandoned(monkeypatch):
    calls, may_end, made = Calls(1), threading.Event(), []
    calls.soon(lambda: (may_end.wait(10), made.append(1)))
    with monkeypatch.context() as patch:
        patch.setattr(calls._changing, "wait", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            calls.wait()
    threading.Timer(0.1, may_end.set).start()
    calls.abandon()
    assert made == [1]
