# SPDX-License-Identifier: MIT
"""Child processes that run kernels: what one may do that runs somebody's code."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from hybrid.emulation import confined, landlock
from hybrid.emulation.child import run_child

CHILD = "support.limited_child"


def found(**task):
    ended = run_child(CHILD, [task], "", 20, limited=True)
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


def test_a_limited_child_gets_little_memory_and_writes_no_large_file():
    told = found()
    assert (told["memory"], told["large"]) == ("MemoryError", "OSError")


@pytest.mark.needs("user namespaces")
def test_a_limited_child_has_a_network_of_its_own_in_which_nobody_else_is():
    told = found()
    assert told["network"] != os.readlink("/proc/self/ns/net")
    assert told["connected"] == "OSError"


@pytest.mark.needs("landlock")
def test_a_limited_child_uses_no_files_but_those_of_its_own_folder(tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("another student's")
    told = found(beside=str(other))
    assert told["own"] == 3
    assert [told[each] for each in ("read", "listed", "written", "removed")] == ["PermissionError"] * 4
    if landlock.version() >= 3:
        assert told["emptied"] == "PermissionError"
        assert other.read_text() == "another student's"
    assert [each.name for each in tmp_path.iterdir()] == ["other.txt"]
    assert told["by another program"]


@pytest.mark.needs("landlock")
def test_files_may_lie_beside_the_program_and_not_be_read(tmp_path, monkeypatch):
    """The current folder is where Python looks first, and where a class's files lie."""
    other = tmp_path / "other.py"
    other.write_text("another student's")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found(beside=str(other))["read"] == "PermissionError"


@pytest.mark.needs("landlock")
def test_folders_that_are_named_may_be_read(tmp_path, monkeypatch):
    (tmp_path / "library.txt").write_text("of a cluster's software")
    monkeypatch.setenv("HYBRID_LAB_READ", f"{tmp_path}{os.pathsep}/no/such/folder")
    told = found(beside=str(tmp_path / "library.txt"))
    assert (told["read"], told["written"]) == ("of a cluster's software", "PermissionError")


@pytest.mark.needs("landlock")
def test_a_limited_child_cannot_end_others(tmp_path):
    if landlock.version() < 6:
        pytest.skip("signals are kept within since Linux 6.12")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert found(ended=process.pid)["ended"] == "PermissionError"
        finally:
            process.kill()


def test_what_the_system_cannot_take_away_is_said(monkeypatch):
    monkeypatch.setattr(landlock, "version", lambda: 0)
    monkeypatch.setattr(confined.namespaces, "possible", lambda separated: False)
    files, network = confined.lacking()
    assert "read and write your files" in files
    assert "the network" in network
    assert found()["own"] == 3  # and it runs all the same


def test_a_child_that_does_not_end_is_told_from_one_that_failed():
    assert run_child(CHILD, [{"hang": True}], "", 1).status is None
    assert run_child("no_such_module", [], "", 20).status == 1
