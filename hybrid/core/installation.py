# SPDX-License-Identifier: MIT
"""How this package is installed, and the folders where it keeps compiled code.

What lies in these folders is loaded into this process, so only this user may write to them. A missing folder is made with such
permissions. One that exists may be somebody's own: it is used if nobody else may write to it, and refused otherwise, but never
changed.
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
_IN_STEP = ("execution", "planning", "ranks", "transport")  # rooms whose code must be alike on all ranks


def install(extra: str) -> str:
    """The command that installs an extra of setup.cfg: from the checkout, or where there is none the packages that the extra
    names."""
    import shlex
    from importlib.metadata import PackageNotFoundError, requires

    checkout = PACKAGE.parent
    if (checkout / "setup.cfg").exists() and (checkout / "kernels").is_dir():
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    try:
        wanted = [line.partition(";") for line in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:  # copied there
        wanted = []
    ends = f'extra == "{extra}"'  # after what else there may be, of Python's version
    packages = [name.strip() for name, _, condition in wanted if condition.replace("'", '"').strip().endswith(ends)]
    return f"pip install {shlex.join(packages)}" if packages else f"pip install what the extra {extra} of setup.cfg names"


@cache
def fingerprint() -> int:
    """A checksum of the names and sizes of the files with the code that must be alike on all ranks."""
    files = [(each.name, each.stat().st_size) for room in _IN_STEP for each in os.scandir(PACKAGE / room) if each.is_file()]
    return crc32(repr(sorted(files)).encode())


class Remark(RuntimeWarning):
    """A warning for the user, which commands print as one line, from rank 0 alone."""


class NotPrivate(OSError):
    """A folder that others may write to, or that belongs to another user."""


def cache_folder(name: str) -> Path:
    """The private folder `name` in the user's cache: that of HYBRID_CACHE, of XDG_CACHE_HOME, or ~/.cache.

    Where nothing can be kept there, it is a folder among the temporary files, and a warning says so. OSError where there is none
    either.
    """
    try:
        usual = os.environ.get("XDG_CACHE_HOME", "")  # its specification wants a relative one to be ignored
        parent = named_cache() or (Path(usual) if os.path.isabs(usual) else home_folder() / ".cache") / "hybrid-runner"
        return _private_folder(parent, name)
    except OSError as error:
        folder = temporary_folder(name)
        say_elsewhere(folder, error)
        return folder


def named_cache() -> Path | None:
    """The folder that HYBRID_CACHE names; None where it is not set. NotPrivate for a relative path."""
    named = os.environ.get("HYBRID_CACHE", "")
    if named and not os.path.isabs(named):
        raise NotPrivate(0, f"HYBRID_CACHE={named} is no absolute path")
    return Path(named) if named else None


def home_folder() -> Path:
    """The user's home folder: HOME, or where that is not set the one in the list of users. FileNotFoundError where there is
    none."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder (HOME)")
    return Path(home)


def temporary_folder(name: str) -> Path:
    """The private folder `name` among the temporary files. OSError where it cannot be made."""
    import tempfile  # it loads many modules, and most commands keep nothing

    return _private_folder(Path(tempfile.gettempdir()) / f"hybrid-runner-{os.geteuid()}", name)


def say_elsewhere(folder: Path, why: OSError) -> None:
    """Warn that compiled kernels are not kept in the usual folder but in this one, and why."""
    text = f"compiled kernels are kept in {folder}: {reason(why)}; HYBRID_CACHE names a better place"
    warnings.warn(text, Remark, stacklevel=3)


def _private_folder(parent: Path, name: str) -> Path:
    """`parent`/`name`, made where it is missing. OSError where that fails, NotPrivate where others may write to one of the
    two."""
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
            return folder  # files can be made there
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None


def refuse_unless_private(folder: Path) -> None:
    """NotPrivate unless this is a folder, and no link to one, that belongs to this user and that nobody else may write to."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivate(0, f"{folder} is {'a link' if stat.S_ISLNK(status.st_mode) else 'no folder'}")
    if status.st_uid != os.geteuid():
        raise NotPrivate(0, f"{folder} belongs to another user")
    if _others_may_write(status):
        is_for_all = status.st_mode & stat.S_ISVTX  # as /tmp, which it had better stay
        raise NotPrivate(0, f"others may write to {folder}{'' if is_for_all else ' (chmod go-w)'}")


def is_own(file: Path | int) -> bool:
    """Whether this path, or open file, is a regular file, and no link to one, that belongs to this user and that nobody else may
    write to."""
    try:
        status = os.fstat(file) if isinstance(file, int) else file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not _others_may_write(status)


def _others_may_write(status: os.stat_result) -> bool:
    """Whether another user may write to the file.

    A group whose only member is this user does not count: many systems give each user one, and the umask 002.
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
