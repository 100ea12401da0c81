# SPDX-License-Identifier: MIT
"""Folders of compiled code: this user's alone, or not used."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from types import SimpleNamespace

import pytest

from hybrid.core import private_folder as folders


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv("HYBRID_CACHE", raising=False)
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


def everything_below(folder):
    """Names, permissions and contents."""
    paths = sorted(folder.rglob("*"))
    return [(str(path), path.lstat().st_mode, path.read_text() if path.is_file() else "") for path in paths]


def test_nobody_is_told_to_close_a_folder_that_is_for_all(tmp_path):
    tmp_path.chmod(0o1777)
    with pytest.raises(folders.NotPrivate) as found:
        folders.refuse_unless_private(tmp_path)
    assert found.value.strerror == f"others may write to {tmp_path}"


def test_a_folder_that_others_may_only_read_is_used_as_it_is(home):
    (home / "emulation").mkdir(parents=True)
    for folder in (home, home / "emulation"):
        folder.chmod(0o755)
    (home / "emulation" / "kernel.so").write_text("mine")
    before = everything_below(home)
    assert folders.cache_folder("emulation") == home / "emulation"
    assert everything_below(home) == before


@pytest.mark.parametrize("open_one", ["hybrid-runner", "hybrid-runner/emulation"])
def test_in_a_folder_that_others_may_write_to_nothing_is_changed_and_another_is_used(home, tmp_path, open_one):
    thesis = home / "emulation" / "thesis"
    thesis.mkdir(parents=True)
    (thesis / "chapter.tex").write_text("years of work")
    (thesis / "chapter.tex").chmod(0o664)
    (home / "emulation" / "shared.csv").write_text("1,2")
    (home / "emulation" / "shared.csv").chmod(0o666)
    (home / "emulation" / "link").symlink_to("thesis")
    home.chmod(0o755)
    (home / "emulation").chmod(0o755)
    opened = home.parent / open_one
    opened.chmod(0o777)
    before = everything_below(home.parent)
    with pytest.warns(folders.Elsewhere, match=rf"kept in \S+/emulation: others may write to {opened} \(chmod go-w\)"):
        folder = folders.cache_folder("emulation")
    assert folder == tmp_path / f"hybrid-runner-{os.geteuid()}" / "emulation"
    assert everything_below(home.parent) == before


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
    said = {"link": f"{home} is a link", "file": rf"{home} cannot be used \(Not a directory\)"}[planted]
    with pytest.warns(folders.Elsewhere, match=rf"kept in \S+hybrid-runner-\d+/emulation: {said}; HYBRID_CACHE"):
        folder = folders.cache_folder("emulation")
    assert folder == tmp_path / f"hybrid-runner-{os.geteuid()}" / "emulation"
    assert mode(folder) == mode(folder.parent) == 0o700
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize("given", ["", "relative", "./here"])
def test_a_cache_that_is_no_absolute_path_is_ignored(tmp_path, given, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folders.cache_folder("emulation") == tmp_path / "home" / ".cache" / "hybrid-runner" / "emulation"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("home_variable", [None, "", "relative"])
@pytest.mark.parametrize("listed", [True, False])
def test_without_home_the_list_of_users_is_asked(tmp_path, home_variable, listed, monkeypatch):
    class Entry:
        pw_dir = str(tmp_path / "listed")

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    if home_variable is not None:
        monkeypatch.setenv("HOME", home_variable)
    monkeypatch.setattr(pwd, "getpwuid", lambda user: {os.geteuid(): Entry}[user if listed else -1])
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    if listed:
        assert folders.cache_folder("emulation").is_relative_to(tmp_path / "listed")
    else:
        with pytest.warns(folders.Elsewhere, match=r"kept in \S+/emulation: this user has no home folder \(HOME\); HYBRID"):
            assert folders.cache_folder("emulation").parent == tmp_path / f"hybrid-runner-{os.geteuid()}"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_that_is_no_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.warns(folders.Elsewhere, match=r"kept in \S+: /dev/null cannot be used \(Not a directory\); HYBRID_CACHE"):
        folders.cache_folder("emulation")


def test_own_is_what_nobody_else_can_write_to(tmp_path):
    (tmp_path / "file").write_text("")
    assert folders.is_own(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    assert not folders.is_own(tmp_path / "link")
    assert not folders.is_own(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    assert not folders.is_own(tmp_path / "pipe")
    (tmp_path / "file").chmod(0o622)
    assert not folders.is_own(tmp_path / "file")


@pytest.mark.needs("root")
def test_a_file_of_another_user_is_not_own(tmp_path):
    (tmp_path / "file").write_text("")
    os.chown(tmp_path / "file", 12345, -1)
    assert not folders.is_own(tmp_path / "file")
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(folders.NotPrivate, match="belongs to another user"):
        folders.refuse_unless_private(tmp_path)


@pytest.mark.parametrize(
    ("name", "members", "private"), [("me", [], True), ("me", ["me"], True), ("me", ["me", "eve"], False), ("staff", [], False)]
)
def test_a_group_of_one_s_own_may_write(monkeypatch, tmp_path, name, members, private):
    """As many systems give each user, with the umask 002."""
    monkeypatch.setattr("pwd.getpwuid", lambda number: SimpleNamespace(pw_name="me", pw_gid=os.getegid()))
    monkeypatch.setattr("grp.getgrgid", lambda number: SimpleNamespace(gr_name=name, gr_gid=number, gr_mem=members))
    tmp_path.chmod(0o775)
    if private:
        folders.refuse_unless_private(tmp_path)
    else:
        with pytest.raises(folders.NotPrivate, match="others may write"):
            folders.refuse_unless_private(tmp_path)


def test_the_folder_that_is_named_is_taken_itself(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "deep" / "named"))
    assert folders.cache_folder("emulation") == tmp_path / "deep" / "named" / "emulation"
    assert mode(tmp_path / "deep" / "named") == 0o700
    assert not home.exists()
    monkeypatch.setenv("HYBRID_CACHE", "")
    assert folders.cache_folder("emulation") == home / "emulation"


@pytest.mark.parametrize(("named", "why"), [
    ("cache", "HYBRID_CACHE=cache is no absolute path"), ("/dev/null", r"/dev/null cannot be used \(Not a directory\)"),
])  # fmt: skip
def test_where_the_named_folder_cannot_be_one_temporary_files_have_it_and_a_line_says_so(home, monkeypatch, named, why):
    monkeypatch.setenv("HYBRID_CACHE", named)
    with pytest.warns(folders.Elsewhere, match=f"kept in .*: {why}; HYBRID_CACHE names a better place"):
        folder = folders.cache_folder("emulation")
    assert folder.parent.name == f"hybrid-runner-{os.geteuid()}"
