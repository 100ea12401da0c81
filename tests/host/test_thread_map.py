# SPDX-License-Identifier: MIT
"""Threads that are kept from call to call."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.commands import ROOT

from hybrid.host import thread_map
from hybrid.host.thread_map import on_threads


@pytest.mark.parametrize("threads", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("parts", [0, 1, 2, 100])
def test_the_results_come_in_order(threads, parts):
    assert list(on_threads(threads, lambda part: part**2, range(parts))) == [part**2 for part in range(parts)]


def test_as_many_threads_as_asked_for_work_at_once():
    meeting = threading.Barrier(4)
    assert sorted(on_threads(4, lambda part: meeting.wait(60), range(4))) == [0, 1, 2, 3]


def test_the_threads_are_kept_from_call_to_call():
    used, meeting = set(), threading.Barrier(4)
    for _ in range(50):
        met = on_threads(4, lambda part: (meeting.wait(60), threading.current_thread()), range(4))
        used.update(thread for _, thread in met)
    assert 4 <= len(used) <= 17  # this thread and those of the pool


@pytest.mark.parametrize("others", [0, 1])
def test_where_no_more_threads_can_be_started_those_that_there_are_do_all(monkeypatch, others):
    pool, start, started = ThreadPoolExecutor(16), threading.Thread.start, []

    def start_few(thread):
        if len(started) == others:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(thread_map, "_pool", pool)
    monkeypatch.setattr(threading.Thread, "start", start_few)
    assert list(on_threads(4, lambda part: part**2, range(100))) == [part**2 for part in range(100)]
    assert len(started) == others


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("failing", [0, 7, 29])
def test_an_exception_in_one_part_is_raised_and_ends_the_others(threads, failing):
    begun = []

    def work(part):
        begun.append(part)
        if part == failing:
            raise ValueError(f"part {part}")
        time.sleep(0.001)  # so that this ends long before all parts were done

    with pytest.raises(ValueError, match=f"part {failing}"):
        list(on_threads(threads, work, range(100_000)))
    assert len(begun) < 100_000
    assert list(on_threads(threads, abs, range(5))) == [0, 1, 2, 3, 4]  # the threads are as good as new


@pytest.mark.parametrize("threads", [1, 3])
def test_who_abandons_the_results_waits_for_the_parts_begun_and_no_others_begin(threads):
    begun, ended = [], []

    def work(part):
        begun.append(part)
        time.sleep(0.001)
        ended.append(part)
        return part

    results = on_threads(threads, work, range(100_000))
    assert next(results) == 0
    results.close()
    assert len(begun) == len(ended) < 100_000
    after = len(begun)
    list(on_threads(threads, abs, range(10)))
    assert len(begun) == after


def test_parts_may_use_threads_themselves():
    def outer(part):
        return sum(on_threads(16, lambda inner: part * inner, range(20)))

    assert list(on_threads(16, outer, range(60))) == [190 * part for part in range(60)]


FORKS = """
import os, signal, sys, threading
from hybrid.host.thread_map import on_threads

def right():
    meeting = threading.Barrier(16)  # the pool's threads are needed: this one alone does not pass
    return sorted(on_threads(16, lambda part: meeting.wait(20), range(16))) == list(range(16))

assert right()
child = os.fork()
if child == 0:
    signal.alarm(30)  # kills it if it waits for ever
    sys.exit(0 if right() else 9)  # ends by way of all exit handlers
(_, inner) = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(inner) == 0, inner
assert right()
print("right")
"""


def test_a_forked_child_has_threads_of_its_own_and_both_processes_end():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


def test_what_a_failed_call_used_is_freed_without_the_garbage_collector():
    array = np.zeros(3)
    there = weakref.ref(array)

    def fail(part, array=array):
        raise ValueError("planted")

    with contextlib.suppress(ValueError):
        list(on_threads(2, fail, [1, 2]))
    del array, fail
    until = time.monotonic() + 10  # a thread of the pool lets go of its work a moment after it has ended
    while there() is not None and time.monotonic() < until:
        time.sleep(1e-3)
    assert there() is None
