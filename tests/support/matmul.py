# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul as users start it, for the tests: alone, on a node and on several; what it says, and how it refuses.

Alone it is started by a process that has loaded NumPy before and forks: a hundred starts would take most of the tests' time.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from support.commands import module, own_lines, start, successful

MATMUL = module("hybrid.matmul")
TESTING = module("hybrid.testing")
LAST_LINE = re.compile(r"total \d+\.\d{4} s  rate \d+\.\d\d [MGT]F/s  check (ok|FAILED|off|impossible).*")
NODES = {"HYBRID_RANKS_PER_NODE": "2"}
WAYS: dict[str, tuple[int, dict[str, str]]] = {  # ranks (0: without mpirun), and the environment
    "alone": (0, {}),
    "2 ranks": (2, {}),
    "staged": (2, {"HYBRID_STAGED": "1", "HYBRID_PANEL_ROWS": "7", "HYBRID_POISON": "1"}),
    "2 nodes": (3, NODES),
    "a grid": (4, {"HYBRID_RANKS_PER_NODE": "1", "HYBRID_GRID": "2x2"}),
}


_FORKING = """
import contextlib, json, os, runpy, sys
import numpy, numpy.random, hybrid.testing
for name in ("h5py", "zarr", "scipy.io"):
    with contextlib.suppress(ImportError):
        __import__(name)
def command(module, *words):
    sys.argv[1:], sys.orig_argv = words, [sys.executable, "-m", module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
answers, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
os.dup2(nowhere, 1)
try:
    command("hybrid.matmul", "8", "8", "8", "--explain")  # which loads most of it, but not MPI
except SystemExit:
    pass
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
        command(*job["words"])
        sys.exit()
    answer(child)
    answer(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@cache
def _forking() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _FORKING]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment)
    atexit.register(server.kill)
    return server


def forked(words: list[str], limit: float, cwd: Path | None, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HYBRID_")}
    server = _forking()
    with tempfile.NamedTemporaryFile("r", errors="replace") as out, tempfile.NamedTemporaryFile("r", errors="replace") as err:
        place = {"cwd": str(Path(cwd or ".").absolute()), "out": out.name, "err": err.name}
        server.stdin.write(f"{json.dumps({'words': words, 'environment': clean | environment, **place})}\n".encode())
        child = int(server.stdout.readline())
        if not select.select([server.stdout], [], [], limit)[0]:
            os.killpg(child, 9)
            server.stdout.readline()
            raise subprocess.TimeoutExpired(words, limit)
        return subprocess.CompletedProcess(words, int(server.stdout.readline()), out.read(), err.read())


def run(
    *arguments: Any, way: str = "alone", planted: list[str] | None = None, anew: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """The command; with faults of `python -m hybrid.testing --plant`. `anew`: by an interpreter of its own, also alone."""
    ranks, environment = WAYS[way]
    command = MATMUL
    if planted:
        command = [*TESTING, *(word for fault in planted for word in ("--plant", fault)), "-m", "hybrid.matmul"]
    how = {"ranks": ranks, "limit": 120, **environment, **more}
    if how["ranks"] or anew:
        return start(command, *arguments, **how)
    del how["ranks"]
    return forked([*command[2:], *map(str, arguments)], how.pop("limit"), how.pop("cwd", None), how)


def good(*arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    return successful(run(*arguments, **more))


def record(*arguments: Any, **more: Any) -> dict[str, Any]:
    """The JSON line of a product."""
    done = good(*arguments, "--json", "-", **more)
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def code_in(line: str) -> str:
    """The code with which a line about a failure ends."""
    found = re.search(r" \[([a-z0-9-]+)\]$", line)
    return found[1] if found else ""


def line_of_failure(done: subprocess.CompletedProcess[str], exit_code: int | None = None) -> str:
    """The only line of ours on standard error, of a command that ends with this exit code and shows no result."""
    (line,) = own_lines(done.stderr)
    assert "Traceback" not in done.stderr
    assert "total" not in done.stdout
    assert done.returncode == exit_code if exit_code is not None else done.returncode, (done.returncode, line)
    return line


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
