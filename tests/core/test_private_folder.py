# SPDX-License-Identifier: MIT
"""Folders of compiled code: this user's alone, or not used."""

from __future__ import annotations

import os
import stat
import tempfile

import pytest

from hybrid.core import private_folder as folders


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / "cache" / "hybrid-runner"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_folder_is_private_whatever_the_umask(home, umask):
    before = os.umask(umask)
    try:
        folder = folders.cache_folder("emulation")
    finally:
        os.umask(before)
    assert folder == home / "emulation"
    assert mode(folder) == mode(home) == 0o700


def test_an_old_folder_becomes_private_and_keeps_what_is_the_users(home):
    (home / "emulation").mkdir(parents=True)
    (home / "emulation").chmod(0o755)
    (home / "emulation" / "kernel.so").write_text("mine")
    assert mode(folders.cache_folder("emulation")) == 0o700
    assert (home / "emulation" / "kernel.so").read_text() == "mine"


def test_where_others_could_write_only_what_is_certainly_the_users_stays(home):
    folder = home / "emulation"
    (folder / "runtime").mkdir(parents=True)
    for name in ("mine.so", "open.so", "runtime/open.o"):
        (folder / name).write_text("")
        (folder / name).chmod(0o700 if "mine" in name else 0o722)
    (folder / "link.so").symlink_to("mine.so")
    folder.chmod(0o775)
    assert folders.cache_folder("emulation") == folder
    assert [path.name for path in folder.iterdir()] == ["mine.so"]


@pytest.mark.parametrize("planted", ["link", "file", "another user's"])
def test_what_is_not_the_users_folder_is_not_used(home, tmp_path, planted, monkeypatch):
    (tmp_path / "other").mkdir()
    home.parent.mkdir()
    if planted == "link":
        home.symlink_to(tmp_path / "other")
    elif planted == "file":
        home.write_text("")
    else:
        home.mkdir()
        monkeypatch.setattr(folders.os, "geteuid", lambda: os.stat("/").st_uid + 12345)
        with pytest.raises(folders.NotPrivate, match="belongs to another user"):
            folders.private_folder(home, "emulation")
        return
    with pytest.warns(folders.Elsewhere, match=r"kept in \S+hybrid-runner-\d+/emulation: \S+/cache cannot be used"):
        folder = folders.cache_folder("emulation")
    assert folder == tmp_path / f"hybrid-runner-{os.geteuid()}" / "emulation"
    assert mode(folder) == mode(folder.parent) == 0o700
    assert not list((tmp_path / "other").iterdir())


def test_own_is_what_nobody_else_can_write_to(tmp_path):
    (tmp_path / "file").write_text("")
    assert folders.is_own(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    assert not folders.is_own(tmp_path / "link")
    assert not folders.is_own(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    assert not folders.is_own(tmp_path / "pipe")
    (tmp_path / "file").chmod(0o620)
    assert not folders.is_own(tmp_path / "file")


@pytest.mark.needs("root")
def test_a_file_of_another_user_is_not_own(tmp_path):
    (tmp_path / "file").write_text("")
    os.chown(tmp_path / "file", 12345, -1)
    assert not folders.is_own(tmp_path / "file")
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(folders.NotPrivate):
        folders.make_private(tmp_path)
