# SPDX-License-Identifier: MIT
"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

import pytest

from hybrid.errors import DoesNotFit, HybridError, UsageError
from hybrid.host import files
from hybrid.host.files import atomic_write, discard, publish, refuse_unwritable, temporary_name
from hybrid.host.process_space import process_space


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "there").mkdir()
    return tmp_path / "there"


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_has_its_name_only_when_it_is_whole(folder):
    target = folder / "result.npy"
    with atomic_write(str(target)) as beside:
        beside.write_text("half")
        assert not target.exists()
        assert beside.parent == folder
        beside.write_text("whole")
    assert target.read_text() == "whole"
    assert names(folder) == ["result.npy"]


def fail_half_way(target, error):
    with atomic_write(str(target)) as beside:
        beside.write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_nothing_behind(folder, error):
    with pytest.raises(error):
        fail_half_way(folder / "result", error)
    assert names(folder) == []


def test_a_failure_before_anything_was_written_is_the_one_that_is_raised(folder):
    with pytest.raises(ZeroDivisionError), atomic_write(str(folder / "result")):
        raise ZeroDivisionError
    assert names(folder) == []


def test_a_failure_keeps_the_file_that_was_there(folder):
    (folder / "result").write_text("old")
    with pytest.raises(ValueError, match="no"):
        fail_half_way(folder / "result", ValueError("no"))
    assert (folder / "result").read_text() == "old"
    with atomic_write(str(folder / "result")) as beside:
        beside.write_text("new")
        assert (folder / "result").read_text() == "old"
    assert (folder / "result").read_text() == "new"
    assert names(folder) == ["result"]


def test_a_failure_to_give_the_name_leaves_nothing_behind(folder):
    (folder / "result").mkdir()
    with (
        pytest.raises(HybridError, match=f"{folder}/result cannot be written: Is a directory"),
        atomic_write(str(folder / "result")) as beside,
    ):
        beside.write_text("whole")
    assert names(folder) == ["result"]


def test_names_beside_a_file_are_hidden_in_its_folder_and_differ(folder, monkeypatch):
    monkeypatch.chdir(folder)
    first, second = temporary_name("result.npy"), temporary_name("result.npy")
    assert first != second
    assert first.parent == second.parent == folder
    assert first.name.startswith(".result.npy.")


def test_a_file_is_on_the_disk_before_it_gets_its_name(folder, monkeypatch):
    happened = []
    real = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (happened.append("sync"), real[0](descriptor)))
    monkeypatch.setattr(os, "replace", lambda old, new: (happened.append("name"), real[1](old, new)))
    beside = temporary_name(str(folder / "result"))
    beside.write_text("whole")
    publish(beside, str(folder / "result"))
    assert happened == ["sync", "name"]
    assert names(folder) == ["result"]


def test_what_is_not_there_can_be_discarded(folder):
    discard(folder / "nothing")
    assert names(folder) == []


def test_places_where_no_file_can_be_made_are_refused_by_name(folder, monkeypatch):
    refuse_unwritable(str(folder / "new"))
    (folder / "old").touch()
    refuse_unwritable(str(folder / "old"))
    with pytest.raises(UsageError, match=f"{folder} is not a regular file"):
        refuse_unwritable(str(folder))
    with pytest.raises(UsageError, match=f"no folder {folder}/missing"):
        refuse_unwritable(str(folder / "missing" / "new"))
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        refuse_unwritable(str(folder / ("x" * 300) / "new"))
    longest = os.pathconf(folder, "PC_NAME_MAX")
    with pytest.raises(UsageError, match=r"its name may have \d+ bytes"):
        refuse_unwritable(str(folder / ("x" * longest)))  # which only turned out when C was computed
    name = str(folder / ("x" * (longest - files._LONGER)))
    refuse_unwritable(name)
    temporary_name(name).touch()
    discard(*folder.glob(".x*"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match=str(folder)):
        refuse_unwritable(str(folder / "new"))
    assert names(folder) == ["old"]


def test_a_folder_that_is_gone_is_named(folder, monkeypatch):
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(UsageError, match=r"^C\.npy cannot be found: the folder in which this was started is gone$"):
        refuse_unwritable("C.npy")


def test_a_file_that_does_not_fit_is_refused_with_what_is_missing(folder, monkeypatch):
    monkeypatch.setattr(files, "free_bytes_in", lambda folder: 1024)
    refuse_unwritable(str(folder / "new"), 1024)
    with pytest.raises(DoesNotFit, match=rf"new takes 3\.0 KiB, 1\.0 KiB are free in {folder}: 2\.0 KiB are missing"):
        refuse_unwritable(str(folder / "new"), 3072)
    monkeypatch.setattr(files, "free_bytes_in", lambda folder: 0)
    refuse_unwritable(str(folder / "new"), 0)
    with pytest.raises(DoesNotFit, match=f"there is no room for {folder}/new: 0 B are free in {folder}"):
        refuse_unwritable(str(folder / "new"))
    monkeypatch.setattr(files, "free_bytes_in", lambda folder: 1024)
    monkeypatch.setattr(files, "largest_file", lambda: 1000)
    with pytest.raises(DoesNotFit, match="new takes 1001 B, files may have 1000 B at most: ulimit -f unlimited"):
        refuse_unwritable(str(folder / "new"), 1001)


@pytest.mark.parametrize(("trouble", "said"), [
    (OSError(errno.ENOSPC, "No space left on device"), r"No space left on device: 7\.0 KiB are free in \S+/there"),
    (OSError(errno.EFBIG, "File too large"), r"files may have 1000 B at most \(ulimit -f\)"),
])  # fmt: skip
def test_what_the_system_refuses_is_said_of_the_file_that_was_meant(folder, monkeypatch, trouble, said):
    monkeypatch.setattr(files, "largest_file", lambda: 1000)
    monkeypatch.setattr(files, "free_bytes_in", lambda folder: 3072)
    monkeypatch.setattr(files, "allocated", lambda path: 4096)  # by the half that is written
    with pytest.raises(HybridError, match=f"{folder}/result cannot be written: {said}$"):
        fail_half_way(folder / "result", trouble)
    assert names(folder) == []


def test_a_plain_name_is_made_in_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    refuse_unwritable("new")
    with atomic_write("new") as beside:
        beside.write_text("whole")
    assert names(folder) == ["new"]


def test_a_folder_appears_whole_or_not_at_all(folder):
    target = folder / "result"
    with atomic_write(str(target)) as beside:
        (beside / "inner").mkdir(parents=True)
        (beside / "inner" / "part").write_text("whole")
        assert not target.exists()
    assert (target / "inner" / "part").read_text() == "whole"
    with pytest.raises(HybridError, match="result cannot be written: Directory not empty"), atomic_write(str(target)) as beside:
        shutil.copytree(target, beside)
    assert names(folder) == ["result"]
    assert (target / "inner" / "part").exists()


def test_a_folder_may_be_larger_than_files_may_be(folder, monkeypatch):
    monkeypatch.setattr(files, "largest_file", lambda: 1000)
    refuse_unwritable(str(folder), 2000, folder=True)
    with pytest.raises(DoesNotFit):
        refuse_unwritable(str(folder / "new"), 2000)


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_job_left_that_was_killed_is_removed_by_the_next_one_for_the_same_file(folder):
    left = folder / f".result.{process_space()}-{ended_process()}-00.part"
    running, of_another = temporary_name(str(folder / "result")), temporary_name(str(folder / "other"))
    elsewhere = folder / f".result.{'0' * 16}-{ended_process()}-00.part"  # of another machine, or of another container
    by_host = folder / f".result.{os.uname().nodename}-{ended_process()}-00.part"
    for path in (left, running, of_another, elsewhere, by_host):
        path.write_text("half")
    left_folder = folder / f".result.{process_space()}-{ended_process()}-01.part"
    (left_folder / "inner").mkdir(parents=True)
    temporary_name(str(folder / "result"))
    assert names(folder) == sorted(path.name for path in (running, of_another, elsewhere, by_host))


@pytest.mark.needs("namespaces")
def test_what_a_process_writes_that_cannot_be_seen_from_here_stays(folder):
    """In a PID namespace, as a container's, the numbers of this process and of others mean nothing."""
    with atomic_write(str(folder / "result")) as beside:
        beside.write_text("half")
        look = f"from hybrid.host.files import temporary_name; temporary_name({str(folder / 'result')!r})"
        subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", look], check=True)
        assert beside.exists()
