# SPDX-License-Identifier: MIT
"""A compiler that takes somebody's code may take little time and memory: a few lines of macros or templates can ask for years."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hybrid.emulation.errors import EmulationError

_SECONDS = (
    20  # of processor time: the exercises' solutions take 0.3, the documents' programs 0.5 (a core of a server, 2026-11-24)
)
_BY_THE_CLOCK = 60  # seconds, after which a compiler is taken for one that waits for something
_MEMORY, _FILE = 2 << 30, 256 << 20  # bytes, of each of the compiler's programs, and of a file that one writes
_ENDED = ("signal terminated program", "CPU time limit exceeded", "Killed")  # by the drivers of GCC and clang, and by a shell
_NO_MEMORY = ("out of memory", "virtual memory exhausted", "Cannot allocate memory", "std::bad_alloc")


def run_limited(what: str, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A compiler that compiles `what`, with its output.

    EmulationError of kind "build" where the limits ended it; OSError if it cannot be run.
    """
    # A shell sets them, since Python code between fork and exec is not safe where other threads compile, too.
    limits = {"t": _SECONDS, "v": _MEMORY >> 10, "f": _FILE >> 9, "c": 0}
    script = "".join(f"ulimit -{which} {most} 2> /dev/null; " for which, most in limits.items())
    with subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", f'{script}exec "$0" "$@"', *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
    ) as process:
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


def _refused(what: str, limit: str) -> EmulationError:
    return EmulationError("build", f"{what} does not compile within {limit}: do its macros or templates expand without end?")


def _end(process: subprocess.Popen[str]) -> None:
    """It and the programs that it has started, which do the work: the driver that is killed leaves them behind."""
    if process.poll() is not None:
        return
    with suppress(OSError):
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split():
            os.kill(int(child), signal.SIGKILL)
    process.kill()
