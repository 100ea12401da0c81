# SPDX-License-Identifier: MIT
"""The programs that scripts/bench_hosts.py compares: which are started when, how, and what they measured."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.common.records import Line, spread
from experiments.common.wording import told_error
from experiments.hosts.results import size_of_picture
from hybrid.core.problem import ITEM_SIZES
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

IN_TURN = ("handwritten", "ours", "wires", "library", "cublasxt", "larger", "wall")
PARTS = (*IN_TURN, "resident", "small", "jax", "torch")
MODULES = {"handwritten": "handwritten", "cublasxt": "cublasxt", "jax": "sharded", "torch": "sharded"}  # else "ours"
SMALL_SIZES, SMALL_REPEATS = (128, 256, 512), 5  # the latter for each repeat of the others
RECORDERS = ("schema", "command", "date", "versions", "machine")  # keys that are written for every line
TIMES_LARGER = 3  # than the memory that it is allowed
BESIDE_WALL = ("launcher", "imports")  # programs that record nothing
OF_THE_WHOLE = ("wall", *BESIDE_WALL)  # what is timed is the program, from its start to its end
GRACE = 5.0  # seconds a program may take to end when it is told to


@dataclass(frozen=True)
class Start:
    """A program to start. `n`: its size, where it has only one. `gives`: what the command's line is, which does not say so."""

    part: str
    gpus: int
    round: int
    command: Sequence[str]
    gives: str = ""
    n: int = 0
    wanted: bool = True  # False: only to have been started before
    optional: bool = False  # its failure is not ours

    @property
    def name(self) -> str:
        """Of what is left out later when it fails."""
        if self.part in ("small", "jax", "torch"):
            return self.part
        return f"{self.part} on {self.gpus}" + (f" at {self.n}" if self.n else "")


def starts(options: Namespace) -> Iterator[Start]:
    """For each number of GPUs round by round, each round in another order; and what is compared with nothing, once."""
    for gpus in options.gpus:
        parts = [part for part in IN_TURN if part in options.only and (gpus == 1 or part != "larger")]
        if "larger" in parts and "ours" not in parts:
            parts.insert(0, "ours")  # what it is compared with
        for number in range(options.rounds):
            first = number % max(1, len(parts))
            for part in parts[first:] + parts[:first]:
                yield from _in_round(part, options, gpus, number)
        if "resident" in options.only:
            yield from _in_round("resident", options, gpus, 0, options.rounds)
    if "small" in options.only:
        sizes, repeat = options.small_sizes, SMALL_REPEATS * options.rounds * options.repeat
        yield Start("small", 1, 0, [sys.executable, *_program("small", options.device, sizes, repeat)])
    for part in ("jax", "torch"):
        if part in options.only:
            program = _program(part, options.device, [size_of_picture(options.sizes)], options.rounds * options.repeat)
            command = [sys.executable, *program, "--gpus", *map(str, options.gpus)]
            yield Start(part, max(options.gpus), 0, command, optional=True)


def missing(part: str, device: str) -> str:
    """Why a part cannot be started at all."""
    if part == "cublasxt" and device != "cuda":
        return "it needs a GPU"
    return "not installed" if part in ("jax", "torch") and find_spec(part) is None else ""


def _program(name: str, device: str, sizes: Sequence[int], repeat: int) -> list[str]:
    module = MODULES.get(name, "ours")
    part = [] if module == name else [name]
    return [
        "-m",
        f"experiments.hosts.programs.{module}",
        *part,
        "--device",
        device,
        "--repeat",
        str(repeat),
        "--sizes",
        *map(str, sizes),
    ]


def _in_round(part: str, options: Namespace, gpus: int, number: int, times: int = 1) -> Iterator[Start]:
    """`times` as many repeats as in a round."""
    on_ranks = [*mpirun(gpus), *shlex.split(options.launcher)]
    python = [*on_ranks, sys.executable, "-m"]
    if part == "cublasxt":  # one process for all GPUs
        for n in options.sizes:
            program = [*_program(part, options.device, [n], options.repeat), "--gpus", str(gpus)]
            yield Start(part, gpus, number, [sys.executable, *program], n=n)
    elif part not in ("ours", "larger", "wall"):
        program = _program(part, options.device, options.sizes, times * options.repeat)
        yield Start(part, gpus, number, [*python, "mpi4py", *program])  # mpi4py ends all ranks when one fails
    elif part == "wall":  # default flags; on a GPU the device is also left to the command
        n, device = options.wall_size, [] if options.device == "cuda" else ["--device", options.device]
        command = [*python, "hybrid.matmul", *[str(n)] * 3, *device]
        for index in range(options.repeat + (number == 0) if gpus in (options.gpus[0], options.gpus[-1]) else 0):
            # Both take no notice of further arguments.
            yield Start(part, gpus, number, [*on_ranks, "true"], gives="launcher", n=n)
            imports = [*python, "experiments.hosts.programs.imports", options.device]
            yield Start(part, gpus, number, imports, gives="imports", n=n, wanted=number > 0 or index > 0)
            yield Start(part, gpus, number, command, gives=part, n=n, wanted=number > 0 or index > 0)
    else:
        warmed = ["--fill", "uniform", "--device", options.device, "--repeat", str(options.repeat), "--warmup", "1"]
        for n in options.sizes if part == "ours" and "ours" in options.only else [max(options.sizes)]:
            command = [*python, "hybrid.matmul", *[str(n)] * 3, *warmed]
            if part == "larger":
                command += ["--gpu-memory", str(3 * n * n * ITEM_SIZES["float64"] // TIMES_LARGER)]
            yield Start(part, gpus, number, command, gives=part, n=n)


@dataclass
class Outcome:
    """What a program has recorded, and why it failed."""

    lines: list[Line]
    failure: str = ""
    interrupted: bool = False


def run(start: Start, limit: float) -> Outcome:
    """Start it, and wait for it at most `limit` seconds. What it has measured until it ends, however it ends, counts."""
    with tempfile.TemporaryDirectory() as folder:
        path, output, errors = (Path(folder) / name for name in ("lines.jsonl", "output", "errors"))
        outcome = Outcome([])
        began = time.perf_counter()
        with output.open("wb") as into, errors.open("wb") as into_errors:
            command = [*start.command, "--json", str(path)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=into, stderr=into_errors, start_new_session=True)
            try:
                code = process.wait(limit)
                if code:
                    printed = (file.read_text(errors="replace") for file in (errors, output))
                    outcome.failure = f"{told_error(*printed)} (exit code {code})"
            except subprocess.TimeoutExpired:
                outcome.failure = f"not done within {limit:g} s"
            except KeyboardInterrupt:
                outcome.interrupted = True
            finally:
                _end(process)
        seconds = time.perf_counter() - began
        if start.gives not in OF_THE_WHOLE:
            outcome.lines = [_as_ours(line, start) for line in _read(path)]
        elif not (outcome.failure or outcome.interrupted):
            nothing = {"part": start.gives, "gpus": start.gpus, "n": start.n, "round": start.round}
            about = [nothing] if start.gives in BESIDE_WALL else [_as_ours(line, start) for line in _read(path)]
            outcome.lines = [{**line, "seconds": spread([seconds]), "repeat": 1} for line in about]
        return outcome


def _read(path: Path) -> list[Line]:
    return list(jsonl.read(str(path))) if path.exists() else []


def _as_ours(line: Line, start: Start) -> Line:
    """A program's line as we record it; date, versions and machine are added again when it is written."""
    kept = {"round": start.round, "mpi": line["versions"].get("mpi", "")}
    if not start.gives:
        return {**{key: line[key] for key in line if key not in RECORDERS}, **kept}
    setup = line["seconds"].get("prepare")
    of_run = {key: line[key] for key in ("n", "kernel", "transport", "settings", "repeat")} | {"phases": line["seconds"]}
    about: dict[str, Any] = {"part": start.gives, "gpus": start.gpus, "ran_on": line["device"], "error": line["check"]["error"]}
    return {**about, **of_run, "seconds": line["total"], "setup": setup["median"] if setup else None, **kept}


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started, which is a session of its own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
