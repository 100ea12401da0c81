# SPDX-License-Identifier: MIT
"""CuPy's cache of compiled kernels is read only where nobody else can have written to it, and left as it is."""

from __future__ import annotations

import os
import sys
import warnings

import pytest

from hybrid.core.private_folder import Elsewhere
from hybrid.devices.kernel_cache import trust_own_cache_only


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    trust_own_cache_only.cache_clear()
    yield tmp_path / "kernels"
    trust_own_cache_only.cache_clear()


@pytest.fixture
def own(tmp_path):
    return tmp_path / "cache" / "hybrid-runner" / "cupy"


def chosen():
    return os.environ["CUPY_CACHE_DIR"], os.environ["CUPY_CACHE_IN_MEMORY"]


def test_a_new_one_is_private(folder):
    trust_own_cache_only()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert chosen() == (str(folder), "0")


def test_one_that_others_can_only_read_is_used_as_it_is(folder):
    folder.mkdir(mode=0o755)
    (folder / ("0" * 40 + ".cubin")).write_text("")
    trust_own_cache_only()
    assert chosen() == (str(folder), "0")
    assert folder.stat().st_mode & 0o777 == 0o755


def test_in_one_that_others_could_write_to_nothing_is_changed_and_another_is_taken(folder, own):
    (folder / "thesis").mkdir(parents=True)
    for path in (folder / "thesis" / "chapter.tex", folder / "mine.cubin"):
        path.write_text("years of work")
        path.chmod(0o666)
    (folder / "link").symlink_to("thesis")
    folder.chmod(0o777)
    with pytest.warns(Elsewhere, match=rf"GPU kernels are kept in {own}: others may write to {folder} \(chmod go-w\); CUPY_CA"):
        trust_own_cache_only()
    assert chosen() == (str(own), "0")
    assert own.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.lstat().st_mode & 0o777 for path in folder.iterdir()} == {
        "thesis": (folder / "thesis").stat().st_mode & 0o777, "mine.cubin": 0o666, "link": 0o777
    }  # fmt: skip
    assert (folder / "thesis" / "chapter.tex").read_text() == "years of work"
    assert folder.stat().st_mode & 0o777 == 0o777


def test_one_with_a_kernel_that_others_could_have_made_is_not_read(folder, own):
    folder.mkdir(mode=0o700)
    (folder / "planted.cubin").write_text("")
    (folder / "planted.cubin").chmod(0o666)
    with pytest.warns(Elsewhere, match="planted.cubin is not your file alone"):
        trust_own_cache_only()
    assert chosen() == (str(own), "0")


def test_where_cupy_has_been_imported_kernels_are_kept_in_memory(folder, monkeypatch):
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setitem(sys.modules, "cupy", sys)
    with pytest.warns(Elsewhere, match=f"GPU kernels are compiled anew: others may write to {folder}"):
        trust_own_cache_only()
    assert os.environ["CUPY_CACHE_IN_MEMORY"] == "1"


@pytest.mark.parametrize(("named", "said"), [
    ("/dev/null", "/dev/null is no folder"),
    ("/dev/null/kernels", r"/dev/null/kernels cannot be used \(Not a directory\)"),
    ("kernels", "kernels depends on the current folder"),
])  # fmt: skip
def test_what_is_no_folder_is_named_and_another_is_taken(folder, own, named, said, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_DIR", named)
    with pytest.warns(Elsewhere, match=f"kept in {own}: {said}; CUPY_CACHE_DIR names a better place"):
        trust_own_cache_only()
    assert chosen() == (str(own), "0")


def test_without_a_name_it_is_cupys_own_in_the_home_folder(folder, tmp_path, monkeypatch):
    for name in ("", None):
        trust_own_cache_only.cache_clear()
        monkeypatch.setenv("CUPY_CACHE_DIR", "")
        if name is None:
            monkeypatch.delenv("CUPY_CACHE_DIR")
        monkeypatch.setenv("HOME", str(tmp_path))
        trust_own_cache_only()
        assert chosen() == (str(tmp_path / ".cupy" / "kernel_cache"), "0")


def test_where_the_user_keeps_none_no_folder_is_looked_at_or_made(folder, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    monkeypatch.setenv("CUPY_CACHE_DIR", "/dev/null")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trust_own_cache_only()
    assert chosen() == (os.sep, "1")  # CuPy looks whether it is there


@pytest.mark.needs("root")
def test_one_of_another_user_is_not_read(folder, own):
    folder.mkdir()
    os.chown(folder, 12345, -1)
    with pytest.warns(Elsewhere, match=f"{folder} belongs to another user; CUPY_CACHE_DIR names a better place"):
        trust_own_cache_only()
    assert chosen() == (str(own), "0")


def test_hybrid_cache_is_for_cupy_too_unless_its_own_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HYBRID_CACHE", str(tmp_path / "named"))
    trust_own_cache_only()
    assert chosen() == (str(folder), "0")
    monkeypatch.delenv("CUPY_CACHE_DIR")
    trust_own_cache_only.cache_clear()
    trust_own_cache_only()
    assert chosen() == (str(tmp_path / "named" / "cupy"), "0")
