# SPDX-License-Identifier: MIT
"""Only what this user has compiled is loaded: anything else by the name of a library is compiled anew."""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest

from hybrid.emulation import build as building
from hybrid.emulation import cache
from hybrid.emulation.build import build_plain, c_compiler, compiler
from hybrid.emulation.cache import cache_folder, cached
from hybrid.emulation.errors import EmulationError
from hybrid.errors import DeviceUnavailable

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


@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_want_the_same_at_once_get_what_the_first_makes(monkeypatch, folder, fails):
    """Also its error: after an interrupt none of them begins anew."""
    begun, waited_for, made = Event(), Event(), []

    class Watched(Future):
        def result(self, timeout=None):
            waited_for.set()
            return super().result(timeout)

    def make(where, log):
        made.append(where)
        begun.set()
        assert waited_for.wait(60)
        if fails:
            raise EmulationError("build", "interrupted")
        (where / "answer").write_text("42")
        return where / "answer"

    def ask():
        try:
            return cached("answer.txt", make)
        except EmulationError as error:
            return str(error)

    monkeypatch.setattr(cache, "Future", Watched)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ask)
        assert begun.wait(60)
        second = threads.submit(ask)
        answers = [first.result(60), second.result(60)]
    assert answers == 2 * ["interrupted" if fails else folder / "answer.txt"]
    assert len(made) == 1


@pytest.mark.needs("compiler")
def test_a_compiler_that_writes_nothing_is_told(folder):
    with pytest.raises(DeviceUnavailable, match=r"no answer\.so was written, and no error told, by the compiler"):
        cached("answer.so", lambda inside, log: inside / "answer.so")


@pytest.mark.needs("compiler")
def test_checks_with_the_same_flags_share_what_is_compiled(monkeypatch, tmp_path):
    """Counting loads and looking for races take the same machine code, linked to another runtime."""
    compiled = []
    compile_file = building.compile_file

    def watched(program, what, arguments, log, reads=None):
        if "-c" in arguments:
            compiled.append(what)
        return compile_file(program, what, arguments, log, reads)

    monkeypatch.setattr(building, "compile_file", watched)
    source = tmp_path / "shared.cu"
    source.write_text(f"// {os.urandom(8).hex()}\n__global__ void nothing() {{}}\n")
    libraries = {building.build(source, [], checks=checks) for checks in ("loads", "threads", "address", "loads")}
    assert len(libraries) == 3
    assert compiled.count("shared.cu") == 2


@pytest.mark.needs("compiler")
def test_libraries_with_another_runtime_have_another_name(monkeypatch, tmp_path):
    monkeypatch.setattr(building, "cached", lambda name, make: name)
    source = tmp_path / "linked.cu"
    source.write_text("")
    before = building.build(source, [])
    assert building.build(source, []) == before
    monkeypatch.setattr(building, "_RUNTIME", {"": ("-DCHANGED",)})
    assert building.build(source, []) != before


def a_kernel(folder):
    """A source that was never compiled before."""
    source = folder / "new.cu"
    source.write_text(f"// {os.urandom(8).hex()}\n__global__ void nothing() {{}}\n")
    return source


@pytest.mark.needs("compiler")
def test_the_precompiled_header_is_read_where_it_is_whole_and_nobody_else_could_have_put_it_there(folder, tmp_path):
    """Also by a compiler that may read few files. One folder for all of it, since the runtime is compiled for each."""
    if not cache.is_gcc(compiler()):
        pytest.skip("the compiler is not GCC")

    def compiles():
        return [building.build(a_kernel(tmp_path), [], reads=reads).is_file() for reads in (None, ())] == [True, True]

    assert compiles()
    (precompiled,) = folder.glob("cuda_on_cpu-*.h.gch")
    included = precompiled.with_suffix("")
    text, whole = included.read_text(), precompiled.read_bytes()
    included.write_text("#error the header itself was read\n")
    assert compiles()
    included.write_text(text)
    precompiled.write_bytes(b"damaged")
    assert compiles()  # from the header itself
    for planted in (included, precompiled):
        open_to_others(planted)
        assert compiles()
        assert planted.stat().st_mode & 0o077 == 0
    assert included.read_text() == text
    assert len(precompiled.read_bytes()) == pytest.approx(len(whole), rel=0.01)


@pytest.mark.needs("compiler")
def test_without_room_for_a_precompiled_header_kernels_compile(monkeypatch, tmp_path):
    if not cache.is_gcc(compiler()):
        pytest.skip("the compiler is not GCC")

    def without_room(name, make):
        if name.endswith(".gch"):
            raise DeviceUnavailable("planted")
        return cached(name, make)

    monkeypatch.setattr(building, "cached", without_room)
    assert building.build(a_kernel(tmp_path), []).is_file()


def test_folders_of_processes_that_ended_while_they_compiled_are_removed(folder):
    old, recent = (folder / f".building-{name}" for name in ("old", "recent"))
    for each in (old, recent):
        each.mkdir()
        (each / "library.so").touch()
    os.utime(old, (0, time.time() - 2 * cache._ABANDONED))

    def make(inside, log):
        (inside / "answer").write_text("42")
        return inside / "answer"

    cached("answer.txt", make)
    assert sorted(each.name for each in folder.iterdir()) == [".building-recent", "answer.txt"]
