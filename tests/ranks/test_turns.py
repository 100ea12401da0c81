# SPDX-License-Identifier: MIT
"""Which rank prints an error that several have: one of a node's."""

from __future__ import annotations

import os

import pytest

from hybrid.ranks import turns


@pytest.fixture
def as_rank(monkeypatch):
    """Makes this process one of two ranks that the same launcher has started, and each of them listens."""
    monkeypatch.setattr(turns, "_FIRST_TURN", 0.0)
    monkeypatch.setattr(turns, "_NEXT_TURN", 0.1)
    ears = {}

    def become(rank, job="a"):
        for name, value in {"PMI_RANK": str(rank), "PMI_SIZE": "2", "PMIX_NAMESPACE": f"{'long' * 40}{os.getpid()}{job}"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(turns, "_ear", ears.get((rank, job)))
        if turns._ear is None:
            turns.listen()
            assert turns._ear is not None
            ears[rank, job] = turns._ear

    become(0)
    become(1)
    yield become
    for ear in ears.values():
        ear.socket.close()


def test_the_first_rank_whose_turn_has_come_speaks_and_no_other(as_rank):
    as_rank(0)
    assert turns.wait_for_turn(0)
    as_rank(1)
    assert not turns.wait_for_turn(1)
    assert not turns.wait_for_turn(1)  # of a worker's supervisor as well


def test_a_rank_that_hears_nothing_speaks_in_its_turn(as_rank):
    as_rank(1)
    assert turns.wait_for_turn(1, after_causes=True)


def test_who_speaks_out_of_turn_is_heard(as_rank):
    as_rank(1)
    turns.speak()
    as_rank(0)
    assert not turns.wait_for_turn(0)


def test_other_jobs_of_the_same_daemon_are_not_heard(as_rank):
    as_rank(0, job="b")
    turns.speak()
    as_rank(1)
    assert turns.wait_for_turn(1)


def test_nobody_waits_long_where_the_launcher_is_about_to_kill_all(as_rank, monkeypatch):
    monkeypatch.setattr(turns, "_FIRST_TURN", 10**6)
    as_rank(1)
    monkeypatch.setattr(turns, "_SOON", 1e-9)
    assert turns.wait_for_turn(1, soon=lambda: True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_other_users_cannot_silence_a_rank(as_rank):
    as_rank(0)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            turns._ear.socket.sendto(b"!", f"{turns._ear.name}1")
        except OSError:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    as_rank(1)
    assert not turns._heard()
    as_rank(0)
    turns.speak()
    as_rank(1)
    assert turns._heard()


def test_where_the_launcher_names_no_job_its_process_does(as_rank, monkeypatch):
    as_rank(0)
    monkeypatch.delenv("PMIX_NAMESPACE")
    assert turns._job().startswith(f"{os.getppid()} ")
    assert turns._job() == turns._job()


def test_one_process_alone_listens_to_nobody(monkeypatch):
    monkeypatch.setattr(turns, "_ear", None)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    turns.listen()
    turns.speak()
    assert turns._ear is None
    assert turns.wait_for_turn(0)
