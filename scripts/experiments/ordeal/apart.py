# SPDX-License-Identifier: MIT
"""Processes of this script that try jobs side by side, each with a /dev/shm and a /tmp of its own, and tell their lines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from experiments.common.records import Line
from experiments.start import ROOT, SCRIPTS
from hybrid.errors import HybridError

_FOLDERS = ("/dev/shm", "/tmp")  # noqa: S108 (where MPI libraries and launchers make their files)
_MOUNT = " && ".join([*(f"mount -t tmpfs tmpfs {folder}" for folder in _FOLDERS), 'exec "$@"'])


def own_folders() -> list[str]:
    """The words before a command that then has folders of its own; none where this process may not mount any."""
    needed = [Path(path).resolve() for path in (sys.executable, sys.prefix, ROOT, SCRIPTS, Path.cwd())]
    if shutil.which("unshare") is None or any(path.is_relative_to(folder) for path in needed for folder in _FOLDERS):
        return []
    words = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh"]
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return [] if tried.returncode else words


def told(several: Sequence[Sequence[str]], given: Any, words: Sequence[str]) -> Iterator[Line]:
    """The lines of several processes of this script with these arguments, as they come. `given`: what each reads; `words`: before
    its command. HybridError where one fails."""
    lines: SimpleQueue[Line | int] = SimpleQueue()
    with ExitStack() as running:
        for arguments in several:
            process = subprocess.Popen(
                [*words, sys.executable, str(SCRIPTS / "ordeal.py"), *arguments],
                stdin=running.enter_context(_file_of(given)),
                stdout=subprocess.PIPE,
            )
            running.callback(process.wait)
            running.callback(process.terminate)
            Thread(target=_read, args=(process, lines), daemon=True).start()
        ended = 0
        while ended < len(several):
            line = lines.get()
            if not isinstance(line, int):
                yield line
                continue
            ended += 1
            if line:
                raise HybridError(f"a process that tries jobs has ended with {line}")


def tell(line: Line) -> None:
    print(json.dumps(line), flush=True)


def _file_of(given: Any) -> IO[str]:
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by who gets it)
    json.dump(given, file)
    file.seek(0)
    return file


def _read(process: subprocess.Popen[bytes], lines: SimpleQueue[Line | int]) -> None:
    """To its end, and then with which exit code it has ended."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(json.loads(line))
    lines.put(process.wait())
