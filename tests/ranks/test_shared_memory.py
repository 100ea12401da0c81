# SPDX-License-Identifier: MIT
"""Matrices in memory that the ranks of a node share: all see the same, with or without a name for the file."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from unittest import mock

import numpy as np
import pytest

from hybrid.core.spans import Span
from hybrid.errors import DoesNotFit, RankFailed
from hybrid.host.process_space import process_space
from hybrid.ranks import shared_memory
from hybrid.ranks.shared_memory import make_shared_matrices
from hybrid.ranks.team import Team

ROWS, COLUMNS = 7, 5


@pytest.fixture
def team(comm):
    return Team(comm)


def assert_shared(team):
    array = make_shared_matrices(team, {"C": Span(0, ROWS)}, {"C": COLUMNS}, {"C": "float64"})["C"].array
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


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("with_name", [False, True])
def test_no_other_user_can_open_it_or_guess_its_name(tmp_path, umask, with_name):
    before = os.umask(umask)
    try:
        files = [shared_memory._File.make(tmp_path, named=with_name) for _ in range(2)]
    finally:
        os.umask(before)
    if None in files:
        pytest.skip("no files without a name here")
    for file in files:
        status = os.fstat(file.descriptor)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_nlink == with_name
    if with_name:
        first, second = (
            re.fullmatch(r"hybrid-[0-9a-f]{16}-\d+-([0-9a-f]{16})", os.path.basename(file.path))[1] for file in files
        )
        assert first != second
    for file in files:
        file.remove()
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_taken_is_not_opened(tmp_path, monkeypatch):
    (tmp_path / "other").write_text("precious")
    (tmp_path / f"hybrid-{process_space()}-{os.getpid()}-{'00' * 8}").symlink_to("other")
    monkeypatch.setattr(shared_memory.os, "urandom", bytes)
    with pytest.raises(FileExistsError):
        shared_memory._File.make(tmp_path, named=True)


@pytest.mark.mpi
def test_a_link_that_was_put_in_its_place_is_not_followed(monkeypatch, team):
    if team.size == 1:
        pytest.skip("one rank shares nothing")
    original = shared_memory._make_files

    def replaced(sizes, made, *, named):
        described = original(sizes, made, named=named)
        for file in made.values() if named else ():
            os.rename(file.path, f"{file.path}-moved")
            os.symlink(f"{file.path}-moved", file.path)
        return described

    monkeypatch.setattr(shared_memory._File, "make", _only_with_a_name(shared_memory._File.make))
    monkeypatch.setattr(shared_memory, "_make_files", replaced)
    with pytest.raises(RankFailed, match="Too many levels of symbolic links"):
        make_shared_matrices(team, {"C": Span(0, ROWS)}, {"C": COLUMNS}, {"C": "float64"})
    if team.leads_node:
        for path in shared_memory.shared_memory_folder().glob(f"hybrid-*-{os.getpid()}-*-moved"):
            path.unlink()


def _only_with_a_name(make):
    return lambda folder, *, named: make(folder, named=True) if named else None


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="only Linux can free the memory of a file that is mapped")
def test_memory_is_given_back_though_it_is_still_mapped():
    size, before = 5 * mmap.PAGESIZE, len(shared_memory._reserved)
    with open(shared_memory.shared_memory_folder() / f"hybrid-test-{os.getpid()}", "w+b") as file:
        os.unlink(file.name)
        os.truncate(file.fileno(), size)
        own = Span(mmap.PAGESIZE + 100, 3 * mmap.PAGESIZE - 100)
        mapped = shared_memory._map(file.fileno(), size, own, size)
        array = np.frombuffer(mapped, np.uint8)
        array[:] = 1
        threads = shared_memory.give_back()
        for thread in threads:
            thread.join(10)
        pages = array.reshape(5, -1).any(axis=1)
    np.testing.assert_array_equal(pages, [True, True, False, True, True], err_msg="of this rank's part, and nothing else")
    assert all(thread.daemon for thread in threads), "the process does not wait for them at its end"
    del array, mapped, threads, thread
    assert len(shared_memory._reserved) == before


def test_memory_that_cannot_be_given_back_is_left_to_the_end_of_the_process(monkeypatch):
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    monkeypatch.setitem(shared_memory._reserved, mapped, Span(0, mmap.PAGESIZE))
    monkeypatch.setattr(shared_memory.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
    shared_memory.give_back()
    monkeypatch.delattr(mmap, "MADV_REMOVE", raising=False)
    assert shared_memory.give_back() == []


@pytest.mark.mpi
@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="memory cannot be reserved here")
def test_the_ranks_of_a_node_reserve_all_of_every_matrix(monkeypatch, team):
    if team.size == 1:
        pytest.skip("one rank shares nothing")
    reserved, original = [], os.posix_fallocate

    def reserve(descriptor, start, size):
        reserved.append((os.fstat(descriptor).st_size, start, start + size))
        original(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    heights = {"A": 4000, "B": 5000, "C": 6000}
    make_shared_matrices(
        team, {key: Span(0, rows) for key, rows in heights.items()}, dict.fromkeys(heights, 3), dict.fromkeys(heights, "float64")
    )
    with team.phase("scatter") as telling:
        telling.mine = reserved
    parts = sorted(part for of_rank in telling.all for part in of_rank)
    for size in (24 * rows for rows in heights.values()):
        starts, ends = zip(*((start, end) for of, start, end in parts if of == size), strict=True)
        assert (starts[0], *ends) == (*starts, size)


@pytest.mark.mpi
@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="memory cannot be reserved here")
def test_too_little_memory_for_one_matrix_tells_what_all_need(monkeypatch, team):
    if team.size == 1:
        pytest.skip("one rank shares nothing")
    original = os.posix_fallocate

    def refuse(descriptor, start, size):
        if team.rank == team.size - 1 and os.fstat(descriptor).st_size == 2 << 20:
            raise OSError(errno.ENOSPC, "planted")
        original(descriptor, start, size)

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(DoesNotFit, match=r"matrices need 3.0 MiB of .*planted"):
            make_shared_matrices(
                team, {"A": Span(0, 1), "B": Span(0, 2)}, dict.fromkeys("AB", 1 << 17), dict.fromkeys("AB", "float64")
            )
    assert len(os.listdir("/proc/self/fd")) == before
