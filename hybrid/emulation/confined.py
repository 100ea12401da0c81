# SPDX-License-Identifier: MIT
"""Confines a child process that runs untrusted code: little time and memory, small files, few readable files, no network.

Landlock (Linux 5.13 and newer) forbids files and needs no privileges; a network namespace of its own forbids the network, where
users may create namespaces.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import re
import resource
import shutil
import signal
import site
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from hybrid.core.problem import record
from hybrid.kernels.catalogue import KERNELS

MEMORY = 4 << 30  # bytes
LARGEST_FILE = 1 << 20  # bytes
ASKED = signal.SIGTERM, signal.SIGINT, signal.SIGHUP  # requests to end
_SHARED_BY_RANKS = 256 << 20  # bytes of the file in /dev/shm that MPI ranks share
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_OF_A_PREFIX = (  # folders of an installation
    *("bin", "etc", "include", "lib", "lib64", "libexec", "nvvm", "share", "targets"),
    f"{os.uname().machine}-conda-linux-gnu",
)
_FOR_STUDENTS = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|TZ|TERM|COLUMNS|LINES|VIRTUAL_ENV|CONDA_PREFIX|CXX|CC|HYBRID_LAB_\w+|(?:LC|LD|OMP|OPENBLAS|MKL)_\w+"
    r"|(?:ASAN|TSAN|UBSAN)_OPTIONS|PYTHON(?:PATH|HOME|UNBUFFERED|DONTWRITEBYTECODE)"
    r"|(?:OMPI|OPAL|PMIX|PRTE|MPICH|HYDRA|MPIR|MPIEXEC|FI|UCX|I_MPI)_\w+"
)
_PACKAGE = Path(__file__).resolve().parents[1]
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, with these numbers on x86, ARM and POWER
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_BELOW_A_PATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS of prctl(2)
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # how many file rights Landlock has, from this version on
_TCP = 3  # the rights to bind and to connect
_SIGNALS_AND_SOCKETS = 3  # signals to processes outside, and their abstract Unix sockets
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
READ = _EXECUTE | _READ_FILE | _READ_DIR
LIST = _READ_DIR
WRITE = -1  # all rights
_MOUNTS, _IPC, _USER, _NETWORK = 0x20000, 0x8000000, 0x10000000, 0x40000000  # CLONE_NEW… of unshare(2)
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP of netdevice(7)
_SHARED_MEMORY_OPTIONS = b"size=512m,mode=1777"


@record
class Bounds:
    """What a child process may use, besides Python's and the system's files."""

    seconds: float  # of CPU time
    folder: Path  # writable
    reads: Sequence[Path] = ()  # more readable files and folders
    writes: Sequence[Path] = ()
    ranks: bool = False  # the child is an MPI launcher, whose ranks have to find each other
    memory: int = MEMORY  # bytes of each process
    largest_file: int = LARGEST_FILE  # bytes


@contextmanager
def confined(bounds: Bounds) -> Iterator[Callable[[], None]]:
    """A function that confines the child: pass it as `preexec_fn`."""
    read_by_python, to_list = _of_python()
    named = os.environ.get("HYBRID_LAB_READ", "").split(os.pathsep)
    read = [*_of_the_system(), *(Path(each) for each in named if each), *_of_libraries(), *read_by_python, *bounds.reads]
    rules = _ruleset(read, [bounds.folder, Path(os.devnull), *bounds.writes], to_list, tcp=bounds.ranks)
    separated = keep_to_itself if bounds.ranks else leave_the_network
    try:
        yield partial(_confine, ctypes.CDLL(None), bounds, rules, separated if possible(separated) else None)
    finally:
        if rules is not None:
            os.close(rules)


def installed_with(program: str) -> list[Path]:
    """The folders of a program's installation: prefix/bin, prefix/lib and so on for prefix/bin/mpirun."""
    found = Path(shutil.which(program) or program)
    places = {found, found.resolve()}
    return [*(place.parent for place in places), *(place.parents[1] / name for place in places for name in _OF_A_PREFIX)]


def of_students(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables that students' code may see: none that could hold a secret. `folder`: for temporary files."""
    return {**{name: value for name, value in environment.items() if _FOR_STUDENTS.fullmatch(name)}, "TMPDIR": str(folder)}


def lacking() -> list[str]:
    """Sentences on what this system cannot forbid a child."""
    missing = []
    if not landlock_version():
        missing.append("the code that is run can read and write your files: this system has no Landlock (Linux 5.13 and newer)")
    if not possible(leave_the_network):
        missing.append("the code that is run can use the network: this system lets you make no user namespaces")
    return missing


def _confine(library: ctypes.CDLL, bounds: Bounds, rules: int | None, separated: Callable[[ctypes.CDLL], None] | None) -> None:
    limits = {
        resource.RLIMIT_FSIZE: max(bounds.largest_file, _SHARED_BY_RANKS if bounds.ranks else 0),
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: math.ceil(bounds.seconds) + 1,
        resource.RLIMIT_AS: bounds.memory,
    }
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))
    if sys.platform.startswith("linux"):
        library.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if separated is not None:
        separated(library)
    if rules is not None:
        if bounds.ranks and _SHARED_MEMORY.is_dir():  # only now: the new namespace has its own
            _allow(rules, _SHARED_MEMORY, WRITE)
        _restrict(rules)


@cache
def _of_libraries() -> list[Path]:
    """The files of the libraries that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [Path(place) for place in sorted({line[line.index("/") :] for line in lines if "/" in line and ".so" in line})]


def _of_python() -> tuple[list[Path], list[Path]]:
    """The files and folders of Python and its packages; and folders that Python only lists, as it looks for modules: the current
    one may have files of others."""
    installed = [sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()]
    installed += [*site.getsitepackages(), site.getusersitepackages()]
    here = Path.cwd()
    places = [Path(entry).resolve() for entry in sys.path if entry]
    read = [*map(Path, installed), *(place for place in places if place != here), _PACKAGE, KERNELS]
    return read, [here, _PACKAGE.parent]


# --- files


@cache
def landlock_version() -> int:
    """The kernel's version of Landlock; 0 where it is missing or turned off."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def _ruleset(read: Iterable[Path], write: Iterable[Path], to_list: Iterable[Path] = (), *, tcp: bool) -> int | None:
    """The descriptor of a Landlock ruleset that forbids all files but these and what is below them; None without Landlock.

    `read`: may be read and executed. `write`: may also be written, created and removed. `to_list`: folders that may only be
    listed. Missing paths are left out. `tcp`: whether TCP is allowed; Linux before 6.7 cannot forbid it. From 6.12 on, signals to
    processes outside are forbidden, too.
    """
    known = landlock_version()
    if not known:
        return None
    files = _known_rights()
    attributes = struct.pack("=QQQ", files, 0 if tcp or known < 4 else _TCP, _SIGNALS_AND_SOCKETS if known >= 6 else 0)
    descriptor = _called(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    for paths, rights in ((read, READ), (write, WRITE), (to_list, LIST)):
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _allow(descriptor, path, rights)
    return descriptor


def _known_rights() -> int:
    """A mask of the file rights that this kernel knows."""
    return (1 << max(number for since, number in _RIGHTS.items() if landlock_version() >= since)) - 1


def _allow(descriptor: int, path: Path, rights: int) -> None:
    """Add a rule that grants these rights for a file, or for a folder and all below it."""
    rights &= _known_rights()
    place = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_A_FILE
        rule = struct.pack("=Qi", rights, place)
        _called(_ADD_RULE, descriptor, _BELOW_A_PATH, rule, 0)
    finally:
        os.close(place)


def _restrict(descriptor: int) -> None:
    """Apply the ruleset to this thread and all that it starts. OSError if that fails."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    _called(_RESTRICT_SELF, descriptor, 0)


def _called(*arguments: object) -> int:
    """The result of a system call. OSError if it fails."""
    result = int(ctypes.CDLL(None, use_errno=True).syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


def _of_the_system() -> Sequence[Path]:
    """The system's folders and files that any program needs; none is a user's."""
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


# --- namespaces


def leave_the_network(library: ctypes.CDLL) -> None:
    """Take the network from this process and all that it starts."""
    if library.unshare(_USER | _NETWORK):
        raise OSError("unshare(2)")


def keep_to_itself(library: ctypes.CDLL) -> None:
    """Like `leave_the_network`, but with a private loopback interface and /dev/shm, over which ranks find each other."""
    user, group = os.geteuid(), os.getegid()
    if library.unshare(_USER | _NETWORK | _MOUNTS | _IPC):
        raise OSError("unshare(2)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        interface = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, interface))[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
    if library.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), _SHARED_MEMORY_OPTIONS):
        raise OSError("mount(2)")


@contextmanager
def signals_held() -> Iterator[None]:
    """Defer signals in ASKED until this context ends. Use it around a fork: Python drops exceptions that their handlers raise in
    the callbacks of `os.register_at_fork`. Blocking signals is not enough: another thread may receive one, and its handler then
    runs in the main thread."""
    came: list[int] = []
    handlers: dict[signal.Signals, Any] = {}
    is_main = threading.current_thread() is threading.main_thread()
    try:
        for each in ASKED if is_main else ():
            if callable(handler := signal.getsignal(each)):
                handlers[each] = handler
                signal.signal(each, lambda signum, frame: came.append(signum))
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for signum in came:
            signal.raise_signal(signum)


@cache
def possible(separated: Callable[[ctypes.CDLL], None]) -> bool:
    """Whether this user may call `separated`, `leave_the_network` or `keep_to_itself`: tried in a child process."""
    program = shutil.which("true")
    if not sys.platform.startswith("linux") or program is None:
        return False
    try:
        with signals_held():
            subprocess.run([program], preexec_fn=partial(separated, ctypes.CDLL(None)), check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False
    return True
