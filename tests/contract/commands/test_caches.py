# SPDX-License-Identifier: MIT
"""Where kernels are kept (docs/use.md, SECURITY.md): a folder that nobody else may write to, made so, never changed; else among
the temporary files, and a line says so. Nothing planted there is loaded. A checkout and a home may be read-only."""

import os
import shlex
import stat

import pytest
from support.commands import ROOT, own_lines, start, successful
from support.forked import quickly
from support.matmul import MATMUL, code_in, line_of_failure
from support.selection import exhaustive

pytestmark = pytest.mark.needs("c compiler")

LOOPS = (*MATMUL, "20", "20", "20", "--device", "cpu", "--kernel", "loops")  # which are compiled
COMPILER = """#!/bin/sh
[ "$1" = --version ] && exec echo "what stands for one"
for made; do :; done
exec cp "{library}" "$made"
"""
HERE = f"hybrid-runner-{os.geteuid()}"  # in TMPDIR


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def everything_below(folder):
    """Names, owners, permissions and contents."""
    return [
        (str(path), path.lstat().st_mode, path.lstat().st_uid, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    ]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """Copies what the real one has made once."""
    folder = tmp_path_factory.mktemp("compiler")
    successful(quickly(LOOPS, HYBRID_CACHE=str(folder / "cache")))
    (library,) = folder.rglob("loops-*.so")
    (folder / "cc").write_text(COMPILER.format(library=library))
    (folder / "cc").chmod(0o755)
    return str(folder / "cc")


@pytest.fixture
def places(tmp_path, compiler):
    for name in ("cache", "tmp", "home"):
        (tmp_path / name).mkdir()
    folders = {"XDG_CACHE_HOME": "cache", "TMPDIR": "tmp", "HOME": "home"}
    return {"CC": compiler, **{name: str(tmp_path / folder) for name, folder in folders.items()}}


def compiled(folder):
    return [path.name for path in folder.rglob("loops-*.so")] if folder.exists() else []


@pytest.mark.parametrize("umask", exhaustive([0o000], [0o000, 0o077]))
def test_a_new_folder_is_private_whatever_the_umask_and_used_again(tmp_path, places, umask):
    command = ["sh", "-c", f'umask {umask:o} && exec "$@"', "sh", *LOOPS]
    assert own_lines(start(command, **places).stderr) == []
    kept = tmp_path / "cache" / "hybrid-runner"
    assert mode(kept) == mode(kept / "emulation") == 0o700
    assert len(compiled(kept)) == 1
    before = [path.stat().st_mtime_ns for path in kept.rglob("loops-*.so")]
    assert quickly(LOOPS, **places).returncode == 0
    assert [path.stat().st_mtime_ns for path in kept.rglob("loops-*.so")] == before  # and is not made again


TROUBLES = [
    ("open", "chmod go-w"), ("inner open", "chmod go-w"), ("link", "link"), ("file", "directory"), ("foreign", "another user"),
    ("for all", "others may"),
]  # fmt: skip


@pytest.mark.parametrize(("trouble", "word"), exhaustive([TROUBLES[0], TROUBLES[2], TROUBLES[4]], TROUBLES))
def test_what_is_not_this_user_s_alone_is_not_used_and_not_changed(tmp_path, places, trouble, word):
    cache = tmp_path / "cache" / "hybrid-runner"
    if trouble == "link":
        (tmp_path / "elsewhere").mkdir()
        cache.symlink_to(tmp_path / "elsewhere")
    elif trouble == "file":
        cache.write_text("")
    else:
        (cache / "emulation").mkdir(parents=True)
        (cache / "emulation" / "thesis.tex").write_text("years of work")
        for folder in (cache, cache / "emulation"):
            folder.chmod(0o755)
        (cache / "emulation" if trouble == "inner open" else cache).chmod(
            {"foreign": 0o755, "for all": 0o1777}.get(trouble, 0o777)
        )
        if trouble == "foreign":
            if os.geteuid():
                pytest.skip("needs root")
            os.chown(cache, 12345, 12345)
    before = everything_below(tmp_path / "cache")
    done = quickly(LOOPS, **places)
    assert done.returncode == 0, done.stderr
    (line,) = own_lines(done.stderr)
    kept = tmp_path / "tmp" / HERE / "emulation"
    assert word in line.lower()
    assert str(kept) in line
    assert everything_below(tmp_path / "cache") == before
    assert mode(kept) == mode(kept.parent) == 0o700
    assert compiled(kept)


def test_a_folder_that_others_may_only_read_is_used_as_it_is(tmp_path, places):
    kept = tmp_path / "cache" / "hybrid-runner" / "emulation"
    kept.mkdir(parents=True)
    for folder in (kept, kept.parent):
        folder.chmod(0o755)
    assert own_lines(quickly(LOOPS, **places).stderr) == []
    assert (mode(kept), mode(kept.parent), len(compiled(kept))) == (0o755, 0o755, 1)


FOLDERS = [
    ({"HYBRID_CACHE": "{tmp}/mine"}, "mine"), ({"XDG_CACHE_HOME": "relative"}, "home/.cache/hybrid-runner"),
    ({"XDG_CACHE_HOME": ""}, "home/.cache/hybrid-runner"), ({"HYBRID_CACHE": "relative"}, f"tmp/{HERE}"),
]  # fmt: skip


@pytest.mark.parametrize(("environment", "where"), exhaustive([FOLDERS[1], FOLDERS[3]], FOLDERS))
def test_which_folder_it_is(tmp_path, places, environment, where):
    given = {name: text.format(tmp=tmp_path) for name, text in environment.items()}
    done = quickly(LOOPS, cwd=tmp_path, **{**places, **given})
    assert done.returncode == 0, done.stderr
    assert compiled(tmp_path / where / "emulation")
    assert not (tmp_path / "relative").exists()
    assert len(own_lines(done.stderr)) == (given.get("HYBRID_CACHE") == "relative")


def mounted(mounts, command, cwd, **environment):
    clean = [name for name in os.environ if name.startswith(("XDG_", "HYBRID_"))]
    words = f"unset {' '.join(['NOTHING', *clean])}; {mounts} && cd {cwd} && exec {shlex.join(map(str, command))}"
    return start(["unshare", "--mount", "sh", "-c", words], **environment)


@pytest.mark.needs("namespaces")
def test_a_checkout_and_a_home_that_are_read_only(tmp_path, places):
    del places["XDG_CACHE_HOME"]
    mounts = " && ".join(
        f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}" for folder in (ROOT, tmp_path / "home")
    )
    done = mounted(mounts, LOOPS, tmp_path / "tmp", PYTHONPATH=str(ROOT), **places)
    assert done.returncode == 0, done.stderr
    (line,) = own_lines(done.stderr)
    assert f"{tmp_path}/tmp/{HERE}/emulation" in line
    assert "HYBRID_CACHE" in line
    done = mounted(mounts, LOOPS, tmp_path / "tmp", PYTHONPATH=str(ROOT), **places, HYBRID_CACHE=str(tmp_path / "kept"))
    assert (done.returncode, own_lines(done.stderr)) == (0, [])
    assert compiled(tmp_path / "kept" / "emulation")


@pytest.mark.needs("namespaces")
def test_a_disk_without_room_for_kernels(tmp_path, places):
    full = f"mount -t tmpfs -o size=8k tmpfs {tmp_path}/cache"
    with_cache = f"{full} && export XDG_CACHE_HOME={tmp_path}/cache"
    done = mounted(with_cache, LOOPS, tmp_path, **places)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/tmp/{HERE}/emulation" in own_lines(done.stderr)[0]
    nowhere = f"{with_cache} && mount -t tmpfs -o size=8k tmpfs {tmp_path}/tmp"
    line = line_of_failure(mounted(nowhere, LOOPS, tmp_path, **places), 1)
    assert "HYBRID_CACHE" in line
    assert code_in(line) == "kernel-cache"


def open_to_others(path):
    path.chmod(0o777)


def a_link(path):
    path.unlink()
    (path.parent / "planted").write_text("planted")
    path.symlink_to("planted")


def another_users(path):
    path.write_text("planted")
    os.chown(path, 12345, -1)


def cut_short(path):
    os.truncate(path, path.stat().st_size // 2)  # loaded, it would end the process by SIGBUS


OF_ROOT = pytest.param(another_users, marks=[pytest.mark.exhaustive, pytest.mark.needs("root")])


@pytest.mark.parametrize("plant", [open_to_others, cut_short, pytest.param(a_link, marks=pytest.mark.exhaustive), OF_ROOT])
def test_a_library_that_is_not_as_it_was_made_is_not_loaded(tmp_path, places, plant):
    """It is compiled anew, and private."""
    assert quickly(LOOPS, **places).returncode == 0
    (library,) = (tmp_path / "cache").rglob("loops-*.so")
    plant(library)
    assert quickly(LOOPS, **places).returncode == 0
    assert (mode(library) & 0o077, library.is_symlink(), b"planted" in library.read_bytes()) == (0, False, False)
