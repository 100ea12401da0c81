# SPDX-License-Identifier: MIT
"""Child processes that run kernels, perhaps under a sanitizer: they may crash or hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Ended:
    """A child: what it wrote, and its exit status; None where its time was up."""

    out: str
    err: str
    status: int | None


def run_child(module: str, tasks: Sequence[dict[str, Any]], checks: str, seconds: float) -> Ended:
    """Run `python -m module`, which reads the tasks from standard input as JSON, under the sanitizer that `checks` names."""
    environment = {**os.environ, **_OPTIONS}
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
        )
    except subprocess.TimeoutExpired as late:
        return Ended(_text(late.stdout), _text(late.stderr), None)
    return Ended(_text(done.stdout), _text(done.stderr), done.returncode)


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def _path_of(library: str) -> str:
    return subprocess.run([compiler(), f"-print-file-name={library}"], capture_output=True, text=True).stdout.strip()  # noqa: S603
