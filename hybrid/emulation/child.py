# SPDX-License-Identifier: MIT
"""Child processes for compilers, kernels and programs, which may crash, hang, print without end, or leave processes and files
behind."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hybrid.core.problem import record
from hybrid.emulation.confined import ASKED, DIE_WITH_PARENT, Bounds, confined, installed_with, signals_held
from hybrid.emulation.errors import EmulationError

MOST_OUTPUT = 64 << 20  # bytes kept of a child's output
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_PATIENCE = 10  # seconds for a supervisor to kill all that the child has started

# CPU time of a compiler: the exercises' solutions take 0.3 s, the documents' programs 0.5 s (one core of a server, 2026-11-24).
_SECONDS = 20
_BY_THE_CLOCK = 60  # seconds of wall time, for a compiler that waits
_MEMORY, _FILE = 2 << 30, 256 << 20  # bytes, of each of the compiler's processes and of each file
_ENDED = ("signal terminated program", "CPU time limit exceeded", "Killed")  # messages of GCC, clang and shells
_HEADERS = {".h", ".hh", ".hpp", ".cuh", ".inc", ".inl"}
_NO_MEMORY = ("out of memory", "virtual memory exhausted", "Cannot allocate memory", "std::bad_alloc")


@record
class Ended:
    out: str  # its standard output
    err: str
    status: int | None  # None: it timed out


def run_child(module: str, task: dict[str, Any], seconds: float) -> Ended:
    """Run `python -m module`, which reads the task from standard input as JSON."""
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(task).encode())
        given.seek(0)
        return supervised([sys.executable, "-m", module], seconds, stdin=given, env=python_environment())


@contextmanager
def new_folder() -> Iterator[Path]:
    """A temporary folder, removed at the end with its content, however deep and whatever the modes."""
    folder = tempfile.mkdtemp(prefix=f"hybrid-lab-{os.getpid()}-")
    try:
        yield Path(folder)
    finally:
        try:
            shutil.rmtree(folder)
        except (OSError, RecursionError):  # these commands go deeper, and into folders without permissions
            for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
                subprocess.run([*command, folder], stderr=subprocess.DEVNULL, check=False)  # noqa: S603


def supervised(
    command: Sequence[str],
    seconds: float,
    confine: Callable[[], None] | None = None,
    *,
    show: Callable[[bytes], None] | None = None,
    **options: Any,
) -> Ended:
    """Run a command until it ends or times out, then kill every process that it has started.

    `confine`: called in the child before the command. `show`: gets standard output and standard error as they come.
    """
    stderr = subprocess.STDOUT if show else subprocess.PIPE
    kept: dict[int, bytearray] = {}
    late, deadline = False, time.monotonic() + seconds
    with ExitStack() as until_it_runs:
        until_it_runs.enter_context(signals_held())
        start = partial(_supervise, confine)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, preexec_fn=start, **options)  # noqa: S603
        held = until_it_runs.pop_all()
    with process:
        try:
            held.close()
            pipes = [pipe for pipe in (process.stdout, process.stderr) if pipe is not None]
            with selectors.DefaultSelector() as selector:
                for pipe in pipes:
                    selector.register(pipe, selectors.EVENT_READ)
                    kept[pipe.fileno()] = bytearray()
                while selector.get_map():
                    for key, _ in selector.select(max(0, deadline - time.monotonic())):
                        data = os.read(key.fd, 1 << 16)
                        if not data:
                            selector.unregister(key.fileobj)
                        elif show:
                            show(data)
                        else:
                            kept[key.fd] += data[: MOST_OUTPUT - len(kept[key.fd])]
                    if time.monotonic() >= deadline:
                        if late:
                            break
                        late, deadline = True, time.monotonic() + _PATIENCE
                        process.terminate()
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
    out, err = (bytes(each).decode(errors="replace") for each in (*kept.values(), b"")[:2])
    return Ended(out, err, None if late else process.returncode)


def _supervise(confine: Callable[[], None] | None) -> None:
    """In a new child: fork. The grandchild returns and runs the command. The child, a subreaper, waits for the grandchild or for
    SIGTERM, then kills all descendants, even those in sessions of their own, and ends as the command did."""
    if sys.platform.startswith("linux"):
        library = ctypes.CDLL(None)
        library.prctl(_SUBREAPER, 1)
        library.prctl(DIE_WITH_PARENT, signal.SIGTERM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *ASKED})
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if confine is not None:
            confine()
        return
    os.closerange(0, 1 << 16)
    ended = status = 0
    while not ended and signal.sigwait({signal.SIGCHLD, *ASKED}) == signal.SIGCHLD:
        while not ended and (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                ended, status = found
    with suppress(ChildProcessError):
        while True:
            for each in _descendants(os.getpid()):
                with suppress(OSError):
                    os.kill(each, signal.SIGKILL)
            os.waitpid(-1, 0)
    if os.WIFSIGNALED(status):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status) if ended else 1)


def _descendants(process: int) -> list[int]:
    """All descendants of a process, children before parents; none where /proc does not list them."""
    children: list[int] = []
    with suppress(OSError):
        for of_thread in Path(f"/proc/{process}/task").glob("*/children"):
            children += map(int, of_thread.read_text(encoding="ascii").split())
    return [each for child in children for each in (*_descendants(child), child)]


def python_environment() -> dict[str, str]:
    """An environment in which a child Python finds this one's modules from any folder, and uses one BLAS thread."""
    places = os.pathsep.join(map(os.path.abspath, sys.path))
    return {**os.environ, "PYTHONPATH": places, "OPENBLAS_NUM_THREADS": "1"}


# --- compilers of untrusted code


def own_headers(folder: Path) -> list[Path]:
    """The headers in the folder of a student's file; other files there could be included, too, and must not be."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.suffix in _HEADERS]
    return []


def run_limited(
    what: str, command: Sequence[str], environment: Mapping[str, str], reads: Sequence[Path], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a compiler within limits of time, memory and files; returns the ended process with its output.

    `what`: the source's name in messages. The compiler may write to `folder`, and read its own files and `reads`. EmulationError
    of kind "build" when a limit ended it; OSError if it cannot be run.
    """
    named = [Path(argument[2:]) for argument in command if argument.startswith(("-I/", "-L/", "-B/"))]
    bounds = Bounds(_SECONDS, folder, [*named, *installed_with(command[0]), *reads], memory=_MEMORY, largest_file=_FILE)
    with confined(bounds) as confine:
        ended = supervised(
            command,
            _BY_THE_CLOCK,
            confine,
            stdin=subprocess.DEVNULL,
            env={**environment, "CCACHE_DISABLE": "1"},  # it could not write there
        )
    status = -signal.SIGKILL if ended.status is None else ended.status
    limit = ""
    if status in (-signal.SIGKILL, -signal.SIGXCPU) or (status and any(text in ended.err for text in _ENDED)):
        limit = f"{_SECONDS} s of processor time"
    elif status and any(text in ended.err for text in _NO_MEMORY):
        limit = f"{_MEMORY >> 20} MiB of memory"
    if limit:
        raise EmulationError("build", f"{what} does not compile within {limit}: do its macros or templates expand without end?")
    return subprocess.CompletedProcess(command, status, ended.out, ended.err)
