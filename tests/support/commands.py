# SPDX-License-Identifier: MIT
"""Commands as users start them, for the tests."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid.testing import mpirun

_PROGRESS = re.compile(r"hybrid: [^…]*… ")
ROOT = Path(__file__).resolve().parents[2]


def module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def start(
    command: Sequence[str | Path],
    *arguments: Any,
    ranks: int = 0,
    hidden: tuple[str, ...] = ("HYBRID_",),
    limit: float = 240,
    cwd: Path | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The command alone, or by `ranks` ranks. Variables that begin as `hidden` says are not taken over from outside."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return subprocess.run(
        [*(mpirun(ranks) if ranks else []), *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit,
        cwd=cwd,
        env={**clean, **environment},
        check=False,
    )


def without_progress(text: str) -> str:
    """What a command that a slow machine has shown to be under way has said besides."""
    return "".join(line for line in text.splitlines(keepends=True) if not _PROGRESS.match(line))


def own_lines(text: str) -> list[str]:
    """The lines of this project but for its progress. Open MPI's launcher may put a blank or a zero byte before them."""
    lines = [line.strip("\0 ") for line in text.splitlines()]
    return [line for line in lines if line.startswith("hybrid") and not _PROGRESS.match(line)]


def under_a_launcher(folder: Path, name: str = "mpirun") -> list[str]:
    """The beginning of a command that runs below a process of this name, which is a shell and starts no MPI."""
    shell = shutil.which("sh")
    assert shell is not None
    return [shutil.copy(shell, folder / name), "-c", '"$0" "$@"; exit $?']


def successful(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert done.returncode == 0, done.stderr
    return done
