# SPDX-License-Identifier: MIT
"""A journal: what is on the disk is read again, what is torn is not, and one process writes it at a time."""

from __future__ import annotations

import json
import os

import pytest

from hybrid.errors import UsageError
from hybrid.host.journal import Journal, Locked, read_journal

MARK = {"journal": "a test's", "schema": 1}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "C.npy.journal")


@pytest.fixture
def written(path):
    """A journal of three lines, closed; its bytes."""
    journal = Journal(path, MARK)
    journal.begin({"rows": 3})
    journal.append({"part": [0, 3], "name": "C ü"})
    journal.append({"part": [3, 6]})
    journal.close()
    with open(path, "rb") as file:
        return file.read()


def test_what_was_appended_is_read_again(path, written):
    lines = [{**MARK, "rows": 3}, {"part": [0, 3], "name": "C ü"}, {"part": [3, 6]}]
    assert read_journal(path, MARK) == lines
    journal = Journal(path, MARK)
    assert journal.lines == lines
    journal.append({"part": [6, 9]})
    journal.close()
    assert read_journal(path, MARK) == [*lines, {"part": [6, 9]}]


def test_names_that_are_no_utf_8_are_read_again(path):
    journal = Journal(path, MARK)
    journal.begin({"A": os.fsdecode(b"A\xff\xfe.npy")})
    journal.close()
    assert read_journal(path, MARK) == Journal(path, MARK).lines == [{**MARK, "A": os.fsdecode(b"A\xff\xfe.npy")}]


def test_a_journal_that_is_not_there_says_nothing(path):
    assert read_journal(path, MARK) == []


def test_cut_at_any_byte_it_has_the_lines_before_and_goes_on_behind_them(path, written):
    whole = [json.loads(line) for line in written.splitlines()]
    for length in range(len(written) + 1):
        with open(path, "wb") as file:
            file.write(written[:length])
        complete = written[:length].count(b"\n")
        assert read_journal(path, MARK) == whole[:complete]
        journal = Journal(path, MARK)
        journal.append({"n": length}) if complete else journal.begin({"n": length})
        journal.close()
        *before, last = read_journal(path, MARK)
        assert before == whole[:complete]
        assert last["n"] == length


@pytest.mark.parametrize("garbage", [b"\0\0\0\n", b"[1]\n", b"7\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n"])
def test_behind_a_line_that_is_no_record_nothing_is_believed(path, written, garbage):
    first, second, third = written.splitlines(keepends=True)
    with open(path, "wb") as file:
        file.write(first + garbage + second + third)
    assert len(read_journal(path, MARK)) == 1
    journal = Journal(path, MARK)
    journal.append({"part": [0, 3]})
    journal.close()
    assert read_journal(path, MARK)[1:] == [{"part": [0, 3]}]


@pytest.mark.parametrize(
    "text", ["a diary\n", '{"journal": "another\'s", "schema": 1}\n', '{"journal": "a test\'s", "schema": 2}\n', "x"]
)
def test_another_file_of_that_name_is_refused_and_left_as_it_is(path, text):
    with open(path, "w") as file:
        file.write(text)
    for opened in (read_journal, Journal):
        with pytest.raises(UsageError, match=r"C\.npy\.journal is there, and is no journal of this version"):
            opened(path, MARK)
    with open(path) as file:
        assert file.read() == text


def test_one_process_writes_at_a_time_and_who_ends_gives_it_back(path):
    journal = Journal(path, MARK)
    with pytest.raises(Locked, match="another job writes it"):
        Journal(path, MARK)
    journal.begin({})
    journal.remove()
    again = Journal(path, MARK)  # which is another file of that name
    assert again.lines == []
    again.close()


def test_a_journal_that_is_removed_while_another_process_opens_it_is_made_anew(path, monkeypatch):
    import fcntl
    import os

    first = Journal(path, MARK)
    real, calls = fcntl.flock, []

    def removed_meanwhile(descriptor, operation):
        if not calls:
            calls.append(descriptor)
            first.begin({})
            first.remove()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    second = Journal(path, MARK)
    second.begin({"rows": 1})
    assert os.path.exists(path)
    assert read_journal(path, MARK) == second.lines
    second.close()


def test_a_file_system_without_locks_is_written_all_the_same(path, monkeypatch):
    import errno
    import fcntl

    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    Journal(path, MARK).close()
