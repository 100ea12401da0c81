# SPDX-License-Identifier: MIT
"""What a process waits for before its exit makes the launcher end the job."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from hybrid.ranks import job_end


@pytest.fixture
def standard_error():
    """Lets an end of a pipe or of a socket be standard error."""
    before = os.dup(2)
    yield lambda end: os.dup2(end, 2)
    os.dup2(before, 2)
    os.close(before)


def ends(kind):
    if kind == "pipe":
        return os.pipe()
    reading, writing = socket.socketpair()
    return reading.detach(), writing.detach()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_line_that_nobody_has_read_is_waited_for(standard_error, monkeypatch, kind):
    monkeypatch.setattr(job_end, "_DRAIN", 0.01)
    monkeypatch.setattr(job_end, "_READ", 60.0)
    reading, writing = ends(kind)
    standard_error(writing)
    os.write(2, b"a line\n")
    assert job_end._is_unread(2)
    waits = threading.Thread(target=job_end.let_launcher_read)
    waits.start()
    waits.join(0.2)
    still = waits.is_alive()
    line = os.read(reading, 100)
    waits.join(30)
    for end in (reading, writing):
        os.close(end)
    assert still
    assert line == b"a line\n"
    assert not waits.is_alive()


def test_a_launcher_that_does_not_read_is_not_waited_for_long(standard_error, monkeypatch):
    monkeypatch.setattr(job_end, "_DRAIN", 0.01)
    monkeypatch.setattr(job_end, "_READ", 0.05)
    reading, writing = os.pipe()
    standard_error(writing)
    os.write(2, b"a line\n")
    job_end.let_launcher_read()
    os.close(reading)
    os.close(writing)


def test_of_a_file_nothing_is_unread(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        log.write(b"a line\n")
        log.flush()
        assert not job_end._is_unread(log.fileno())
    assert not job_end._is_unread(10**6)  # closed
