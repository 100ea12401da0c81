# SPDX-License-Identifier: MIT
"""Folders for compiled code, which this user alone may write to: what lies there is loaded into this process."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Elsewhere(RuntimeWarning):
    """Compiled code is kept in another folder than usual."""


class NotPrivate(OSError):
    """A folder belongs to another user."""


def cache_folder(name: str) -> Path:
    """The folder `name` of the user's cache, private; OSError where there is none. XDG_CACHE_HOME says where the cache is.

    Where nothing can be kept there, it is in the folder for temporary files, and a warning says so.
    """
    import tempfile  # it and shutil load many modules, and most commands keep nothing

    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    try:
        return private_folder(Path(base) / "hybrid-runner", name)
    except OSError as error:
        folder = private_folder(Path(tempfile.gettempdir()) / f"hybrid-runner-{os.geteuid()}", name)
        why = f"{base} cannot be used ({error.strerror or error})"
        warnings.warn(
            f"compiled kernels are kept in {folder}: {why}; XDG_CACHE_HOME names a better place", Elsewhere, stacklevel=2
        )
        return folder


def private_folder(parent: Path, name: str) -> Path:
    """`parent`/`name`, made where it is missing. OSError where that fails, NotPrivate where one of them is another user's."""
    import tempfile

    parent.parent.mkdir(parents=True, exist_ok=True)
    for folder in (parent, parent / name):
        folder.mkdir(mode=0o700, exist_ok=True)
        make_private(folder)
    with tempfile.TemporaryFile(dir=parent / name):
        return parent / name  # files can be made there


def make_private(folder: Path) -> None:
    """Let nobody else in. Where others could write, what is not certainly this user's is removed.

    NotPrivate for a link to a folder, or one of another user.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise NotPrivate(0, f"{folder} is a link, or belongs to another user")
    if stat.S_IMODE(status.st_mode) != 0o700:
        folder.chmod(0o700)  # before its contents are looked at: nobody can add anything now
    if status.st_mode & _OTHERS_MAY_WRITE:
        for path in folder.iterdir():
            if not is_own(path):
                discard(path)


def is_own(path: Path) -> bool:
    """Whether a file, or a folder and all in it, is there, is this user's, and nobody else may write to it. No link is."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_MAY_WRITE:
        return False
    return stat.S_ISREG(status.st_mode) or (stat.S_ISDIR(status.st_mode) and all(map(is_own, path.iterdir())))


def discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
