"""The programs that scripts/bench_hosts.py compares: which are started when, how, and what they said."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hosts_results import Line, size_of_picture
from told import last_error

from hybrid.core.problem import ITEM_SIZES
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

SCRIPTS = Path(__file__).resolve().parent
PARTS = ("handwritten", "ours", "wires", "library", "larger", "wall", "resident", "small", "jax", "torch")
IN_TURN = ("handwritten", "ours", "wires", "library", "larger", "wall")
SMALL_SIZES, SMALL_REPEATS = (128, 256, 512), 5  # the latter for each repeat of the others
TIMES_LARGER = 3  # than the memory that it is allowed
OF_THE_WHOLE = ("wall", "launcher")  # what is timed is the program, from its start to its end
GRACE = 5.0  # seconds a program may take to end when it is told to


@dataclass(frozen=True)
class Plan:
    """What is to be measured."""

    gpus: Sequence[int]
    sizes: Sequence[int]
    parts: Sequence[str]
    rounds: int
    repeat: int
    device: str
    wall_size: int
    small_sizes: Sequence[int]
    launcher: str  # further arguments of mpirun


@dataclass(frozen=True)
class Start:
    """A program to start. `gives`: what its line is, and `n` its size, where it is the command, which does not say so."""

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


def starts(plan: Plan) -> Iterator[Start]:
    """For each number of GPUs round by round, each round in another order; and what is compared with nothing, once."""
    for gpus in plan.gpus:
        parts = [part for part in IN_TURN if part in plan.parts and (gpus == 1 or part != "larger")]
        if "larger" in parts and "ours" not in parts:
            parts.insert(0, "ours")  # what it is compared with
        for number in range(plan.rounds):
            first = number % max(1, len(parts))
            for part in parts[first:] + parts[:first]:
                yield from _STARTS[part](plan, gpus, number)
        if "resident" in plan.parts:
            yield from _by_mpi("resident", plan.rounds)(plan, gpus, 0)
    if "small" in plan.parts:
        sizes, repeat = plan.small_sizes, SMALL_REPEATS * plan.rounds * plan.repeat
        yield Start("small", 1, 0, [sys.executable, *_program("small", plan.device, sizes, repeat)])
    for part in ("jax", "torch"):
        if part in plan.parts:
            several = ["--gpus", *map(str, plan.gpus)]
            command = [
                sys.executable,
                *_program(part, plan.device, [size_of_picture(plan.sizes)], plan.rounds * plan.repeat),
                *several,
            ]
            yield Start(part, max(plan.gpus), 0, command, optional=True)


def missing(part: str) -> str:
    """Why a part cannot be started at all."""
    return "not installed" if part in ("jax", "torch") and find_spec(part) is None else ""


def _program(name: str, device: str, sizes: Sequence[int], repeat: int) -> list[str]:
    options = ["--device", device, "--repeat", str(repeat), "--sizes", *map(str, sizes)]
    return [str(SCRIPTS / f"hosts_{name}.py"), *options]


def _ranks(plan: Plan, gpus: int) -> list[str]:
    return [*mpirun(gpus), *shlex.split(plan.launcher), sys.executable, "-m"]


def _by_mpi(name: str, times: int = 1) -> Callable[[Plan, int, int], Iterator[Start]]:
    """`times` as many repeats as in a round."""

    def of(plan: Plan, gpus: int, number: int) -> Iterator[Start]:
        program = _program(name, plan.device, plan.sizes, times * plan.repeat)
        yield Start(name, gpus, number, [*_ranks(plan, gpus), "mpi4py", *program])  # mpi4py ends all ranks when one fails

    return of


def _matmul(plan: Plan, gpus: int, n: int) -> list[str]:
    warmed = ["--fill", "uniform", "--device", plan.device, "--repeat", str(plan.repeat), "--warmup", "1"]
    return [*_ranks(plan, gpus), "hybrid.matmul", *[str(n)] * 3, *warmed]


def _ours(plan: Plan, gpus: int, number: int) -> Iterator[Start]:
    for n in plan.sizes if "ours" in plan.parts else [max(plan.sizes)]:
        yield Start("ours", gpus, number, _matmul(plan, gpus, n), gives="ours", n=n)


def _larger(plan: Plan, gpus: int, number: int) -> Iterator[Start]:
    n = max(plan.sizes)
    allowed = 3 * n * n * ITEM_SIZES["float64"] // TIMES_LARGER
    yield Start("larger", gpus, number, [*_matmul(plan, gpus, n), "--gpu-memory", str(allowed)], gives="larger", n=n)


def _wall(plan: Plan, gpus: int, number: int) -> Iterator[Start]:
    """Default flags; on a GPU the device is also left to the command."""
    if gpus not in (min(plan.gpus), max(plan.gpus)):
        return
    device = [] if plan.device == "cuda" else ["--device", plan.device]
    command = [*_ranks(plan, gpus), "hybrid.matmul", *[str(plan.wall_size)] * 3, *device]
    launcher = [*mpirun(gpus), *shlex.split(plan.launcher), "true"]  # which takes no notice of arguments
    for index in range(plan.repeat if number else plan.repeat + 1):
        yield Start("wall", gpus, number, launcher, gives="launcher", n=plan.wall_size)
        yield Start("wall", gpus, number, command, gives="wall", n=plan.wall_size, wanted=number > 0 or index > 0)


_STARTS: dict[str, Callable[[Plan, int, int], Iterator[Start]]] = {
    "handwritten": _by_mpi("handwritten"),
    "ours": _ours,
    "wires": _by_mpi("wires"),
    "library": _by_mpi("library"),
    "larger": _larger,
    "wall": _wall,
}


# --- one of them


@dataclass
class Said:
    """What a program's lines say, and why it failed."""

    lines: list[Line]
    failure: str = ""
    interrupted: bool = False


def run(start: Start, limit: float) -> Said:
    """Start it, and wait for it at most `limit` seconds. What it has measured until it ends, however it ends, counts."""
    with tempfile.TemporaryDirectory() as folder:
        path, output, errors = (Path(folder) / name for name in ("lines.jsonl", "output", "errors"))
        said = Said([])
        began = time.perf_counter()
        with output.open("wb") as into, errors.open("wb") as into_errors:
            command = [*start.command, "--json", str(path)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=into, stderr=into_errors, start_new_session=True)
            try:
                code = process.wait(limit)
                said.failure = f"{_told(errors, output)} (exit code {code})" if code else ""
            except subprocess.TimeoutExpired:
                said.failure = f"not done within {limit:g} s"
            except KeyboardInterrupt:
                said.interrupted = True
            finally:
                _end(process)
        seconds = time.perf_counter() - began
        if start.gives not in OF_THE_WHOLE:
            said.lines = [_as_ours(line, start) for line in _read(path)]
        elif not (said.failure or said.interrupted):
            about = [_launchers(start)] if start.gives == "launcher" else [_as_ours(line, start) for line in _read(path)]
            said.lines = [{**line, "seconds": {"median": seconds, "min": seconds, "max": seconds}, "repeat": 1} for line in about]
        return said


def _read(path: Path) -> list[Line]:
    return list(jsonl.read(str(path))) if path.exists() else []


def _as_ours(line: Line, start: Start) -> Line:
    """A program's line as we record it; date, versions and machine are added again when it is written."""
    kept = {"round": start.round, "mpi": line["versions"].get("mpi", "")}
    if not start.gives:
        return {**{key: line[key] for key in line if key not in ("schema", "date", "versions", "machine")}, **kept}
    setup = line["seconds"].get("prepare")
    of_run = {key: line[key] for key in ("n", "kernel", "transport", "settings", "repeat")} | {"phases": line["seconds"]}
    about: dict[str, Any] = {"part": start.gives, "gpus": start.gpus, "ran_on": line["device"], "error": line["check"]["error"]}
    return {**about, **of_run, "seconds": line["total"], "setup": setup["median"] if setup else None, **kept}


def _launchers(start: Start) -> Line:
    """The line of a launcher that starts nothing, which tells nothing of itself."""
    return {"part": start.gives, "gpus": start.gpus, "n": start.n, "round": start.round}


def _told(*files: Path) -> str:
    return last_error(*(file.read_text(errors="replace") for file in files))


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
