# SPDX-License-Identifier: MIT
"""How fast is the runner beside the program one writes by hand? The programs that are compared, and when each is started."""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from experiments.common import cli, hosts_results, records
from experiments.common.hosts_results import Results, size_of_picture
from experiments.common.records import told_error
from experiments.start import ROOT
from hybrid.core.problem import ITEM_SIZES
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import UsageError
from hybrid.ranks.launcher import mpirun
from hybrid.reporting import jsonl

MORE = """
    python scripts/bench_hosts.py --gpus 1 2 4 --sizes 4000 8000 16000 --json hosts.jsonl

What a program has measured is recorded when it ends, also when it fails, takes too long or is interrupted. A part that
fails is named and left out of later rounds; the others go on, and the exit code is 1.

Anywhere: `--device cpu` or `emulate` runs the same with small matrices, to see that it runs. `--from hosts.jsonl` prints the
table of recorded lines, with --write it goes into docs/benchmarks.md and docs/hosts.svg.
"""
PAGE, PICTURE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "hosts.svg"
SIZES, WALL_SIZE, SMALL_SIZES = (4000, 8000, 16000), 8000, (128, 256, 512)
IN_TURN = ("handwritten", "ours", "wires", "library", "cublasxt", "larger", "wall")
PARTS = (*IN_TURN, "resident", "small", "jax", "torch")
SMALL_REPEATS = 5  # for each repeat of the others
TIMES_LARGER = 3  # than the memory that it is allowed
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
        if self.part in ("small", "jax", "torch"):
            return self.part
        return f"{self.part} on {self.gpus}" + (f" at {self.n}" if self.n else "")


def starts(options: argparse.Namespace) -> Iterator[Start]:
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
    repeat = options.rounds * options.repeat
    if "small" in options.only:
        yield Start("small", 1, 0, [sys.executable, *_program("small", options, options.small_sizes, SMALL_REPEATS * repeat)])
    for part in ("jax", "torch"):
        if part in options.only:
            program = _program(part, options, [size_of_picture(options.sizes)], repeat)
            yield Start(part, max(options.gpus), 0, [sys.executable, *program, "--gpus", *map(str, options.gpus)])


def _program(part: str, options: argparse.Namespace, sizes: Sequence[int], repeat: int) -> list[str]:
    how = ["--device", options.device, "--repeat", str(repeat), "--sizes", *map(str, sizes)]
    return ["-m", "experiments.bench.hosts_program", part, *how]


def _in_round(part: str, options: argparse.Namespace, gpus: int, number: int, times: int = 1) -> Iterator[Start]:
    """`times` as many repeats as in a round."""
    on_ranks = [*mpirun(gpus), *shlex.split(options.launcher)]
    python = [*on_ranks, sys.executable, "-m"]
    if part == "cublasxt":  # one process for all GPUs
        for n in options.sizes:
            program = [*_program(part, options, [n], options.repeat), "--gpus", str(gpus)]
            yield Start(part, gpus, number, [sys.executable, *program], n=n)
    elif part not in ("ours", "larger", "wall"):
        program = _program(part, options, options.sizes, times * options.repeat)
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
        for n in options.sizes if part == "ours" and "ours" in options.only else [max(options.sizes)]:
            command = [*python, "hybrid.matmul", *[str(n)] * 3, *warmed]
            if part == "larger":
                command += ["--gpu-memory", str(3 * n * n * ITEM_SIZES["float64"] // TIMES_LARGER)]
            yield Start(part, gpus, number, command, by_command=True, n=n)


def run(start: Start, limit: float) -> tuple[list[records.Line], str, bool]:
    """Start it, and wait for it at most `limit` seconds. What it has measured until it ends, however it ends; why it failed;
    whether it was interrupted."""
    failure, interrupted = "", False
    with tempfile.TemporaryDirectory() as folder:
        path, output, errors = (Path(folder) / name for name in ("lines.jsonl", "output", "errors"))
        began = time.perf_counter()
        with output.open("wb") as into, errors.open("wb") as into_errors:
            command = [*start.command, "--json", str(path)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=into, stderr=into_errors, start_new_session=True)
            try:
                if code := process.wait(limit):
                    printed = (file.read_text(errors="replace") for file in (errors, output))
                    failure = f"{told_error(*printed)} (exit code {code})"
            except subprocess.TimeoutExpired:
                failure = f"not done within {limit:g} s"
            except KeyboardInterrupt:
                interrupted = True
            finally:
                _end(process)
        seconds = time.perf_counter() - began
        lines = [_as_ours(line, start) for line in jsonl.read(str(path))] if path.exists() else []
    if start.whole and (failure or interrupted):
        lines = []
    elif start.whole:
        about = lines or [{"part": start.whole, "gpus": start.gpus, "n": start.n, "round": start.round}]
        lines = [{**line, "seconds": records.spread([seconds]), "repeat": 1} for line in about]
    return lines, failure, interrupted


def _as_ours(line: records.Line, start: Start) -> records.Line:
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


class Bench:
    """One run of all that is asked for. UsageError for what cannot be measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        if min(*options.gpus, *options.sizes, *options.small_sizes, options.rounds, options.repeat, options.limit) <= 0:
            raise UsageError("numbers of GPUs, sizes, rounds, repeats and seconds must be more than 0")
        if uneven := [(n, gpus) for n in options.sizes for gpus in options.gpus if n % gpus]:
            raise UsageError("{} rows cannot be scattered evenly to {} ranks".format(*uneven[0]))
        gpus = usable_gpus() if options.device == "cuda" else []
        if gpus and max(options.gpus) > len(gpus):
            raise UsageError(f"{max(options.gpus)} GPUs are asked for, this machine has {len(gpus)}")
        self.recorder = records.Recorder(Results.command, options.words, options.json)
        self._until = time.monotonic() + options.total if options.total else float("inf")
        options.gpus, options.sizes = sorted(set(options.gpus)), list(dict.fromkeys(options.sizes))
        options.wall_size = options.wall_size or (WALL_SIZE if gpus else min(options.sizes))
        self._options = options
        gpu = gpus[0].name if gpus else None
        self._about = {"device": options.device, "gpu": gpu, "gpus_there": len(gpus), "dtype": "float64"}
        self._failed: set[str] = set()

    def measure(self) -> bool:
        """Whether all went well that had to."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is measured is printed in the end
        good = True
        try:
            for start in starts(self._options):
                good &= self._one(start)
        except KeyboardInterrupt:
            self._leave_out("what comes after the interruption")
            good = False
        finally:
            signal.signal(signal.SIGTERM, before)
        return good

    def _one(self, start: Start) -> bool:
        if {start.part, start.name} & self._failed:
            return True  # that was said
        if start.part == "cublasxt" and self._options.device != "cuda":
            reason = "it needs a GPU"
        else:
            reason = "not installed" if start.part in ("jax", "torch") and find_spec(start.part) is None else ""
        if reason:
            self._failed.add(start.part)
            self._leave_out(f"{start.part}: {reason}")
            return True
        if reason := self._run(start):
            self._failed.add(start.name)
            self._leave_out(f"{start.name}: {reason}")
        return start.part in ("jax", "torch") or not reason  # whose failures are not ours

    def _run(self, start: Start) -> str:
        """Why it failed; empty where it did not."""
        left = self._until - time.monotonic()
        if left <= 0:
            return "no time was left"
        lines, failure, interrupted = run(start, min(self._options.limit, left))
        if strange := {line["ran_on"] for line in lines if line.get("ran_on", self._options.device) != self._options.device}:
            return f"it ran on {', '.join(strange)}"
        for line in lines if start.wanted else []:
            self.recorder.keep({**self._about, **line})
            print(as_text(line), flush=True)
        if interrupted:
            raise KeyboardInterrupt
        return failure

    def _leave_out(self, what: str) -> None:
        self.recorder.keep({**self._about, "part": None, "gpus": None, "n": None, "seconds": None, "left_out": what})
        print(f"left out: {what}", file=sys.stderr, flush=True)


def as_text(line: records.Line) -> str:
    seconds = [f"{1e3 * line['seconds'][name]:.3f}" for name in ("median", "min", "max")]
    times = f"{seconds[0]:>11} ms ({seconds[1]} to {seconds[2]})"
    part = line["part"] + (f", blocks of {line['block']}" if "block" in line else "")
    return f"round {line['round']}  {part:37} {line['n']:6} on {line['gpus']}{times}"


def work(options: argparse.Namespace) -> int:
    if options.write:  # not after minutes
        cli.refuse_page(PAGE, "hosts")
    good = True
    if options.source:
        lines = Results.recorded(options.source)
    else:
        bench = Bench(options)
        good = bench.measure()
        lines = bench.recorder.lines
    if not lines:
        print("nothing was measured", file=sys.stderr)
        return 1
    results = Results(lines)
    print(results.markdown())
    if options.write:
        if not results.of_gpu:
            raise UsageError("these times are not of a GPU: nothing is written")
        cli.write_page(results, PAGE, "hosts", PICTURE)
    return 0 if good else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser(f"{hosts_results.__doc__}{MORE}")
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
    small = " ".join(map(str, SMALL_SIZES))
    parser.add_argument("--small-sizes", nargs="+", type=int, default=SMALL_SIZES, metavar="N", help=f"({small})")
    launcher = os.environ.get("BENCH_LAUNCHER", "")
    more = "further arguments of mpirun, in one word (BENCH_LAUNCHER)"
    parser.add_argument("--launcher", default=launcher, metavar="ARGUMENTS", help=more)
    cli.add_lines(parser)
    cli.add_page(parser, "docs/benchmarks.md", "docs/hosts.svg")
    return cli.command(parser, work, arguments, failure=2)
