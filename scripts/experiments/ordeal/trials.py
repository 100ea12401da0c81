# SPDX-License-Identifier: MIT
"""One trial: a random job, a random fault at a random time, and how the job ended."""

from __future__ import annotations

import random
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from experiments.common.frame import Line
from experiments.ordeal.job import SHARED, Job, has_own_tmp
from hybrid.core.problem import record
from hybrid.errors import HybridError

STALL = 3.0  # seconds, --stall of every job
# What Open MPI does at a deadly signal, to print where the process stood, may never end (1 of 600 processes). A program has no
# supervisor that would notice: so there it is left out, as docs/failures.md advises.
OF_PROGRAMS = {"OMPI_MCA_opal_signal": ""}
LIMIT = 30.0  # seconds after the fault, beyond which a job hangs; beside those that its work takes
_LEAVING = 10.0  # seconds that processes and files of an ended job may take to go
_TIMES_USUAL = 4  # as long as usual a job may take, of several ranks beside other jobs
_LONGEST = 300.0  # seconds that a command may take when all is well
LATEST = 2.0  # seconds after the start at which the fault falls
PAUSE = 4.5  # seconds for which a whole job is put to sleep: longer than --stall
_SLOW = ("--threads", "1", "--repeat", "3")
_OURS = re.compile(r"process|hybrid-|mpich_shm_|(vader|sm)_segment|ucx_shm_posix_")  # of what stays

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
    """`signum`: None where the fault is a limit of resources."""

    name: str
    signum: int | None
    whom: str  # worker, supervisor, rank (both), all, launcher, nobody
    limit: tuple[str, int] | None = None

    @property
    def kills_who_would_speak(self) -> bool:
        """Nobody of ours is left to say a word, or to whom: the launcher itself reports, or the shell."""
        return self.whom == "launcher" or (self.whom in ("supervisor", "rank", "all") and self.signum in _DEADLY)


_DEADLY = (signal.SIGKILL, signal.SIGSEGV)
_ENDING = tuple(getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT", "HUP", "ABRT", "SEGV", "USR1", "USR2"))


def faults(ranks: int, command: Sequence[str]) -> list[Fault]:
    """All kinds of fault for a job of `ranks` ranks; 0 ranks: a job without a launcher."""
    launcher = ["launcher"] * (ranks > 0)
    found = [Fault("asleep", signal.SIGSTOP, "all")]
    if command is LIBRARY:  # a rank of it that is stopped within a product keeps the others waiting
        return found + [Fault(signal.Signals(signum).name, signum, who) for signum in _ENDING for who in ("rank", *launcher)]
    whom = ("worker", "supervisor", "rank")
    found += [Fault(signal.Signals(signum).name, signum, who) for signum in _ENDING for who in (*whom, *launcher)]
    found += [Fault("SIGSTOP", signal.SIGSTOP, who) for who in (whom if ranks > 1 else whom[:2])]
    limits = {
        "few files": ("RLIMIT_NOFILE", 48),
        "little memory": ("RLIMIT_AS", 700 << 20),
    }
    return found + [Fault(name, None, "nobody", limit) for name, limit in limits.items()]


# --- trials


@record
class Usual:
    """What a command says on standard error when all is well, and how many seconds it takes."""

    lines: tuple[str, ...]
    seconds: float


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


def usual(command: Sequence[str]) -> Usual:
    """HybridError where it does not succeed."""
    with _started(command) as job:
        ended = _ends(job, _LONGEST)
        seconds, end = time.monotonic() - job.began, job.ended(_LEAVING)
        if not ended or end.code:
            raise HybridError(f"{' '.join(command[1:])} does not succeed: {' '.join(end.err.split())}")
        return Usual(tuple(end.err.splitlines()), seconds)


def _ends(job: Job, within: float) -> bool:
    with suppress(TimeoutExpired):
        job.wait(within)
        return True
    return False


def trial(number: int, dice: random.Random, most_ranks: int, usual: Mapping[tuple[str, ...], Usual]) -> Line:
    """The line of one trial. `usual`: what is so of each command when all is well."""
    ranks, command = dice.randint(0, most_ranks), dice.choice(COMMANDS)
    fault = dice.choice(faults(ranks, command))
    about = {"part": "trial", "number": number, "ranks": ranks, "command_line": [Path(word).name for word in command]}
    with _started(command, ranks, dict([fault.limit]) if fault.limit else None) as job:
        return about | _struck(job, fault, dice, usual[command], watched=command is not LIBRARY)


def _struck(job: Job, fault: Fault, dice: random.Random, usual: Usual, *, watched: bool) -> dict[str, Any]:
    """`watched`: by supervisors."""
    at = dice.uniform(0, LATEST)
    struck, young, starts = fault.limit is None and not _ends(job, at), False, False
    if struck:
        processes = job.processes()
        starts = job.ranks > 0 and (len(processes) < job.ranks or not all(_has_started(each[-1]) for each in processes.values()))
        # Where some rank has no supervisor yet, since Python is still reading modules, it ends as any program does.
        young = sum(map(len, processes.values())) < (2 if watched else 1) * max(1, job.ranks)
        _strike(job, fault, processes, dice, young=young)
    began = time.monotonic()
    ended = _ends(job, LIMIT + _TIMES_USUAL * usual.seconds)  # it may have all of its work to do
    seconds = time.monotonic() - began
    # A launcher does not end the job when a rank ends before it has started MPI, as no supervisor of ours makes it.
    launcher_hung = not ended and (not job.others() or (starts and not watched))
    end = job.ended(_LEAVING)
    code, left = end.code if ended else None, [name for name in (*end.left, *end.of_mpich) if _OURS.match(Path(name).name)]
    said = [line for line in end.lines if line not in usual.lines]
    return {
        "fault": fault.name,
        "whom": fault.whom,
        "at": at,
        "struck": struck or fault.limit is not None,
        "seconds": seconds,
        "exit_code": code,
        "ended": ended,
        "lines": said[:4] or end.err.splitlines()[-4:],
        "well": _well(fault, code, said, end.out, watched=watched) or young,
        "launcher_hung": launcher_hung,
        "left": left,
        "apart": not watched or young or starts or fault.kills_who_would_speak,
    }


_OF_MPI = re.compile(rf" {SHARED}/(mpich_shm|sm_segment|vader_segment)")


def _has_started(worker: int) -> bool:
    """Whether MPI has its memory, and MPICH's has lost its name: until then files that it makes may have names still."""
    with suppress(OSError):
        maps = Path(f"/proc/{worker}/maps").read_text(errors="replace")
        of_mpi = [line for line in maps.splitlines() if _OF_MPI.search(line)]
        return bool(of_mpi) and not any("mpich_shm" in line and not line.endswith("(deleted)") for line in of_mpi)
    return False


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
    job.send(fault.signum, *targets[fault.whom])
    if fault.name == "asleep":
        time.sleep(PAUSE)
        job.send(signal.SIGCONT, *everybody)
    if young and job.ranks < 2 and fault.signum == signal.SIGSTOP:
        job.send(signal.SIGCONT, *targets[fault.whom])  # the only process there is


def _well(fault: Fault, code: int | None, said: Sequence[str], out: str, *, watched: bool = True) -> bool:
    """Whether the job succeeded without a word of complaint, or failed by exactly one. `watched`: by supervisors, else the
    launcher, or Python, says why."""
    as_usual = not said and bool(out.strip())  # or what was finished when it was asked to end
    if code in (0, 128 + signal.SIGTERM) and as_usual:
        return True
    return bool(code) and (len(said) == 1 or (not said and (fault.kills_who_would_speak or not watched)))
