# SPDX-License-Identifier: MIT
"""Only what this user has compiled is loaded: anything else by the name of a library is compiled anew."""

from __future__ import annotations

import ctypes
import os

import pytest

from hybrid.emulation import build as building
from hybrid.emulation.build import build_plain, c_compiler, cache_folder, compiler

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cache_folder()


def open_to_others(path):
    path.write_text("planted")
    path.chmod(0o777)


def a_link(path):
    path.unlink()
    (path.parent / "planted").write_text("planted")
    path.symlink_to("planted")


def another_users(path):
    path.write_text("planted")
    os.chown(path, 12345, -1)


@pytest.mark.needs("c compiler")
@pytest.mark.parametrize("plant", [open_to_others, a_link, pytest.param(another_users, marks=pytest.mark.needs("root"))])
def test_a_planted_library_is_not_loaded(folder, tmp_path, plant):
    source = tmp_path / "answer.c"
    source.write_text(SOURCE)
    library = build_plain(c_compiler(), source, [])
    assert library.parent == folder
    before = library.stat().st_ino
    assert build_plain(c_compiler(), source, []).stat().st_ino == before  # from the cache
    plant(library)
    assert build_plain(c_compiler(), source, []) == library
    assert ctypes.CDLL(str(library)).answer() == 42
    assert library.stat().st_mode & 0o077 == 0


@pytest.mark.exhaustive
@pytest.mark.needs("compiler")
def test_planted_objects_are_not_linked(folder):
    (first, *_) = building._runtime(compiler(), "")
    open_to_others(first)
    (again, *_) = building._runtime(compiler(), "")
    assert again == first
    assert b"planted" not in again.read_bytes()
    assert again.stat().st_mode & 0o077 == 0


@pytest.mark.needs("c compiler")
def test_a_library_is_private_under_any_umask(folder, tmp_path):
    (tmp_path / "answer.c").write_text(SOURCE)
    before = os.umask(0)
    try:
        library = build_plain(c_compiler(), tmp_path / "answer.c", [])
    finally:
        os.umask(before)
    assert library.stat().st_mode & 0o777 == 0o700
