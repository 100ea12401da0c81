# SPDX-License-Identifier: MIT
"""python -m hybrid.matmul as users start it, for the tests: alone, on a node and on several; what it says, and how it refuses."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from support.commands import module, own_lines, start, successful
from support.forked import quickly

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


def run(
    *arguments: Any, way: str = "alone", planted: list[str] | None = None, anew: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """The command; with faults of `python -m hybrid.testing --plant`. `anew`: by an interpreter of its own, also alone."""
    ranks, environment = WAYS[way]
    command = MATMUL
    if planted:
        command = [*TESTING, *(word for fault in planted for word in ("--plant", fault)), "-m", "hybrid.matmul"]
    return (start if anew else quickly)(command, *arguments, **{"ranks": ranks, "limit": 120, **environment, **more})


def doing(text: str, fault: str, path: Path) -> list[str]:
    """The words of the command in which this fault is what the function `now` of such a text does."""
    path.write_text(text)
    return [*TESTING, "--plant", f"{fault} how={path}:now", "-m", "hybrid.matmul"]


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
