# SPDX-License-Identifier: MIT
"""One trial: a random job, a random fault at a random time, and how the job ended."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from experiments.common import results
from experiments.common.results import Line
from experiments.ordeal.job import RESOURCES, Job, Place
from hybrid.core.problem import record
from hybrid.errors import HybridError

STALL = 3.0  # seconds, --stall of every job
_ENVIRONMENT = {"HYBRID_STALL": str(STALL)}
# What Open MPI does at a deadly signal, to print where the process stood, may never end (1 of 600 processes). A program has no
# supervisor that would notice: so there it is left out, as docs/failures.md advises.
OF_PROGRAMS = {"OMPI_MCA_opal_signal": ""}
LIMIT = 30.0  # seconds after the fault, beyond which a job hangs; beside those that its work takes
_TIMES_USUAL = 4  # as long as usual a job may take, of several ranks beside other jobs
_LONGEST = 300.0  # seconds that a command may take when all is well
LATEST = 2.0  # seconds after the start at which the fault falls
PAUSE = 4.5  # seconds for which a whole job is put to sleep: longer than --stall
_SLOW = ("--threads", "1", "--repeat", "3")

# No supervisor watches it: it is ended by its launcher, or by python -m mpi4py, which say so.
LIBRARY = ("-m", "mpi4py", str(Path(__file__).with_name("programs") / "products.py"), "40")
_WITH_FILE = ("-m", "hybrid.matmul", "3500", "3500", "3500", "--check", "host", "--out", "C.npy", "--threads", "1")

# Products that take from a tenth of a second to several, with all parts of the command.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("-m", "hybrid.matmul", "3000", "2500", "2000", *_SLOW),
    ("-m", "hybrid.matmul", "4000", "4000", "4000", "--dtype", "float32", "--fill", "normal", *_SLOW),
    _WITH_FILE,
    ("-m", "hybrid.matmul", "300", "200", "150", "--device", "emulate", "--kernel", "tiled", "--repeat", "3"),
    ("-m", "hybrid.paths", "ten", "--length", "9000", "--threads", "1"),
    LIBRARY,
)


@record
class Fault:
    """`signum`: None where the fault is a limit of resources, by its name, or one of RESOURCES that is taken away."""

    name: str
    signum: int | None
    whom: str  # worker, supervisor, rank (both), all, launcher, nobody
    limit: tuple[str, int] | None = None

    @property
    def resource(self) -> str:
        return self.name if self.name in RESOURCES else ""

    @property
    def kills_who_would_speak(self) -> bool:
        """Nobody of ours is left to say a word, or to whom: the launcher itself reports, or the shell."""
        return self.whom == "launcher" or (self.whom in ("supervisor", "rank", "all") and self.signum in _DEADLY)


_DEADLY = (signal.SIGKILL, signal.SIGSEGV)
_ENDING = tuple(getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT", "HUP", "ABRT", "SEGV", "USR1", "USR2"))


def faults(ranks: int, command: Sequence[str], resources: Sequence[str]) -> list[Fault]:
    """All kinds for a job of so many ranks; 0: without a launcher. `resources`: those that can be taken away here."""
    asleep = [Fault("asleep", signal.SIGSTOP, "all")]
    if command is LIBRARY:  # a rank of it that is stopped within a product keeps the others waiting
        whom = ["rank", *(["launcher"] if ranks else [])]
        return [Fault(signal.Signals(signum).name, signum, who) for signum in _ENDING for who in whom] + asleep
    taken = [Fault(name, None, "nobody") for name in resources if name != "full disk" or command is _WITH_FILE]
    whom = ["worker", "supervisor", "rank", *(["launcher"] if ranks else [])]
    ending = [Fault(signal.Signals(signum).name, signum, who) for signum in _ENDING for who in whom]
    standing = [Fault("SIGSTOP", signal.SIGSTOP, who) for who in ("worker", "supervisor", *(["rank"] if ranks > 1 else []))]
    limits = [
        Fault("few files", None, "nobody", ("RLIMIT_NOFILE", 48)),
        Fault("short files", None, "nobody", ("RLIMIT_FSIZE", 1 << 20)),
        Fault("little memory", None, "nobody", ("RLIMIT_AS", 700 << 20)),
    ]
    return ending + standing + asleep + limits + taken


@record
class Usual:
    """What a command says on standard error when all is well, and how many seconds it takes."""

    lines: tuple[str, ...]
    seconds: float


def usual(command: Sequence[str]) -> Usual:
    """HybridError where it does not succeed."""
    with tempfile.TemporaryDirectory(prefix="ordeal-") as folder:
        job = Job(_in(folder, command), 0, _ENVIRONMENT, {})
        try:
            if not job.ended(_LONGEST) or job.exit_code:
                raise HybridError(f"{' '.join(command[1:])} does not succeed: {' '.join(job.said()[1].split())}")
            return Usual(tuple(job.said()[1].splitlines()), time.monotonic() - job.began)
        finally:
            job.end()


def _in(folder: str, command: Sequence[str]) -> list[str]:
    return [word if word != "C.npy" else f"{folder}/C.npy" for word in command]


def trial(
    number: int,
    dice: random.Random,
    most_ranks: int,
    usual: Mapping[Sequence[str], Usual],
    resources: Sequence[str],
    *,
    own_folders: bool,
    only: str | None = None,
) -> Line:
    """The line of one trial. `usual`: what is so of each command when all is well; `resources`: those that can be taken away;
    `own_folders`: nobody else makes files in /dev/shm and /tmp; `only`: the name of the fault, which some job may have."""
    offered: list[Fault] = []
    while not offered:
        ranks, command = dice.randint(0, most_ranks), dice.choice(COMMANDS)
        offered = [fault for fault in faults(ranks, command, resources) if only in (None, fault.name)]
    fault = dice.choice(offered)
    about = {"part": "trial", "number": number, "ranks": ranks, "command_line": [Path(word).name for word in command]}
    with tempfile.TemporaryDirectory(prefix="ordeal-") as folder:
        started = RESOURCES[fault.resource](ranks, folder, dice) if fault.resource else nullcontext(None)
        with started as place:
            environment = _ENVIRONMENT | (OF_PROGRAMS if command is LIBRARY else {})
            limits = dict([fault.limit] if fault.limit else [])
            launch = place.launch if place else None
            job = Job(_in(folder, command), ranks, environment, limits, launch=launch)
            try:
                told = _struck(job, fault, place, dice, usual[command], watched=command is not LIBRARY)
                others = not own_folders and not any(path.startswith("process ") for path in told["left"])
                return about | told | {"apart": told["apart"] or others}
            finally:
                job.end()


def _struck(job: Job, fault: Fault, place: Place | None, dice: random.Random, usual: Usual, *, watched: bool) -> dict[str, Any]:
    """`watched`: by supervisors."""
    at = dice.uniform(0, LATEST)
    struck, young, starts = (fault.signum is not None or place is not None) and not job.ended(at), False, False
    processes: dict[int, list[int]] = {}
    if struck:
        processes, starts = job.rank_processes(), job.starts_mpi()
        # Where some rank has no supervisor yet, since Python is still reading modules, it ends as any program does.
        young = sum(map(len, processes.values())) < (2 if watched else 1) * max(1, job.ranks)
        if place is not None:
            place.strike(job)
        else:
            _strike(job, fault, processes, dice, young=young)
    began = time.monotonic()
    ended = job.ended(LIMIT + _TIMES_USUAL * usual.seconds)  # it may have all of its work to do
    seconds = time.monotonic() - began
    # A launcher does not end the job when a rank ends before it has started MPI, as no supervisor of ours makes it.
    launcher_hung = not ended and (job.only_launcher_runs() or (starts and not watched))
    left = job.remains()
    code = job.exit_code if ended else None
    out, err = job.said()
    said = [line for line in err.splitlines() if results.OURS.match(line) and line not in usual.lines]
    return {
        "fault": fault.name,
        "whom": fault.whom,
        "at": at,
        "struck": struck or fault.limit is not None,
        "seconds": seconds,
        "exit_code": code,
        "ended": ended,
        "lines": said[:4] or err.splitlines()[-4:],
        "well": _well(fault, code, said, out, watched=watched) or young,
        "launcher_hung": launcher_hung,
        "left": left,
        "apart": not watched or young or starts or fault.kills_who_would_speak,
    }


def _strike(job: Job, fault: Fault, processes: Mapping[int, list[int]], dice: random.Random, *, young: bool) -> None:
    assert fault.signum is not None
    everybody = [process for pair in processes.values() for process in pair]
    one = processes[dice.choice(sorted(processes))] if processes else [job.launcher]
    targets: dict[str, Sequence[int]] = {
        "worker": one[1:] or one,
        "supervisor": one[:1],
        "rank": one,
        "all": everybody,
        "launcher": [job.launcher],
    }
    job.send(fault.signum, targets[fault.whom])
    if fault.name == "asleep":
        time.sleep(PAUSE)
        job.send(signal.SIGCONT, everybody)
    if young and job.ranks < 2 and fault.signum == signal.SIGSTOP:
        job.send(signal.SIGCONT, targets[fault.whom])  # the only process there is


def _well(fault: Fault, code: int | None, said: Sequence[str], out: str, *, watched: bool = True) -> bool:
    """Whether the job succeeded without a word of complaint, or failed by exactly one. `watched`: by supervisors, else the
    launcher, or Python, says why."""
    as_usual = not said and bool(out.strip())  # or what was finished when it was asked to end
    if code in (0, 128 + signal.SIGTERM) and as_usual:
        return True
    return bool(code) and (len(said) == 1 or (not said and (fault.kills_who_would_speak or not watched)))
