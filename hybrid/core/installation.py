# SPDX-License-Identifier: MIT
"""How this package is installed, and its cache folders for compiled code.

This process loads code from these folders, so only this user may write to them. A missing folder is made with such permissions.
An existing one is used if nobody else may write to it, refused otherwise, and never changed.
"""

from __future__ import annotations

import errno
import os
import stat
import warnings
from functools import cache
from pathlib import Path
from zlib import crc32

DISTRIBUTION = "hybrid-runner"
PACKAGE = Path(__file__).resolve().parents[1]
_IN_STEP = ("execution", "planning", "ranks", "transport")  # packages whose code must be the same on all ranks


def install(extra: str) -> str:
    """The command that installs an extra of setup.cfg: from the checkout, or without one the packages that the extra names."""
    import shlex
    from importlib.metadata import PackageNotFoundError, requires

    checkout = PACKAGE.parent
    if (checkout / "setup.cfg").exists() and (checkout / "kernels").is_dir():
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    try:
        wanted = [line.partition(";") for line in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:  # copied, not installed
        wanted = []
    ends = f'extra == "{extra}"'  # perhaps after a condition on Python's version
    packages = [name.strip() for name, _, condition in wanted if condition.replace("'", '"').strip().endswith(ends)]
    return f"pip install {shlex.join(packages)}" if packages else f"pip install what the extra {extra} of setup.cfg names"


@cache
def fingerprint() -> int:
    """A checksum of the names and sizes of the files with code that must be the same on all ranks."""
    files = [(each.name, each.stat().st_size) for room in _IN_STEP for each in os.scandir(PACKAGE / room) if each.is_file()]
    return crc32(repr(sorted(files)).encode())


class Remark(RuntimeWarning):
    """A warning for the user, which commands print as one line, on rank 0 only."""


class NotPrivate(OSError):
    """A folder that others may write to, or that belongs to another user."""


def cache_folder(name: str) -> Path:
    """The private folder `name` in the user's cache: in HYBRID_CACHE, XDG_CACHE_HOME, or ~/.cache.

    If that folder cannot be used, a temporary one, with a warning. OSError if that fails, too.
    """
    try:
        usual = os.environ.get("XDG_CACHE_HOME", "")  # by its specification a relative path is ignored
        parent = named_cache() or (Path(usual) if os.path.isabs(usual) else home_folder() / ".cache") / "hybrid-runner"
        return _private_folder(parent, name)
    except OSError as error:
        folder = temporary_folder(name)
        say_elsewhere(folder, error)
        return folder


def named_cache() -> Path | None:
    """The folder that HYBRID_CACHE names; None if unset. NotPrivate for a relative path."""
    named = os.environ.get("HYBRID_CACHE", "")
    if named and not os.path.isabs(named):
        raise NotPrivate(0, f"HYBRID_CACHE={named} is no absolute path")
    return Path(named) if named else None


def home_folder() -> Path:
    """The user's home folder: HOME, or if unset that of the password database. FileNotFoundError without one."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder (HOME)")
    return Path(home)


def temporary_folder(name: str) -> Path:
    """The private folder `name` among the temporary files. OSError if it cannot be made."""
    import tempfile  # loads many modules, and most commands need none

    return _private_folder(Path(tempfile.gettempdir()) / f"hybrid-runner-{os.geteuid()}", name)


def say_elsewhere(folder: Path, why: OSError) -> None:
    """Warn that compiled kernels are not kept in the usual folder but in this one, and why."""
    text = f"compiled kernels are kept in {folder}: {reason(why)}; HYBRID_CACHE names a better place"
    warnings.warn(text, Remark, stacklevel=3)


def _private_folder(parent: Path, name: str) -> Path:
    """`parent`/`name`, made if missing. OSError if that fails, NotPrivate if others may write to one of the two."""
    import tempfile

    folder = parent / name
    try:
        parent.parent.mkdir(parents=True, exist_ok=True)
        for private in (parent, folder):
            private.mkdir(mode=0o700, exist_ok=True)
            refuse_unless_private(private)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None
    try:
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def refuse_unless_private(folder: Path) -> None:
    """NotPrivate unless this is a folder (and no link) that belongs to this user and that nobody else may write to."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivate(0, f"{folder} is {'a link' if stat.S_ISLNK(status.st_mode) else 'no folder'}")
    if status.st_uid != os.geteuid():
        raise NotPrivate(0, f"{folder} belongs to another user")
    if _others_may_write(status):
        is_for_all = status.st_mode & stat.S_ISVTX  # as /tmp, whose permissions should stay
        raise NotPrivate(0, f"others may write to {folder}{'' if is_for_all else ' (chmod go-w)'}")


def is_own(file: Path | int) -> bool:
    """Whether this path or open file is a regular file (and no link), belongs to this user, and nobody else may write to it."""
    try:
        status = os.fstat(file) if isinstance(file, int) else file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not _others_may_write(status)


def _others_may_write(status: os.stat_result) -> bool:
    """Whether another user may write to the file.

    A group whose only member is this user does not count: many systems give each user such a group, and the umask 002.
    """
    if not status.st_mode & stat.S_IWGRP or status.st_mode & stat.S_IWOTH:
        return bool(status.st_mode & stat.S_IWOTH)
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    return (user.pw_gid, user.pw_name) != (group.gr_gid, group.gr_name) or not {user.pw_name}.issuperset(group.gr_mem)


def reason(error: OSError) -> str:
    """Why a folder cannot be used, with the folder's name."""
    text = error.strerror or str(error)
    return f"{error.filename} cannot be used ({text})" if error.filename else text
