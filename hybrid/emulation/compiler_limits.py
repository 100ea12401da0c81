# SPDX-License-Identifier: MIT
"""Limits for a compiler that is given code that is not trusted: of time and memory, since a few lines of macros or templates can
take years, and of the files that it reads, since #include can name any."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from hybrid.emulation import landlock
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
    try:
        process = _started(command, environment, rules)
    finally:
        if rules is not None:
            os.close(rules)
    with process:
        overdue = threading.Timer(_BY_THE_CLOCK, _end, [process])
        overdue.start()
        try:
            out, err = process.communicate()
        finally:
            overdue.cancel()
            _end(process)
    status = process.returncode
    if status in (-signal.SIGKILL, -signal.SIGXCPU) or (status and any(text in err for text in _ENDED)):
        raise _refused(what, f"{_SECONDS} s of processor time")
    if status and any(text in err for text in _NO_MEMORY):
        raise _refused(what, f"{_MEMORY >> 20} MiB of memory")
    return subprocess.CompletedProcess(command, status, out, err)


def _started(command: Sequence[str], environment: Mapping[str, str], rules: int | None) -> subprocess.Popen[str]:
    """Start the compiler, from a new thread: Landlock's rules hold for the thread that takes them, and for what it starts."""
    # A shell sets them, since Python code between fork and exec is not safe where other threads compile, too.
    limits = {"t": _SECONDS, "v": _MEMORY >> 10, "f": _FILE >> 9, "c": 0}
    script = "".join(f"ulimit -{which} {most} 2> /dev/null; " for which, most in limits.items())

    def start() -> subprocess.Popen[str]:
        if rules is not None:
            landlock.restrict(rules)
        return subprocess.Popen(  # noqa: S603
            ["/bin/sh", "-c", f'{script}exec "$0" "$@"', *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**environment, "CCACHE_DISABLE": "1"},  # ccache's files lie where it may not write
        )

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(start).result()


def _refused(what: str, limit: str) -> EmulationError:
    return EmulationError("build", f"{what} does not compile within {limit}: do its macros or templates expand without end?")


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the compiler and the programs that it has started, which do the work and would outlive the driver."""
    if process.poll() is not None:
        return
    with suppress(OSError):
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split():
            os.kill(int(child), signal.SIGKILL)
    process.kill()
