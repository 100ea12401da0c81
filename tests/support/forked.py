# SPDX-License-Identifier: MIT
"""Commands and scripts started by a process that has loaded NumPy before and forks: a thousand interpreters that each load it
would take most of the tests' time."""

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from support.commands import start

_FORKING = """
import atexit, contextlib, json, os, runpy, sys, threading
import numpy, numpy.random, hybrid.testing
for name in ("h5py", "zarr", "scipy.io"):
    with contextlib.suppress(ImportError):
        __import__(name)
def command(name, *words):
    sys.argv[1:] = words
    try:
        if name.endswith(".py"):
            sys.path[0], sys.orig_argv = os.path.dirname(name), [sys.executable, name, *words]
            runpy.run_path(name, run_name="__main__")
        else:
            sys.orig_argv = [sys.executable, "-m", name, *words]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as exit:
        return exit.code
def end(code):  # as Python does, but for freeing all that was loaded before, which takes ten times as long as the command
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown(), atexit._run_exitfuncs(), sys.stdout.flush(), sys.stderr.flush()
    os._exit(code or 0)
answers, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
os.dup2(nowhere, 1)
command("hybrid.matmul", "8", "8", "8", "--explain")  # which loads most of it, but not MPI
def answer(number):
    os.write(answers, b"%d\\n" % number)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        os.environ.clear()
        os.environ.update(job["environment"])
        os.chdir(job["cwd"])
        for descriptor, path in enumerate((os.devnull, job["out"], job["err"])):
            os.dup2(os.open(path, os.O_RDWR), descriptor)
        end(command(*job["words"]))
    answer(child)
    answer(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@cache
def _server() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _FORKING]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment)
    atexit.register(server.kill)
    return server


def quickly(
    command: Sequence[str | Path],
    *arguments: Any,
    ranks: int = 0,
    hidden: tuple[str, ...] = ("HYBRID_",),
    limit: float = 240,
    cwd: Path | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """As `start`, for Python with a module or a script. What Python reads as it begins (PYTHONPATH) does not count."""
    if ranks:
        return start(command, *arguments, ranks=ranks, hidden=hidden, limit=limit, cwd=cwd, **environment)
    words = [str(word) for word in (*command, *arguments)][1:]
    words = words[words[0] == "-m" :]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    server = _server()
    with tempfile.NamedTemporaryFile("r", errors="replace") as out, tempfile.NamedTemporaryFile("r", errors="replace") as err:
        place = {"cwd": str(Path(cwd or ".").absolute()), "out": out.name, "err": err.name}
        server.stdin.write(f"{json.dumps({'words': words, 'environment': clean | environment, **place})}\n".encode())
        child = int(server.stdout.readline())
        if not select.select([server.stdout], [], [], limit)[0]:
            os.killpg(child, 9)
            server.stdout.readline()
            raise subprocess.TimeoutExpired(words, limit)
        return subprocess.CompletedProcess(words, int(server.stdout.readline()), out.read(), err.read())
