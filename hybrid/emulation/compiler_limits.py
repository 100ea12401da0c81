# SPDX-License-Identifier: MIT
"""Limits for a compiler that is given code that is not trusted: of time and memory, since a few lines of macros or templates can
take years, and of the files that it reads, since #include can name any."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from hybrid.emulation import landlock
from hybrid.emulation.child import supervised
from hybrid.emulation.confined import installed_with, readable
from hybrid.emulation.errors import EmulationError

# Of processor time: the exercises' solutions take 0.3, the documents' programs 0.5 (one core of a server, 2026-11-24).
_SECONDS = 20
_BY_THE_CLOCK = 60  # seconds, after which a compiler seems to wait for something
_MEMORY, _FILE = 2 << 30, 256 << 20  # bytes, of each of the compiler's programs, and of a file that one writes
_ENDED = ("signal terminated program", "CPU time limit exceeded", "Killed")  # so say the drivers of GCC and clang, and a shell
_HEADERS = {".h", ".hh", ".hpp", ".cuh", ".inc", ".inl"}
_NO_MEMORY = ("out of memory", "virtual memory exhausted", "Cannot allocate memory", "std::bad_alloc")


def own_headers(folder: Path) -> list[Path]:
    """The headers in the folder of a student's file. Other files there, which could be included as well, are not among them."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.suffix in _HEADERS]
    return []


def run_limited(
    what: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    reads: Sequence[Path],
    folder: Path,
    lists: Sequence[Path] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a compiler within the limits; returns the process that has ended, with its output.

    `what`: the source, for messages. It may write to `folder`, and may read its own files and those in `reads`; of the folders in
    `lists` it may read the names of files. EmulationError of kind "build" where the limits ended it; OSError if it cannot be run.
    """
    named = [Path(argument[2:]) for argument in command if argument.startswith(("-I/", "-L/", "-B/"))]
    rules = landlock.ruleset(
        [*readable(), *installed_with(command[0]), *named, *reads], [folder, Path(os.devnull)], lists, tcp=False
    )
    limits = {"t": _SECONDS, "v": _MEMORY >> 10, "f": _FILE >> 9, "c": 0}
    script = "".join(f"ulimit -{which} {most} 2> /dev/null; " for which, most in limits.items())
    try:
        ended = supervised(
            ["/bin/sh", "-c", f'{script}exec "$0" "$@"', *command],
            _BY_THE_CLOCK,
            None if rules is None else partial(landlock.restrict, rules),
            stdin=subprocess.DEVNULL,
            env={**environment, "CCACHE_DISABLE": "1"},  # ccache's files lie where it may not write
        )
    finally:
        if rules is not None:
            os.close(rules)
    status = -signal.SIGKILL if ended.status is None else ended.status
    if status in (-signal.SIGKILL, -signal.SIGXCPU) or (status and any(text in ended.err for text in _ENDED)):
        raise _refused(what, f"{_SECONDS} s of processor time")
    if status and any(text in ended.err for text in _NO_MEMORY):
        raise _refused(what, f"{_MEMORY >> 20} MiB of memory")
    return subprocess.CompletedProcess(command, status, ended.out, ended.err)


def _refused(what: str, limit: str) -> EmulationError:
    return EmulationError("build", f"{what} does not compile within {limit}: do its macros or templates expand without end?")
