# SPDX-License-Identifier: MIT
"""Jobs that are killed, stopped and starved at random, and calls in which a rank fails at a random line."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments.common import frame
from experiments.ordeal.job import SHARED, Job, has_own_tmp, may_mount
from hybrid.core.problem import record
from hybrid.devices.cuda_gpus import usable_gpus
from hybrid.errors import DeviceUnavailable, HybridError
from hybrid.ranks.launcher import mpirun

_PROGRAMS = Path(__file__).with_name("programs")
# Open MPI's handler for deadly signals, which prints a stack trace, may hang (1 of 600 processes). A program has no supervisor
# that would notice, so the handler is switched off, as docs/failures.md advises.
OF_PROGRAMS = {"OMPI_MCA_opal_signal": ""}

STALL = 3.0  # seconds, --stall of every job
LIMIT = 30.0  # seconds after the fault and its work, after which a job hangs
_LEAVING = 10.0  # seconds in which processes and files of an ended job must disappear
_TIMES_USUAL = 4  # times the usual work time that several ranks may take beside other jobs
_LONGEST = 300.0  # seconds that a command may take without a fault
LATEST = 2.0  # seconds after the start: the latest time of a fault
PAUSE = 4.5  # seconds for which a whole job is paused: longer than --stall
_OURS = re.compile(r"process|hybrid-|mpich_shm_|(vader|sm)_segment|ucx_shm_posix_")  # of what a job leaves
_OF_MPI = re.compile(rf" {SHARED}/(mpich_shm|sm_segment|vader_segment)")

# It has no supervisor: its launcher, or python -m mpi4py, ends it and says so.
LIBRARY = ("-m", "mpi4py", str(_PROGRAMS / "products.py"), "40")
_SLOW = ("--threads", "1", "--repeat", "3")
# Products that take from a tenth of a second to several seconds, with all parts of the command.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("-m", "hybrid.matmul", "3000", "2500", "2000", *_SLOW),
    ("-m", "hybrid.matmul", "4000", "4000", "4000", "--dtype", "float32", "--fill", "normal", *_SLOW),
    ("-m", "hybrid.matmul", "3500", "3500", "3500", "--check", "host", "--out", "C.npy", "--threads", "1"),
    ("-m", "hybrid.matmul", "300", "200", "150", "--device", "emulate", "--kernel", "tiled", "--repeat", "3"),
    ("-m", "hybrid.paths", "ten", "--length", "9000", "--threads", "1"),
    LIBRARY,
)
Usual = dict[tuple[str, ...], tuple[list[str], float]]  # by command, the result of `usual`
_DEADLY = (signal.SIGKILL, signal.SIGSEGV)
_ENDING = tuple(getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT", "HUP", "ABRT", "SEGV", "USR1", "USR2"))


@record
class Fault:
    """`signum`: None if the fault is a resource limit."""

    name: str
    signum: int | None
    whom: str  # worker, supervisor, rank (both), all, launcher, nobody
    limit: tuple[str, int] | None = None

    @property
    def kills_who_would_speak(self) -> bool:
        """Whether nobody of ours is left to report: the launcher or the shell does."""
        return self.whom == "launcher" or (self.whom in ("supervisor", "rank", "all") and self.signum in _DEADLY)


def faults(ranks: int, command: Sequence[str]) -> list[Fault]:
    """All kinds of fault for a job of `ranks` ranks; 0: without a launcher."""
    library, launcher = command is LIBRARY, ["launcher"] if ranks else []
    whom = ("rank",) if library else ("worker", "supervisor", "rank")
    found = [Fault("asleep", signal.SIGSTOP, "all")]
    found += [Fault(signal.Signals(signum).name, signum, who) for signum in _ENDING for who in (*whom, *launcher)]
    if library:  # if one of its ranks is stopped within a product, the others wait
        return found
    found.append(Fault("SIGSTOP", signal.SIGSTOP, "worker"))
    limits = {"few files": ("RLIMIT_NOFILE", 48), "little memory": ("RLIMIT_AS", 700 << 20)}
    return found + [Fault(name, None, "nobody", limit) for name, limit in limits.items()]


@contextmanager
def _started(command: Sequence[str], ranks: int = 0, limits: Mapping[str, int] | None = None) -> Iterator[Job]:
    how: dict[str, Any] = {"HYBRID_STALL": str(STALL), **(OF_PROGRAMS if command is LIBRARY else {})}
    with tempfile.TemporaryDirectory(prefix="ordeal-") as folder:
        there = "/tmp" if has_own_tmp() else folder  # noqa: S108
        words = [word if word != "C.npy" else f"{there}/C.npy" for word in command]
        job = Job(words, ranks, folder=Path(folder), limits=limits, limit=10 * _LONGEST, **how)
        try:
            yield job
        finally:
            job.discard()


def usual(command: Sequence[str]) -> tuple[list[str], float]:
    """A command's standard error without a fault, and its seconds. HybridError if it fails."""
    with _started(command) as job:
        ended = job.has_ended(_LONGEST)
        seconds, end = time.monotonic() - job.began, job.ended(_LEAVING)
        if not ended or end.code:
            raise HybridError(f"{' '.join(command[1:])} does not succeed: {' '.join(end.err.split())}")
        return end.err.splitlines(), seconds


def trial(number: int, dice: random.Random, most_ranks: int, known: Usual) -> frame.Line:
    """The line of a random job with a random fault at a random time. `known`: the usual output and time of each command."""
    ranks, command = dice.randint(0, most_ranks), dice.choice(COMMANDS)
    fault, watched = dice.choice(faults(ranks, command)), command is not LIBRARY  # by supervisors
    usual_lines, usual_seconds = known[command]
    with _started(command, ranks, dict([fault.limit]) if fault.limit else None) as job:
        at = dice.uniform(0, LATEST)
        struck, young, starts = fault.limit is None and not job.has_ended(at), False, False
        if struck:
            processes = job.processes()
            starts = ranks > 0 and (len(processes) < ranks or not all(_has_started(each[-1]) for each in processes.values()))
            # A rank without a supervisor, while Python still loads modules, ends as any program does.
            young = sum(map(len, processes.values())) < (2 if watched else 1) * max(1, ranks)
            _strike(job, fault, processes, dice, young=young)
        began = time.monotonic()
        ended = job.has_ended(LIMIT + _TIMES_USUAL * usual_seconds)  # all of its work may be left
        seconds = time.monotonic() - began
        # Without a supervisor of ours, a launcher does not end the job when a rank ends before it has started MPI.
        launcher_hung = not ended and (not job.others() or (starts and not watched))
        end = job.ended(_LEAVING)
    code, left = end.code if ended else None, [name for name in (*end.left, *end.of_mpich) if _OURS.match(Path(name).name)]
    said = [line for line in end.lines if line not in usual_lines]
    well = _well(fault, code, said, end.out, watched=watched) or young
    return {
        "part": "trial", "number": number, "ranks": ranks, "command_line": [Path(word).name for word in command],
        "fault": fault.name, "whom": fault.whom, "at": at, "struck": struck or fault.limit is not None,
        "seconds": seconds, "exit_code": code, "ended": ended, "lines": said[:4] or end.err.splitlines()[-4:], "left": left,
        "well": well, "launcher_hung": launcher_hung, "apart": not watched or young or starts or fault.kills_who_would_speak,
    }  # fmt: skip


def _has_started(worker: int) -> bool:
    """Whether MPI has mapped its shared memory, and MPICH has unlinked its file."""
    with suppress(OSError):
        maps = Path(f"/proc/{worker}/maps").read_text(errors="replace")
        of_mpi = [line for line in maps.splitlines() if _OF_MPI.search(line)]
        return bool(of_mpi) and not any("mpich_shm" in line and not line.endswith("(deleted)") for line in of_mpi)
    return False


def _strike(job: Job, fault: Fault, processes: Mapping[int, list[int]], dice: random.Random, *, young: bool) -> None:
    assert fault.signum is not None
    everybody = [process for pair in processes.values() for process in pair]
    one = processes[dice.choice(sorted(processes))] if processes else [job.launcher]
    targets = {"worker": one[1:] or one, "supervisor": one[:1], "rank": one, "all": everybody, "launcher": [job.launcher]}
    job.send(fault.signum, *targets[fault.whom])
    if fault.name == "asleep":
        time.sleep(PAUSE)
        job.send(signal.SIGCONT, *everybody)
    if young and job.ranks < 2 and fault.signum == signal.SIGSTOP:
        job.send(signal.SIGCONT, *targets[fault.whom])  # the only process there is


def _well(fault: Fault, code: int | None, said: Sequence[str], out: str, *, watched: bool = True) -> bool:
    """Whether the job succeeded without a complaint, or failed with exactly one. `watched`: by supervisors; otherwise the
    launcher or Python says why."""
    as_usual = not said and bool(out.strip())  # perhaps only the products finished when it was asked to end
    if code in (0, 128 + signal.SIGTERM) and as_usual:
        return True
    return bool(code) and (len(said) == 1 or (not said and (fault.kills_who_would_speak or not watched)))


# The columns of the table, and the trials counted in each.
_COUNTED: dict[str, Callable[[frame.Line], bool]] = {
    "trials": lambda line: True,
    "hangs": lambda line: not (line["ended"] or line["launcher_hung"]),
    "went on": lambda line: line["ended"] and not line["exit_code"],  # and finished their work
    "not by one line": lambda line: line["ended"] and not line["well"],
    "stayed": lambda line: bool(line["left"]) and not line["apart"],
    "stayed (apart)": lambda line: bool(line["left"]) and line["apart"],
    "launcher hung (apart)": lambda line: line["launcher_hung"],
}


def is_faulty(line: frame.Line) -> bool:
    return any(_COUNTED[head](line) for head in ("hangs", "not by one line", "stayed"))


_AT_ONCE = 25  # trials in a job
_ALONE = 600.0  # seconds that they may take
_BAD = ("hung or died", "wrong", "neither")
_HEADS = ("trials", "on all", "on some", "on none", "next right", "next lost", "ended by a line", *_BAD)


def tried_inside(options: argparse.Namespace) -> int:
    """Print the trials' results by kind of error; returns 1 if any is bad."""
    counts: dict[str, Counter[str]] = {}
    began, first, dice = time.monotonic(), 0, random.Random(options.seed)  # noqa: S311 (no secret)
    while first < options.trials and time.monotonic() - began < 60 * options.minutes:
        last = min(options.trials, first + _AT_ONCE)
        for line in _tried(options.seed, first, last, dice.randint(2, max(2, options.ranks))):
            first, heads = line["number"] + 1, _judged(line)
            counts.setdefault(line["error"], Counter()).update(heads)
            if options.verbose and any(head in _BAD for head in heads):
                print(json.dumps(line), flush=True)
    counts["all"] = sum(counts.values(), Counter())
    rows = [(error, *(str(of_error[head]) for head in _HEADS)) for error, of_error in sorted(counts.items())]
    frame.show(frame.Table(("error", *_HEADS), "l" + "r" * len(_HEADS), rows))
    return int(any(counts["all"][head] for head in _BAD))


def _tried(seed: int, first: int, last: int, ranks: int) -> list[dict[str, Any]]:
    """The lines of these trials; the last one without a result if the job ended early."""
    ours: dict[str, Any] = {name: value for name, value in os.environ.items() if name.startswith("HYBRID_")}
    with tempfile.TemporaryDirectory() as folder:
        job = Job([_PROGRAMS / "broken_calls.py", seed, first, last], ranks, folder=Path(folder), limit=_ALONE,
                  **({"HYBRID_STALL": "1"} | ours | OF_PROGRAMS))  # fmt: skip
        job.has_ended(_ALONE)
        end = job.ended(1.0)
    lines = [json.loads(text) for text in end.out.splitlines() if text.startswith("{")]
    if len(lines) < last - first:
        lines.append({"number": first + len(lines), "ranks": ranks, "error": "?", "said": end.err[-3000:]})
    return lines


def _judged(line: dict[str, Any]) -> list[str]:
    """The columns in which a trial counts."""
    if "next" not in line:
        return ["trials", "ended by a line" if "[rank-missing]" in line["said"] else "hung or died"]
    raised = sum(map(bool, line["said"]))
    if "wrong" in (*line["said"], *line["next"]):
        then = "wrong"
    elif not any(line["next"]):
        then = "next right"
    else:
        then = "next lost" if all(said.startswith("lost") for said in line["next"]) else "neither"
    return ["trials", "on none" if not raised else "on all" if raised == len(line["said"]) else "on some", then]


LARGEST, LARGEST_PLAYED = 2500, 300  # rows of random matrices, on GPUs and on the fake CuPy


def _random_products(options: argparse.Namespace) -> int:
    player, largest = [], LARGEST
    try:
        usable_gpus()
    except DeviceUnavailable:
        player, largest = ["-m", "hybrid.testing", "--gpus", str(options.ranks)], LARGEST_PLAYED
    launch = mpirun(options.ranks) if options.ranks > 1 else []
    given = map(str, (options.products, 60 * options.minutes, largest, options.seed))
    return subprocess.run([*launch, sys.executable, *player, _PROGRAMS / "random_products.py", *given], check=False).returncode


class Ordeal(frame.MachineExperiment):
    """Does every job end, soon and by one line? python scripts/ordeal.py [--minutes M] [--trials K] [--ranks P] [--json F]

    Starts jobs of 1 to 4 ranks, commands and a program over hybrid.multiply. At a random time one of their processes, or all,
    gets a signal, is stopped for good or paused; or the job has too little memory or too few files. Counts jobs that had not
    ended after 30 s plus four times what their work takes alone, the slowest end, failures that were not named by exactly one
    line of ours, and processes and files left behind. Counted apart: what is left where nobody of ours could name the failure or
    MPI had not started, and a launcher that goes on when its job is gone or has not begun. Ends with 1 for anything else. --from
    gives one table of all runs, including interrupted ones.

    --products K: instead, K random products on --ranks GPUs, or on a fake CuPy without any: is each right, and is all memory
    unpinned and freed with its array? Prints a line of JSON, and ends with 1 if not.

    --inside: instead, one of 2 to P ranks raises at a random line of a call of hybrid.multiply, or is interrupted there. On which
    ranks is that raised, and is the next call right, or does it say that the communicator is lost?
    """

    command, again = "ordeal", "python scripts/ordeal.py"
    options = (
        frame.option("--minutes", type=float, default=2.0, metavar="M", help="start nothing after M minutes (2)"),
        frame.option("--trials", type=frame.positive, default=10**6, metavar="K", help="at most K trials"),
        frame.option("--ranks", type=frame.positive, default=4, metavar="P", help="at most P ranks (4)"),
        frame.option("--seed", type=int, default=secrets.randbits(32), help="of jobs, faults and times"),
        frame.option("--verbose", action="store_true", help="print each bad trial when it ends"),
        frame.option("--inside", action="store_true", help="instead, one rank fails at a random line of a call"),
        frame.option("--products", type=frame.positive, metavar="K", help="instead, at most K random products in M minutes"),
    )

    @classmethod
    def work(cls, options: argparse.Namespace) -> int:
        if options.inside:
            return tried_inside(options)
        return _random_products(options) if options.products else super().work(options)

    @classmethod
    def measured(cls, options: argparse.Namespace) -> Iterator[frame.Line]:
        if not may_mount():
            print("files that stay are not looked for: no leave to mount folders of a job's own", file=sys.stderr, flush=True)
        known = {command: usual(command) for command in COMMANDS}
        dice, until = random.Random(options.seed), time.monotonic() + 60 * options.minutes  # noqa: S311 (no secret)
        for number in itertools.takewhile(lambda _: time.monotonic() < until, range(options.trials)):
            line = trial(number, dice, options.ranks, known)
            if options.verbose and is_faulty(line):
                print({key: value for key, value in line.items() if key != "part"}, flush=True)
            yield {**line, "seed": options.seed}

    def blocks(self) -> Iterator[frame.Table]:
        groups: dict[tuple[str, str], list[frame.Line]] = {}
        for line in self.lines:
            groups.setdefault((line["fault"], line["whom"]), []).append(line)
        rows = []
        for kind, lines in [*sorted(groups.items()), (("all", ""), list(self.lines))]:
            trials, hangs, went_on, *others = (sum(map(bool, map(counts, lines))) for counts in _COUNTED.values())
            ends = [line["seconds"] for line in lines if line["ended"] and line["exit_code"]]
            slowest = f"{max(ends):.1f} s" if ends else "–" if went_on else f"over {LIMIT:.0f} s"
            rows.append([*kind, str(trials), str(hangs), slowest, *map(str, (went_on, *others))])
        first, second, *heads = _COUNTED
        yield frame.Table(["fault", "to", first, second, "slowest end", *heads], "ll" + "r" * (1 + len(_COUNTED)), rows)

    def exit_code(self) -> int:
        """1 for any fault, except what is counted apart."""
        return int(any(map(is_faulty, self.lines)))
