# SPDX-License-Identifier: MIT
"""Child processes that run kernels, perhaps under a sanitizer: they may crash or hang."""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hybrid.emulation.build import compiler

# Sanitizer runtimes must be loaded before Python; with ASan's also libstdc++, whose exceptions it intercepts.
_PRELOAD = {"address": ("libasan.so", "libstdc++.so.6"), "threads": ("libtsan.so",)}
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=0",
    "OPENBLAS_NUM_THREADS": "1",
}
# Bytes, of one that is limited. ThreadSanitizer begins with a file of half a megabyte, which it deletes.
_MEMORY, _FILE = 4 << 30, 1 << 20
_SHARED_BY_RANKS = 256 << 20  # of the memory that MPI's ranks share, which is a file in /dev/shm
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET of unshare(2)


@dataclass(frozen=True)
class Ended:
    """A child: what it wrote, and its exit status; None where its time was up."""

    out: str
    err: str
    status: int | None


def run_child(module: str, tasks: Sequence[dict[str, Any]], checks: str, seconds: float, *, limited: bool = False) -> Ended:
    """Run `python -m module`, which reads the tasks from standard input as JSON, under the sanitizer that `checks` names.

    `limited`: it runs somebody's code, and gets little memory and time, writes no large file, and has no network where the system
    lets a user take it away (Linux with user namespaces).
    """
    environment = {**os.environ, **_OPTIONS}
    if limited:
        for sanitizer in ("ASAN_OPTIONS", "TSAN_OPTIONS"):
            environment[sanitizer] += f":hard_rss_limit_mb={_MEMORY >> 20}"
    if checks in _PRELOAD:
        environment["LD_PRELOAD"] = ":".join(map(_path_of, _PRELOAD[checks]))
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", module],
            input=json.dumps(tasks).encode(),
            capture_output=True,
            env=environment,
            timeout=seconds,
            preexec_fn=limits(seconds, sanitized=checks in _PRELOAD) if limited else None,
        )
    except subprocess.TimeoutExpired as late:
        return Ended(_text(late.stdout), _text(late.stderr), None)
    return Ended(_text(done.stdout), _text(done.stderr), done.returncode)


def limits(seconds: float, *, sanitized: bool = False, ranks: bool = False) -> Callable[[], None]:
    """What a child that runs somebody's code does first. `ranks`: it is MPI's launcher, whose ranks have to find each other."""
    return partial(_limit, ctypes.CDLL(None), seconds, sanitized=sanitized, ranks=ranks)


def _limit(c: ctypes.CDLL, seconds: float, *, sanitized: bool, ranks: bool) -> None:
    """In the child, before it becomes Python. Sanitizers reserve terabytes of addresses, and have a limit of their own."""
    largest = _SHARED_BY_RANKS if ranks else _FILE
    limits = {resource.RLIMIT_FSIZE: largest, resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: math.ceil(seconds) + 1}
    if not sanitized:
        limits[resource.RLIMIT_AS] = _MEMORY
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))
    c.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if not ranks:
        c.unshare(_NEW_USER_AND_NETWORK)


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def _path_of(library: str) -> str:
    return subprocess.run([compiler(), f"-print-file-name={library}"], capture_output=True, text=True).stdout.strip()  # noqa: S603
