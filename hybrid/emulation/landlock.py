# SPDX-License-Identifier: MIT
"""Which files a process and its children may use, by Linux's Landlock (since 5.13), for which no privileges are needed."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, of the same numbers on x86, ARM and POWER
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_BELOW_A_PATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # how many rights of files are known, by the first version that knows so many
_TCP = 3  # the rights to bind, and to connect
_SIGNALS_AND_SOCKETS = 3  # abstract Unix sockets of processes outside, and signals to them
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
READ = _EXECUTE | _READ_FILE | _READ_DIR
LIST = _READ_DIR
WRITE = -1  # whatever can be forbidden


@cache
def version() -> int:
    """The version of Landlock that the kernel has; 0 where it has none, or it is turned off."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def ruleset(read: Iterable[Path], write: Iterable[Path], to_list: Iterable[Path] = (), *, tcp: bool) -> int | None:
    """The descriptor of rules that forbid all files but these and what is below them; None where there is no Landlock.

    `read`: files that may be read and executed. `write`: where files may also be written, made and removed. `to_list`: folders of
    which only the names of files may be read. Paths that do not exist are left out. `tcp`: whether TCP is allowed, which kernels
    from 6.7 on can forbid. Signals to processes outside are forbidden by kernels from 6.12 on.
    """
    known = version()
    if not known:
        return None
    files = _known_rights()
    attributes = struct.pack("=QQQ", files, 0 if tcp or known < 4 else _TCP, _SIGNALS_AND_SOCKETS if known >= 6 else 0)
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = _called(library, _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, rights in ((read, READ), (write, WRITE), (to_list, LIST)):
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                allow(descriptor, path, rights)
    return descriptor


def _known_rights() -> int:
    """All rights of files that this kernel knows."""
    return (1 << max(number for since, number in _RIGHTS.items() if version() >= since)) - 1


def allow(descriptor: int, path: Path, rights: int) -> None:
    """Add a rule that allows these rights to a file, or to a folder and all that is below it."""
    rights &= _known_rights()
    place = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_A_FILE
        rule = struct.pack("=Qi", rights, place)
        _called(ctypes.CDLL(None, use_errno=True), _ADD_RULE, descriptor, _BELOW_A_PATH, rule, 0)
    finally:
        os.close(place)


def restrict(descriptor: int) -> None:
    """Apply the rules to this thread, and to what it starts, from now on. OSError if that fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    _called(library, _RESTRICT_SELF, descriptor, 0)


def _called(library: ctypes.CDLL, *arguments: object) -> int:
    """The result of a system call. OSError if it fails."""
    result = int(library.syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


def of_the_system() -> Sequence[Path]:
    """Folders and files that a program needs to start and to compute: the system's, none that belongs to a user."""
    folders = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/proc", "/sys")
    files = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "hosts", "host.conf", "nsswitch.conf", "resolv.conf")
    devices = ("urandom", "random", "zero", "full")
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [
        *map(Path, folders),
        *(Path("/etc", name) for name in files),
        *(Path("/dev", name) for name in devices),
        *(Path(folder) for folder in libraries if folder),
    ]
