# SPDX-License-Identifier: MIT
"""SECURITY.md: compiled code is loaded only from a folder and files that are yours and that nobody else can write to; anything
else by the name of a library is compiled anew. What was compiled is kept."""

import os
import sys

import pytest
from support.commands import own_lines, start, successful

LOOPS = [sys.executable, "-m", "hybrid.matmul", "9", "8", "7", "--device", "cpu", "--kernel", "loops"]

pytestmark = pytest.mark.needs("c compiler")


def run(folder, command=LOOPS, **options):
    return successful(start(command, XDG_CACHE_HOME=str(folder), limit=240, **options))


def libraries(folder):
    """Of the three loops alone, since others are compiled in the background."""
    return list(folder.rglob("loops-*.so"))


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


def test_what_is_compiled_is_private_and_kept_and_a_folder_that_others_can_write_to_is_not_used(tmp_path):
    """Private under any umask. Another folder is taken, and a line says so; the one that is open stays as it is."""
    run(tmp_path, ["bash", "-c", 'umask 0; exec "$@"', "bash", *LOOPS])
    (library,) = libraries(tmp_path)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (library, library.parent))
    before = library.stat()
    run(tmp_path)
    assert (library.stat().st_ino, library.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    library.parent.chmod(0o777)
    assert own_lines(run(tmp_path, TMPDIR=str(tmp_path)).stderr)
    assert (library.stat().st_mtime_ns, library.parent.stat().st_mode & 0o777) == (before.st_mtime_ns, 0o777)


@pytest.mark.parametrize(
    "plant",
    [
        open_to_others,
        pytest.param(a_link, marks=pytest.mark.exhaustive),
        pytest.param(another_users, marks=[pytest.mark.exhaustive, pytest.mark.needs("root")]),
    ],
)
def test_a_planted_library_is_not_loaded(tmp_path, plant):
    """It would not load: it is compiled anew, and private."""
    run(tmp_path)
    (library,) = libraries(tmp_path)
    plant(library)
    run(tmp_path)
    assert library.stat().st_mode & 0o077 == 0
    assert not library.is_symlink()
    assert b"planted" not in library.read_bytes()


@pytest.mark.needs("compiler")
@pytest.mark.exhaustive
def test_planted_objects_and_headers_of_the_emulated_gpu_are_not_used(tmp_path):
    """The runtime, its precompiled header, and kernels."""
    emulated = [*LOOPS[:6], "--device", "emulate", "--kernel", "naive"]
    run(tmp_path, emulated)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    for path in kept:
        open_to_others(path)
    run(tmp_path, [*emulated[:-1], "tiled"])
    run(tmp_path, emulated)
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept if b"planted" not in path.read_bytes())
    assert [path for path in kept if b"planted" not in path.read_bytes()]
