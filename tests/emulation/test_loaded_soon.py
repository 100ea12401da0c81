# SPDX-License-Identifier: MIT
"""Libraries that are compiled in the background, and only make things faster."""

from __future__ import annotations

import threading

import pytest

from hybrid.emulation.loaded_soon import LoadedSoon, wait_until_loaded
from hybrid.errors import DeviceUnavailable


def ended():
    for thread in threading.enumerate():
        if thread.name == "hybrid-compile":
            thread.join(10)


def test_what_was_loaded_is_there_when_the_thread_has_ended():
    soon = LoadedSoon(lambda: "library")
    ended()
    assert soon.loaded == "library"


@pytest.mark.parametrize("error", [DeviceUnavailable("no compiler"), OSError("no room")])
def test_where_it_cannot_be_loaded_there_is_none(error):
    def fail():
        raise error

    soon = LoadedSoon(fail)
    ended()
    assert soon.loaded is None


def test_where_no_thread_can_be_started_there_is_none(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert LoadedSoon(lambda: "library").loaded is None


def test_it_can_be_waited_for_but_no_longer_than_so_many_seconds():
    may_end = threading.Event()
    soon = LoadedSoon(lambda: (may_end.wait(10), "library")[1])
    wait_until_loaded(0.05)
    assert soon.loaded is None
    other = LoadedSoon(lambda: (may_end.wait(10), "other")[1])
    threading.Timer(0.05, may_end.set).start()
    wait_until_loaded(10)
    assert other.loaded == "other"
    ended()
