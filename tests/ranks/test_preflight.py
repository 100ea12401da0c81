# SPDX-License-Identifier: MIT
"""What MPI needs before it starts: little room in /dev/shm."""

from __future__ import annotations

import os

import pytest

from hybrid.errors import StartError
from hybrid.ranks import preflight
from hybrid.ranks.launcher import Launch

MiB = 1 << 20


@pytest.fixture
def start(monkeypatch, tmp_path):
    """What UCX_TLS is after the look at the system, for so many ranks of a node and so much room."""
    for name in ("PMI_FD", "UCX_TLS"):
        monkeypatch.setenv(name, "")  # so that it is as before at the end
        monkeypatch.delenv(name)
    monkeypatch.setattr(preflight, "SHARED", tmp_path)

    def look(ranks, free):
        monkeypatch.setenv("MPI_LOCALNRANKS", str(ranks))
        monkeypatch.setattr(preflight, "free_shared_bytes", lambda: free)
        preflight.refuse_too_little(Launch("mpirun", 0, ranks, ("PMI_RANK", "PMI_SIZE")))
        return os.environ.get("UCX_TLS")

    return look


@pytest.mark.parametrize(("ranks", "free"), [(2, 3), (2, 16), (2, 20), (4, 28), (4, 36)])
def test_with_little_room_ucx_does_without_files_there(start, ranks, free):
    assert start(ranks, free * MiB) == "^posix"


@pytest.mark.parametrize(("ranks", "free"), [(1, 3), (2, 64), (4, 64), (8, 1024), (2, None)])
def test_with_enough_room_ucx_chooses(start, ranks, free):
    assert start(ranks, free and free * MiB) is None


def test_what_the_user_has_chosen_stays(start, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    assert start(2, 18 * MiB) == "tcp"


def test_less_than_mpi_needs_is_refused(start):
    with pytest.raises(StartError, match=r"MiB of .* for 2 ranks .*, 1\.0 MiB are free: 1\.0 MiB are missing"):
        start(2, MiB)
