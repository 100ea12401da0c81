# SPDX-License-Identifier: MIT
"""The bounds of a child process that runs code that is not trusted: little time and memory, small files, few files at all, no
network."""

from __future__ import annotations

import ctypes
import math
import os
import re
import resource
import shutil
import signal
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

from hybrid.core.problem import record
from hybrid.emulation import landlock, namespaces
from hybrid.kernels.catalogue import KERNELS

MEMORY = 4 << 30  # bytes
LARGEST_FILE = 1 << 20  # bytes: ThreadSanitizer begins with a file of half a megabyte, which it deletes
_SHARED_BY_RANKS = 256 << 20  # bytes of the memory that MPI's ranks share, which is a file in /dev/shm
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_OF_A_PREFIX = (  # folders of an installation
    "bin",
    "etc",
    "include",
    "lib",
    "lib64",
    "libexec",
    "nvvm",
    "share",
    "targets",
    f"{os.uname().machine}-conda-linux-gnu",
)
_FOR_STUDENTS = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|TZ|TERM|COLUMNS|LINES|VIRTUAL_ENV|CONDA_PREFIX|CXX|CC|HYBRID_LAB_\w+|(?:LC|LD|OMP|OPENBLAS|MKL)_\w+"
    r"|(?:ASAN|TSAN|UBSAN)_OPTIONS|PYTHON(?:PATH|HOME|UNBUFFERED|DONTWRITEBYTECODE)"
    r"|(?:OMPI|OPAL|PMIX|PRTE|MPICH|HYDRA|MPIR|MPIEXEC|FI|UCX|I_MPI)_\w+"
)
_PACKAGE = Path(__file__).resolve().parents[1]
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@record
class Bounds:
    """What a child process may take and use, besides what every one may."""

    seconds: float  # of processor time
    folder: Path  # that it may write to
    reads: Sequence[Path] = ()  # more files and folders
    writes: Sequence[Path] = ()
    sanitized: bool = False  # it runs under a sanitizer, which reserves terabytes of addresses and has a limit of its own
    ranks: bool = False  # it is MPI's launcher, whose ranks have to find each other


@contextmanager
def confined(bounds: Bounds) -> Iterator[Callable[[], None]]:
    """A function that confines the child, to be called there before it executes the program (as `preexec_fn` is)."""
    allowed_to_read, to_list = of_python()
    read = [*readable(), *_of_libraries(), *allowed_to_read, *bounds.reads]
    write = [bounds.folder, Path(os.devnull), *bounds.writes]
    rules = landlock.ruleset(read, write, to_list, tcp=bounds.ranks)
    try:
        yield partial(_confine, ctypes.CDLL(None), bounds, rules, _separation(bounds.ranks))
    finally:
        if rules is not None:
            os.close(rules)


def readable() -> list[Path]:
    """The files and folders that any program of a student may read."""
    named = os.environ.get("HYBRID_LAB_READ", "").split(os.pathsep)
    return [*landlock.of_the_system(), *(Path(folder) for folder in named if folder)]


def installed_with(program: str) -> list[Path]:
    """The folders of what was installed together with a program: for prefix/bin/mpirun they are prefix/bin, prefix/lib and so
    on."""
    found = Path(shutil.which(program) or program)
    places = {found, found.resolve()}
    return [*(place.parent for place in places), *(place.parents[1] / name for place in places for name in _OF_A_PREFIX)]


def of_students(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The variables of an environment that students' code gets, without what may be somebody's secret. `folder`: for temporary
    files."""
    return {**{name: value for name, value in environment.items() if _FOR_STUDENTS.fullmatch(name)}, "TMPDIR": str(folder)}


def lacking() -> list[str]:
    """What a child cannot be kept from on this system, in whole sentences."""
    missing = []
    if not landlock.version():
        missing.append("the code that is run can read and write your files: this system has no Landlock (Linux 5.13 and newer)")
    if not namespaces.possible(namespaces.leave_the_network):
        missing.append("the code that is run can use the network: this system lets you make no user namespaces")
    return missing


def _separation(ranks: bool) -> Callable[[ctypes.CDLL], None] | None:
    separated = namespaces.keep_to_itself if ranks else namespaces.leave_the_network
    return separated if namespaces.possible(separated) else None


def _confine(library: ctypes.CDLL, bounds: Bounds, rules: int | None, separated: Callable[[ctypes.CDLL], None] | None) -> None:
    limits = {
        resource.RLIMIT_FSIZE: _SHARED_BY_RANKS if bounds.ranks else LARGEST_FILE,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: math.ceil(bounds.seconds) + 1,
    }
    if not bounds.sanitized:
        limits[resource.RLIMIT_AS] = MEMORY
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))
    if sys.platform.startswith("linux"):
        library.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if separated is not None:
        separated(library)
    if rules is not None:
        if bounds.ranks and _SHARED_MEMORY.is_dir():  # only now: in a namespace of its own it is another folder than before
            landlock.allow(rules, _SHARED_MEMORY, landlock.WRITE)
        landlock.restrict(rules)


@cache
def _of_libraries() -> list[Path]:
    """The files of the libraries that this process has loaded, wherever this system keeps them."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [Path(place) for place in sorted({line[line.index("/") :] for line in lines if "/" in line and ".so" in line})]


def of_python() -> tuple[list[Path], list[Path]]:
    """The files and folders that Python and its packages are read from; and folders of which only the names of files may be read.

    Python looks for modules in the latter, too. One is the current folder, where the files of others may lie.
    """
    installed = [
        sys.prefix,
        sys.base_prefix,
        *sysconfig.get_paths().values(),
        *site.getsitepackages(),
        site.getusersitepackages(),
    ]
    here = Path.cwd()
    places = [Path(entry).resolve() for entry in sys.path if entry]
    read = [*map(Path, installed), *(place for place in places if place != here), _PACKAGE, KERNELS]
    return read, [here, _PACKAGE.parent]
