# SPDX-License-Identifier: MIT
"""Child processes that run kernels, perhaps under a sanitizer: they may crash or hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hybrid.core.problem import record
from hybrid.emulation.build import compiler
from hybrid.emulation.confined import MEMORY, Bounds, confined

# Sanitizer runtimes must be loaded before Python; with ASan's also libstdc++, whose exceptions it intercepts.
_PRELOAD = {"address": ("libasan.so", "libstdc++.so.6"), "threads": ("libtsan.so",)}
_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=0",
}


@record
class Ended:
    """How a child process ended."""

    out: str  # its standard output
    err: str
    status: int | None  # None: its time was up


def run_child(
    module: str,
    tasks: Sequence[dict[str, Any]],
    checks: str,
    seconds: float,
    *,
    limited: bool = False,
    reads: Sequence[Path] = (),
) -> Ended:
    """Run `python -m module`, which reads the tasks from standard input as JSON, under the sanitizer that `checks` names.

    `limited`: it runs code that is not trusted, within the bounds of confined.py, in a folder of its own. `reads`: files that it
    may read besides.
    """
    environment = {**python_environment(), **_OPTIONS}
    if checks in _PRELOAD:
        environment["LD_PRELOAD"] = ":".join(map(_path_of, _PRELOAD[checks]))
    command, input = [sys.executable, "-m", module], json.dumps(tasks).encode()
    if not limited:
        return _ended(seconds, command, input=input, env=environment)
    for sanitizer in ("ASAN_OPTIONS", "TSAN_OPTIONS"):
        environment[sanitizer] += f":hard_rss_limit_mb={MEMORY >> 20}"
    with tempfile.TemporaryDirectory(prefix=f"hybrid-lab-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        environment["TMPDIR"] = folder
        bounds = Bounds(seconds, Path(folder), reads, sanitized=checks in _PRELOAD)
        with confined(bounds) as confine:
            return _ended(seconds, command, input=input, env=environment, cwd=folder, preexec_fn=confine)


def end_children(*folders: str) -> None:
    """Kill the descendants of this process whose command names a file of these folders, so that threads that wait for them need
    wait no longer."""
    for child in _descendants(os.getpid()):
        with suppress(OSError):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if any(folder.encode() in command for folder in folders):
                os.kill(child, signal.SIGKILL)


def _descendants(process: int) -> list[int]:
    """The processes that this one has started, and theirs, children before parents; none where the kernel does not tell them."""
    children: list[int] = []
    with suppress(OSError):
        for of_thread in Path(f"/proc/{process}/task").glob("*/children"):
            children += map(int, of_thread.read_text(encoding="ascii").split())
    return [each for child in children for each in (*_descendants(child), child)]


def python_environment() -> dict[str, str]:
    """The environment in which another Python finds the modules that this one finds, from any folder, and computes with one
    thread."""
    places = os.pathsep.join(map(os.path.abspath, sys.path))
    return {**os.environ, "PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1"}


def _ended(seconds: float, command: Sequence[str], **options: Any) -> Ended:
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, **options)  # noqa: S603
    except subprocess.TimeoutExpired as late:
        return Ended(_text(late.stdout), _text(late.stderr), None)
    return Ended(_text(done.stdout), _text(done.stderr), done.returncode)


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def _path_of(library: str) -> str:
    return subprocess.run([compiler(), f"-print-file-name={library}"], capture_output=True, text=True).stdout.strip()  # noqa: S603
