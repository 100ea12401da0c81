# SPDX-License-Identifier: MIT
"""Matrices in memory that the ranks of a node share: all see the same, with or without a name for the file."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.ranks import shared_memory
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team

ROWS, COLUMNS = 7, 5


@pytest.fixture
def team(comm):
    return Team(comm)


def assert_shared(team):
    array = make_shared_matrices(team, {"C": Span(0, ROWS)}, {"C": COLUMNS}, "float64")["C"].array
    with team.phase("scatter"):
        array[team.rank % ROWS] = team.rank
    with team.phase("scatter"):
        for rank in range(min(team.size, ROWS)):
            np.testing.assert_array_equal(array[rank], rank)


@pytest.fixture
def named(monkeypatch):
    """The names that this rank gave."""
    names, original = [], shared_memory._File.make

    def make(folder, *, named):
        file = original(folder, named=named)
        if named:
            names.append(file.path)
        return file

    monkeypatch.setattr(shared_memory._File, "make", make)
    return names


@pytest.mark.mpi
def test_no_file_has_a_name(team, named):
    assert_shared(team)
    assert not named


def cannot_be_made(monkeypatch, team):
    monkeypatch.delattr(os, "O_TMPFILE")


def cannot_be_opened(monkeypatch, team):
    original = os.open

    def refuse(path, *arguments):
        if team.rank == team.size - 1 and str(path).startswith("/proc/"):
            raise PermissionError(13, "planted")
        return original(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)


def is_another_process_s(monkeypatch, team):
    """As where the ranks have PID namespaces of their own."""
    original = os.open

    def another(path, *arguments):
        if team.rank == team.size - 1 and str(path).startswith("/proc/"):
            path = "/dev/null"
        return original(path, *arguments)

    monkeypatch.setattr(os, "open", another)


@pytest.mark.mpi
@pytest.mark.parametrize("why", [cannot_be_made, cannot_be_opened, is_another_process_s])
def test_else_it_has_one_until_all_have_opened_it(monkeypatch, team, named, why):
    if team.size == 1:
        pytest.skip("one rank shares nothing")
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        why(patch, team)
        assert_shared(team)
    assert len(named) == team.leads_node
    assert not any(map(os.path.exists, named))
    assert len(os.listdir("/proc/self/fd")) == before
