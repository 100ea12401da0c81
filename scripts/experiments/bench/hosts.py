# SPDX-License-Identifier: MIT
"""From matrices in host memory to their product at rank 0: how fast beside the program one writes by hand?

For each number of GPUs these are started, round by round and each round in another order, with `mpirun -n P`:
  handwritten  Scatter, Bcast, CuPy, Gather; every buffer made before
  ours         python -m hybrid.matmul, its matrices in memory shared by the ranks
  wires        the same matrices copied to the GPUs and back, all at once and nothing multiplied: what the links allow; read as
               the check reads them; and both at once
  library      hybrid.multiply with rank 0's private arrays: checked, the same and new ones; unchecked, with and without out=
  cublasxt     cuBLASXt's own call of one process, the best of several block sizes
  wall         the whole command with default flags, from the second start on (fewest and most GPUs); beside it mpirun alone,
               and a program that only loads mpi4py, NumPy and CuPy and makes its GPU ready
and after these, once:
  torch        host array, sharded over the GPUs by PyTorch, matmul, host array

    python scripts/bench.py hosts --gpus 1 2 4 --sizes 4000 8000 16000 --json hosts.jsonl

What a program has measured is recorded when it ends, also when it fails, takes too long or is interrupted. A part that
fails is named and left out of later rounds; the others go on, and the exit code is 1. Anywhere: `--device cpu` or `emulate` runs
the same with small matrices, to see that it runs.
"""

import argparse
import os
import shlex
import signal
import statistics
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

from experiments.common import cli, plots, results
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import HybridError, UsageError
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

SIZES, WALL_SIZE = (4000, 8000, 16000), 8000
IN_TURN = ("handwritten", "ours", "wires", "library", "cublasxt", "wall")
PARTS = (*IN_TURN, "torch")
_RECORDERS = ("schema", "command", "date", "versions", "machine")  # keys that are written for every line
# What no program with MPI, NumPy and a GPU can do without: they are loaded, and the rank's GPU is made ready.
_IMPORTS = """\
import sys
import numpy
from mpi4py import MPI
if "cuda" in sys.argv:
    import cupy
    cupy.cuda.Device(MPI.COMM_WORLD.rank % cupy.cuda.runtime.getDeviceCount()).use()
    cupy.cuda.runtime.free(0)  # makes the context
"""
_GRACE = 5.0  # seconds a program may take to end when it is told to


@dataclass(frozen=True)
class Start:
    """A program to start. `n`: its size, where it has only one. `whole`: what is timed is the whole program."""

    part: str
    gpus: int
    round: int
    command: Sequence[str]
    by_command: bool = False  # hybrid.matmul, whose line is not of a part
    whole: str = ""  # the part that its time is recorded as
    n: int = 0
    wanted: bool = True  # False: only to have been started before

    @property
    def name(self) -> str:
        """Of what is left out later when it fails."""
        return f"{self.part} on {self.gpus}" + (f" at {self.n}" if self.n else "")


def starts(options: argparse.Namespace) -> Iterator[Start]:
    """For each number of GPUs round by round, each round in another order; and what is compared with nothing, once."""
    for gpus in options.gpus:
        parts = [part for part in IN_TURN if part in options.only]
        for number in range(options.rounds):
            first = number % max(1, len(parts))
            for part in parts[first:] + parts[:first]:
                yield from _in_round(part, options, gpus, number)
    if "torch" in options.only:
        program = _program("torch", options, options.sizes, options.rounds * options.repeat)
        yield Start("torch", max(options.gpus), 0, [sys.executable, *program, "--gpus", *map(str, options.gpus)])


def _program(part: str, options: argparse.Namespace, sizes: Sequence[int], repeat: int) -> list[str]:
    how = ["--device", options.device, "--repeat", str(repeat), "--sizes", *map(str, sizes)]
    return ["-m", "experiments.bench.hosts_program", part, *how]


def _in_round(part: str, options: argparse.Namespace, gpus: int, number: int) -> Iterator[Start]:
    on_ranks = [*mpirun(gpus), *shlex.split(options.launcher)]
    python = [*on_ranks, sys.executable, "-m"]
    if part == "cublasxt":  # one process for all GPUs
        for n in options.sizes:
            program = [*_program(part, options, [n], options.repeat), "--gpus", str(gpus)]
            yield Start(part, gpus, number, [sys.executable, *program], n=n)
    elif part not in ("ours", "wall"):
        program = _program(part, options, options.sizes, options.repeat)
        yield Start(part, gpus, number, [*python, "mpi4py", *program])  # mpi4py ends all ranks when one fails
    elif part == "wall":  # default flags; on a GPU the device is also left to the command
        n, device = options.wall_size, [] if options.device == "cuda" else ["--device", options.device]
        command = [*python, "hybrid.matmul", *[str(n)] * 3, *device]
        for index in range(options.repeat + (number == 0) if gpus in (options.gpus[0], options.gpus[-1]) else 0):
            # The first two take no notice of further arguments.
            wanted = number > 0 or index > 0
            yield Start(part, gpus, number, [*on_ranks, "true"], whole="launcher", n=n)
            imports = [*on_ranks, sys.executable, "-c", _IMPORTS, options.device]
            yield Start(part, gpus, number, imports, whole="imports", n=n, wanted=wanted)
            yield Start(part, gpus, number, command, by_command=True, whole=part, n=n, wanted=wanted)
    else:
        warmed = ["--fill", "uniform", "--device", options.device, "--repeat", str(options.repeat), "--warmup", "1"]
        for n in options.sizes:
            yield Start(part, gpus, number, [*python, "hybrid.matmul", *[str(n)] * 3, *warmed], by_command=True, n=n)


def run(start: Start, limit: float) -> tuple[list[results.Line], str]:
    """Start it, and wait for it at most `limit` seconds. What it has measured, however it ends, and why it failed."""
    failure = ""
    with tempfile.TemporaryDirectory() as folder:
        path, output, errors = (Path(folder) / name for name in ("lines.jsonl", "output", "errors"))
        began = time.perf_counter()
        with output.open("wb") as into, errors.open("wb") as into_errors:
            command = [*start.command, "--json", str(path)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=into, stderr=into_errors, start_new_session=True)
            try:
                if code := process.wait(limit):
                    printed = (file.read_text(errors="replace") for file in (errors, output))
                    failure = f"{results.told_error(*printed)} (exit code {code})"
            except subprocess.TimeoutExpired:
                failure = f"not done within {limit:g} s"
            finally:
                _end(process)
        seconds = time.perf_counter() - began
        lines = [_as_ours(line, start) for line in jsonl.read(str(path))] if path.exists() else []
    if start.whole:
        about = lines or [{"part": start.whole, "gpus": start.gpus, "n": start.n, "round": start.round}]
        lines = [{**line, "seconds": results.spread([seconds]), "repeat": 1} for line in about if not failure]
    return lines, failure


def _as_ours(line: results.Line, start: Start) -> results.Line:
    """A program's line as we record it; date, versions and machine are added again when it is written."""
    kept = {"round": start.round, "mpi": line["versions"].get("mpi", "")}
    if not start.by_command:
        return {**{key: line[key] for key in line if key not in _RECORDERS}, **kept}
    setup = line["seconds"].get("prepare")
    of_run = {key: line[key] for key in ("n", "kernel", "transport", "settings", "repeat")} | {"phases": line["seconds"]}
    about = {"part": start.part, "gpus": start.gpus, "ran_on": line["device"], "error": line["check"]["error"]}
    return {**about, **of_run, "seconds": line["total"], "setup": setup["median"] if setup else None, **kept}


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started, which is a session of its own."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measured(options: argparse.Namespace) -> Iterator[results.Line]:
    """All that is asked for. UsageError for what cannot be measured. `options.failed`: whether a part did that had to succeed."""
    if min(*options.gpus, *options.sizes, options.rounds, options.repeat, options.limit) <= 0:
        raise UsageError("numbers of GPUs, sizes, rounds, repeats and seconds must be more than 0")
    if uneven := [(n, gpus) for n in options.sizes for gpus in options.gpus if n % gpus]:
        raise UsageError("{} rows cannot be scattered evenly to {} ranks".format(*uneven[0]))
    gpus = usable_gpus() if options.device == "cuda" else []
    if gpus and max(options.gpus) > len(gpus):
        raise UsageError(f"{max(options.gpus)} GPUs are asked for, this machine has {len(gpus)}")
    options.wall_size = options.wall_size or (WALL_SIZE if gpus else min(options.sizes))
    until = time.monotonic() + options.total if options.total else float("inf")
    gpu = gpus[0].name if gpus else None
    about = {"device": options.device, "gpu": gpu, "gpus_there": len(gpus), "dtype": "float64"}
    absent = {"cublasxt": "it needs a GPU"} if options.device != "cuda" else {}
    absent |= {} if find_spec("torch") else {"torch": "not installed"}
    left_out: set[str] = set()
    for start in cli.shown(list(starts(options)), "programs"):
        name = start.part if start.part in absent else start.name
        if name in left_out:
            continue
        lines: list[results.Line] = []
        if not (reason := absent.get(start.part, "")):
            left = until - time.monotonic()
            lines, reason = run(start, min(options.limit, left)) if left > 0 else ([], "no time was left")
            options.failed |= bool(reason) and start.part != "torch"
        if strange := {line["ran_on"] for line in lines if line.get("ran_on", options.device) != options.device}:
            raise HybridError(f"{name} ran on {', '.join(strange)}")
        yield from ({**about, **line} for line in lines if start.wanted)
        if reason:
            left_out.add(name)
            yield {**about, "part": None, "gpus": None, "n": None, "seconds": None, "left_out": f"{name}: {reason}"}


# --- what is made of the lines

YARDSTICK = "handwritten"
_TIMES = "float64, operands in host memory to C at rank 0, in ms (and how many times as fast as written by hand)"
NOT_COMPARED = (YARDSTICK, "wires", "read", "wires, read")
PICTURED = 8000  # the size that the picture shows, and else the largest there is
NAMES = {  # of what is in the table, in its order
    "handwritten": "written by hand",
    "ours": "ours, the command",
    "wires": "the copies alone, nothing multiplied",
    "read": "the matrices read once by the check's threads, nothing copied",
    "wires, read": "the copies and this reading at once",
    "library, new arrays": "ours, `multiply(a, b)`, new arrays each time",
    "library, checked": "ours, `multiply(a, b, out=c)`, the same arrays",
    "library": "ours, `multiply(a, b, out=c, check=False)`",
    "library, new C": "ours, `multiply(a, b, check=False)`",
    "cublasxt, page-locked": "cuBLASXt, page-locked operands",
    "cublasxt, registered": "cuBLASXt, operands registered in the call",
    "cublasxt, pageable": "cuBLASXt, pageable operands",
    "torch": "PyTorch",
}
DRAWN = {  # name, colour, how the line is drawn, marker
    "handwritten": ("written by hand", plots.LECTURE, "-", "o"),
    "torch": ("PyTorch", plots.OTHER, "-", "s"),
    "cublasxt, page-locked": ("cuBLASXt, page-locked", "#6699cc", "-", "^"),
    "library, new arrays": ("ours, multiply(a, b), new arrays", plots.HERE, "-.", "o"),
    "library, checked": ("ours, multiply(a, b, out=c)", plots.HERE, "--", "D"),
    "ours": ("ours, the command", plots.HERE, "-", "D"),
    "wires": ("the copies alone", plots.GREY, ":", "."),
}


class Cell:
    """A part on so many GPUs at one size, in blocks of one size (0: none): the median over the rounds of their medians."""

    def __init__(self, lines: Sequence[results.Line]) -> None:
        self.block = lines[0].get("block", 0)
        by_round: dict[tuple[str, int], list[float]] = {}
        for line in lines:
            by_round.setdefault((line["run"], line["round"]), []).append(line["seconds"]["median"])
        self.medians = {number: statistics.median(times) for number, times in by_round.items()}
        self.seconds = statistics.median(self.medians.values())
        # Once; the least: rounds after the first find files and kernels in caches.
        self.setup = min((line["setup"] for line in lines if line.get("setup") is not None), default=None)


class Results(results.MachineResults):
    """By part, number of GPUs and size; of cuBLASXt with the best size of blocks."""

    command, again = "bench_hosts", "python scripts/bench.py hosts"

    def __init__(self, lines: Sequence[results.Line]) -> None:
        super().__init__(lines)
        grouped: dict[tuple[str, int, int, int], list[results.Line]] = {}
        for line in lines:
            if line.get("seconds"):
                grouped.setdefault((line["part"], line["gpus"], line["n"], line.get("block", 0)), []).append(line)
        self.cells: dict[tuple[str, int, int], Cell] = {}
        for (*key, _), of_key in grouped.items():
            cell, best = Cell(of_key), self.cells.get(tuple(key))  # type: ignore[arg-type]
            if best is None or cell.seconds < best.seconds:
                self.cells[tuple(key)] = cell  # type: ignore[index]
        compared = [(gpus, n) for part, gpus, n in self.cells if part in NAMES]
        self.gpus, self.sizes = (sorted(set(each)) for each in zip(*compared, strict=True)) if compared else ([], [])

    @staticmethod
    def machine_of(line: results.Line) -> str:
        """GPUs, or what stood for them."""
        if line["gpu"]:
            return f"{line['gpus_there']} × {line['gpu']}"
        return f"{line['machine']['processor']}, {line['machine']['cores']} cores: no GPU, device {line['device']}"

    def machine(self) -> str:
        """With the versions of what was measured."""
        versions = self.lines[-1]["versions"]
        cupy = [f"{key} {versions[key]}" for key in ("cupy-cuda13x", "cupy-cuda12x") if key in versions]
        libraries = [line[key].split(",")[0] for key in ("mpi", "library") for line in self.lines if line.get(key)]
        return ", ".join([self.machine_of(self.lines[-1]), *dict.fromkeys(cupy + libraries)])

    def blocks(self) -> Iterator[results.Block]:
        if not self.of_gpu:
            yield results.Remarks(["Not of a GPU: this shows only that the programs run."])
        if self.gpus:
            yield self._grid(self._time, _TIMES)
        if any(cell.setup is not None for (part, _, _), cell in self.cells.items() if part in NAMES):
            title = "Once, before the clock, in ms (the command: what it prepares; else the first product with all that it needs)"
            yield self._grid(self._setup, title)
        left_out = [line["left_out"] for line in self.lines if line["run"] == self.lines[-1]["run"] and line.get("left_out")]
        if remarks := [*self._beside(), *(f"Left out: {text}" for text in left_out)]:
            yield results.Remarks(remarks)

    def _time(self, part: str, gpus: int, n: int) -> str:
        """And how many times the yardstick's time, the median over the rounds that have both."""
        cell, other = self.cells[part, gpus, n], self.cells.get((YARDSTICK, gpus, n))
        both = [number for number in cell.medians if other and number in other.medians and part not in NOT_COMPARED]
        ratio = f" ({_number(statistics.median(other.medians[each] / cell.medians[each] for each in both))} ×)" if both else ""
        return _number(1e3 * cell.seconds) + ratio

    def _setup(self, *key: Any) -> str:
        setup = self.cells[key].setup
        return "–" if setup is None else _number(1e3 * setup)

    def _grid(self, text: Callable[[str, int, int], str], title: str) -> results.Table:
        unit = "GPU" if self.of_gpu else "rank"
        heads, rows = ["n", "", *(f"{count} {unit}{'s' if count > 1 else ''}" for count in self.gpus)], []
        for n in self.sizes:
            for part, name in NAMES.items():
                texts = [text(part, count, n) if (part, count, n) in self.cells else "–" for count in self.gpus]
                if set(texts) != {"–"}:
                    rows.append([str(n), name, *texts])
        return results.Table(heads, "rl" + "r" * len(self.gpus), rows, title)

    def _beside(self) -> Iterator[str]:
        for (part, gpus, n), cell in self.cells.items():
            if part == "wall":
                launcher, imports = (self.cells[other, gpus, n].seconds for other in ("launcher", "imports"))
                command = f"mpirun -n {gpus} python -m hybrid.matmul {n} {n} {n}"
                alone = f"{launcher:.2f} s, and to load mpi4py, NumPy and CuPy and make the GPU ready {imports:.2f} s"
                yield f"Whole command, `{command}`: {cell.seconds:.2f} s; `mpirun -n {gpus} true` takes {alone}."
            if cell.block:
                yield f"The best block size of {NAMES[part]}, {n} on {gpus}: {cell.block}."

    def draw(self, path: str) -> None:
        """A line for each program at 8000, or at the largest size there is; both axes logarithmic."""
        from matplotlib.ticker import LogLocator, NullLocator

        if not (sizes := {n for part, _, n in self.cells if part in DRAWN}):
            raise UsageError("nothing of the picture was measured")
        n, gpus = PICTURED if PICTURED in sizes else max(sizes), self.gpus
        with plots.figure(path, (6.4, 4.2)) as figure:
            panel = figure.subplots()
            plots.plain(panel)
            for part, (name, color, style, marker) in DRAWN.items():
                points = [(count, 1e3 * cell.seconds) for count in gpus if (cell := self.cells.get((part, count, n)))]
                if points:
                    last = f"{name}: {points[-1][1]:.{1 if points[-1][1] < 100 else 0}f} ms on {points[-1][0]}"
                    panel.plot(*zip(*points, strict=True), style, marker=marker, markersize=5, color=color, label=last)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(gpus, [str(count) for count in gpus])
            panel.set_xticks([], minor=True)
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            panel.yaxis.set_minor_locator(NullLocator())
            panel.grid(axis="x", visible=False)
            panel.set_ylabel(f"ms from host to host, {n}×{n} float64")
            panel.set_xlabel(f"GPUs of {self.machine_of(self.lines[-1])}, {self.caption().rpartition('; ')[2]}")
            figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=9)


def _number(value: float) -> str:
    """Three digits or so."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def work(options: argparse.Namespace) -> int:
    options.failed = False
    return cli.present(options, Results, measured) or int(options.failed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(__doc__)
    parser.add_argument("--gpus", nargs="+", type=int, default=[1], metavar="P", help="one rank for each (1)")
    sizes = " ".join(map(str, SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="N", help=f"multiples of all P ({sizes})")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each program (3)")
    parser.add_argument("--repeat", type=int, default=3, help="products timed in each start (3)")
    parser.add_argument("--limit", type=float, default=90.0, metavar="S", help="seconds a program may take (90)")
    parser.add_argument("--total", type=float, default=0.0, metavar="S", help="start nothing after so many seconds (0: no limit)")
    parser.add_argument("--device", choices=("cuda", "cpu", "emulate"), default="cuda", help="where all multiply (cuda)")
    parser.add_argument("--wall-size", type=int, metavar="N", help=f"of the whole command ({WALL_SIZE}; no GPU: the smallest)")
    launcher = os.environ.get("BENCH_LAUNCHER", "")
    more = "further arguments of mpirun, in one word (BENCH_LAUNCHER)"
    parser.add_argument("--launcher", default=launcher, metavar="ARGUMENTS", help=more)
    cli.add_lines(parser, Results)
    return cli.command(parser, work, arguments, failure=2)
